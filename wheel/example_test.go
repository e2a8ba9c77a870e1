package wheel_test

import (
	"context"
	"fmt"
	"time"

	"github.com/bide-mq/bide/wheel"
)

// The core has no clock: time is what Advance says. So a century passes in no time.
func ExampleWheel() {
	w := wheel.New[string](0) // in seconds, say
	w.Add(90, "tea")
	lunch := w.Add(3600, "lunch")
	w.Add(100*365*24*3600, "centenary")

	w.Cancel(lunch)
	for {
		next, ok := w.Next()
		if !ok {
			break
		}
		due, _ := w.Advance(next, 0, nil)
		for _, name := range due {
			fmt.Println(w.Now(), name)
		}
	}
	// Output:
	// 90 tea
	// 3153600000 centenary
}

// A backlog is worked off in slices, so that nothing is blocked for long: other work, other timers
// and cancellations fit in between.
func ExampleWheel_Advance() {
	w := wheel.New[int](0)
	for i := range 5 {
		w.Add(10, i)
	}
	var batch []int
	for more := true; more; {
		batch, more = w.Advance(1000, 2, batch[:0])
		fmt.Println(batch, more)
	}
	// Output:
	// [0 1] true
	// [2 3] true
	// [4] false
}

// The runner waits on the monotonic clock. The goroutine is its caller's.
func ExampleRunner() {
	r := wheel.NewRunner[string](time.Millisecond)
	done := make(chan error, 1)
	go func() {
		done <- r.Run(context.Background(), func(batch []string) {
			for _, name := range batch {
				fmt.Println(name)
				if name == "last" {
					r.Close()
				}
			}
		})
	}()
	start := r.Now()
	for _, e := range []wheel.Entry[string]{
		{At: start + 20*time.Millisecond, Value: "last"},
		{At: start + 10*time.Millisecond, Value: "first"},
		{At: start + 10*time.Millisecond, Value: "second"},
	} {
		if _, err := r.Add(e.At, e.Value); err != nil {
			fmt.Println(err)
		}
	}
	fmt.Println(<-done)
	// Output:
	// first
	// second
	// last
	// <nil>
}

// A time-out: added for each request, cancelled for nearly all. Who wins, the answer or the
// time-out, is decided by Cancel: it returns true once, or never if the timer fired.
func ExampleRunner_Cancel() {
	r := wheel.NewRunner[int](0)
	timeout, err := r.Add(r.Now()+30*time.Second, 17)
	if err != nil {
		fmt.Println(err)
	}

	request, inTime := r.Cancel(timeout)
	fmt.Println(request, inTime)
	_, again := r.Cancel(timeout)
	fmt.Println(again)
	// Output:
	// 17 true
	// false
}

// Wall-clock deadlines are mapped at the edge. The runner itself does not notice when the wall
// clock is set; a program that must follow it clears the runner and adds its timers again.
func ExampleRunner_AddBatch() {
	type deadline struct {
		name string
		at   time.Time
	}
	now := time.Now()
	deadlines := []deadline{{"b", now.Add(2 * time.Hour)}, {"a", now.Add(time.Hour)}}

	r := wheel.NewRunner[string](0)
	entries := make([]wheel.Entry[string], 0, len(deadlines))
	for _, d := range deadlines {
		entries = append(entries, wheel.Entry[string]{At: r.Now() + time.Until(d.at), Value: d.name})
	}
	ids, err := r.AddBatch(entries, nil)
	fmt.Println(len(ids), r.Len(), err)
	// Output: 2 2 <nil>
}
