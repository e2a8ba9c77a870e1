//go:build synctests

package sim

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

var (
	flagRuns   = flag.Uint64("sim.runs", 1, "with -sim.seed: how many seeds, from that one on")
	flagSeed   = flag.Uint64("sim.seed", 0, "run this seed in place of the fixed ones")
	flagRepeat = flag.Int("sim.repeat", 1, "how often to run each seed")
	flagOnly   = flag.String("sim.only", "", "let only these events happen, separated by commas; none: let nothing happen")
	flagLog    = flag.Bool("sim.log", false, "print the log of every run, with every plan")
)

// fixed seeds run each time; a fresh one joins them.
var fixed = []uint64{1, 2, 3, 4, 5, 6, 7, 8, 9}

// hangLimit is the real time after which a run is taken to hang: a hundred times what one takes on a core of
// its own, since it may have to share it, with the race detector.
const hangLimit = 3 * time.Minute

func TestSimulation(t *testing.T) {
	seeds := fixed
	switch {
	case *flagSeed != 0 || *flagRuns > 1:
		seeds = nil
		first := max(*flagSeed, 1)
		for i := range *flagRuns {
			seeds = append(seeds, first+i)
		}
	default:
		fresh := rand.Uint64()>>16 | 1<<40
		fmt.Printf("fresh seed %d\n", fresh)
		seeds = append([]uint64{fresh}, fixed...)
	}
	for _, seed := range seeds {
		for range *flagRepeat {
			t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) { simulate(t, seed) })
			// Pools keep what belongs to the bubble of this run; two collections empty them.
			runtime.GC()
			runtime.GC()
		}
	}
}

// simulate runs one seed in a bubble of its own.
func simulate(t *testing.T, seed uint64) {
	var now atomic.Pointer[world]
	hang := time.AfterFunc(hangLimit, func() {
		stacks := make([]byte, 4<<20)
		stacks = stacks[:runtime.Stack(stacks, true)]
		if w := now.Load(); w != nil {
			w.mu.Lock()
			stacks = append(stacks, w.lines.Bytes()...)
		}
		name := fmt.Sprintf("%s/bide-sim-%d.hang", os.TempDir(), seed)
		_ = os.WriteFile(name, stacks, 0o600)
		panic(fmt.Sprintf("seed %d hangs; stacks and log are in %s", seed, name))
	})
	defer hang.Stop()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, seed)
		now.Store(w)
		w.run(rand.New(rand.NewPCG(seed, 2)))
		w.report(seed)
	})
}

// run is one life of the world.
func (w *world) run(rng *rand.Rand) {
	defer w.fake.Close()
	life, end := context.WithCancel(context.Background())
	tailing := w.followIngress(life)
	defer func() { end(); <-tailing }()
	ctx, stop := context.WithCancel(life)
	defer stop()
	produced := make(chan error, 1)
	go func() { produced <- w.produce(ctx, rng) }()
	w.startAll()
	w.chaos(ctx)
	stop()
	if err := <-produced; err != nil {
		w.fail("%v", err)
	}
	if w.rng.IntN(2) == 0 {
		w.blackout()
		w.calm()
		if s, err := w.look(); err != nil {
			w.fail("look after the blackout: %v", err)
		} else {
			w.checkCommits(s)
		}
	}
	w.calm()
	w.startAll()
	w.settle()
	w.checkLogs()
	for _, p := range w.procs {
		p.stop()
	}
	for _, p := range w.procs {
		w.await(p)
	}
	time.Sleep(time.Second)
	s, err := w.look()
	if err != nil {
		w.fail("look at the end: %v", err)
		return
	}
	duplicates := w.checkAll(s)
	w.logf("%d messages, %d duplicates, settled %v after the last fault, %d plans, events %v", len(s.stories), duplicates, w.settled, w.plans.Load(), w.counts)
}

// settleLimit is how long after the last fault everything may take: the longest delay, then the retries of
// messages whose target does not exist, each of which may hold a plan of four messages up for half a
// second, and time to spare.
const settleLimit = 10 * time.Minute

// settle lets time go on until nothing waits.
func (w *world) settle() {
	var open string
	start := time.Now()
	defer func() { w.settled = time.Since(start) }()
	for end := start.Add(settleLimit); time.Now().Before(end); {
		w.advance(context.Background(), time.Now().Add(2*time.Second))
		w.reap()
		if time.Since(start) > groupLimit && w.counts["stuck"] == 0 && w.nobodyJoined() {
			w.unstick()
		}
		if open = w.unsettled(); open == "" {
			return
		}
	}
	var states []string
	for _, p := range w.procs {
		if s := p.scheduler.Load(); s != nil && p.alive() {
			states = append(states, fmt.Sprintf("%s: %+v", p, s.Status()))
		}
	}
	w.fail("not settled %v after the last fault: %s; %s", settleLimit, open, strings.Join(states, "; "))
}

// groupLimit is more than any rebalance takes: the time-out of one, and twice that of a session.
const groupLimit = 80 * time.Second

func (w *world) nobodyJoined() bool {
	for _, p := range w.procs {
		if s := p.scheduler.Load(); s != nil && p.alive() && s.Status().Joined {
			return false
		}
	}
	return true
}

// unstick starts all processes anew after a while in which the group has no member. The embedded cluster counts a
// member that waits for its assignment as one that joins, when its place is taken by another process
// with its instance id; it then waits for a member too many, and begins to wait again with each join.
func (w *world) unstick() {
	w.logf("nobody can join the group: start anew")
	w.counts["stuck"]++
	for _, p := range w.procs {
		p.stop()
	}
	for _, p := range w.procs {
		w.await(p)
	}
	time.Sleep(groupLimit)
	w.startAll()
}

// unsettled says what still waits.
func (w *world) unsettled() string {
	owned := 0
	for _, p := range w.procs {
		s := p.scheduler.Load()
		if s == nil || !p.alive() {
			continue
		}
		for _, l := range s.Status().Lanes {
			owned++
			if !l.Delivers() || l.Waiting > 0 || l.Read != l.Next || l.Low != l.Next {
				return fmt.Sprintf("%s has %+v", p, l)
			}
		}
	}
	if owned != w.set.lanes {
		return fmt.Sprintf("%d of %d lanes are owned", owned, w.set.lanes)
	}
	records, err := w.tail.all(w)
	if err != nil {
		return err.Error()
	}
	commits, err := w.commits()
	if err != nil {
		return err.Error()
	}
	for p, rs := range records {
		if end := rs[len(rs)-1].Offset + 1; commits[p].next < end {
			return fmt.Sprintf("lane %d ends at %d, next is %d", p, end, commits[p].next)
		}
	}
	return ""
}

// checkLogs looks for messages in the logs of lanes in which nothing waits.
func (w *world) checkLogs() {
	for _, p := range w.procs {
		if s := p.scheduler.Load(); s != nil && p.alive() {
			for _, l := range s.Status().Lanes {
				if l.Waiting != 0 || l.State != "delivering" {
					w.fail("%s: lane %s is %s with %d messages in the log", p, l.Lane, l.State, l.Waiting)
				}
			}
		}
	}
}

// report prints what is wrong, and the log.
func (w *world) report(seed uint64) {
	_ = w.logger.Sync()
	if len(w.faults) == 0 && !*flagLog {
		return
	}
	name := fmt.Sprintf("%s/bide-sim-%d.log", os.TempDir(), seed)
	if *flagLog || os.WriteFile(name, w.lines.Bytes(), 0o600) != nil {
		w.t.Logf("log:\n%s", w.lines.Bytes())
	} else {
		lines := bytesTail(w.lines.Bytes(), 60)
		w.t.Logf("log of seed %d in %s; its end:\n%s", seed, name, lines)
	}
	shown := slices.Clone(w.faults)
	if len(shown) > 20 {
		shown = append(shown[:20], fmt.Sprintf("and %d more", len(shown)-20))
	}
	if len(shown) > 0 {
		w.t.Errorf("seed %d (go test ./test/sim -run Simulation -sim.seed %d):\n%s", seed, seed, strings.Join(shown, "\n"))
	}
}

func bytesTail(b []byte, lines int) []byte {
	for i := len(b) - 1; i > 0; i-- {
		if b[i] == '\n' {
			if lines--; lines < 0 {
				return b[i+1:]
			}
		}
	}
	return b
}
