package bide

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

var errDisk = errors.New("disk error")

// faultyLog is a fakeLog whose scans can fail, lane by lane, and of which lanes can be corrupt.
type faultyLog struct {
	*fakeLog
	scan func(Lane) error

	mu      sync.Mutex
	corrupt map[Lane]string // the method that meets what is corrupt, until the lane is reset
}

func (g *faultyLog) meet(name Lane, method string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.corrupt[name] == method {
		return ErrLogCorrupt
	}
	return nil
}

type faultyLane struct {
	*fakeLane
	of   *faultyLog
	name Lane
}

func (g *faultyLog) Lane(name Lane) (LaneLog, error) {
	l, err := g.fakeLog.Lane(name)
	return &faultyLane{l.(*fakeLane), g, name}, err
}

func (g *faultyLog) Append(ctx context.Context, entries []Append, d Durability) error {
	plain := make([]Append, len(entries))
	for i, e := range entries {
		l := e.Lane.(*faultyLane)
		if err := g.meet(l.name, "Append"); err != nil {
			return err
		}
		plain[i] = e
		plain[i].Lane = l.fakeLane
	}
	return g.fakeLog.Append(ctx, plain, d)
}

func (l *faultyLane) Scan(after, upTo Position, b Budget) ([]Message, bool, error) {
	if l.of.scan != nil {
		if err := l.of.scan(l.name); err != nil {
			return nil, false, err
		}
	}
	return l.fakeLane.Scan(after, upTo, b)
}

func (l *faultyLane) Next(after Position) (Position, bool, error) {
	if err := l.of.meet(l.name, "Next"); err != nil {
		return Position{}, false, err
	}
	return l.fakeLane.Next(after)
}

func (l *faultyLane) Forget(cursor Position) error {
	if err := l.of.meet(l.name, "Forget"); err != nil {
		return err
	}
	return l.fakeLane.Forget(cursor)
}

func (l *faultyLane) Reset(c Commit) error {
	l.of.mu.Lock()
	delete(l.of.corrupt, l.name)
	l.of.mu.Unlock()
	return l.fakeLane.Reset(c)
}

// leaver is a process that gives its lanes back when it leaves the group, as a real one does, and tells how
// that ended.
type leaver struct {
	*process
	broken  atomic.Bool // transactions panic
	revoked chan any    // what Revoked panicked with, nil where it returned
}

func (c *leaver) Join(ctx context.Context, owner Owner) error {
	err := c.process.Join(ctx, owner)
	defer func() { c.revoked <- recover() }()
	owner.Revoked(ctx, []Lane{laneA, laneB})
	return err
}

func (c *leaver) Transact(ctx context.Context, m Membership, plans []*Plan) []Result {
	if c.broken.Load() {
		panic("a bug")
	}
	return c.process.Transact(ctx, m, plans)
}

// runToItsEnd runs a scheduler until it fails by itself.
func runToItsEnd(t *testing.T, c *leaver, log Log, then func()) error {
	t.Helper()
	s, err := New(Options{Cluster: c, Log: log, Contract: fakeContract{}, Instance: "one", Limits: Limits{TransactionEvery: 100 * time.Millisecond}})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Run(t.Context()) }()
	time.Sleep(time.Second)
	then()
	if p := <-c.revoked; p != nil {
		t.Errorf("giving the lanes back panicked: %v", p)
	}
	return <-done
}

// One lane is in the transaction already when the log of the next cannot be read. Nobody would decide what
// became of it, and whoever gives it back would wait for that.
func TestALogFaultLeavesNoLaneInATransactionThatNeverRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newFakeKafka(laneA, laneB)
		log := &faultyLog{fakeLog: newFakeLog()}
		var failing atomic.Bool
		log.scan = func(l Lane) error {
			if failing.Load() && l == laneB {
				return errDisk
			}
			return nil
		}
		c := &leaver{process: k.process(), revoked: make(chan any, 1)}
		err := runToItsEnd(t, c, log, func() {
			due := time.Now().Add(time.Second)
			k.produce(laneA, "first", dueAt(due.Add(-20*time.Millisecond)))
			k.produce(laneA, "a", dueAt(due)) // both wait for the time between two transactions to pass
			k.produce(laneB, "b", dueAt(due))
			time.Sleep(time.Until(due.Add(-10 * time.Millisecond)))
			failing.Store(true)
		})
		if !errors.Is(err, errDisk) {
			t.Errorf("run: %v, want the disk's error", err)
		}
	})
}

func TestAPanicInATransactionEndsTheProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newFakeKafka(laneA, laneB)
		c := &leaver{process: k.process(), revoked: make(chan any, 1)}
		err := runToItsEnd(t, c, &faultyLog{fakeLog: newFakeLog()}, func() {
			c.broken.Store(true)
			k.produce(laneA, "now")
		})
		if err == nil || !strings.Contains(err.Error(), `loop "transaction" panicked: a bug`) {
			t.Errorf("run: %v, want the panic, and in which loop it was", err)
		}
	})
}

// What is corrupt may be met in a takeover, or when a lane is read again and its messages are looked up. The
// lane is rebuilt, and is not read into the same fault with every start.
func TestALaneWhoseLogIsCorruptIsRebuiltWhereverThatIsMet(t *testing.T) {
	for _, method := range []string{"Next", "Forget", "Append"} {
		t.Run(method, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := newFakeKafka(laneA, laneB)
				log := newFakeLog()
				r := start(t, k, log)
				due := time.Now().Add(time.Minute)
				k.produce(laneA, "early")
				time.Sleep(2 * time.Second)
				k.produce(laneA, "a", dueAt(due))
				k.produce(laneB, "b", dueAt(due))
				time.Sleep(2 * time.Second)
				faulty := &faultyLog{fakeLog: r.kill(log), corrupt: map[Lane]string{laneA: method}}
				r = start(t, k, faulty)
				time.Sleep(time.Second)
				k.produce(laneA, "a2", dueAt(due))
				k.produce(laneB, "b2", dueAt(due))
				time.Sleep(2 * time.Minute)
				if faulty.corrupt[laneA] != "" {
					t.Error("the lane was not rebuilt")
				}
				if n := len(k.deliveries()); n != 5 {
					t.Errorf("%d delivered, want 5", n)
				}
				r.end(t)
			})
		})
	}
}

// untrimmable is a process that may not delete records.
type untrimmable struct{ *leaver }

func (untrimmable) Trim(context.Context, Lane, int64) error { return errors.New("not authorised") }

func TestMessagesAreCarriedThoughRecordsCannotBeDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newFakeKafka(laneA)
		s, err := New(Options{
			Cluster: untrimmable{&leaver{process: k.process(), revoked: make(chan any, 1)}}, Log: newFakeLog(), Contract: fakeContract{}, Instance: "one",
			Limits: Limits{DeadOffsets: 10}, Upkeep: func(string) Upkeep { return Upkeep{Trim: true, Carry: true} },
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		k.produce(laneA, "at once")
		time.Sleep(2 * time.Second)
		k.produce(laneA, "long", dueAt(time.Now().Add(time.Hour)))
		for range 50 {
			k.produce(laneA, "short")
		}
		time.Sleep(time.Minute)
		if n := k.held(laneA); n != 53 {
			t.Errorf("%d records in the ingress, want 52 and a copy", n)
		}
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestWhatIsSkippedIsCommitted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newFakeKafka(laneA)
		r := start(t, k, newFakeLog())
		time.Sleep(time.Second)
		r.p.Pause(laneA)
		for range 10 {
			k.produce(laneA, "gone before it is read")
		}
		time.Sleep(time.Second)
		k.expire(0)
		r.p.Resume(laneA)
		time.Sleep(5 * time.Second)
		if c := k.commit(laneA); c.Next != 10 {
			t.Errorf("next is %d, want 10", c.Next)
		}
		r.end(t)
	})
}
