package wheel

import (
	"context"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// stressTimer is one timer of the stress test. ends counts how it ended: it must be one.
type stressTimer struct {
	at    time.Duration
	moved atomic.Bool
	ends  atomic.Int32
}

// TestEachTimerEndsOnceUnderConcurrentUse runs adders, cancellers and resetters against a runner on
// the real clock, with delays of 0 to 2 ticks and some of a turn, so that all of it happens in
// buckets that are being emptied. With -race it prevents races on the clock, the index and the
// lists; without, deadlocks between cancel and flush, a slot computed before the lock was taken, a
// fire that is early, doubled or lost, a count that is decremented twice. Nothing is left running.
func TestEachTimerEndsOnceUnderConcurrentUse(t *testing.T) {
	goroutines := runtime.NumGoroutine()
	const workers, each = 4, 5000
	r := NewRunner[*stressTimer](200 * time.Microsecond)
	var ended sync.WaitGroup
	ended.Add(workers * each)
	end := func(x *stressTimer) {
		if x.ends.Add(1) == 1 {
			ended.Done()
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- r.Run(ctx, func(batch []*stressTimer) {
			now := r.Now()
			for _, x := range batch {
				if now < x.at && !x.moved.Load() {
					t.Errorf("due %v, fired %v", x.at, now)
				}
				end(x)
			}
		})
	}()
	rnd := newRand(t)
	var all [workers][]*stressTimer
	var group sync.WaitGroup
	for i := range workers {
		seed := rnd.Uint64()
		group.Go(func() { all[i] = stress(t, r, rand.New(rand.NewPCG(seed, 1)), each, end) })
	}
	group.Wait()
	ended.Wait()
	cancel()
	<-done
	for _, timers := range all {
		for _, x := range timers {
			if n := x.ends.Load(); n != 1 {
				t.Fatalf("a timer due %v ended %d times", x.at, n)
			}
		}
	}
	s := r.Stats()
	if s.Timers != 0 || s.Added != workers*each || s.Expired == 0 || s.Cancelled == 0 || s.Cascades == 0 {
		t.Errorf("%+v", s)
	}
	for runtime.NumGoroutine() > goroutines { // the test's own, about to return; a leak hangs here
		runtime.Gosched()
	}
}

// stress adds n timers, and cancels, moves and counts between them.
func stress(t *testing.T, r *Runner[*stressTimer], rnd *rand.Rand, n int, end func(*stressTimer)) []*stressTimer {
	timers := make([]*stressTimer, n)
	ids := make([]ID, n)
	for i := range timers {
		x := &stressTimer{at: r.Now() + time.Duration(rnd.IntN(3))*r.Tick()}
		if rnd.IntN(3) == 0 {
			x.at += 64 * r.Tick()
		}
		id, err := r.Add(x.at, x)
		if err != nil {
			t.Error(err)
		}
		timers[i], ids[i] = x, id
		switch k := rnd.IntN(i + 1); rnd.IntN(4) {
		case 0:
			if got, ok := r.Cancel(ids[k]); ok {
				if got != timers[k] {
					t.Error("Cancel returned another timer")
				}
				end(got)
			}
		case 1:
			timers[k].moved.Store(true)
			r.Reset(ids[k], r.Now()+time.Duration(rnd.IntN(100))*r.Tick())
		case 2:
			if s := r.Stats(); s.Added != uint64(s.Timers)+s.Expired+s.Cancelled || s.Timers < 0 {
				t.Errorf("stats do not add up: %+v", s)
			}
		}
	}
	return timers
}

// TestATimerThatIsDueMayFireBeforeAddReturns prevents the surprise of a callback that looks for a
// variable which Add has not set yet: the value itself comes to fire, and a Cancel behind it says
// that it is too late.
func TestATimerThatIsDueMayFireBeforeAddReturns(t *testing.T) {
	r := NewRunner[*int](0)
	fired := make(chan *int)
	done := make(chan error, 1)
	go func() {
		done <- r.Run(t.Context(), func(batch []*int) {
			for _, v := range batch {
				fired <- v
			}
		})
	}()
	for i := range 1000 {
		id, err := r.Add(-1, &i)
		if err != nil {
			t.Fatal(err)
		}
		if v := <-fired; v != &i {
			t.Fatal("another value fired")
		}
		if _, ok := r.Cancel(id); ok {
			t.Fatal("cancelled after it fired")
		}
	}
	r.Close()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
