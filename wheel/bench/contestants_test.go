//go:build unix

package bench

import (
	"container/heap"
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/RussellLuo/timingwheel"

	"github.com/bide-mq/bide/wheel"
)

// contestant is a timer queue that serves n timers, numbered from 0. Add and cancel are called by
// one goroutine.
type contestant interface {
	// add starts timer i, due after the given time.
	add(i int, after time.Duration)
	cancel(i int)
	// drain returns when all n timers have fired since the start.
	drain(n int)
	close()
}

// counter is how contestants tell that all timers have fired.
type counter struct {
	fired atomic.Int64
	want  int64
	all   chan struct{}
}

func newCounter(n int) counter { return counter{want: int64(n), all: make(chan struct{})} }

func (c *counter) fire(n int) {
	if c.fired.Add(int64(n)) == c.want {
		close(c.all)
	}
}

func (c *counter) drain(int) { <-c.all }

// core is the wheel without lock, clock and goroutine; drain moves time from bucket to bucket.
type core struct {
	wheel *wheel.Wheel[uint64]
	ids   []wheel.ID
}

func newCore(n int) contestant {
	return &core{wheel.New[uint64](0), make([]wheel.ID, n)}
}

func (c *core) add(i int, after time.Duration) {
	c.ids[i] = c.wheel.Add(wheel.Tick(after/time.Millisecond)+1, uint64(i))
}
func (c *core) cancel(i int) { c.wheel.Cancel(c.ids[i]) }
func (c *core) close()       {}
func (c *core) drain(n int) {
	batch := make([]uint64, 0, 256)
	for fired := 0; fired < n; fired += len(batch) {
		next, _ := c.wheel.Next()
		batch, _ = c.wheel.Advance(next, 256, batch[:0])
	}
}

// runner is the wheel as a program uses it.
type runner struct {
	counter
	wheel *wheel.Runner[uint64]
	ids   []wheel.ID
	done  chan error
}

func newRunner(n int) contestant {
	r := &runner{counter: newCounter(n), wheel: wheel.NewRunner[uint64](0), ids: make([]wheel.ID, n), done: make(chan error, 1)}
	go func() {
		r.done <- r.wheel.Run(context.Background(), func(batch []uint64) { r.fire(len(batch)) })
	}()
	return r
}

func (r *runner) add(i int, after time.Duration) {
	id, err := r.wheel.Add(r.wheel.Now()+after, uint64(i))
	if err != nil {
		panic(err)
	}
	r.ids[i] = id
}
func (r *runner) cancel(i int) { r.wheel.Cancel(r.ids[i]) }
func (r *runner) close() {
	r.wheel.Close()
	<-r.done
}

// afterFunc is one runtime timer for each.
type afterFunc struct {
	counter
	timers []*time.Timer
}

func newAfterFunc(n int) contestant {
	return &afterFunc{newCounter(n), make([]*time.Timer, n)}
}

func (a *afterFunc) add(i int, after time.Duration) {
	a.timers[i] = time.AfterFunc(after, func() { a.fire(1) })
}
func (a *afterFunc) cancel(i int) { a.timers[i].Stop() }
func (a *afterFunc) close()       {}

// heapQueue is container/heap behind a mutex, with one goroutine that sleeps until the first timer.
type heapQueue struct {
	counter
	start time.Time
	wake  chan struct{}
	stop  chan struct{}
	done  chan struct{}

	mu     sync.Mutex
	queue  items
	timers []*item
}

type item struct {
	at    time.Duration
	index int
	value uint64
}

type items []*item

func (q items) Len() int           { return len(q) }
func (q items) Less(i, j int) bool { return q[i].at < q[j].at }
func (q items) Swap(i, j int)      { q[i], q[j] = q[j], q[i]; q[i].index, q[j].index = i, j }
func (q *items) Push(x any)        { x.(*item).index = len(*q); *q = append(*q, x.(*item)) }
func (q *items) Pop() any {
	x := (*q)[len(*q)-1]
	(*q)[len(*q)-1] = nil
	*q = (*q)[:len(*q)-1]
	x.index = -1
	return x
}

func newHeap(n int) contestant {
	h := &heapQueue{
		counter: newCounter(n), start: time.Now(), timers: make([]*item, n),
		wake: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{}),
	}
	go h.run()
	return h
}

func (h *heapQueue) add(i int, after time.Duration) {
	x := &item{at: time.Since(h.start) + after, value: uint64(i)}
	h.timers[i] = x
	h.mu.Lock()
	heap.Push(&h.queue, x)
	first := x.index == 0
	h.mu.Unlock()
	if first {
		select {
		case h.wake <- struct{}{}:
		default:
		}
	}
}

func (h *heapQueue) cancel(i int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if x := h.timers[i]; x.index >= 0 {
		heap.Remove(&h.queue, x.index)
	}
}

func (h *heapQueue) close() {
	close(h.stop)
	<-h.done
}

func (h *heapQueue) run() {
	defer close(h.done)
	timer := time.NewTimer(time.Hour)
	for {
		h.mu.Lock()
		now, sleep, fired := time.Since(h.start), time.Hour, 0
		for len(h.queue) > 0 && fired < 256 {
			if sleep = h.queue[0].at - now; sleep > 0 {
				break
			}
			heap.Pop(&h.queue)
			fired++
		}
		h.mu.Unlock()
		if fired > 0 {
			h.fire(fired)
			continue
		}
		timer.Reset(sleep)
		select {
		case <-timer.C:
		case <-h.wake:
		case <-h.stop:
			return
		}
	}
}

// russellLuo is timingwheel with ticks of 1 ms and Kafka's wheel size of 20.
type russellLuo struct {
	counter
	wheel  *timingwheel.TimingWheel
	timers []*timingwheel.Timer
}

func newRussellLuo(n int) contestant {
	r := &russellLuo{newCounter(n), timingwheel.NewTimingWheel(time.Millisecond, 20), make([]*timingwheel.Timer, n)}
	r.wheel.Start()
	return r
}

func (r *russellLuo) add(i int, after time.Duration) {
	r.timers[i] = r.wheel.AfterFunc(after, func() { r.fire(1) })
}
func (r *russellLuo) cancel(i int) { r.timers[i].Stop() }
func (r *russellLuo) close()       { r.wheel.Stop() }
