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
	// carryRecords bounds the records of one read, carryReads the reads of one round of carrying, and
	// carryBytes what is copied in one.
	carryRecords = 4096
	carryReads   = 64
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
	job := chore{lane: l, log: l.log, epoch: l.epoch, commit: l.core.committed, from: l.carriedTo}
	trim := upkeep.Trim && job.commit.Low > l.trimmed
	idle := l.core.settledDown() && len(l.core.toCarry) == 0
	l.mu.Unlock()

	waiting := job.log.Waiting()
	dead := job.commit.Next - job.commit.Low - waiting
	job.crowded = dead > max(waiting, s.limits.DeadOffsets)
	carry := upkeep.Carry && idle && waiting > 0 && (job.crowded || upkeep.Retention > 0)
	if !trim && !carry {
		return nil
	}
	facts, err := s.cluster.Facts(ctx, l.name)
	if err != nil {
		return err
	}
	if facts.TopicID != job.commit.TopicID {
		return ErrIngressReplaced // its reader tells the lane; what is known of the old one holds no longer
	}
	// Trimming makes room; carrying keeps messages from being lost, and does not wait for the other.
	var faults []error
	if trim {
		faults = append(faults, s.trim(ctx, &job))
	}
	if carry {
		job.from = max(job.from, job.commit.Low, facts.Start)
		faults = append(faults, s.carryOldest(ctx, &job, upkeep.Retention))
	}
	return errors.Join(faults...)
}

// chore is what one lane looked like when it was tended.
type chore struct {
	lane   *lane
	log    LaneLog
	epoch  uint64
	commit Commit
	// crowded says that dead records are more than the lane may hold.
	crowded bool
	// from is the offset below which no record holds a message that is to be carried.
	from int64
}

// trim deletes the lane's records below its low. Only one that was committed counts: a low that is only
// planned may never come true.
func (s *Scheduler) trim(ctx context.Context, job *chore) error {
	l, low := job.lane, job.commit.Low
	if err := s.cluster.Trim(ctx, l.name, low); err != nil {
		return fmt.Errorf("trim below offset %d: %w", low, err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.epoch == job.epoch {
		l.trimmed = low
	}
	s.logger.Debug("trimmed", zap.Stringer("lane", l.name), zap.Int64("below", low))
	return nil
}

// carryOldest has the lane's next plan carry its oldest messages, if it is time.
func (s *Scheduler) carryOldest(ctx context.Context, job *chore, retention time.Duration) error {
	carry, err := s.oldest(ctx, job, retention)
	l := job.lane
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.epoch != job.epoch {
		return err
	}
	l.carriedTo = job.from
	if len(carry) > 0 && l.core.settledDown() {
		l.core.toCarry, l.carrying = carry, true
		s.markLocked(l)
	}
	return err
}

// oldest returns the first messages to be carried, if they are to be carried now, and moves job.from to
// where they were found, or to where it looked in vain: messages whose records are gone already, or that
// hold low back for another reason, must not keep it from those behind.
func (s *Scheduler) oldest(ctx context.Context, job *chore, retention time.Duration) ([]Message, error) {
	name := job.lane.name
	if !job.crowded {
		first, err := s.cluster.ReadAt(ctx, name, job.from, 1)
		if err != nil || len(first) == 0 || s.wall().Sub(time.UnixMilli(first[0].TimestampMs)) <= retention/2 {
			return nil, err
		}
	}
	// One read may have few records, where they are large, and none of a message that waits.
	for range carryReads {
		records, err := s.cluster.ReadAt(ctx, name, job.from, carryRecords)
		if err != nil || len(records) == 0 {
			return nil, err
		}
		carry, err := s.carryable(job.log, records, job.commit)
		if err != nil || len(carry) > 0 {
			return carry, err
		}
		next := records[len(records)-1].Offset + 1
		if next > job.commit.Next {
			return nil, nil
		}
		job.from = next
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
