package bide

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// steppedClock is a wall clock that is set now and then.
type steppedClock struct {
	mu    sync.Mutex
	ahead time.Duration
	// before is what ahead was before the clock was set last, at set.
	before time.Duration
	set    time.Time
}

func (c *steppedClock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Now().Add(c.ahead)
}

func (c *steppedClock) step(ahead time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.before, c.ahead, c.set = c.ahead, ahead, time.Now()
}

// latest is the latest time that the clock showed within a transaction's length.
func (c *steppedClock) latest() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.set) < 10*time.Millisecond {
		return time.Now().Add(max(c.ahead, c.before))
	}
	return time.Now().Add(c.ahead)
}

// The clock is set forth and back at random, by milliseconds to hours, between kills.
func TestAClockThatIsSetAgainAndAgainLosesDoublesAndHurriesNothing(t *testing.T) {
	for range 10 {
		seed := *seedFlag
		if seed == 0 {
			seed = rand.Uint64()
		}
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { tormentClock(t, rand.New(rand.NewPCG(seed, 0))) })
		})
		if *seedFlag != 0 {
			break
		}
	}
}

func tormentClock(t *testing.T, rnd *rand.Rand) {
	k, clock, log := newFakeKafka(laneA), &steppedClock{}, newFakeLog()
	k.fate = func(plans []*Plan) (bool, Result) {
		for _, p := range plans {
			for i := range p.Items {
				if due := p.Items[i].DueMs; due > clock.latest().UnixMilli() {
					t.Errorf("message %s, due %d, is delivered at %d", p.Items[i].Key, due, clock.latest().UnixMilli())
				}
			}
		}
		return true, Result{Outcome: Committed}
	}
	tweak := func(o *Options) { o.Wall = clock.now }
	r := start(t, k, log, tweak)
	produced := 0
	for range 100 {
		switch rnd.IntN(8) {
		case 0:
			size := []time.Duration{5 * time.Millisecond, time.Second, time.Minute, 3 * time.Hour}[rnd.IntN(4)]
			clock.step(time.Duration(rnd.Int64N(int64(2*size))) - size)
		case 1:
			if log = r.kill(log); rnd.IntN(3) == 0 {
				log = newFakeLog()
			}
			r = start(t, k, log, tweak)
		case 2:
			time.Sleep(time.Duration(rnd.IntN(20_000)) * time.Millisecond)
		default:
			for range rnd.IntN(10) {
				k.produce(laneA, fmt.Sprint(produced), dueAt(time.Now().Add(time.Duration(rnd.IntN(60_000)-1000)*time.Millisecond)))
				produced++
			}
			time.Sleep(time.Duration(rnd.IntN(500)) * time.Millisecond)
		}
	}
	clock.step(0)
	time.Sleep(4 * time.Hour)
	counts := map[string]int{}
	for _, d := range k.deliveries() {
		counts[string(d.item.Key)]++
	}
	for i := range produced {
		if n := counts[fmt.Sprint(i)]; n != 1 {
			t.Errorf("message %d delivered %d times", i, n)
		}
	}
	r.end(t)
}

// A machine without a clock of its own begins in 1970 until somebody tells it the time.
func TestAClockThatBeginsIn1970HoldsEverythingUntilItIsSet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, clock := newFakeKafka(laneA), &steppedClock{}
		clock.step(-time.Duration(time.Now().UnixNano()))
		r := start(t, k, newFakeLog(), func(o *Options) { o.Wall = clock.now })
		begin := time.Now()
		k.produce(laneA, "soon", dueAt(begin.Add(5*time.Second)))
		k.produce(laneA, "later", dueAt(begin.Add(time.Minute)))
		time.Sleep(30 * time.Second)
		if n := len(k.deliveries()); n != 0 {
			t.Fatalf("%d delivered in 1970", n)
		}
		clock.step(0)
		time.Sleep(2 * time.Second)
		if n := len(k.deliveries()); n != 1 {
			t.Errorf("%d delivered once the clock was right, want the one that was due", n)
		}
		time.Sleep(time.Minute)
		if n := len(k.deliveries()); n != 2 {
			t.Errorf("%d delivered in the end, want 2", n)
		}
		r.end(t)
	})
}
