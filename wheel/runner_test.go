package wheel

import (
	"context"
	"errors"
	"math"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// run starts r.Run in the bubble and returns a function that ends it, waits, and returns its error.
// A Run that leaves a goroutine behind fails its bubble.
func run[T any](t *testing.T, r *Runner[T], fire func([]T)) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx, fire) }()
	return func() error {
		cancel()
		return <-done
	}
}

// add adds a timer to an open runner.
func add[T any](t *testing.T, r *Runner[T], at time.Duration, v T) ID {
	t.Helper()
	id, err := r.Add(at, v)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

const year = 365 * 24 * time.Hour

// TestTimersFireInTheirTick prevents early timers, by rounding or by a tick that is no multiple of
// a millisecond; late ones, also years ahead; and a delay of MaxInt64 that fires at once.
func TestTimersFireInTheirTick(t *testing.T) {
	ats := []time.Duration{
		-5, 0, 1, 333_333, time.Millisecond - 1, time.Millisecond, 1_900_000, 64 * time.Millisecond, 70_000_001,
		4096 * time.Millisecond, time.Minute, time.Hour + 1, 1193 * time.Hour, 8 * 24 * time.Hour, year, 100 * year,
	}
	for _, tick := range []time.Duration{1, 333 * time.Microsecond, 0, 1_500_000, 10 * time.Millisecond, time.Second, time.Hour} {
		t.Run(tick.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := NewRunner[time.Duration](tick)
				fired := 0
				stop := run(t, r, func(batch []time.Duration) {
					for _, at := range batch {
						if late := r.Now() - max(0, at); late < 0 || late >= r.Tick() {
							t.Errorf("due %v, fired %v later", at, late)
						}
						fired++
					}
				})
				for _, at := range ats {
					add(t, r, at, at)
				}
				add(t, r, math.MaxInt64, math.MaxInt64)
				add(t, r, math.MaxInt64/2, math.MaxInt64/2)
				time.Sleep(101 * year)
				synctest.Wait()
				if fired != len(ats) || r.Len() != 2 {
					t.Errorf("fired %d of %d, %d wait", fired, len(ats), r.Len())
				}
				if err := stop(); !errors.Is(err, context.Canceled) {
					t.Errorf("Run returned %v", err)
				}
			})
		})
	}
}

// TestAnIdleRunnerDoesNotWake prevents polling: a million timers a year ahead cost no wake-up in a
// day.
func TestAnIdleRunnerDoesNotWake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := NewRunner[int](0)
		entries := make([]Entry[int], 1_000_000)
		for i := range entries {
			entries[i] = Entry[int]{At: year + time.Duration(i)*time.Millisecond, Value: i}
		}
		if _, err := r.AddBatch(entries, nil); err != nil {
			t.Fatal(err)
		}
		stop := run(t, r, func([]int) { t.Error("fired") })
		time.Sleep(24 * time.Hour)
		synctest.Wait()
		if s := r.Stats(); s.Wakeups != 0 || s.Timers != 1_000_000 {
			t.Errorf("%+v", s)
		}
		_ = stop()
	})
}

// TestOnlyAnEarlierTimerWakes prevents wake-ups that nobody needs, and a sleeper that is not told
// of an earlier timer.
func TestOnlyAnEarlierTimerWakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := NewRunner[string](0)
		var fired []string
		stop := run(t, r, func(batch []string) { fired = append(fired, batch...) })
		wakeups := func(want uint64, why string) {
			t.Helper()
			synctest.Wait()
			if got := r.Stats().Wakeups; got != want {
				t.Errorf("%s: %d wake-ups, want %d", why, got, want)
			}
		}
		wakeups(0, "empty")
		add(t, r, 40*time.Millisecond, "b")
		wakeups(1, "the first timer")
		for i := range 1000 {
			add(t, r, time.Hour+time.Duration(i), "later")
		}
		later := add(t, r, 50*time.Millisecond, "c")
		wakeups(1, "later ones")
		add(t, r, 10*time.Millisecond, "a")
		wakeups(2, "an earlier one")
		if r.Reset(later, 45*time.Millisecond); r.Len() != 1003 {
			t.Errorf("Len %d", r.Len())
		}
		wakeups(2, "one that was reset, to a time after the sleep")
		r.Reset(later, 5*time.Millisecond)
		wakeups(3, "one that was reset, to an earlier time")
		time.Sleep(60 * time.Millisecond)
		wakeups(6, "three ticks with timers")
		if !slices.Equal(fired, []string{"c", "a", "b"}) {
			t.Errorf("fired %v", fired)
		}
		_ = stop()
	})
}

// TestABurstOfEverEarlierTimersWakesOnce keeps the price of a wake-up off the adder.
func TestABurstOfEverEarlierTimersWakesOnce(t *testing.T) {
	r := NewRunner[int](0)
	r.mu.armed = asleep
	for i := range 1000 {
		add(t, r, time.Duration(2000-i)*time.Hour, i)
	}
	if len(r.wake) != 1 || r.mu.armed != awake {
		t.Errorf("%d signals, armed %d", len(r.wake), r.mu.armed)
	}
}

// TestATimerAndASignalTogetherAreOneWakeup: the signal that nobody waited for is not left for the
// next sleep.
func TestATimerAndASignalTogetherAreOneWakeup(t *testing.T) {
	r := NewRunner[int](0)
	r.signal()
	r.awaken()
	if len(r.wake) != 0 || r.Stats().Wakeups != 1 {
		t.Errorf("%d signals, %+v", len(r.wake), r.Stats())
	}
}

// TestTicksAndDurationsSaturate prevents a sleep until the end of time that overflows, and so ends
// at once, for ever.
func TestTicksAndDurationsSaturate(t *testing.T) {
	for _, tick := range []time.Duration{1, 2, 3, time.Millisecond, 1_500_000, time.Hour, math.MaxInt64} {
		r := NewRunner[int](tick)
		for _, at := range []time.Duration{0, 1, tick - 1, tick, math.MaxInt64/2 + 1, math.MaxInt64 - 1, math.MaxInt64} {
			up := r.ceil(at)
			start := r.floor(up)
			if start < at || up > 0 && r.floor(up-1) >= at {
				t.Errorf("tick %d: %d is rounded up to tick %d, which starts at %d", tick, at, up, start)
			}
		}
	}
}

// TestATimerAfterALongIdleIsOnTime prevents a clock that went stale while nothing waited from
// putting the next timer on too high a wheel: late, early, or moved about.
func TestATimerAfterALongIdleIsOnTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := NewRunner[time.Duration](0)
		var late []time.Duration
		stop := run(t, r, func(batch []time.Duration) {
			for _, at := range batch {
				late = append(late, r.Now()-at)
			}
		})
		for range 5 {
			time.Sleep(10*time.Minute + 1)
			at := r.Now() + 5*time.Millisecond
			add(t, r, at, at)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if len(late) != 5 || slices.Min(late) < 0 || slices.Max(late) >= time.Millisecond {
			t.Errorf("late %v", late)
		}
		if s := r.Stats(); s.Wakeups > 5*3 || s.Cascades > 5 {
			t.Errorf("%+v", s)
		}
		_ = stop()
	})
}

// TestEqualDeadlinesFireAsAdded prevents a batch larger than a slice from coming out of order.
func TestEqualDeadlinesFireAsAdded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := NewRunner[int](0)
		const n = 10 * slice
		entries := make([]Entry[int], n)
		for i := range entries {
			entries[i] = Entry[int]{At: time.Minute, Value: i}
		}
		ids, err := r.AddBatch(entries, make([]ID, 0, n))
		if err != nil || len(ids) != n {
			t.Fatalf("%d IDs, %v", len(ids), err)
		}
		if v, ok := r.Cancel(ids[7]); !ok || v != 7 {
			t.Fatalf("Cancel = %d, %v", v, ok)
		}
		var fired []int
		stop := run(t, r, func(batch []int) {
			if len(batch) > slice {
				t.Errorf("a batch of %d", len(batch))
			}
			fired = append(fired, batch...)
		})
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(fired) != n-1 || !slices.IsSorted(fired) || slices.Contains(fired, 7) {
			t.Errorf("fired %d timers: %v …", len(fired), fired[:min(20, len(fired))])
		}
		_ = stop()
	})
}

// TestChainsAndSelfReschedulingTimersNeverStop prevents a lost wake-up, or a lock that fire needs
// and Run holds: from fire, one chain of 30,000 links, 5 timers of 1 ms for two minutes, and
// 100,000 for a moment.
func TestChainsAndSelfReschedulingTimersNeverStop(t *testing.T) {
	for _, c := range []struct {
		timers int
		period time.Duration
		length time.Duration
	}{{1, time.Millisecond, 30 * time.Second}, {5, time.Millisecond, 2 * time.Minute}, {100_000, 3 * time.Millisecond, 9 * time.Millisecond}} {
		synctest.Test(t, func(t *testing.T) {
			r := NewRunner[time.Duration](0)
			fired := 0
			stop := run(t, r, func(batch []time.Duration) {
				for _, at := range batch {
					fired++
					if r.Now() != at {
						t.Fatalf("due %v, fired %v", at, r.Now())
					}
					if _, err := r.Add(at+c.period, at+c.period); err != nil {
						t.Fatal(err)
					}
				}
			})
			for range c.timers {
				add(t, r, c.period, c.period)
			}
			time.Sleep(c.length)
			synctest.Wait()
			if want := c.timers * int(c.length/c.period); fired != want || r.Len() != c.timers {
				t.Errorf("%d timers of %v: fired %d of %d, %d wait", c.timers, c.period, fired, want, r.Len())
			}
			_ = stop()
		})
	}
}

// TestAClearedRunnerCanBeRebuilt is what a program does when it finds that its view of time was
// wrong: drop everything and add it again, from what it stores. All of it fires, once.
func TestAClearedRunnerCanBeRebuilt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := NewRunner[int](0)
		fired := map[int]int{}
		stop := run(t, r, func(batch []int) {
			for _, v := range batch {
				fired[v]++
			}
		})
		for range 3 {
			for i := range 1000 {
				add(t, r, time.Hour+time.Duration(i)*time.Second, i)
			}
			time.Sleep(time.Minute)
			r.Clear()
			if r.Len() != 0 {
				t.Errorf("Len %d after Clear", r.Len())
			}
		}
		for i := range 1000 {
			add(t, r, 5*time.Minute+time.Duration(i)*time.Second, i)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		for i := range 1000 {
			if fired[i] != 1 {
				t.Fatalf("timer %d fired %d times", i, fired[i])
			}
		}
		_ = stop()
	})
}
