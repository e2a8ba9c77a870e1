//go:build synctests

package sim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/zap"

	"github.com/bide-mq/bide"
	"github.com/bide-mq/bide/kafka"
	"github.com/bide-mq/bide/pebblelog"
)

// process is one start of an instance: what cmd/sidecar runs, wired as there.
type process struct {
	w         *world
	id        string
	start     int
	disk      *vfs.MemFS
	wire      *wire
	ahead     *atomic.Int64 // of its machine's wall clock before the true time, ns
	most      atomic.Int64  // the greatest epoch ms that the process saw on it
	scheduler atomic.Pointer[bide.Scheduler]
	cancel    context.CancelFunc
	done      chan struct{}
	err       error // once done
	killed    atomic.Bool
	stopped   bool // on purpose
	frozen    bool
}

// launch starts an instance on a disk.
func (w *world) launch(id string, disk *vfs.MemFS) *process {
	w.starts++
	ctx, cancel := context.WithCancel(context.Background())
	p := &process{
		w: w, id: id, start: w.starts, disk: disk, cancel: cancel, done: make(chan struct{}),
		wire: newWire(w.net, w.rng.Uint64()), ahead: w.instances[id].ahead,
	}
	p.wire.setFate(w.weather.fate)
	for addr, down := range w.down {
		p.wire.setDown(addr, down)
	}
	w.procs = append(w.procs, p)
	w.logf("start %s", p)
	go func() {
		defer close(p.done)
		p.err = p.run(ctx)
		w.logf("ended %s: %v", p, p.err)
	}()
	return p
}

func (p *process) String() string { return fmt.Sprintf("%s#%d", p.id, p.start) }

// run lives from the opening of the log to its closing.
func (p *process) run(ctx context.Context) (err error) {
	set := &p.w.set
	logger := p.w.logger.Named(p.String())
	log, err := pebblelog.Open("log", pebblelog.Options{FS: p.disk, MemtableBytes: set.memtable, CacheBytes: 1 << 20, Logger: logger.Named("log")})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	cluster, err := kafka.NewCluster(kafka.Options{
		Connection: kafka.Connection{Brokers: p.w.addrs(), Dialer: p.wire.dial},
		Group:      group, Instance: p.id, Topics: []string{ingress}, Contract: p.w.contract,
		Mode: set.mode, SessionTimeout: 6 * time.Second, TransactionTimeout: set.transactionTimeout, DeliveryTimeout: 2 * time.Second,
		Compression:  "none", // buffers of megabytes for batches of bytes would take most of the time
		Transactions: set.limits.Transactions, Logger: logger.Named("kafka"),
	})
	if err != nil {
		return err
	}
	defer cluster.Close()
	scheduler, err := bide.New(bide.Options{
		Cluster: &witness{Cluster: cluster, p: p}, Log: log, Contract: p.w.contract, Instance: p.id, Limits: set.limits,
		Retry:  bide.Retry{Backoff: 200 * time.Millisecond, MaxBackoff: 2 * time.Second, MaxAttempts: 12},
		Upkeep: func(string) bide.Upkeep { return set.upkeep }, Logger: logger.Named("scheduler"), Wall: p.wall,
	})
	if err != nil {
		return err
	}
	p.scheduler.Store(scheduler)
	return scheduler.Run(ctx)
}

// wall is the process's wall clock. It may be set, which the process does not expect.
func (p *process) wall() time.Time {
	t := time.Now().Add(time.Duration(p.ahead.Load()))
	for ms := t.UnixMilli(); ; {
		most := p.most.Load()
		if ms <= most || p.most.CompareAndSwap(most, ms) {
			return t
		}
	}
}

// alive reports whether the process runs and is not dead to the world.
func (p *process) alive() bool {
	select {
	case <-p.done:
		return false
	default:
		return !p.killed.Load() && !p.stopped
	}
}

// kill ends the process at once, and returns what its disk holds then: what was synced, and as much of
// the rest as chance has it.
func (p *process) kill(rng *rand.Rand) *vfs.MemFS {
	p.killed.Store(true)
	p.frozen = false
	arrives := rng.IntN(2) == 0
	kept := rng.IntN(101)
	p.wire.kill(arrives)
	disk := p.disk.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: kept, RNG: rng})
	p.cancel()
	p.w.logf("kill %s: what is under way arrives: %t, unsynced data kept: %d%%", p, arrives, kept)
	return disk
}

// stop asks the process to end.
func (p *process) stop() {
	p.stopped = true
	p.w.logf("stop %s", p)
	p.cancel()
}

// witness notes what a process is about to deliver, and what it is told came of it.
type witness struct {
	bide.Cluster
	p *process
}

// attempt is one try at settling a message.
type attempt struct {
	by      string
	at      time.Time
	kind    bide.FateKind
	outcome string
}

// Transact implements [bide.Cluster].
func (t *witness) Transact(ctx context.Context, m bide.Membership, plans []*bide.Plan) []bide.Result {
	w, most := t.p.w, t.p.most.Load()
	w.plans.Add(int64(len(plans)))
	var tries [][]*attempt
	var early []string
	w.mu.Lock()
	for _, plan := range plans {
		var mine []*attempt
		for i := range plan.Items {
			it := &plan.Items[i]
			a := &attempt{by: t.p.String(), at: time.Now(), kind: it.Fate.Kind, outcome: "pending"}
			id := labelOf(it.Headers)
			w.attempts[id] = append(w.attempts[id], a)
			mine = append(mine, a)
			if it.Fate.Kind == bide.Deliver && it.DueMs > most && !t.p.killed.Load() {
				early = append(early, fmt.Sprintf("%s, due %d", id, it.DueMs))
			}
		}
		tries = append(tries, mine)
	}
	w.mu.Unlock()
	if len(early) > 0 {
		w.fail("early: %s delivers when its clock shows %d at most: %v", t.p, most, early)
	}
	results := t.Cluster.Transact(ctx, m, plans)
	for i, mine := range tries {
		w.mu.Lock()
		for _, a := range mine {
			a.outcome = [...]string{bide.Aborted: "aborted", bide.Committed: "committed", bide.Taken: "taken"}[results[i].Outcome]
		}
		w.mu.Unlock()
		w.log.Debug("plan", zap.Stringer("by", t.p), zap.Stringer("lane", plans[i].Lane), zap.Int("items", len(mine)),
			zap.Int64("next", plans[i].Commit.Next), zap.Int64("low", plans[i].Commit.Low), zap.Stringer("cursor", plans[i].Commit.Cursor),
			zap.Uint64("plan", plans[i].Commit.Writer.Plan), zap.Uint8("outcome", uint8(results[i].Outcome)), zap.Error(results[i].Err))
	}
	return results
}
