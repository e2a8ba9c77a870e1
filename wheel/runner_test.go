package wheel

import (
	"context"
	"errors"
	"math"
	"testing"
	"testing/synctest"
	"time"
)

// run starts r.Run in the bubble and returns a function that ends it and waits.
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

func TestTimersFireInTheirTick(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := NewRunner[time.Duration](0)
		fired := 0
		stop := run(t, r, func(batch []time.Duration) {
			for _, at := range batch {
				if late := r.Now() - at; late < 0 || late >= r.Tick() {
					t.Errorf("due %v, fired %v later", at, late)
				}
				fired++
			}
		})
		ats := []time.Duration{
			0, 1, time.Millisecond - 1, time.Millisecond, 1_900_000, 64 * time.Millisecond, 4096 * time.Millisecond,
			time.Minute, time.Hour + 1, 1193 * time.Hour, 365 * 24 * time.Hour, 100 * 365 * 24 * time.Hour,
		}
		for _, at := range ats {
			if _, err := r.Add(at, at); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := r.Add(math.MaxInt64, math.MaxInt64); err != nil {
			t.Fatal(err)
		}
		time.Sleep(101 * 365 * 24 * time.Hour)
		synctest.Wait()
		if fired != len(ats) || r.Len() != 1 {
			t.Errorf("fired %d of %d, %d wait", fired, len(ats), r.Len())
		}
		if err := stop(); !errors.Is(err, context.Canceled) {
			t.Errorf("Run returned %v", err)
		}
	})
}
