package kafka

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/bide-mq/bide"
)

const (
	// bufferedLimit is more records than plans ever have: what a client buffers is bounded by the
	// scheduler, and its own limit would let one target that does not take records stop the others.
	bufferedLimit = 1 << 24
	// unansweredGrace is how long after the delivery timeout a request that is under way may still be
	// answered, before its client is given up.
	unansweredGrace = 2 * time.Second
	// reachableTimeout bounds the question whether the cluster answers at all.
	reachableTimeout = 2 * time.Second
	// recordOverhead is what a record takes in a batch beside key, value and headers, rounded down.
	recordOverhead = 61 + 7
	// bareLimit bounds how many dead letters are remembered as too large with the added headers.
	bareLimit = 4096
)

// producing returns the options of clients that produce, and more.
func (c *Cluster) producing(more ...kgo.Opt) []kgo.Opt {
	return append([]kgo.Opt{
		kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.ProducerLinger(0),
		kgo.RecordPartitioner(Partitioner()),
		kgo.ProducerBatchMaxBytes(int32(c.opt.MaxMessageBytes)),
		kgo.ProducerBatchCompression(c.codec),
		kgo.MaxBufferedRecords(bufferedLimit),
		kgo.RecordDeliveryTimeout(c.opt.DeliveryTimeout),
		kgo.ProduceRequestTimeout(c.opt.DeliveryTimeout),
		// A partition that is new to the transaction may be told to wait for the markers of the last
		// one, which takes milliseconds.
		kgo.RetryBackoffFn(func(tries int) time.Duration {
			wait := min(10*time.Millisecond<<min(tries, 6), 500*time.Millisecond)
			return time.Duration(float64(wait) * (0.8 + 0.4*rand.Float64()))
		}),
		kgo.MetadataMinAge(100 * time.Millisecond),
	}, more...)
}

// produceRun is the records of one transaction on their way.
type produceRun struct {
	idle chan struct{} // capacity 1: nothing is under way

	mu struct {
		sync.Mutex
		open  int
		over  bool // given up: later answers count for nothing
		errs  []error
		topic []string
		size  []int
		// written has the greatest offset of the records in each partition.
		written map[topicPartition]int64
	}
	err error // of the run as a whole
}

var errUnanswered = errors.New("not answered in time")

// produceItems produces all items of plans in their order, and waits until each is acknowledged or
// failed, or time is up.
func (c *Cluster) produceItems(ctx context.Context, client *kgo.Client, plans []*bide.Plan) *produceRun {
	total := countItems(plans)
	run := &produceRun{idle: make(chan struct{}, 1)}
	run.mu.errs = make([]error, total)
	run.mu.topic = make([]string, total)
	run.mu.size = make([]int, total)
	limit := time.NewTimer(c.opt.DeliveryTimeout + unansweredGrace)
	defer limit.Stop()
	nowMs := time.Now().UnixMilli()
	i := 0
	for _, p := range plans {
		for k := range p.Items {
			it := &p.Items[k]
			if it.Fate.Kind == bide.Leave {
				i++
				continue
			}
			rec := c.recordOf(p.Lane, it, nowMs)
			run.mu.topic[i], run.mu.size[i] = rec.Topic, recordBytes(rec)
			if it.Fate.Alone && !run.wait(ctx, limit.C) {
				return run
			}
			run.produce(ctx, client, rec, i)
			if it.Fate.Alone && !run.wait(ctx, limit.C) {
				return run
			}
			i++
		}
	}
	run.wait(ctx, limit.C)
	return run
}

func (r *produceRun) produce(ctx context.Context, client *kgo.Client, rec *kgo.Record, i int) {
	r.mu.Lock()
	r.mu.open++
	r.mu.errs[i] = errUnanswered
	r.mu.Unlock()
	client.Produce(ctx, rec, func(rec *kgo.Record, err error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		if err == nil {
			r.noteLocked(rec)
		}
		if r.mu.over {
			return
		}
		r.mu.errs[i] = err
		r.mu.open--
		if r.mu.open == 0 {
			select {
			case r.idle <- struct{}{}:
			default:
			}
		}
	})
}

// wait returns once nothing is under way; false says that time is up, and the run is over.
func (r *produceRun) wait(ctx context.Context, limit <-chan time.Time) bool {
	for {
		r.mu.Lock()
		done := r.mu.open == 0
		r.mu.Unlock()
		if done {
			return true
		}
		var err error
		select {
		case <-r.idle:
			continue
		case <-ctx.Done():
			err = context.Cause(ctx)
		case <-limit:
			err = errUnanswered
		}
		r.mu.Lock()
		r.mu.over = true
		r.err = err
		r.mu.Unlock()
		return false
	}
}

// noteLocked notes where the broker put a record.
func (r *produceRun) noteLocked(rec *kgo.Record) {
	if r.mu.written == nil {
		r.mu.written = make(map[topicPartition]int64)
	}
	p := topicPartition{rec.Topic, rec.Partition}
	r.mu.written[p] = max(r.mu.written[p], rec.Offset)
}

// wrote returns the greatest offset of the records in each partition.
func (r *produceRun) wrote() map[topicPartition]int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.mu.written)
}

func (r *produceRun) failed() bool {
	if r.err != nil {
		return true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, err := range r.mu.errs {
		if err != nil {
			return true
		}
	}
	return false
}

// failures turns a failed run into results. An item is blamed only for what is its own or its target's
// fault: not for a fault of the transaction, nor while the cluster as a whole cannot be reached.
func (c *Cluster) failures(ctx context.Context, plans []*bide.Plan, run *produceRun) []bide.Result {
	run.mu.Lock()
	run.mu.over = true
	run.mu.Unlock()
	company := make(map[string]int)
	for _, t := range run.mu.topic {
		company[t]++
	}
	results := aborted(plans, nil)
	var first error
	blameTargets, asked := false, false
	i := 0
	for n, p := range plans {
		for k := range p.Items {
			it, err, topic := &p.Items[k], run.mu.errs[i], run.mu.topic[i]
			alone := it.Fate.Alone || company[topic] == 1
			tooLarge := run.mu.size[i] > c.opt.MaxMessageBytes
			i++
			if err == nil {
				continue
			}
			if first == nil {
				first = fmt.Errorf("produce to %s: %w", topic, err)
			}
			if ctx.Err() != nil {
				continue
			}
			kind, why := blame(err, topic, alone || tooLarge)
			if why == nil {
				continue
			}
			if kind == bide.Unavailable {
				if !asked {
					asked, blameTargets = true, c.reachable(ctx) == nil
				}
				if !blameTargets {
					continue
				}
			}
			if kind == bide.Refused && why.Code == CodeTooLarge && c.makeBare(p.Lane, it) {
				kind = bide.Suspect
			}
			results[n].Failures = append(results[n].Failures, bide.Failure{Item: k, Kind: kind, Rejection: why})
		}
	}
	if run.err != nil && first == nil {
		first = run.err
	}
	for n := range results {
		results[n].Err = first
		if len(results[n].Failures) == 0 {
			results[n].Err = fmt.Errorf("%w: %w", errAlong, first)
		}
	}
	return results
}

// blame says what err has to do with the record that it came for; no reason means nothing.
func blame(err error, topic string, alone bool) (bide.FailureKind, *bide.Rejection) {
	is := func(targets ...error) bool {
		for _, t := range targets {
			if errors.Is(err, t) {
				return true
			}
		}
		return false
	}
	batch := bide.Suspect // the broker refuses batches, not records
	if alone {
		batch = bide.Refused
	}
	switch {
	case is(kerr.MessageTooLarge, kerr.RecordListTooLarge):
		return batch, reject(CodeTooLarge, "the message is larger than its target %s takes (max.message.bytes) or than Bide sends", topic)
	case is(kerr.InvalidRecord, kerr.InvalidTimestamp, kerr.CorruptMessage, kerr.UnsupportedForMessageFormat):
		return batch, reject(CodeTargetRefused, "the target %s refused the message: %s", topic, kafkaWord(err))
	case is(kerr.TopicAuthorizationFailed):
		return bide.Refused, reject(CodeTargetUnauthorized, "Bide may not write the target %s: it needs Write on the topic", topic)
	case is(kerr.InvalidTopicException):
		return bide.Refused, reject(CodeTargetInvalid, "the target %s is no topic name that Kafka allows", topic)
	case is(kerr.PolicyViolation):
		return bide.Refused, reject(CodeTargetRefused, "the target %s refused the message: %s", topic, kafkaWord(err))
	case strings.HasPrefix(err.Error(), "invalid record partitioning choice"):
		return bide.Unavailable, reject(CodePartitionUnknown, "the target %s has no partition of that number", topic)
	case is(kerr.UnknownTopicOrPartition, kerr.UnknownTopicID):
		return bide.Unavailable, reject(CodeTargetUnknown, "the target %s does not exist", topic)
	case is(kerr.ConcurrentTransactions, context.Canceled, context.DeadlineExceeded, kgo.ErrAborting, kgo.ErrClientClosed),
		isProducerLost(err):
		return 0, nil
	case is(kgo.ErrRecordTimeout, kgo.ErrRecordRetries, errUnanswered), kerr.IsRetriable(err):
		return bide.Unavailable, reject(CodeTargetUnavailable, "the target %s could not be written: %s", topic, kafkaWord(err))
	default:
		return 0, nil
	}
}

// kafkaWord names the error code of a broker, or else the error.
func kafkaWord(err error) string {
	if ke, ok := errors.AsType[*kerr.Error](err); ok {
		return ke.Message
	}
	return err.Error()
}

// reachable reports whether some broker answers.
func (c *Cluster) reachable(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, reachableTimeout)
	defer cancel()
	req := kmsg.NewPtrMetadataRequest()
	req.Topics = []kmsg.MetadataRequestTopic{}
	_, err := req.RequestWith(ctx, c.plain)
	return err
}

// recordOf builds the record for an item.
func (c *Cluster) recordOf(lane bide.Lane, it *bide.Item, nowMs int64) *kgo.Record {
	if it.Fate.Kind == bide.DeadLetter && c.isBare(lane, it) {
		return c.opt.Contract.bareDeadLetter(it, nowMs)
	}
	return c.opt.Contract.record(lane, it, nowMs)
}

// recordBytes is how large a batch with rec alone is at least, before compression.
func recordBytes(rec *kgo.Record) int {
	n := recordOverhead + len(rec.Key) + len(rec.Value)
	for _, h := range rec.Headers {
		n += 2 + len(h.Key) + len(h.Value)
	}
	return n
}

// bareLetters remembers which dead letters go without the added headers, since with them they were
// refused for their size.
type bareLetters struct {
	sync.Mutex
	at map[letterKey]struct{}
}

type letterKey struct {
	lane   bide.Lane
	offset int64
}

// makeBare lets a dead letter be tried without added headers; false says that it is no dead letter, or
// was tried so.
func (c *Cluster) makeBare(lane bide.Lane, it *bide.Item) bool {
	if it.Fate.Kind != bide.DeadLetter {
		return false
	}
	key := letterKey{lane, it.Offset}
	c.bare.Lock()
	defer c.bare.Unlock()
	if _, tried := c.bare.at[key]; tried {
		return false
	}
	if c.bare.at == nil || len(c.bare.at) >= bareLimit {
		c.bare.at = make(map[letterKey]struct{})
	}
	c.bare.at[key] = struct{}{}
	return true
}

func (c *Cluster) isBare(lane bide.Lane, it *bide.Item) bool {
	c.bare.Lock()
	defer c.bare.Unlock()
	_, bare := c.bare.at[letterKey{lane, it.Offset}]
	return bare
}
