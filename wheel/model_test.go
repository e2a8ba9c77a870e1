package wheel

import (
	"container/heap"
	"encoding/binary"
	"flag"
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

var seedFlag = flag.Uint64("seed", 0, "seed of the random tests; 0 takes one from the clock")

// newRand prints the seed of a random test and returns its generator.
func newRand(t testing.TB) *rand.Rand {
	seed := *seedFlag
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("seed %d (again with -seed=%d)", seed, seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// twinTimer is a timer of the twin; index is its place in the heap, -1 once it is gone.
type twinTimer struct {
	when  Tick
	order int
	value int
	id    ID
	index int
}

// twinHeap orders timers by tick, then as they were added.
type twinHeap []*twinTimer

func (h twinHeap) Len() int { return len(h) }
func (h twinHeap) Less(i, j int) bool {
	return h[i].when < h[j].when || h[i].when == h[j].when && h[i].order < h[j].order
}
func (h twinHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i]; h[i].index, h[j].index = i, j }
func (h *twinHeap) Push(x any)   { x.(*twinTimer).index = len(*h); *h = append(*h, x.(*twinTimer)) }
func (h *twinHeap) Pop() any {
	x := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	x.index = -1
	return x
}

// model runs a wheel beside its naive twin, a heap, and fails where they differ.
type model struct {
	t     testing.TB
	wheel *Wheel[int]
	heap  twinHeap
	ever  []*twinTimer // all that were added, the dead too
	order int
	until Tick // the last now given to Advance
	out   []int
}

func newModel(t testing.TB, start Tick) *model {
	return &model{t: t, wheel: New[int](start), until: start}
}

func (m *model) add(at Tick) {
	x := &twinTimer{when: max(at, m.wheel.Now()), order: m.order, value: len(m.ever)}
	m.order++
	x.id = m.wheel.Add(at, x.value)
	m.ever = append(m.ever, x)
	heap.Push(&m.heap, x)
	m.check()
}

func (m *model) cancel(x *twinTimer) {
	m.t.Helper()
	v, ok := m.wheel.Cancel(x.id)
	if ok != (x.index >= 0) {
		m.t.Fatalf("Cancel of timer %d = %v; the twin has it: %v", x.value, ok, x.index >= 0)
	}
	if ok {
		if v != x.value {
			m.t.Fatalf("Cancel of timer %d returned value %d", x.value, v)
		}
		heap.Remove(&m.heap, x.index)
	}
	m.check()
}

func (m *model) reset(x *twinTimer, at Tick) {
	m.t.Helper()
	ok := m.wheel.Reset(x.id, at)
	if ok != (x.index >= 0) {
		m.t.Fatalf("Reset of timer %d = %v; the twin has it: %v", x.value, ok, x.index >= 0)
	}
	if ok {
		x.when, x.order = max(at, m.wheel.Now()), m.order
		m.order++
		heap.Fix(&m.heap, x.index)
	}
	m.check()
}

// advance makes one call of Advance and compares what it delivers.
func (m *model) advance(now Tick, limit int) (more bool) {
	m.t.Helper()
	before, was := m.wheel.Stats(), m.wheel.Now()
	m.out, more = m.wheel.Advance(now, limit, m.out[:0])
	for _, v := range m.out {
		if len(m.heap) == 0 || m.heap[0].value != v || m.heap[0].when > now {
			m.t.Fatalf("Advance(%d) delivered timer %d, due %d; the twin's first is %+v", now, v, m.ever[v].when, m.first())
		}
		heap.Pop(&m.heap)
	}
	after := m.wheel.Stats()
	handled := int(after.Expired - before.Expired + after.Cascades - before.Cascades)
	switch {
	case limit > 0 && handled > limit, limit > 0 && more && handled != limit:
		m.t.Fatalf("Advance with limit %d handled %d timers, more %v", limit, handled, more)
	case limit <= 0 && more:
		m.t.Fatal("Advance without a limit left something to do")
	case now < was && (handled > 0 || more || m.wheel.Now() != was):
		m.t.Fatalf("Advance(%d) at %d did something", now, was)
	case now >= was && !more && m.wheel.Now() != now:
		m.t.Fatalf("Advance(%d) ended at %d", now, m.wheel.Now())
	case now >= was && !more && len(m.heap) > 0 && m.heap[0].when <= now:
		m.t.Fatalf("Advance(%d) missed %+v", now, m.first())
	case m.wheel.Now() < was || now >= was && m.wheel.Now() > now:
		m.t.Fatalf("Advance(%d) moved the wheel from %d to %d", now, was, m.wheel.Now())
	}
	m.until = max(m.until, now)
	m.check()
	return more
}

func (m *model) first() twinTimer {
	if len(m.heap) == 0 {
		return twinTimer{index: -1}
	}
	return *m.heap[0]
}

// check compares what can be seen between calls.
func (m *model) check() {
	m.t.Helper()
	if m.wheel.Len() != len(m.heap) {
		m.t.Fatalf("Len = %d, the twin has %d", m.wheel.Len(), len(m.heap))
	}
	if s := m.wheel.Stats(); s.Added != uint64(s.Timers)+s.Expired+s.Cancelled {
		m.t.Fatalf("stats do not add up: %+v", s)
	}
	next, ok := m.wheel.Next()
	if ok != (len(m.heap) > 0) {
		m.t.Fatalf("Next ok = %v with %d timers", ok, len(m.heap))
	}
	if ok && (next > m.heap[0].when || next < m.wheel.Now()) {
		m.t.Fatalf("Next = %d; now %d, first timer due %d", next, m.wheel.Now(), m.heap[0].when)
	}
}

// inspect verifies the wheel's inner order: every timer in the bucket of its deadline, links whole
// both ways, the queue and the slab's accounts exact.
func inspect[T any](t testing.TB, w *Wheel[T]) {
	t.Helper()
	timers := 0
	for level, wheel := range w.wheels {
		if wheel == nil && w.queue.slots[level] == 0 && w.current.level() != level {
			continue
		}
		for slot := range slots {
			b := bucket(level*slots + slot)
			queued := w.queue.slots[level]>>slot&1 == 1
			if wheel == nil || wheel[slot] == (list{}) {
				if queued || b == w.current {
					t.Fatalf("bucket %d/%d is empty: queued %v, current %v", level, slot, queued, b == w.current)
				}
				continue
			}
			if queued == (b == w.current) {
				t.Fatalf("bucket %d/%d: queued %v, current %v", level, slot, queued, b == w.current)
			}
			prev := uint32(0)
			for i := wheel[slot].head; i != 0; i = w.slab.at(i).next {
				n := w.slab.at(i)
				floor := levelOf(n.when ^ w.now)
				if b == w.current {
					floor = level
				}
				if n.prev != prev || n.bucket != b || n.generation == 0 || n.when < w.now || bucketOn(floor, n.when) != b {
					t.Fatalf("bucket %d/%d, timer %d: %+v at %x", level, slot, i, *n, w.now)
				}
				prev = i
				timers++
			}
			if wheel[slot].tail != prev {
				t.Fatalf("bucket %d/%d: tail %d, last timer %d", level, slot, wheel[slot].tail, prev)
			}
		}
		if (w.queue.slots[level] != 0) != (w.queue.wheels>>level&1 == 1) {
			t.Fatalf("level %d: slots %x, wheels %x", level, w.queue.slots[level], w.queue.wheels)
		}
	}
	live, empty := 0, 0
	for c, m := range w.slab.chunks {
		live += int(m.live)
		if w.slab.nodes[c] != nil && m.live == 0 {
			empty++
		}
	}
	if timers != w.Len() || live != w.Len() || empty > 1 {
		t.Fatalf("Len %d, in buckets %d, in the slab %d, empty chunks %d", w.Len(), timers, live, empty)
	}
}

// script drives a model from bytes, for the fuzzer and for random tests alike.
type script struct{ bytes []byte }

func (s *script) byte() byte {
	if len(s.bytes) == 0 {
		return 0
	}
	b := s.bytes[0]
	s.bytes = s.bytes[1:]
	return b
}

// delay returns a delay of any size: near a power of two for most, so that edges of wheels are met;
// or a plain number.
func (s *script) delay() int64 {
	kind, fine := s.byte(), int64(int8(s.byte()))
	switch {
	case kind < 64:
		return max(0, int64(1)<<(kind%63)+fine)
	case kind < 80:
		return math.MaxInt64 - int64(kind-64)
	case kind < 96:
		return -int64(1) << (kind - 80 + s.byte()%48)
	case kind < 128:
		return int64(kind-95) * 64
	default:
		return int64(kind-128) + fine&3
	}
}

// after returns t + d, saturating at the ends.
func after(t Tick, d int64) Tick {
	sum := t + Tick(d)
	if d > 0 && sum < t {
		return math.MaxInt64
	}
	if d < 0 && sum > t {
		return math.MinInt64
	}
	return sum
}

func (s *script) run(t testing.TB) {
	starts := []Tick{0, 1, -1, 63, math.MinInt64, math.MaxInt64 - 5000, 1_790_000_000_000, -4096}
	m := newModel(t, starts[s.byte()%8])
	for len(s.bytes) > 0 {
		op := s.byte()
		pick := func() *twinTimer {
			if len(m.ever) == 0 {
				return &twinTimer{index: -1}
			}
			return m.ever[int(binary.LittleEndian.Uint16([]byte{s.byte(), s.byte()}))%len(m.ever)]
		}
		switch op % 8 {
		case 0, 1, 2:
			m.add(after(m.until, s.delay()))
		case 3:
			m.cancel(pick())
		case 4:
			m.reset(pick(), after(m.until, s.delay()))
		case 5: // as a runner does: to the next bucket
			if next, ok := m.wheel.Next(); ok {
				m.advance(max(next, m.until), int(op>>3))
			}
		case 6:
			m.advance(after(m.until, s.delay()), int(op>>3))
		case 7: // several timers of one tick, so that order shows
			at := after(m.until, s.delay())
			for range 1 + op>>5 {
				m.add(at)
			}
		}
		inspect(t, m.wheel)
	}
	for m.advance(math.MaxInt64, 7) {
		inspect(t, m.wheel)
	}
	if m.wheel.Len() != 0 {
		t.Fatalf("%d timers left at the end of time", m.wheel.Len())
	}
	inspect(t, m.wheel)
}

// FuzzWheelAgreesWithHeap prevents every kind of wrong tick and wrong order at once: early, a turn
// late, or missed timers; a delay near the largest integer that overflows, fires at once or never
// ends; a coarse bucket that hides an earlier fine one from Next; a Cancel after the fire that
// touches another timer; a Reset that fires twice; a length that is not exact.
func FuzzWheelAgreesWithHeap(f *testing.F) {
	f.Add([]byte{0, 0, 70, 0, 0, 130, 1, 5, 5, 5})                          // the largest delays beside a small one
	f.Add([]byte{5, 7 | 96, 12, 0, 14, 12, 1, 7 | 96, 12, 0, 14, 12, 1})    // one tick, added before and during its cascade
	f.Add([]byte{3, 0, 96, 0, 0, 97, 0, 6, 134, 0, 0, 96, 0, 6, 200, 0})    // delays of exactly one turn
	f.Add([]byte{4, 0, 62, 0, 3, 0, 0, 3, 0, 0, 4, 0, 0, 130, 0, 6, 62, 0}) // cancelled twice, then reset
	f.Add([]byte{1, 0, 85, 0, 9, 0, 85, 0, 3, 6, 129, 0, 4, 0, 0, 64, 0})   // long past
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 512 {
			t.Skip("long scripts find nothing that short ones do not")
		}
		(&script{b}).run(t)
	})
}

// TestRandomScriptsAgreeWithHeap is the fuzz test's model over scripts of its own making.
func TestRandomScriptsAgreeWithHeap(t *testing.T) {
	rnd := newRand(t)
	for range 200 {
		b := make([]byte, 64+rnd.IntN(448))
		for i := range b {
			b[i] = byte(rnd.Uint32())
		}
		(&script{b}).run(t)
	}
}

// TestACenturyOfUptimeAgreesWithHeap prevents what only a long life shows: a top wheel that wraps,
// after days or years, with one long timer in it. The clock jumps by up to a week at a time over
// 200 years of milliseconds.
func TestACenturyOfUptimeAgreesWithHeap(t *testing.T) {
	rnd := newRand(t)
	const day, year = 86_400_000, 365 * 86_400_000
	m := newModel(t, 0)
	m.add(math.MaxInt64)
	m.add(1000 * year)
	for m.until < 200*year {
		for range rnd.IntN(8) {
			m.add(after(m.until, rnd.Int64N([]int64{10, 1000, day, 40 * day, 20 * year}[rnd.IntN(5)])))
		}
		if n := len(m.ever) - 2; n > 0 && rnd.IntN(4) == 0 {
			m.cancel(m.ever[2+rnd.IntN(n)])
		}
		to := after(m.until, rnd.Int64N(7*day))
		for m.advance(to, 1+rnd.IntN(64)) {
		}
	}
	inspect(t, m.wheel)
	m.wheel.Clear()
	if s := m.wheel.Stats(); s.Timers != 0 || s.OverflowWheels != 0 {
		t.Fatalf("after Clear: %+v", s)
	}
}
