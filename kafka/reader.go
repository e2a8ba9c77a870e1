package kafka

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

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
	before int64 // what next was before the last poll
	paused bool
	lost   bool      // not read on until started again
	again  time.Time // when the lane is to be added again; zero if it is with the client
	topic  [16]byte  // id of the topic when the lane was started; zero if it was not known
	doubt  bool      // the topic was unknown: it may be another one of the same name when it is back
	told   time.Time // when its fault was last told
	fault  string    // that fault
}

func newLaneReader(c *Cluster) (*laneReader, error) {
	client, err := c.client(c.reading(c.opt.FetchBytes/fetchesAtOnce,
		kgo.MaxConcurrentFetches(fetchesAtOnce),
		// Transaction markers tell how far reading got where no record follows.
		kgo.KeepControlRecords(),
	)...)
	if err != nil {
		return nil, err
	}
	return &laneReader{cluster: c, client: client, lanes: make(map[bide.Lane]*laneReading)}, nil
}

// reading returns the options of clients that read lanes, and more. bytes is the most that one fetch has.
func (c *Cluster) reading(bytes int, more ...kgo.Opt) []kgo.Opt {
	return append([]kgo.Opt{
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{}),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumeResetOffset(kgo.NoResetOffset()),
		kgo.FetchMaxWait(fetchMaxWait),
		kgo.FetchMinBytes(1),
		kgo.FetchMaxBytes(int32(bytes)),
		kgo.FetchMaxPartitionBytes(int32(min(bytes, 4<<20))),
	}, more...)
}

// Start reads the lane from an offset on; see [bide.Cluster].
func (c *Cluster) Start(lane bide.Lane, from int64, epoch uint64) {
	r := c.reader
	// Of the facts that this start was decided on. Later ones may be of another topic of that name.
	id, _ := c.asked.Load(lane)
	topic, _ := id.([16]byte)
	r.do(func() {
		r.remove(lane)
		r.lanes[lane] = &laneReading{epoch: epoch, next: from, topic: topic}
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
		if l.paused && b.Seen > 0 {
			l.next = l.before
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
				l.before = l.next
				batches = append(batches, bide.Batch{Lane: lane, Epoch: l.epoch})
			}
			l.append(&batches[i], p.Records)
		}
		if p.Err != nil {
			if b, ok := r.fault(ctx, lane, l, p.Err); ok {
				batches = append(batches, b)
			}
		}
	})
	return slices.DeleteFunc(batches, func(b bide.Batch) bool {
		return len(b.Records) == 0 && b.Seen == 0 && b.Err == nil && !b.OutOfRange
	})
}

// append adds records that were not returned before to a batch.
func (l *laneReading) append(to *bide.Batch, records []*kgo.Record) {
	to.Records = slices.Grow(to.Records, len(records))
	for _, rec := range records {
		if rec.Offset < l.next || l.lost {
			continue
		}
		l.next = rec.Offset + 1
		to.Seen = l.next
		if !rec.Attrs.IsControl() {
			to.Records = append(to.Records, ingressRecord(rec))
		}
	}
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
