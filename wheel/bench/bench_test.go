//go:build unix

package bench

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"syscall"
	"testing"
	"time"
)

var contestants = []struct {
	name string
	make func(n int) contestant
}{
	{"wheel.Wheel", newCore},
	{"wheel.Runner", newRunner},
	{"time.AfterFunc", newAfterFunc},
	{"container-heap", newHeap},
	{"RussellLuo", newRussellLuo},
}

// TestEveryContestantFiresAll keeps the comparison honest: whoever lost a timer would hang here.
func TestEveryContestantFiresAll(t *testing.T) {
	for _, c := range contestants {
		var f figures
		f.measure(2000, c.make)
		if f.bytes <= 0 {
			t.Errorf("%s: 2000 timers take %d bytes", c.name, f.bytes)
		}
	}
}

// BenchmarkTimers gives each contestant the same n timers and reports, per timer, memory and the
// processor time of the whole process, garbage collection included, which a busy machine distorts
// less than wall time:
//
//	add-ns     to add it, due at random within an hour
//	B/timer    what it takes while it waits, its handle not counted
//	cancel-ns  to cancel it, in random order
//	life-ns    to add it and have it fire, due at random within n·100 ns of its add
func BenchmarkTimers(b *testing.B) {
	for _, n := range []int{100_000, 1_000_000, 10_000_000} {
		for _, c := range contestants {
			b.Run(fmt.Sprintf("timers=%d/%s", n, c.name), func(b *testing.B) {
				var sum figures
				for b.Loop() {
					sum.measure(n, c.make)
				}
				per := float64(b.N) * float64(n)
				b.ReportMetric(float64(sum.add.Nanoseconds())/per, "add-ns")
				b.ReportMetric(float64(sum.cancel.Nanoseconds())/per, "cancel-ns")
				b.ReportMetric(float64(sum.life.Nanoseconds())/per, "life-ns")
				b.ReportMetric(float64(sum.bytes)/per, "B/timer")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

type figures struct {
	add, cancel, life time.Duration
	bytes             int64
}

// measure adds one round to f.
func (f *figures) measure(n int, newContestant func(int) contestant) {
	rnd := rand.New(rand.NewPCG(1, 2))
	after := make([]time.Duration, n)
	for i := range after {
		after[i] = time.Minute + time.Duration(rnd.Int64N(int64(time.Hour)))
	}
	order := rnd.Perm(n)

	c := newContestant(n)
	before := heapBytes()
	start := cpuTime()
	for i, d := range after {
		c.add(i, d)
	}
	f.add += cpuTime() - start
	f.bytes += heapBytes() - before
	start = cpuTime()
	for _, i := range order {
		c.cancel(i)
	}
	f.cancel += cpuTime() - start
	c.close()
	c = nil

	spread := int64(n) * 100
	for i := range after {
		after[i] = time.Duration(rnd.Int64N(spread))
	}
	runtime.GC()
	c = newContestant(n)
	start = cpuTime()
	for i, d := range after {
		c.add(i, d)
	}
	c.drain(n)
	f.life += cpuTime() - start
	c.close()
}

// cpuTime returns the processor time that the process has used.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func heapBytes() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
