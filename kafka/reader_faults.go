package kafka

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/zap"

	"github.com/bide-mq/bide"
)

// Faults of a lane in a [bide.Batch] that time does not mend.
var (
	// ErrTruncated says that a lane was to be read from beyond its end: the cluster lost records that
	// were read before. The lane is not read on until it is started again, for what is written now
	// takes the offsets of what was lost.
	ErrTruncated = fmt.Errorf("lane ends below the offset to be read: %w", bide.ErrIngressReplaced)
	// ErrRecreated says that the ingress topic was deleted and created again.
	ErrRecreated = fmt.Errorf("topic was deleted and created again: %w", bide.ErrIngressReplaced)
)

// fault deals with an error of a lane: the lane leaves the client and is added again a little later.
func (r *laneReader) fault(ctx context.Context, lane bide.Lane, l *laneReading, err error) (bide.Batch, bool) {
	if l.lost || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return bide.Batch{}, false
	}
	r.remove(lane)
	l.again = time.Now().Add(laneRetry)
	_, dataLoss := errors.AsType[*kgo.ErrDataLoss](err)
	switch {
	case dataLoss:
		l.lost = true
		return l.tell(lane, fmt.Errorf("lane %s: %w: %w", lane, ErrTruncated, err))
	case errors.Is(err, kerr.OffsetOutOfRange):
		return r.outOfRange(ctx, lane, l)
	case errors.Is(err, kerr.UnknownTopicID), errors.Is(err, kerr.UnknownTopicOrPartition):
		r.client.PurgeTopicsFromConsuming(lane.Topic)
		for other, o := range r.lanes {
			if other.Topic == lane.Topic && !o.lost {
				o.again, o.doubt = l.again, true
			}
		}
	}
	return l.tell(lane, fmt.Errorf("read lane %s: %w", lane, err))
}

// tell returns a batch that tells of a fault, unless one told of the same a moment ago.
func (l *laneReading) tell(lane bide.Lane, err error) (bide.Batch, bool) {
	if l.fault == err.Error() && time.Since(l.told) < 10*laneRetry {
		return bide.Batch{}, false
	}
	l.fault, l.told = err.Error(), time.Now()
	return bide.Batch{Lane: lane, Epoch: l.epoch, Err: err}, true
}

// outOfRange finds out on which side of the log the offset lies.
func (r *laneReader) outOfRange(ctx context.Context, lane bide.Lane, l *laneReading) (bide.Batch, bool) {
	c := r.cluster
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	b := bide.Batch{Lane: lane, Epoch: l.epoch}
	start, _, err := c.listOffset(ctx, lane, listStart)
	if err != nil {
		c.log.Warn("cannot find the start of a lane; trying again", zap.Stringer("lane", lane), zap.Error(err))
		return b, false
	}
	if start > l.next {
		b.OutOfRange, b.Start = true, start
		l.next = start
		l.again = time.Now()
		return b, true
	}
	end, _, err := c.listOffset(ctx, lane, listEnd)
	switch {
	case err != nil:
		c.log.Warn("cannot find the end of a lane; trying again", zap.Stringer("lane", lane), zap.Error(err))
		return b, false
	case end < l.next:
		l.lost = true
		return l.tell(lane, fmt.Errorf("lane %s: %w: reading at %d, end at %d", lane, ErrTruncated, l.next, end))
	default:
		return b, false // it is in range again
	}
}

// revive adds lanes again that rested, and returns how long until the next one, or 0.
func (r *laneReader) revive(ctx context.Context) (wait time.Duration) {
	for lane, l := range r.lanes {
		if l.again.IsZero() || l.lost {
			continue
		}
		left := time.Until(l.again)
		if left <= 0 && r.same(ctx, lane, l) {
			r.add(lane)
			continue
		}
		left = max(time.Until(l.again), time.Millisecond)
		if wait == 0 || left < wait {
			wait = left
		}
	}
	return wait
}

// same reports whether a topic that was unknown is the one that the lane was started on. Offsets mean
// nothing in another one: the lane is not read there, and tells so.
func (r *laneReader) same(ctx context.Context, lane bide.Lane, l *laneReading) bool {
	if !l.doubt {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	id, _, err := r.cluster.describe(ctx, lane.Topic)
	if known := l.topic; err == nil && known != id && known != [16]byte{} {
		err = ErrRecreated
	}
	if err == nil {
		l.doubt = false
		return true
	}
	l.again = time.Now().Add(laneRetry)
	if b, ok := l.tell(lane, fmt.Errorf("read lane %s: %w", lane, err)); ok {
		r.ready = append(r.ready, b)
	}
	return false
}
