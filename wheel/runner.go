package wheel

import (
	"context"
	"errors"
	"math"
	"runtime"
	"sync"
	"time"
)

// Errors of a [Runner].
var (
	// ErrClosed says that the runner was closed.
	ErrClosed = errors.New("wheel closed")
	// ErrRunning says that another Run of the same runner has not returned.
	ErrRunning = errors.New("wheel runs already")
)

const (
	// DefaultTick is a runner's tick where none is given.
	DefaultTick = time.Millisecond

	// slice bounds how many timers are handled under one hold of the lock: about 30 µs, so that
	// whoever adds or cancels meanwhile does not notice a backlog.
	slice = 256

	// awake stands for the tick that the runner sleeps until while it does not sleep: nothing is
	// earlier.
	awake Tick = math.MinInt64
	// asleep stands for it while no timer waits: everything is earlier but what is never due.
	asleep Tick = math.MaxInt64
)

// Entry is a timer to be added: At is when it is due, since the runner's start.
type Entry[T any] struct {
	At    time.Duration
	Value T
}

// Runner is a [Wheel] on the monotonic clock, with one goroutine, the caller's, that sleeps in
// [Runner.Run] until the next bucket. Times are durations since the runner's start ([Runner.Now]):
// a wall clock that is set does not touch them, and any mapping from wall time is the caller's.
// Deadlines are rounded up to a tick and now down, so that a timer never fires early, and late by
// at most a tick and what the system takes to wake a goroutine.
//
// An idle runner makes no wake-ups. A sleeping one is woken early only by a timer that is due
// before it would have woken itself. Safe for concurrent use, also from fire.
type Runner[T any] struct {
	start time.Time
	tick  time.Duration
	wake  chan struct{} // capacity 1: one signal that is not yet seen is enough

	mu struct {
		sync.Mutex
		wheel   *Wheel[T]
		armed   Tick // what Run sleeps until
		wakeups uint64
		running bool
		closed  bool
	}
}

// NewRunner returns a runner whose clock starts now, with the given tick; 0 or less means
// [DefaultTick]. Nothing fires before Run. It starts no goroutine; a runner that is no longer used
// needs no Close. In a testing/synctest bubble, make it in the bubble.
func NewRunner[T any](tick time.Duration) *Runner[T] {
	if tick <= 0 {
		tick = DefaultTick
	}
	r := &Runner[T]{start: time.Now(), tick: tick, wake: make(chan struct{}, 1)}
	r.mu.wheel = New[T](0)
	r.mu.armed = awake
	return r
}

// Now returns how long ago the runner started, by the monotonic clock.
func (r *Runner[T]) Now() time.Duration { return time.Since(r.start) }

// Tick returns the runner's tick.
func (r *Runner[T]) Tick() time.Duration { return r.tick }

// Add starts a timer that is due at. One that is due by now fires as soon as Run comes to it,
// possibly before Add returns; math.MaxInt64 is 292 years ahead. Errors: [ErrClosed]. Cost: O(1);
// no clock is read unless the wheel was empty.
func (r *Runner[T]) Add(at time.Duration, v T) (ID, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.closed {
		return ID{}, ErrClosed
	}
	return r.add(at, v), nil
}

// AddBatch adds timers in order, and appends their IDs to ids. It takes the lock for up to 256 at a
// time, so that others get their turn. Errors: [ErrClosed], with the IDs of those that were added
// before.
func (r *Runner[T]) AddBatch(entries []Entry[T], ids []ID) ([]ID, error) {
	for len(entries) > 0 {
		part := entries[:min(slice, len(entries))]
		entries = entries[len(part):]
		r.mu.Lock()
		if r.mu.closed {
			r.mu.Unlock()
			return ids, ErrClosed
		}
		for i := range part {
			ids = append(ids, r.add(part[i].At, part[i].Value))
		}
		r.mu.Unlock()
	}
	return ids, nil
}

// Cancel ends a timer and returns its value. ok is true once: it is false after the timer was
// handed to fire or cancelled, and after Close. Cost: O(1); Run is not woken.
func (r *Runner[T]) Cancel(id ID) (v T, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.wheel.Cancel(id)
}

// Reset moves a timer to another time under the same ID; it fires once. It returns false and does
// nothing after the timer was handed to fire or cancelled, and after Close. Cost: O(1).
func (r *Runner[T]) Reset(id ID, at time.Duration) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	tick := r.ceil(at)
	if !r.mu.wheel.Reset(id, tick) {
		return false
	}
	r.wakeBefore(tick)
	return true
}

// Clear cancels all timers and gives their memory back. Timers that are being handed to fire are
// not recalled.
func (r *Runner[T]) Clear() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.wheel.Clear()
}

// Len returns how many timers wait; those handed to fire do not.
func (r *Runner[T]) Len() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.wheel.Len()
}

// Stats returns the runner's figures, of one moment. Cost: O(1).
func (r *Runner[T]) Stats() Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.mu.wheel.Stats()
	s.Wakeups = r.mu.wakeups
	return s
}

// Close cancels all timers and makes Run return; Add then returns [ErrClosed]. It does not wait for
// a fire that is under way, so it can be called from fire: whoever needs it over waits for Run to
// return. Idempotent.
func (r *Runner[T]) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.closed = true
	r.mu.wheel.Clear()
	r.signal()
}

// Run calls fire with the values of timers that are due, up to 256 at a time, in order of their
// ticks, equal ones as they were added; batch is valid until fire returns. fire is called without
// the lock and from this goroutine alone: it may add, cancel, and close, and while it blocks
// nothing else fires, though others can still add and cancel.
//
// Run blocks until ctx is done, and returns ctx's error, or until Close, and returns nil; timers
// that are due by then stay, or are cancelled. After ctx it may be called again. A panic of fire
// goes through it, and the rest of that batch is lost. Errors: [ErrRunning].
func (r *Runner[T]) Run(ctx context.Context, fire func(batch []T)) error {
	r.mu.Lock()
	if r.mu.running {
		r.mu.Unlock()
		return ErrRunning
	}
	r.mu.running = true
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		r.mu.running = false
		r.mu.Unlock()
	}()

	timer := time.NewTimer(math.MaxInt64)
	defer timer.Stop()
	batch := make([]T, 0, slice)
	for ctx.Err() == nil {
		var sleep time.Duration
		var closed bool
		batch, sleep, closed = r.advance(batch[:0])
		if closed {
			return nil
		}
		if len(batch) > 0 {
			fire(batch)
			clear(batch)
		}
		if sleep <= 0 {
			runtime.Gosched()
			continue
		}
		timer.Reset(sleep)
		select {
		case <-timer.C:
		case <-r.wake:
		case <-ctx.Done():
			return ctx.Err()
		}
		r.awaken()
	}
	return ctx.Err()
}

// advance takes one slice of what is due. Where nothing is, it arms the runner and returns how long
// to sleep.
func (r *Runner[T]) advance(dst []T) (batch []T, sleep time.Duration, closed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.closed {
		return dst, 0, true
	}
	now := r.Now()
	batch, more := r.mu.wheel.Advance(Tick(now/r.tick), slice, dst)
	if more || len(batch) > 0 {
		return batch, 0, false
	}
	next, ok := r.mu.wheel.Next()
	if !ok {
		r.mu.armed = asleep
		return batch, math.MaxInt64, false
	}
	r.mu.armed = next
	return batch, r.floor(next) - now, false
}

// awaken counts a wake-up, and lets adders know that no other is needed. A signal that came
// together with the timer would be another: it is dropped, since what it stands for is seen in any
// case.
func (r *Runner[T]) awaken() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.armed = awake
	r.mu.wakeups++
	select {
	case <-r.wake:
	default:
	}
}

// add adds a timer; the caller holds the lock. An empty wheel is moved to now first, which is free,
// since seen from a clock that lags the timer would lie on too high a wheel, and would have to be
// moved at once.
func (r *Runner[T]) add(at time.Duration, v T) ID {
	if r.mu.wheel.Len() == 0 {
		r.mu.wheel.Advance(Tick(r.Now()/r.tick), 0, nil)
	}
	tick := r.ceil(at)
	id := r.mu.wheel.Add(tick, v)
	r.wakeBefore(tick)
	return id
}

// wakeBefore wakes Run where it sleeps beyond tick; the caller holds the lock. Until Run has seen
// the signal it counts as awake, so that a burst of ever earlier timers costs one wake-up.
func (r *Runner[T]) wakeBefore(tick Tick) {
	if tick < r.mu.armed {
		r.mu.armed = awake
		r.signal()
	}
}

func (r *Runner[T]) signal() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// ceil returns the first tick at or after d; what is past is tick 0.
func (r *Runner[T]) ceil(d time.Duration) Tick {
	if d <= 0 {
		return 0
	}
	tick := d / r.tick
	if d%r.tick != 0 {
		tick++ // no overflow: there is a remainder only where r.tick > 1
	}
	return Tick(tick)
}

// floor returns when tick t starts, at most math.MaxInt64.
func (r *Runner[T]) floor(t Tick) time.Duration {
	if t > Tick(math.MaxInt64/r.tick) {
		return math.MaxInt64
	}
	return time.Duration(t) * r.tick
}
