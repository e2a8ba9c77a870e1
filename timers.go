package bide

import (
	"context"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/bide-mq/bide/wheel"
)

// The wheel says which lane has something due, and when. One timer stands for all messages of a lane
// that are due in one millisecond, and only for those that are due within the horizon; what lies
// beyond is on disk alone, and a timer at the horizon's edge loads the next stretch. So the wheel is a
// cache of the log, bounded by lanes × horizon, and can be dropped and made anew at any time.
//
// The wheel runs on the monotonic clock, dues are wall time. The difference of the two clocks is
// taken when a timer is added; a step of the wall clock is noticed within Limits.ClockEvery and has the wheel
// made anew. A timer is only a hint: what is due is decided by the wall clock when it fires.
const (
	// horizonMs is how far ahead timers are set. At 8 s a lane with a message in every millisecond has
	// 400 KiB of timers, and loads a stretch every 4 s.
	horizonMs = 1 << 13
	// ringMs is how many milliseconds a lane's ring of bits covers: twice the horizon, so that a slot
	// that has yet to fire never stands for one that is a turn ahead.
	ringMs = 2 * horizonMs
	// clockSlack is the difference of the clocks that is taken for drift rather than a step.
	clockSlack = 10 * time.Millisecond
)

type timerKind uint8

const (
	dueSlot timerKind = iota // something of the lane is due
	look                     // the delivery loop shall look at the lane
	edge                     // the next stretch of the lane is to be loaded
)

// timer is what the wheel holds, dueMs being the wall time for which it was set, but for an edge, which
// may move; without pointers, so that the collector never scans it.
type timer struct {
	dueMs int64
	lane  uint32
	kind  timerKind
}

// timers maps wall time to the wheel's.
type timers struct {
	wheel *wheel.Runner[timer]
	wall  func() time.Time
	ahead atomic.Int64 // wall clock minus wheel clock, ns
}

func newTimers(wall func() time.Time) *timers {
	t := &timers{wheel: wheel.NewRunner[timer](time.Millisecond), wall: wall}
	t.ahead.Store(t.measure())
	return t
}

func (t *timers) measure() int64 { return t.wall().UnixNano() - int64(t.wheel.Now()) }

// at returns the wheel's time for a wall time in epoch ms; a far one saturates.
func (t *timers) at(ms int64) time.Duration {
	if ms > math.MaxInt64/int64(time.Millisecond) {
		return math.MaxInt64
	}
	return time.Duration(ms*int64(time.Millisecond) - t.ahead.Load())
}

// add starts a timer at a wall time; a closed wheel means that the process ends.
func (t *timers) add(ms int64, v timer) wheel.ID {
	id, _ := t.wheel.Add(t.at(ms), v)
	return id
}

// after starts a timer by the wheel's own clock, whatever the wall clock does.
func (t *timers) after(ms int64, v timer) wheel.ID {
	id, _ := t.wheel.Add(t.wheel.Now()+time.Duration(min(ms, horizonMs))*time.Millisecond, v)
	return id
}

// horizon is what the wheel knows of one lane.
type horizon struct {
	// to is the due, epoch ms, below which messages have timers: at most horizonMs ahead of now when it
	// was set. 0 while the lane is not delivering.
	to int64
	// beyond is the smallest due at or above to that is known; math.MaxInt64 where there is none.
	beyond int64
	// slots has a bit for each millisecond below to that has a timer, at due modulo ringMs.
	slots *[ringMs / 64]uint64
	// edge is the timer that loads the next stretch, at edgeMs; loading says that it is being loaded.
	edge    wheel.ID
	edgeMs  int64
	loading bool
}

// mark sets the slot of a due and reports whether it was not set before.
func (h *horizon) mark(dueMs int64) bool {
	i := uint64(dueMs) % ringMs
	was := h.slots[i/64]
	h.slots[i/64] |= 1 << (i % 64)
	return h.slots[i/64] != was
}

func (h *horizon) clear(dueMs int64) {
	if h.slots != nil {
		i := uint64(dueMs) % ringMs
		h.slots[i/64] &^= 1 << (i % 64)
	}
}

// loadHorizon has the wheel loaded for a lane that begins to deliver, or after the clock was set. l.mu
// is held.
func (s *Scheduler) loadHorizon(l *lane) {
	l.near.to, l.near.beyond = s.nowMs(), math.MaxInt64
	l.near.slots = new([ringMs / 64]uint64)
	s.loadStretch(l)
}

// loadStretch has the horizon loop load the next stretch of the lane. l.mu is held.
func (s *Scheduler) loadStretch(l *lane) {
	if !l.near.loading {
		l.near.loading = true
		s.edges.push(l)
	}
}

// look has the delivery loop look at the lane at a moment, epoch ms.
func (s *Scheduler) look(l *lane, ms int64) {
	s.timers.add(ms, timer{dueMs: ms, lane: l.id, kind: look})
}

// setTimer sees to it that the lane is looked at when something with that due is. l.mu is held.
func (s *Scheduler) setTimer(l *lane, dueMs int64) {
	switch {
	case l.near.to == 0:
		// Not delivering: the log is read when it begins.
	case dueMs < l.near.to:
		if l.near.mark(dueMs) {
			s.timers.add(dueMs, timer{dueMs: dueMs, lane: l.id, kind: dueSlot})
		}
	case dueMs < l.near.beyond:
		l.near.beyond = dueMs
		s.setEdge(l)
	}
}

// setEdge sets the timer that loads the next stretch, half a horizon before something in it is due.
// l.mu is held.
func (s *Scheduler) setEdge(l *lane) {
	if l.near.to == 0 || l.near.loading || l.near.beyond == math.MaxInt64 {
		return
	}
	at := l.near.beyond - horizonMs/2
	if l.near.edgeMs != 0 && l.near.edgeMs <= at {
		return
	}
	if l.near.edgeMs == 0 || !s.timers.wheel.Reset(l.near.edge, s.timers.at(at)) {
		l.near.edge = s.timers.add(at, timer{lane: l.id, kind: edge})
	}
	l.near.edgeMs = at
}

// runWheel marks the lanes that have something due.
func (s *Scheduler) runWheel(ctx context.Context) error {
	pulse := s.pulse("wheel")
	pulse.Rest()
	return s.timers.wheel.Run(ctx, func(batch []timer) {
		pulse.Work()
		defer pulse.Rest()
		nowMs := s.nowMs()
		for _, t := range batch {
			l := s.laneByID(t.lane)
			l.mu.Lock()
			s.fire(l, t, nowMs)
			l.mu.Unlock()
		}
	})
}

// fire does what a timer is for. l.mu is held.
func (s *Scheduler) fire(l *lane, t timer, nowMs int64) {
	switch {
	case l.state != laneDelivering && !l.core.planWaits():
	case t.kind == edge && l.near.edgeMs > nowMs:
		// As below. The stretch would not be longer than what is loaded, and the edge be set at once again.
		l.near.edge = s.timers.after(l.near.edgeMs-nowMs, t)
	case t.kind == edge:
		l.near.edgeMs = 0
		s.loadStretch(l)
	case t.dueMs > nowMs:
		// The wall clock was set back, or is slower than the monotonic one: the hint came too soon.
		s.timers.after(t.dueMs-nowMs, t)
	default:
		if t.kind == dueSlot {
			l.near.clear(t.dueMs)
		}
		s.markLocked(l)
	}
}

func (s *Scheduler) laneByID(id uint32) *lane {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.byID[id]
}

// watchHorizons loads stretches: it reads the log, which the wheel's own loop must not wait for.
func (s *Scheduler) watchHorizons(ctx context.Context) error {
	pulse := s.pulse("horizon")
	for {
		pulse.Rest()
		select {
		case <-ctx.Done():
			return nil
		case <-s.edges.wake:
		}
		pulse.Work()
		for _, l := range s.edges.take() {
			if err := s.extend(l); err != nil {
				return err
			}
		}
	}
}

// extend loads a lane's next stretch. New messages get timers of their own from the moment that to is
// moved, so that none falls between them and the scan.
func (s *Scheduler) extend(l *lane) error {
	l.mu.Lock()
	log, epoch := l.log, l.epoch
	now := s.nowMs()
	from, to := max(l.near.to, now), now+horizonMs
	if l.state != laneDelivering || from >= to {
		l.near.loading = false
		s.setEdge(l)
		l.mu.Unlock()
		return nil
	}
	l.near.to, l.near.beyond, l.near.edgeMs = to, math.MaxInt64, 0
	l.mu.Unlock()

	const step = 512 // dues for which the lane is locked at a time
	dues := make([]int64, 0, step)
	flush := func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.epoch != epoch {
			return false
		}
		for _, due := range dues {
			s.setTimer(l, due)
		}
		dues = dues[:0]
		return true
	}
	// What is due before from needs no timer: the delivery loop looks at the lane in any case.
	if err := log.Dues(from, to-1, func(due int64) bool {
		dues = append(dues, due)
		return len(dues) < step || flush()
	}); err != nil {
		return s.logFault(l, epoch, err)
	}
	flush()
	next, ok, err := log.Next(LastPosition(to - 1))
	if err != nil {
		return s.logFault(l, epoch, err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.epoch == epoch {
		l.near.loading = false
		if ok {
			l.near.beyond = min(l.near.beyond, next.DueMs)
		}
		s.setEdge(l)
		s.markLocked(l)
	}
	return nil
}

// watchClock compares the wall clock with the monotonic one, and the disk with its reserve.
func (s *Scheduler) watchClock(ctx context.Context) error {
	pulse := s.pulse("clock")
	tick := time.NewTicker(s.limits.ClockEvery)
	defer tick.Stop()
	for {
		pulse.Rest()
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		pulse.Work()
		s.checkClock()
		s.checkDisk()
	}
}

// checkClock follows drift, and after a step makes the wheel anew: its timers were set by the old
// difference.
func (s *Scheduler) checkClock() {
	now := s.timers.measure()
	step := time.Duration(now - s.timers.ahead.Load())
	s.timers.ahead.Store(now)
	if step.Abs() <= clockSlack {
		return
	}
	s.metrics.clockSteps.Inc()
	s.logger.Warn("the wall clock was set", zap.Duration("step", step))
	s.timers.wheel.Clear()
	for _, l := range s.allLanes() {
		l.mu.Lock()
		if l.state == laneDelivering {
			l.near.edgeMs = 0
			s.loadHorizon(l)
		}
		l.retryAt, l.commitAt = 0, min(l.commitAt, s.nowMs())
		s.markLocked(l)
		l.mu.Unlock()
	}
}

// checkDisk stops reading while the disk is nearly full. Delivery goes on, and frees space.
func (s *Scheduler) checkDisk() {
	free, err := s.log.FreeBytes()
	if err != nil {
		s.logger.Warn("the free space of the data directory is unknown", zap.Error(err))
		return
	}
	full := free < s.limits.FreeBytes
	if s.diskFull.Swap(full) == full {
		return
	}
	if full {
		s.logger.Error("disk nearly full: reading is paused, delivery goes on", zap.Uint64("freeBytes", free), zap.Uint64("reserveBytes", s.limits.FreeBytes))
	} else {
		s.logger.Info("disk has space again: reading goes on", zap.Uint64("freeBytes", free))
	}
	for _, l := range s.allLanes() {
		l.mu.Lock()
		s.pauseLocked(l)
		l.mu.Unlock()
	}
}

// inbox is a set of lanes to be looked at by one loop. Safe for concurrent use.
type inbox struct {
	wake chan struct{} // capacity 1
	mu   sync.Mutex
	in   []*lane
}

func newInbox() *inbox { return &inbox{wake: make(chan struct{}, 1)} }

// push adds a lane; the caller sees to it that it is in once.
func (b *inbox) push(l *lane) {
	b.mu.Lock()
	b.in = append(b.in, l)
	b.mu.Unlock()
	b.nudge()
}

// take empties the inbox.
func (b *inbox) take() []*lane {
	b.mu.Lock()
	defer b.mu.Unlock()
	in := b.in
	b.in = nil
	return in
}

func (b *inbox) nudge() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}
