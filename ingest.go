package bide

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"
)

// progressEvery is how often a lane that reads what its log lacks tells how far it is.
const progressEvery = 5 * time.Second

// ingest takes what the lanes' producers wrote into the log, one fsync a poll.
func (s *Scheduler) ingest(ctx context.Context) error {
	pulse := s.pulse("ingest")
	for {
		pulse.Rest()
		batches, err := s.cluster.Poll(ctx, s.limits.PollRecords)
		if ctx.Err() != nil {
			return nil
		}
		pulse.Work()
		if err != nil {
			return fmt.Errorf("poll: %w", err)
		}
		for len(batches) > 0 {
			n := distinctLanes(batches)
			if err := s.store(ctx, batches[:n]); err != nil {
				return err
			}
			batches = batches[n:]
		}
	}
}

// distinctLanes returns how many of the first batches are of different lanes: records and a fault of one
// lane may come together, and a lane is locked until its batch is stored.
func distinctLanes(batches []Batch) int {
	seen := make(map[Lane]struct{}, len(batches))
	for i := range batches {
		if _, again := seen[batches[i].Lane]; again {
			return i
		}
		seen[batches[i].Lane] = struct{}{}
	}
	return len(batches)
}

// arrival is a batch between its classification and its fsync.
type arrival struct {
	lane  *lane
	epoch uint64
	accepted
}

// store classifies the batches, of different lanes, appends what waits in one write, and lets the lanes see it.
func (s *Scheduler) store(ctx context.Context, batches []Batch) error {
	arrivals := make([]arrival, 0, len(batches))
	defer func() {
		for i := range arrivals {
			arrivals[i].lane.storing.Unlock()
		}
	}()
	entries := make([]Append, 0, len(batches))
	durability := Replayed
	for i := range batches {
		l := s.lane(batches[i].Lane)
		l.storing.Lock()
		a, ok := s.accept(l, &batches[i])
		if !ok {
			l.storing.Unlock()
			continue
		}
		arrivals = append(arrivals, a)
		if len(a.store) > 0 {
			entries = append(entries, a.entry())
			if !a.replay {
				durability = Durable
			}
		}
	}
	if len(entries) > 0 {
		err := s.log.Append(ctx, entries, durability)
		if errors.Is(err, ErrLogCorrupt) {
			err = s.appendEach(ctx, arrivals, durability)
		}
		if err != nil {
			if ctx.Err() != nil {
				return nil // stopping: what was read is read again
			}
			return fmt.Errorf("append to the log: %w", err)
		}
	}
	for i := range arrivals {
		s.stored(&arrivals[i])
	}
	return nil
}

// entry is what the batch adds to the log.
func (a *arrival) entry() Append {
	return Append{Lane: a.lane.log, Messages: a.store, Checkpoint: a.next}
}

// appendEach appends lane by lane, where the log of one of them is corrupt: that one is rebuilt, and the
// others go on.
func (s *Scheduler) appendEach(ctx context.Context, arrivals []arrival, d Durability) error {
	for i := range arrivals {
		a := &arrivals[i]
		if len(a.store) == 0 {
			continue
		}
		err := s.log.Append(ctx, []Append{a.entry()}, d)
		if errors.Is(err, ErrLogCorrupt) {
			err = s.logFault(a.lane, a.epoch, err)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// accept classifies one batch; ok is false where it is of no use.
func (s *Scheduler) accept(l *lane, b *Batch) (arrival, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.epoch != b.Epoch || !l.state.reads() {
		return arrival{}, false
	}
	if b.Err != nil {
		l.reason = b.Err.Error()
		s.logger.Warn("ingress cannot be read", zap.Stringer("lane", l.name), zap.Error(b.Err))
		if errors.Is(b.Err, ErrIngressReplaced) {
			// In a task of its own: it waits for the lane's log, which this batch holds.
			s.spawn("replaced", func() error { s.reassign(l, b.Epoch, b.Err); return nil })
		}
		return arrival{}, false
	}
	if b.OutOfRange {
		s.outOfRange(l, b.Start)
		return arrival{}, false
	}
	l.core.passed(b.Seen)
	if len(b.Records) == 0 {
		s.commitLater(l)
		return arrival{}, false
	}
	if l.state == laneDelivering {
		l.reason = ""
	}
	return arrival{lane: l, epoch: b.Epoch, accepted: l.core.accept(b.Records, s.contract)}, true
}

// outOfRange goes on at the ingress's first offset, where records were deleted before they were read.
// l.mu is held.
func (s *Scheduler) outOfRange(l *lane, start int64) {
	if missing := start - l.core.read; missing > 0 {
		s.metrics.missing.Add(float64(missing))
		s.logger.Error("ingress records were deleted before they were read: give the ingress a longer retention.ms",
			zap.Stringer("lane", l.name), zap.Int64("read", l.core.read), zap.Int64("start", start))
	}
	l.core.skip(start)
	s.beginDelivering(l)
	s.commitLater(l)
}

// stored lets the lane see a batch that is durable: plans may take it, and it gets its timers.
func (s *Scheduler) stored(a *arrival) {
	l := a.lane
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.epoch != a.epoch {
		return
	}
	l.core.stored(a.accepted)
	if !a.replay {
		s.metrics.accepted.WithLabelValues(l.name.Topic).Add(float64(len(a.store) + a.late + a.rejected))
		s.metrics.lateArrivals.Add(float64(a.late))
		if a.late > 0 {
			s.logger.Debug("late arrivals", zap.Stringer("lane", l.name), zap.Int("count", a.late))
		}
	}
	s.beginDelivering(l)
	nowMs := s.nowMs()
	if l.state != laneDelivering {
		s.tellProgress(l, nowMs)
		return
	}
	ripe := len(l.core.owed) > 0 || l.core.uncommitted() >= s.limits.CommitOffsets
	for i := range a.store {
		if due := a.store[i].DueMs; due <= nowMs {
			ripe = true
		} else {
			s.setTimer(l, due)
		}
	}
	if ripe {
		s.markLocked(l)
	}
	s.commitLater(l)
	if l.carrying && l.core.settledDown() && !l.core.planWaits() {
		l.carrying = false
		s.chores.push(l)
	}
	s.pauseLocked(l)
}

// tellProgress logs now and then how far a lane is that has yet to deliver. l.mu is held.
func (s *Scheduler) tellProgress(l *lane, nowMs int64) {
	if nowMs-l.toldAt < progressEvery.Milliseconds() {
		return
	}
	l.toldAt = nowMs
	s.logger.Info("lane "+l.state.String(), zap.Stringer("lane", l.name), zap.Int64("read", l.core.read),
		zap.Int64("gate", l.core.gate), zap.Int64("left", l.core.gate-l.core.read), zap.Int64("waiting", l.log.Waiting()))
}

// commitLater asks for a commit without deliveries, where there is something to commit. l.mu is held.
func (s *Scheduler) commitLater(l *lane) {
	if l.state == laneDelivering && l.commitAt == 0 && (l.core.uncommitted() > 0 || l.core.lags()) {
		l.commitAt = s.nowMs() + s.limits.CommitEvery.Milliseconds()
		s.look(l, l.commitAt)
	}
}

// pauseLocked pauses or resumes the reading of a lane, as its debts, its lateness and the disk ask
// for. While it reads what its log lacks it is not paused for what is owed, or it would stand still.
// l.mu is held.
func (s *Scheduler) pauseLocked(l *lane) {
	if !l.state.reads() {
		return
	}
	limit := s.limits.LagPause.Milliseconds()
	if l.paused {
		limit /= 2
	}
	lagging := l.state == laneDelivering && l.lagMs > limit
	owing := l.state == laneDelivering && len(l.core.owed) > 0
	full := s.diskFull.Load()
	pause := owing || lagging || full
	switch {
	case pause && !l.paused:
		s.cluster.Pause(l.name)
		if lagging {
			s.logger.Warn("reading is paused until delivery has caught up", zap.Stringer("lane", l.name), zap.Int64("lateMs", l.lagMs))
		}
	case !pause && l.paused:
		s.cluster.Resume(l.name)
	}
	l.paused = pause
	if l.state == laneDelivering {
		switch {
		case full:
			l.reason = "reading paused: disk nearly full"
		case lagging:
			l.reason = "reading paused: delivery is behind"
		case l.reason != "" && !pause:
			l.reason = ""
		}
	}
}

// logFault deals with a log that cannot be read: a corrupt lane is rebuilt from its ingress, anything
// else ends the process.
func (s *Scheduler) logFault(l *lane, epoch uint64, err error) error {
	if !errors.Is(err, ErrLogCorrupt) {
		return fmt.Errorf("read the log of %s: %w", l.name, err)
	}
	l.distrust()
	s.reassign(l, epoch, err)
	return nil
}

// distrust has the next takeover rebuild the lane's log.
func (l *lane) distrust() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reset = true
}
