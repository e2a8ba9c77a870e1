package wheel

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"
)

// The benchmarks handle n timers an iteration, due uniformly over an hour of milliseconds, and
// report per timer. wheel/bench runs the same side by side with other timers.

func eachSize(b *testing.B, f func(b *testing.B, n int)) {
	for _, n := range []int{100_000, 1_000_000, 10_000_000} {
		b.Run(fmt.Sprintf("timers=%d", n), func(b *testing.B) {
			f(b, n)
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/timer")
			b.ReportMetric(0, "ns/op")
		})
	}
}

func delays(n int) []Tick {
	rnd := rand.New(rand.NewPCG(1, 2))
	ticks := make([]Tick, n)
	for i := range ticks {
		ticks[i] = 1 + Tick(rnd.IntN(int(time.Hour/time.Millisecond)))
	}
	return ticks
}

func BenchmarkAdd(b *testing.B) {
	eachSize(b, func(b *testing.B, n int) {
		ticks := delays(n)
		for b.Loop() {
			w := New[uint64](0)
			for i, at := range ticks {
				w.Add(at, uint64(i))
			}
		}
	})
}

// BenchmarkCancel cancels in random order, so that each is a few cache misses.
func BenchmarkCancel(b *testing.B) {
	eachSize(b, func(b *testing.B, n int) {
		ticks := delays(n)
		ids := make([]ID, n)
		for b.Loop() {
			b.StopTimer()
			w := New[uint64](0)
			for i, at := range ticks {
				ids[i] = w.Add(at, uint64(i))
			}
			rand.Shuffle(n, func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
			b.StartTimer()
			for _, id := range ids {
				w.Cancel(id)
			}
		}
	})
}

// BenchmarkAddExpire is a timer's whole life: added, moved down the wheels, delivered, as a runner
// drives it.
func BenchmarkAddExpire(b *testing.B) {
	eachSize(b, func(b *testing.B, n int) {
		ticks := delays(n)
		batch := make([]uint64, 0, slice)
		for b.Loop() {
			w := New[uint64](0)
			for i, at := range ticks {
				w.Add(at, uint64(i))
			}
			for next, ok := w.Next(); ok; next, ok = w.Next() {
				batch, _ = w.Advance(next, slice, batch[:0])
			}
		}
	})
}

// BenchmarkAddCancel is a time-out that is not needed: cancelled directly after it was added, among
// n others.
func BenchmarkAddCancel(b *testing.B) {
	eachSize(b, func(b *testing.B, n int) {
		ticks := delays(n)
		w := New[uint64](0)
		for i, at := range ticks {
			w.Add(at, uint64(i))
		}
		for b.Loop() {
			for _, at := range ticks {
				w.Cancel(w.Add(at, 0))
			}
		}
	})
}

func BenchmarkMemory(b *testing.B) {
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	eachSize(b, func(b *testing.B, n int) {
		ticks := delays(n)
		for b.Loop() {
			before := heap()
			w := New[uint64](0)
			for i, at := range ticks {
				w.Add(at, uint64(i))
			}
			b.ReportMetric(float64(heap()-before)/float64(n), "B/timer")
			runtime.KeepAlive(w)
		}
	})
}

// BenchmarkRunnerAdd has as many producers as there are processors, on one runner; -cpu 1,2 shows
// what sharing costs.
func BenchmarkRunnerAdd(b *testing.B) {
	r := NewRunner[uint64](0)
	b.RunParallel(func(pb *testing.PB) {
		rnd := rand.New(rand.NewPCG(1, 2))
		for pb.Next() {
			if _, err := r.Add(time.Duration(rnd.Int64N(int64(time.Hour))), 0); err != nil {
				b.Error(err)
			}
		}
	})
}
