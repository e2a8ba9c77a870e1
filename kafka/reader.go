package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/zap"

	"github.com/bide-mq/bide"
)

const (
	// fetchMaxWait is how long a broker may hold a fetch that finds nothing. A lane that is added or
	// resumed waits for the fetch under way to its broker.
	fetchMaxWait = 500 * time.Millisecond
	// fetchesAtOnce bounds fetches under way or buffered, so that it bounds memory with FetchBytes.
	fetchesAtOnce = 4
	// laneRetry is how long a lane rests that cannot be read, and how often its fault is told again.
	laneRetry = time.Second
)

// Faults of a lane in a [bide.Batch] that time does not mend.
var (
	// ErrTruncated says that a lane was to be read from beyond its end: the cluster lost records that
	// were read before. The lane is not read on until it is started again, for what is written now
	// takes the offsets of what was lost.
	ErrTruncated = errors.New("lane ends below the offset to be read")
	// ErrRecreated says that the ingress topic was deleted and created again.
	ErrRecreated = errors.New("topic was deleted and created again")
)

// laneReader reads the lanes that it is told to. Start, Stop, Pause and Resume note what is wanted; Poll
// alone touches the client's assignment, between two polls. So what a poll returns was fetched under the
// assignment made before it, and gets the epoch of that: the client drops what it has buffered, and
// ignores what is under way, for a partition that is removed or paused.
type laneReader struct {
	cluster *Cluster
	client  *kgo.Client

	mu struct {
		sync.Mutex
		todo []func()           // in order
		wake context.CancelFunc // ends the poll under way
	}

	// Poll's own.
	lanes map[bide.Lane]*laneReading
	ready []bide.Batch // to be returned by the next poll
}

// laneReading is how far a lane was read.
type laneReading struct {
	epoch  uint64
	next   int64 // the offset of the next record to be returned is at least this
	paused bool
	lost   bool      // not read on until started again
	again  time.Time // when the lane is to be added again; zero if it is with the client
	doubt  bool      // the topic was unknown: it may be another one of the same name when it is back
	told   time.Time // when its fault was last told
}

func newLaneReader(c *Cluster) (*laneReader, error) {
	part := min(c.opt.FetchBytes/fetchesAtOnce, 4<<20)
	client, err := c.client(
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{}),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumeResetOffset(kgo.NoResetOffset()),
		kgo.FetchMaxWait(fetchMaxWait),
		kgo.FetchMinBytes(1),
		kgo.FetchMaxBytes(int32(c.opt.FetchBytes/fetchesAtOnce)),
		kgo.FetchMaxPartitionBytes(int32(part)),
		kgo.MaxConcurrentFetches(fetchesAtOnce),
	)
	if err != nil {
		return nil, err
	}
	return &laneReader{cluster: c, client: client, lanes: make(map[bide.Lane]*laneReading)}, nil
}

// Start reads the lane from an offset on; see [bide.Cluster].
func (c *Cluster) Start(lane bide.Lane, from int64, epoch uint64) {
	r := c.reader
	r.do(func() {
		r.remove(lane)
		r.lanes[lane] = &laneReading{epoch: epoch, next: from}
		r.resume(lane)
		r.add(lane)
	})
}

// Stop ends reading the lane.
func (c *Cluster) Stop(lane bide.Lane) {
	r := c.reader
	r.do(func() {
		r.remove(lane)
		delete(r.lanes, lane)
		r.resume(lane)
	})
}

// Pause keeps the place; no batch of the lane is returned until Resume.
func (c *Cluster) Pause(lane bide.Lane) {
	r := c.reader
	r.do(func() {
		if l := r.lanes[lane]; l != nil && !l.paused {
			l.paused = true
			r.client.PauseFetchPartitions(map[string][]int32{lane.Topic: {lane.Partition}})
		}
	})
}

// Resume ends a pause.
func (c *Cluster) Resume(lane bide.Lane) {
	r := c.reader
	r.do(func() {
		if l := r.lanes[lane]; l != nil && l.paused {
			l.paused = false
			r.resume(lane)
		}
	})
}

// do notes a change and wakes the poll under way, so that it is made at once.
func (r *laneReader) do(change func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.todo = append(r.mu.todo, change)
	if r.mu.wake != nil {
		r.mu.wake()
	}
}

// Poll waits for records; see [bide.Cluster].
func (c *Cluster) Poll(ctx context.Context, maxRecords int) ([]bide.Batch, error) {
	r := c.reader
	for {
		woken, wake := context.WithCancel(ctx)
		r.change(wake)
		wait := r.revive(ctx)
		if len(r.ready) > 0 {
			ready := r.ready
			r.ready = nil
			r.asleep()
			wake()
			return ready, nil
		}
		poll, cancel := woken, context.CancelFunc(func() {})
		if wait > 0 {
			poll, cancel = context.WithTimeout(woken, wait)
		}
		fetches := r.client.PollRecords(poll, maxRecords)
		cancel()
		r.asleep()
		wake()
		batches := r.take(ctx, fetches)
		switch {
		case ctx.Err() != nil:
			return batches, context.Cause(ctx)
		case fetches.IsClientClosed():
			return batches, errClosed
		}
		if batches = r.current(batches); len(batches) > 0 {
			return batches, nil
		}
	}
}

// change makes the changes noted since the last poll, and lets later ones end the coming poll.
func (r *laneReader) change(wake context.CancelFunc) {
	r.mu.Lock()
	todo := r.mu.todo
	r.mu.todo, r.mu.wake = nil, wake
	r.mu.Unlock()
	for _, change := range todo {
		change()
	}
}

func (r *laneReader) asleep() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.wake = nil
}

// current makes the changes that were noted while the poll ran, and drops what it returned for lanes
// that they stopped, started anew or paused; the client has taken it back then, or the place is kept.
func (r *laneReader) current(batches []bide.Batch) []bide.Batch {
	r.change(nil)
	return slices.DeleteFunc(batches, func(b bide.Batch) bool {
		l := r.lanes[b.Lane]
		if l == nil || l.epoch != b.Epoch {
			return true
		}
		if l.paused && len(b.Records) > 0 {
			l.next = b.Records[0].Offset
			r.remove(b.Lane)
			r.add(b.Lane)
			return true
		}
		return false
	})
}

// take turns fetches into batches and notes how far lanes were read.
func (r *laneReader) take(ctx context.Context, fetches kgo.Fetches) (batches []bide.Batch) {
	at := make(map[bide.Lane]int)
	fetches.EachPartition(func(p kgo.FetchTopicPartition) {
		lane := bide.Lane{Topic: p.Topic, Partition: p.Partition}
		l := r.lanes[lane]
		if l == nil {
			return
		}
		if len(p.Records) > 0 {
			r.cluster.metrics.fetched.Add(float64(len(p.Records)))
			i, ok := at[lane]
			if !ok {
				i = len(batches)
				at[lane] = i
				batches = append(batches, bide.Batch{Lane: lane, Epoch: l.epoch})
			}
			batches[i].Records = l.append(batches[i].Records, p.Records)
		}
		if p.Err != nil {
			if b, ok := r.fault(ctx, lane, l, p.Err); ok {
				batches = append(batches, b)
			}
		}
	})
	return slices.DeleteFunc(batches, func(b bide.Batch) bool {
		return len(b.Records) == 0 && b.Err == nil && !b.OutOfRange
	})
}

// append adds records that were not returned before.
func (l *laneReading) append(to []bide.Record, records []*kgo.Record) []bide.Record {
	to = slices.Grow(to, len(records))
	for _, rec := range records {
		if rec.Offset < l.next || l.lost {
			continue
		}
		l.next = rec.Offset + 1
		to = append(to, ingressRecord(rec))
	}
	return to
}

// ingressRecord shares the memory of the fetched record.
func ingressRecord(rec *kgo.Record) bide.Record {
	out := bide.Record{
		Offset:      rec.Offset,
		TimestampMs: rec.Timestamp.UnixMilli(),
		Key:         rec.Key,
		Value:       rec.Value,
	}
	if len(rec.Headers) > 0 {
		out.Headers = make([]bide.Header, len(rec.Headers))
		for i, h := range rec.Headers {
			out.Headers[i] = bide.Header(h)
		}
	}
	return out
}

// fault deals with an error of a lane: the lane leaves the client and is added again a little later.
func (r *laneReader) fault(ctx context.Context, lane bide.Lane, l *laneReading, err error) (bide.Batch, bool) {
	if l.lost || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return bide.Batch{}, false
	}
	r.remove(lane)
	l.again = time.Now().Add(laneRetry)
	b := bide.Batch{Lane: lane, Epoch: l.epoch}
	_, dataLoss := errors.AsType[*kgo.ErrDataLoss](err)
	switch {
	case dataLoss:
		l.lost = true
		b.Err = fmt.Errorf("lane %s: %w: %w", lane, ErrTruncated, err)
		return b, true
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

// tell returns a batch that tells of a fault, unless one did so a moment ago.
func (l *laneReading) tell(lane bide.Lane, err error) (bide.Batch, bool) {
	if !l.told.IsZero() && time.Since(l.told) < 10*laneRetry {
		return bide.Batch{}, false
	}
	l.told = time.Now()
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
		b.Err = fmt.Errorf("lane %s: %w: reading at %d, end at %d", lane, ErrTruncated, l.next, end)
		return b, true
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
	if known, ok := r.cluster.topics.Load(lane.Topic); err == nil && ok && known != id {
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

func (r *laneReader) add(lane bide.Lane) {
	l := r.lanes[lane]
	l.again = time.Time{}
	r.client.AddConsumePartitions(map[string]map[int32]kgo.Offset{
		lane.Topic: {lane.Partition: kgo.NewOffset().At(l.next)},
	})
}

func (r *laneReader) remove(lane bide.Lane) {
	if l := r.lanes[lane]; l != nil && l.again.IsZero() && !l.lost {
		r.client.RemoveConsumePartitions(map[string][]int32{lane.Topic: {lane.Partition}})
	}
}

func (r *laneReader) resume(lane bide.Lane) {
	r.client.ResumeFetchPartitions(map[string][]int32{lane.Topic: {lane.Partition}})
}
