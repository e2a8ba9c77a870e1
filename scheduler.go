package bide

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
)

// Limits bound what the scheduler holds in memory and how often it does what costs. A zero field
// takes its default.
type Limits struct {
	// PollRecords bounds the records of one poll, and so of one append. Default 5000.
	PollRecords int
	// PlanMessages and PlanBytes bound the messages of one transaction, over all its lanes; a single
	// message larger than PlanBytes goes alone. Defaults 5000 and 4 MiB.
	PlanMessages int
	PlanBytes    int
	// Transactions is how many run at a time. Default 4: with 2 or more, the broker's work after the
	// end of one overlaps with the next.
	Transactions int
	// TransactionEvery is the least time between the starts of two. Default 5 ms: it gathers what is
	// due in one transaction where starting one a message would keep the coordinator busy.
	TransactionEvery time.Duration
	// CommitEvery is how long accepted offsets may stay uncommitted while nothing is delivered, and so
	// how much is read again after a crash. Default 1 s, and no more than 50,000 offsets.
	CommitEvery   time.Duration
	CommitOffsets int64
	// LagPause pauses the reading of a lane whose oldest overdue message is later than that, until it
	// is below half. Default 10 s.
	LagPause time.Duration
	// FreeBytes pauses all reading while the log's file system has less free. Default 256 MiB.
	FreeBytes uint64
	// ClockEvery is how often the wall clock is compared with the monotonic one, and the free space with
	// its reserve. Default 1 s.
	ClockEvery time.Duration
	// UpkeepEvery is how often lanes are looked at for what may be trimmed or carried. Default 10 s.
	UpkeepEvery time.Duration
	// DeadOffsets is how many dead records a lane's ingress may hold, beyond as many as wait, before
	// messages are carried forward. Default 65,536: at a KiB a record, 64 MiB.
	DeadOffsets int64
	// Drain bounds how long a stop waits for transactions in flight. Default 4 s.
	Drain time.Duration
}

func (l Limits) withDefaults() Limits {
	d := Limits{
		PollRecords: 5000, PlanMessages: 5000, PlanBytes: 4 << 20, Transactions: 4, TransactionEvery: 5 * time.Millisecond,
		CommitEvery: time.Second, CommitOffsets: 50_000, LagPause: 10 * time.Second, FreeBytes: 256 << 20, ClockEvery: time.Second, UpkeepEvery: 10 * time.Second, DeadOffsets: 1 << 16, Drain: 4 * time.Second,
	}
	orDefault(&l.PollRecords, d.PollRecords)
	orDefault(&l.PlanMessages, d.PlanMessages)
	orDefault(&l.PlanBytes, d.PlanBytes)
	orDefault(&l.Transactions, d.Transactions)
	orDefault(&l.TransactionEvery, d.TransactionEvery)
	orDefault(&l.CommitEvery, d.CommitEvery)
	orDefault(&l.CommitOffsets, d.CommitOffsets)
	orDefault(&l.LagPause, d.LagPause)
	orDefault(&l.FreeBytes, d.FreeBytes)
	orDefault(&l.ClockEvery, d.ClockEvery)
	orDefault(&l.UpkeepEvery, d.UpkeepEvery)
	orDefault(&l.DeadOffsets, d.DeadOffsets)
	orDefault(&l.Drain, d.Drain)
	return l
}

func orDefault[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

// Policy says what to do where Kafka's state leaves a choice that can lose or double messages. The
// zero Policy stops the lane with an error that names the way out.
type Policy struct {
	// StartEarliest accepts a lane without a commit although its ingress is old: it is read from its
	// first record.
	StartEarliest bool
	// ClearForeign accepts an offset that was committed by something else than Bide: the lane's log is
	// cleared, and the lane starts there.
	ClearForeign bool
	// DiscardRecreated accepts that an ingress was deleted and created again, or lost its end: what
	// still waits from before is dropped.
	DiscardRecreated bool
}

// Retry says how messages are tried again whose target cannot be written. A zero field takes its
// default.
type Retry struct {
	// Backoff is the delay before the second try; it doubles up to MaxBackoff. Defaults 1 s, 5 min.
	Backoff, MaxBackoff time.Duration
	// MaxAttempts is after how many tries a message becomes a dead letter. Default 20.
	MaxAttempts int
}

func (r Retry) withDefaults() Retry {
	orDefault(&r.Backoff, time.Second)
	orDefault(&r.MaxBackoff, 5*time.Minute)
	orDefault(&r.MaxAttempts, 20)
	return r
}

// after returns the delay before try attempt+1, with up to a quarter of jitter.
func (r Retry) after(attempt int) time.Duration {
	d := r.Backoff << min(max(attempt-1, 0), 30)
	if d <= 0 || d > r.MaxBackoff {
		d = r.MaxBackoff
	}
	return d + rand.N(d/4+1)
}

// Options are what a [Scheduler] works with. Cluster, Log, Contract and Instance are required.
type Options struct {
	Cluster  Cluster
	Log      Log
	Contract Contract
	// Instance is the static member id of this process in the group; commits carry it.
	Instance string
	Limits   Limits
	Policy   Policy
	Retry    Retry
	// Upkeep says how each ingress topic is kept small; nil: nothing is trimmed or carried. It is asked
	// each time, so that it may follow the topic's settings.
	Upkeep func(topic string) Upkeep
	// Logger and Metrics may be nil.
	Logger  *zap.Logger
	Metrics *Metrics
	// Pulse, if given, is asked for the pulse of each of the scheduler's loops: ingest, deliver, wheel,
	// horizon, upkeep and clock.
	Pulse func(loop string) Pulse
	// Wall is the wall clock that decides what is due; nil is time.Now.
	Wall func() time.Time
}

// Scheduler takes records from a [Cluster]'s ingress lanes, keeps them in a [Log] and has them
// delivered when they are due.
type Scheduler struct {
	cluster  Cluster
	log      Log
	contract Contract
	limits   Limits
	policy   Policy
	retry    Retry
	upkeep   func(string) Upkeep
	logger   *zap.Logger
	metrics  *Metrics
	pulse    func(string) Pulse
	wall     func() time.Time
	writer   Writer
	plans    atomic.Uint64

	timers *timers
	ripe   *inbox        // lanes for the delivery loop to look at
	edges  *inbox        // lanes of which a further stretch is to be loaded into the wheel
	chores *inbox        // lanes that may carry more
	slots  chan struct{} // one token a transaction in flight

	joined   atomic.Bool
	stopping atomic.Bool
	diskFull atomic.Bool
	started  time.Time       // of the last transaction; the delivery loop's own
	tasks    *errgroup.Group // set by Run before any loop starts, as work is: it ends with Run
	work     context.Context

	mu struct {
		sync.Mutex
		lanes  map[Lane]*lane
		byID   []*lane
		epochs uint64
	}
}

var _ Owner = (*Scheduler)(nil)

// New returns a scheduler; nothing happens before Run.
func New(o Options) (*Scheduler, error) {
	if o.Cluster == nil || o.Log == nil || o.Contract == nil || o.Instance == "" {
		return nil, errors.New("new scheduler: Cluster, Log, Contract and Instance are required")
	}
	s := &Scheduler{
		cluster: o.Cluster, log: o.Log, contract: o.Contract,
		limits: o.Limits.withDefaults(), policy: o.Policy, retry: o.Retry.withDefaults(), upkeep: o.Upkeep,
		logger: o.Logger, metrics: o.Metrics, pulse: o.Pulse, wall: o.Wall,
		writer: Writer{Instance: o.Instance, Incarnation: rand.Uint64()},
		ripe:   newInbox(), edges: newInbox(), chores: newInbox(),
	}
	if s.upkeep == nil {
		s.upkeep = func(string) Upkeep { return Upkeep{} }
	}
	if s.logger == nil {
		s.logger = zap.NewNop()
	}
	if s.metrics == nil {
		s.metrics = NewMetrics(nil)
	}
	if s.pulse == nil {
		s.pulse = func(string) Pulse { return noPulse{} }
	}
	if s.wall == nil {
		s.wall = time.Now
	}
	s.slots = make(chan struct{}, s.limits.Transactions)
	s.mu.lanes = make(map[Lane]*lane)
	s.timers = newTimers(s.wall)
	s.metrics.observe(s)
	return s, nil
}

type noPulse struct{}

func (noPulse) Work() {}
func (noPulse) Rest() {}

// Run takes part in the group until ctx is done, then ends what is in flight, commits, and returns
// nil: within seconds, however long the delays. It returns early with the first fault that it cannot
// mend, [ErrFenced] among them; the process should then end, for a restart finds everything it needs.
// It may be called once.
func (s *Scheduler) Run(ctx context.Context) error {
	tasks, work := errgroup.WithContext(context.WithoutCancel(ctx))
	work, stop := context.WithCancel(work)
	defer stop()
	reading, stopReading := context.WithCancel(work)
	defer stopReading()
	s.tasks, s.work = tasks, work

	drained := make(chan struct{})
	s.spawn("ingest", func() error { return s.ingest(reading) })
	s.spawn("deliver", func() error { defer close(drained); return s.deliver(work) })
	s.spawn("wheel", func() error { return s.runWheel(work) })
	s.spawn("horizon", func() error { return s.watchHorizons(work) })
	s.spawn("upkeep", func() error { return s.runUpkeep(work) })
	s.spawn("clock", func() error { return s.watchClock(work) })
	s.spawn("group", func() error {
		defer s.joined.Store(false)
		return s.cluster.Join(work, s)
	})
	s.spawn("stop", func() error {
		select {
		case <-ctx.Done():
		case <-work.Done():
			return nil
		}
		s.logger.Info("stopping")
		stopReading()
		s.stopping.Store(true)
		s.nudge()
		<-drained
		stop()
		return nil
	})
	err := tasks.Wait()
	if errors.Is(err, context.Canceled) {
		err = nil
	}
	return err
}

// spawn runs a loop as one of Run's tasks. A panic becomes an error that names the loop.
func (s *Scheduler) spawn(name string, loop func() error) {
	s.tasks.Go(func() (err error) {
		defer func() {
			if p := recover(); p != nil {
				err = fmt.Errorf("loop %q panicked: %v\n%s", name, p, debug.Stack())
			}
		}()
		if err := loop(); err != nil {
			return fmt.Errorf("loop %q: %w", name, err)
		}
		return nil
	})
}

// nowMs is the wall clock rounded down, so that what is due by it is due.
func (s *Scheduler) nowMs() int64 { return s.wall().UnixMilli() }
