package wheel

import "math"

// Tick is a point in time on a whole-numbered scale of the user's choice; any int64 is one. Which
// moment is tick 0 and how long a tick lasts is nothing the wheel knows. Round deadlines up and now
// down, and no timer is early.
type Tick int64

// sign makes the unsigned order of keys the signed order of ticks.
const sign = 1 << 63

func (t Tick) key() uint64   { return uint64(t) ^ sign }
func tickOf(key uint64) Tick { return Tick(key ^ sign) }

// ID names a timer from its Add until it fires or is cancelled. The zero ID names none. IDs are
// comparable and belong to one wheel. A generation tells an old ID from the timer that has its
// place now; it comes round after 2³² adds, so do not keep the ID of a timer that is gone for that
// long.
type ID struct{ index, generation uint32 }

// list is the timers of a bucket, first in, first out.
type list struct{ head, tail uint32 }

// Wheel is a hierarchical timing wheel in integer ticks. It has no clock: [Wheel.Advance] says what
// time it is. Memory is 24 bytes and a value a timer; a T without pointers keeps timers out of the
// garbage collector's sight. Not safe for concurrent use.
type Wheel[T any] struct {
	now uint64
	// current is the bucket that Advance is emptying, out of the queue and never empty; noBucket
	// between buckets. now is the tick at which it starts.
	current    bucket
	queue      delayQueue
	wheels     [levels]*[slots]list
	slab       slab[T]
	generation uint32
	stats      Stats
}

// Stats are the figures of a wheel. Timers and OverflowWheels are of this moment, the others count
// from the start. Added = Timers + Expired + Cancelled at any time.
type Stats struct {
	// Timers is how many wait.
	Timers int
	// OverflowWheels is how many wheels above the first have timers.
	OverflowWheels int
	// Added, Expired and Cancelled count timers; those that Clear dropped are cancelled.
	Added, Expired, Cancelled uint64
	// Cascades counts re-insertions: a timer that moved from an overflow wheel to one below.
	Cascades uint64
	// Wakeups counts how often a [Runner] woke from its sleep; 0 for a Wheel.
	Wakeups uint64
}

// New returns an empty wheel at tick start.
func New[T any](start Tick) *Wheel[T] {
	return &Wheel[T]{now: start.key(), current: noBucket}
}

// Add starts a timer that is due at tick at, and returns its ID. Where at is not after now the next
// Advance delivers it, never Add. Timers due at the same tick are delivered in the order in which
// they were added, late ones among those of the present tick. Panics beyond 2³² timers. Cost: O(1),
// no allocation but a chunk of 4096 timers now and then.
func (w *Wheel[T]) Add(at Tick, v T) ID {
	i, n := w.slab.take()
	if w.generation++; w.generation == 0 {
		w.generation = 1
	}
	n.generation = w.generation
	n.value = v
	w.place(i, n, at)
	w.stats.Added++
	w.stats.Timers++
	return ID{i, n.generation}
}

// Cancel ends a timer and returns its value. ok is true once: it is false after the timer fired or
// was cancelled, and for the zero ID. Its memory is free for other timers at once. Cost: O(1).
func (w *Wheel[T]) Cancel(id ID) (v T, ok bool) {
	n := w.slab.find(id)
	if n == nil {
		return v, false
	}
	v = n.value
	w.unlink(n)
	w.slab.give(id.index, n)
	w.stats.Cancelled++
	w.stats.Timers--
	return v, true
}

// Reset moves a timer to tick at, as if it were added now, under the same ID; it fires once. It
// returns false and does nothing after the timer fired or was cancelled. Cost: O(1).
func (w *Wheel[T]) Reset(id ID, at Tick) bool {
	n := w.slab.find(id)
	if n == nil {
		return false
	}
	w.unlink(n)
	w.place(id.index, n, at)
	return true
}

// Now returns the tick that the wheel has reached. While Advance has more to do it is the tick of
// the bucket being emptied.
func (w *Wheel[T]) Now() Tick { return tickOf(w.now) }

// Len returns how many timers wait: those added less those fired and cancelled.
func (w *Wheel[T]) Len() int { return w.stats.Timers }

// Stats returns the wheel's figures. Cost: O(1).
func (w *Wheel[T]) Stats() Stats {
	s := w.stats
	s.OverflowWheels = w.queue.overflowing()
	if l := w.current.level(); w.current != noBucket && l > 0 && w.queue.slots[l] == 0 {
		s.OverflowWheels++
	}
	return s
}

// Next returns a tick at or before that of the first timer: the start of its bucket, so exact when
// the timer lies on the first wheel. Advance has nothing to do before then. ok is false where no
// timer waits. Cost: O(1).
func (w *Wheel[T]) Next() (at Tick, ok bool) {
	if w.current != noBucket {
		return tickOf(w.now), true
	}
	_, start, ok := w.queue.peek(w.now)
	if !ok {
		return 0, false
	}
	return tickOf(start), true
}

// Advance moves the wheel to now and appends to dst the values of the timers that are due, in order
// of their ticks, equal ones as they were added: never early. It stops after limit timers,
// delivered or moved to a lower wheel, and more then says that the same call has more to do; until
// then Now lags behind. A limit of 0 or less is none. However many ticks lie between, skipped or
// not, nothing is missed. A now before [Wheel.Now] does nothing. Cost: O(timers delivered and moved
// + buckets that start), whatever the number of ticks.
func (w *Wheel[T]) Advance(now Tick, limit int, dst []T) (out []T, more bool) {
	until := now.key()
	if until < w.now {
		return dst, false
	}
	if limit <= 0 {
		limit = math.MaxInt
	}
	for {
		if w.current == noBucket {
			b, start, ok := w.queue.poll(w.now, until)
			if !ok {
				w.now = until
				return dst, false
			}
			w.current, w.now = b, start
		}
		switch {
		case limit == 0:
			return dst, true
		case w.current.level() == 0:
			dst, limit = w.expire(dst, limit)
		default:
			limit = w.cascade(limit)
		}
	}
}

// Clear cancels all timers and gives their memory back; now stays. Cost: O(1).
func (w *Wheel[T]) Clear() {
	w.stats.Cancelled += uint64(w.stats.Timers)
	w.stats.Timers = 0
	w.current = noBucket
	w.queue = delayQueue{}
	w.wheels = [levels]*[slots]list{}
	w.slab = slab[T]{}
}

// place puts timer i into the bucket of tick at. While a bucket is being emptied, what belongs to
// it goes to its end, behind the timers that wait in it to be moved.
func (w *Wheel[T]) place(i uint32, n *node[T], at Tick) {
	n.when = max(at.key(), w.now)
	level := levelOf(n.when ^ w.now)
	if w.current != noBucket {
		level = max(level, w.current.level())
	}
	w.link(i, n, bucketOn(level, n.when))
}

// link appends timer i to bucket b.
func (w *Wheel[T]) link(i uint32, n *node[T], b bucket) {
	level := w.wheels[b.level()]
	if level == nil {
		level = new([slots]list)
		w.wheels[b.level()] = level
	}
	l := &level[b.slot()]
	n.bucket = b
	n.next, n.prev = 0, l.tail
	if l.tail == 0 {
		l.head = i
		w.queue.offer(b)
	} else {
		w.slab.at(l.tail).next = i
	}
	l.tail = i
}

// unlink takes a timer out of its bucket, and a bucket that it leaves empty out of the queue.
func (w *Wheel[T]) unlink(n *node[T]) {
	l := &w.wheels[n.bucket.level()][n.bucket.slot()]
	if n.prev == 0 {
		l.head = n.next
	} else {
		w.slab.at(n.prev).next = n.next
	}
	if n.next == 0 {
		l.tail = n.prev
	} else {
		w.slab.at(n.next).prev = n.prev
	}
	switch {
	case l.head != 0:
	case n.bucket == w.current:
		w.current = noBucket
	default:
		w.queue.withdraw(n.bucket)
	}
}

// expire delivers up to limit timers of the current bucket, and returns what is left of limit.
func (w *Wheel[T]) expire(dst []T, limit int) ([]T, int) {
	l := &w.wheels[0][w.current.slot()]
	i, before := l.head, limit
	for ; i != 0 && limit > 0; limit-- {
		n := w.slab.at(i)
		next := n.next
		dst = append(dst, n.value)
		w.slab.give(i, n)
		i = next
	}
	w.shorten(l, i)
	w.stats.Expired += uint64(before - limit)
	w.stats.Timers -= before - limit
	return dst, limit
}

// cascade moves up to limit timers of the current bucket to lower wheels, and returns what is left
// of limit.
func (w *Wheel[T]) cascade(limit int) int {
	l := &w.wheels[w.current.level()][w.current.slot()]
	i, before := l.head, limit
	for ; i != 0 && limit > 0; limit-- {
		n := w.slab.at(i)
		next := n.next
		w.link(i, n, bucketOn(levelOf(n.when^w.now), n.when))
		i = next
	}
	w.shorten(l, i)
	w.stats.Cascades += uint64(before - limit)
	return limit
}

// shorten makes i the first timer of l, the current bucket; with 0 the bucket is done.
func (w *Wheel[T]) shorten(l *list, i uint32) {
	l.head = i
	if i == 0 {
		l.tail = 0
		w.current = noBucket
		return
	}
	w.slab.at(i).prev = 0
}
