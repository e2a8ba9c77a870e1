package wheel

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestCloseEndsEverythingOnce prevents a second Close that panics or blocks, an Add after it that
// blocks or is lost in silence, and calls that find a wheel half gone.
func TestCloseEndsEverythingOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := NewRunner[int](0)
		done := make(chan error, 1)
		go func() { done <- r.Run(t.Context(), func([]int) { t.Error("fired") }) }()
		id := add(t, r, time.Second, 1)
		synctest.Wait()
		for range 3 {
			r.Close()
		}
		if err := <-done; err != nil {
			t.Errorf("Run returned %v", err)
		}
		if _, err := r.Add(0, 2); !errors.Is(err, ErrClosed) {
			t.Errorf("Add after Close: %v", err)
		}
		if ids, err := r.AddBatch([]Entry[int]{{}}, nil); !errors.Is(err, ErrClosed) || len(ids) != 0 {
			t.Errorf("AddBatch after Close: %v, %v", ids, err)
		}
		if _, ok := r.Cancel(id); ok || r.Reset(id, 0) || r.Len() != 0 {
			t.Error("a timer outlived Close")
		}
		if err := r.Run(t.Context(), nil); err != nil {
			t.Errorf("Run after Close: %v", err)
		}
		r.Clear()
		if s := r.Stats(); s.Cancelled != 1 || s.Timers != 0 {
			t.Errorf("%+v", s)
		}
		time.Sleep(2 * time.Second)
	})
}

// TestCloseBeforeRunKeepsRunFromStarting prevents a signal that is given too early from being lost.
func TestCloseBeforeRunKeepsRunFromStarting(t *testing.T) {
	r := NewRunner[int](0)
	add(t, r, 0, 1)
	r.Close()
	if err := r.Run(t.Context(), func([]int) { t.Error("fired") }); err != nil {
		t.Error(err)
	}
}

// TestCloseWhileTimersExpireReturnsAtOnce prevents a Close that holds what Run needs and waits for
// Run: from another goroutine, and from fire.
func TestCloseWhileTimersExpireReturnsAtOnce(t *testing.T) {
	for _, inFire := range []bool{false, true} {
		for range 50 {
			synctest.Test(t, func(t *testing.T) {
				r := NewRunner[int](0)
				var fired, after atomic.Int32
				var closed atomic.Bool
				done := make(chan error, 1)
				go func() {
					done <- r.Run(t.Context(), func(batch []int) {
						if closed.Load() {
							after.Add(1)
						}
						if fired.Add(int32(len(batch))) > 1000 && inFire {
							r.Close()
							closed.Store(true)
						}
					})
				}()
				for i := range 20_000 {
					if _, err := r.Add(time.Duration(i%3)*time.Millisecond, i); err != nil {
						break
					}
				}
				time.Sleep(time.Millisecond)
				before := r.Now()
				r.Close()
				if err := <-done; err != nil || r.Now() != before {
					t.Errorf("Run returned %v after %v", err, r.Now()-before)
				}
				if n := after.Load(); inFire && n > 0 {
					t.Errorf("%d batches after Close from fire", n)
				}
			})
		}
	}
}

// TestRunIsOneAtATimeAndCanBeRepeated prevents two goroutines that wait for the same bucket; and
// timers that get lost between two Runs, the first of which ended by its context or by a panic of
// fire.
func TestRunIsOneAtATimeAndCanBeRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := NewRunner[string](0)
		stop := run(t, r, func([]string) { t.Error("fired too early") })
		synctest.Wait()
		if err := r.Run(t.Context(), nil); !errors.Is(err, ErrRunning) {
			t.Errorf("second Run: %v", err)
		}
		add(t, r, time.Second, "boom")
		add(t, r, 2*time.Second, "kept")
		if err := stop(); !errors.Is(err, context.Canceled) {
			t.Errorf("Run returned %v", err)
		}
		time.Sleep(1500 * time.Millisecond)
		func() {
			defer func() {
				if recover() == nil {
					t.Error("the panic of fire did not go through Run")
				}
			}()
			_ = r.Run(t.Context(), func(batch []string) { panic(batch[0]) })
		}()
		var fired []string
		stop = run(t, r, func(batch []string) { fired = append(fired, batch...) })
		time.Sleep(time.Second)
		if err := stop(); !errors.Is(err, context.Canceled) || len(fired) != 1 || fired[0] != "kept" {
			t.Errorf("fired %v, %v", fired, err)
		}
	})
}

// TestASlowFireBlocksNobody prevents callbacks that run under the lock: while one sleeps for an
// hour, others add, cancel and reset; and what became due meanwhile comes at once.
func TestASlowFireBlocksNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := NewRunner[int](0)
		var fired atomic.Int32
		stop := run(t, r, func(batch []int) {
			if fired.Add(int32(len(batch))) == 1 {
				time.Sleep(time.Hour)
			}
		})
		add(t, r, time.Millisecond, 0)
		time.Sleep(time.Second)
		for i := range 1000 {
			add(t, r, time.Minute, i)
			gone := add(t, r, time.Minute, i)
			if _, ok := r.Cancel(gone); !ok || !r.Reset(add(t, r, time.Hour, i), 2*time.Minute) {
				t.Fatal("Cancel or Reset missed")
			}
		}
		if r.Now() != time.Second || fired.Load() != 1 || r.Len() != 2000 {
			t.Errorf("at %v: fired %d, Len %d", r.Now(), fired.Load(), r.Len())
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if fired.Load() != 2001 {
			t.Errorf("fired %d", fired.Load())
		}
		_ = stop()
	})
}

// TestAPeriodicTimerIsCancelledForGood prevents the gap between firing and re-arming, in which a
// Cancel misses: the period is kept by fire, under the owner's lock, and the last ID is the one to
// cancel.
func TestAPeriodicTimerIsCancelledForGood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := NewRunner[time.Duration](0)
		var mu sync.Mutex
		var id ID
		var over bool
		beats := 0
		stop := run(t, r, func(batch []time.Duration) {
			mu.Lock()
			defer mu.Unlock()
			if over {
				return
			}
			beats++
			id = add(t, r, batch[0]+70*time.Millisecond, batch[0]+70*time.Millisecond)
		})
		mu.Lock()
		id = add(t, r, 70*time.Millisecond, 70*time.Millisecond)
		mu.Unlock()
		time.Sleep(7 * time.Second)
		synctest.Wait()
		mu.Lock()
		over = true
		if _, ok := r.Cancel(id); !ok || beats != 100 {
			t.Errorf("cancelled %v after %d beats", ok, beats)
		}
		mu.Unlock()
		time.Sleep(time.Minute)
		if r.Len() != 0 || beats != 100 {
			t.Errorf("%d beats, Len %d", beats, r.Len())
		}
		_ = stop()
	})
}
