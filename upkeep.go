package bide

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"
)

// Upkeep says how an ingress topic is kept small; see docs/DESIGN.md §3.6.
type Upkeep struct {
	// Trim deletes records below the committed low.
	Trim bool
	// Carry copies the oldest waiting messages to the lane's end where they pin too many dead records,
	// or where retention comes near.
	Carry bool
	// Retention is the topic's retention.ms; 0 where it has none.
	Retention time.Duration
}

const (
	// carryRecords bounds the records that are read for one round of carrying, carryBytes what is copied
	// in one.
	carryRecords = 4096
	carryBytes   = 1 << 20
)

// runUpkeep trims lanes and carries messages forward.
func (s *Scheduler) runUpkeep(ctx context.Context) error {
	pulse := s.pulse("upkeep")
	tick := time.NewTicker(s.limits.UpkeepEvery)
	defer tick.Stop()
	for {
		pulse.Rest()
		var lanes []*lane
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			lanes = s.allLanes()
		case <-s.chores.wake:
			lanes = s.chores.take()
		}
		for _, l := range lanes {
			if err := s.tend(ctx, l); err != nil && ctx.Err() == nil {
				s.logger.Warn("upkeep of a lane", zap.Stringer("lane", l.name), zap.Error(err))
			}
		}
	}
}

// tend does what one lane needs now.
func (s *Scheduler) tend(ctx context.Context, l *lane) error {
	upkeep := s.upkeep(l.name.Topic)
	l.mu.Lock()
	if l.state != laneDelivering || l.core.planWaits() && l.core.plan.claim {
		l.mu.Unlock()
		return nil
	}
	log, epoch, c, trimmed := l.log, l.epoch, l.core.committed, l.trimmed
	idle := l.core.settledDown() && len(l.core.toCarry) == 0
	l.mu.Unlock()

	// Trimming makes room; carrying keeps messages from being lost, and does not wait for the other.
	var faults []error
	if upkeep.Trim && c.Low > trimmed {
		faults = append(faults, s.trim(ctx, l, epoch, c.Low))
	}
	if upkeep.Carry && idle {
		faults = append(faults, s.carryOldest(ctx, l, epoch, log, c, upkeep.Retention))
	}
	return errors.Join(faults...)
}

// trim deletes the lane's records below low. Only one that was committed counts: a low that is only
// planned may never come true.
func (s *Scheduler) trim(ctx context.Context, l *lane, epoch uint64, low int64) error {
	if err := s.cluster.Trim(ctx, l.name, low); err != nil {
		return fmt.Errorf("trim below offset %d: %w", low, err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.epoch == epoch {
		l.trimmed = low
	}
	s.logger.Debug("trimmed", zap.Stringer("lane", l.name), zap.Int64("below", low))
	return nil
}

// carryOldest has the lane's next plan carry its oldest messages, if it is time.
func (s *Scheduler) carryOldest(ctx context.Context, l *lane, epoch uint64, log LaneLog, c Commit, retention time.Duration) error {
	carry, err := s.oldest(ctx, l.name, log, c, retention)
	if err != nil || len(carry) == 0 {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.epoch == epoch && l.core.settledDown() {
		l.core.toCarry, l.carrying = carry, true
		s.markLocked(l)
	}
	return nil
}

// oldest returns the first waiting messages at or above the lane's low, if they are to be carried now.
func (s *Scheduler) oldest(ctx context.Context, name Lane, log LaneLog, c Commit, retention time.Duration) ([]Message, error) {
	waiting := log.Waiting()
	crowded := c.Next-c.Low-waiting > max(waiting, s.limits.DeadOffsets)
	if waiting == 0 || !crowded && retention == 0 {
		return nil, nil
	}
	if !crowded {
		first, err := s.cluster.ReadAt(ctx, name, c.Low, 1)
		if err != nil || len(first) == 0 || s.wall().Sub(time.UnixMilli(first[0].TimestampMs)) <= retention/2 {
			return nil, err
		}
	}
	// One read may have few records, where they are large, and none of a message that waits: low lags
	// behind by up to a block of offsets.
	for from := c.Low; from < c.Low+carryRecords; {
		records, err := s.cluster.ReadAt(ctx, name, from, carryRecords)
		if err != nil || len(records) == 0 {
			return nil, err
		}
		carry, err := s.carryable(log, records, c)
		if err != nil || len(carry) > 0 {
			return carry, err
		}
		from = records[len(records)-1].Offset + 1
	}
	return nil, nil
}

// carryable returns the messages among records that wait in the log and are held by these records, but
// for those that are due before a copy would be of use.
func (s *Scheduler) carryable(log LaneLog, records []Record, c Commit) ([]Message, error) {
	soon := s.nowMs() + s.limits.UpkeepEvery.Milliseconds()
	var carry []Message
	bytes := 0
	for i := range records {
		rec := &records[i]
		if rec.Offset >= c.Next || bytes > carryBytes {
			break
		}
		m, rejection := s.contract.Accept(*rec, RulesAt(c.Rules, rec.Offset))
		if rejection != nil || m.DueMs <= soon {
			continue
		}
		at, ok, err := log.Where(m.Position())
		if err != nil {
			return nil, err
		}
		if ok && at == rec.Offset {
			carry = append(carry, m)
			bytes += m.Bytes()
		}
	}
	return carry, nil
}
