package kafka

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"
	"unicode/utf16"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// offsetsTopic is where Kafka keeps committed offsets. The partition of a group is that of its coordinator.
const offsetsTopic = "__consumer_offsets"

// topicPartition names a partition of any topic.
type topicPartition struct {
	topic  string
	number int32
}

func (p topicPartition) String() string { return fmt.Sprintf("%s/%d", p.topic, p.number) }

// kind is the label of metrics.
func (p topicPartition) kind() string {
	if p.topic == offsetsTopic {
		return "offsets"
	}
	return "target"
}

// byTopic groups partitions as requests name them.
func byTopic(parts []topicPartition) map[string][]int32 {
	topics := make(map[string][]int32)
	for _, p := range parts {
		topics[p.topic] = append(topics[p.topic], p.number)
	}
	return topics
}

// txnState is what the coordinator knows of a transactional id; no state means that it knows nothing.
type txnState struct {
	state    string
	producer int64
	epoch    int16
}

// complete reports whether the last transaction has ended and its outcome is remembered.
func (s txnState) complete() bool { return s.state == "CompleteCommit" || s.state == "CompleteAbort" }

// underway reports whether a transaction is open, or its markers are being written.
func (s txnState) underway() bool {
	return s.state == "Ongoing" || strings.HasPrefix(s.state, "Prepare")
}

// ending reports whether markers are being written.
func (s txnState) ending() bool { return strings.HasPrefix(s.state, "Prepare") }

func (c *Cluster) describeTxn(ctx context.Context, txnID string) (txnState, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	req := kmsg.NewPtrDescribeTransactionsRequest()
	req.TransactionalIDs = []string{txnID}
	resp, err := req.RequestWith(ctx, c.plain)
	if err != nil {
		return txnState{}, fmt.Errorf("describe transactional id %s: %w", txnID, err)
	}
	if len(resp.TransactionStates) != 1 {
		return txnState{}, fmt.Errorf("describe transactional id %s: missing in the answer", txnID)
	}
	s := resp.TransactionStates[0]
	switch err := kerr.ErrorForCode(s.ErrorCode); {
	case errors.Is(err, kerr.TransactionalIDNotFound):
		return txnState{}, nil
	case err != nil:
		return txnState{}, fmt.Errorf("describe transactional id %s: %w", txnID, err)
	}
	return txnState{state: s.State, producer: s.ProducerID, epoch: s.ProducerEpoch}, nil
}

// listTxnIDs returns the transactional ids of the group that the cluster knows.
func (c *Cluster) listTxnIDs(ctx context.Context) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	resp, err := kmsg.NewPtrListTransactionsRequest().RequestWith(ctx, c.plain)
	if err == nil {
		err = kerr.ErrorForCode(resp.ErrorCode)
	}
	if err != nil {
		return nil, fmt.Errorf("list transactional ids: %w", err)
	}
	var ids []string
	for _, s := range resp.TransactionStates {
		if i := strings.LastIndexByte(s.TransactionalID, '-'); i > 0 && ownsPrefix(c.opt.Group, s.TransactionalID[:i]) {
			ids = append(ids, s.TransactionalID)
		}
	}
	return ids, nil
}

// openTxn is a transaction that a partition has records of, and no marker.
type openTxn struct {
	producer    int64
	epoch       int16
	coordinator int32
	start       int64
}

// openTxns asks the leaders of partitions for their open transactions. Each partition is in one of the
// maps.
func (c *Cluster) openTxns(ctx context.Context, parts []topicPartition) (map[topicPartition][]openTxn, map[topicPartition]error) {
	open, errs := make(map[topicPartition][]openTxn, len(parts)), make(map[topicPartition]error)
	if len(parts) == 0 {
		return open, errs
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	req := kmsg.NewPtrDescribeProducersRequest()
	for topic, numbers := range byTopic(parts) {
		t := kmsg.NewDescribeProducersRequestTopic()
		t.Topic, t.Partitions = topic, numbers
		req.Topics = append(req.Topics, t)
	}
	last := error(kerr.LeaderNotAvailable)
	for _, shard := range c.plain.RequestSharded(ctx, req) {
		if shard.Err != nil {
			last = shard.Err
			continue
		}
		for _, t := range shard.Resp.(*kmsg.DescribeProducersResponse).Topics {
			for _, p := range t.Partitions {
				at := topicPartition{t.Topic, p.Partition}
				if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
					errs[at] = err
					continue
				}
				open[at] = nil
				for _, a := range p.ActiveProducers {
					if a.CurrentTxnStartOffset >= 0 {
						open[at] = append(open[at], openTxn{a.ProducerID, int16(a.ProducerEpoch), a.CoordinatorEpoch, a.CurrentTxnStartOffset})
					}
				}
			}
		}
	}
	for _, p := range parts {
		if _, ok := open[p]; !ok && errs[p] == nil {
			errs[p] = last
		}
	}
	return open, errs
}

// lastStable asks for the last stable offsets of partitions; those that do not answer are missing.
func (c *Cluster) lastStable(ctx context.Context, parts []topicPartition) map[topicPartition]int64 {
	stable := make(map[topicPartition]int64, len(parts))
	if len(parts) == 0 {
		return stable
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	req := kmsg.NewPtrListOffsetsRequest()
	req.ReplicaID, req.IsolationLevel = -1, 1
	for topic, numbers := range byTopic(parts) {
		t := kmsg.NewListOffsetsRequestTopic()
		t.Topic = topic
		for _, n := range numbers {
			p := kmsg.NewListOffsetsRequestTopicPartition()
			p.Partition, p.CurrentLeaderEpoch, p.Timestamp = n, -1, listEnd
			t.Partitions = append(t.Partitions, p)
		}
		req.Topics = append(req.Topics, t)
	}
	for _, shard := range c.plain.RequestSharded(ctx, req) {
		if shard.Err != nil {
			continue
		}
		for _, t := range shard.Resp.(*kmsg.ListOffsetsResponse).Topics {
			for _, p := range t.Partitions {
				if p.ErrorCode == 0 {
					stable[topicPartition{t.Topic, p.Partition}] = p.Offset
				}
			}
		}
	}
	return stable
}

// writeMarker has the leader of a partition end a transaction there, as its coordinator would. By
// transaction.version 2 a marker carries the next epoch.
func (c *Cluster) writeMarker(ctx context.Context, at topicPartition, o openTxn, end ending) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	req := kmsg.NewPtrWriteTxnMarkersRequest()
	m := kmsg.NewWriteTxnMarkersRequestMarker()
	m.ProducerID, m.ProducerEpoch, m.Committed, m.CoordinatorEpoch = o.producer, o.epoch, end.commit, max(o.coordinator, 0)
	if end.bumps {
		m.ProducerEpoch, m.TransactionVersion = o.epoch+1, 2
	}
	t := kmsg.NewWriteTxnMarkersRequestMarkerTopic()
	t.Topic, t.Partitions = at.topic, []int32{at.number}
	m.Topics = append(m.Topics, t)
	req.Markers = append(req.Markers, m)
	resp, err := req.RequestWith(ctx, c.plain)
	if err != nil {
		return fmt.Errorf("write a transaction marker to %s: %w", at, err)
	}
	if len(resp.Markers) != 1 || len(resp.Markers[0].Topics) != 1 || len(resp.Markers[0].Topics[0].Partitions) != 1 {
		return fmt.Errorf("write a transaction marker to %s: missing in the answer", at)
	}
	if err := kerr.ErrorForCode(resp.Markers[0].Topics[0].Partitions[0].ErrorCode); err != nil {
		return fmt.Errorf("write a transaction marker to %s: %w", at, err)
	}
	return nil
}

// endAgain ends a transaction whose markers were lost by another one of the same id that has the
// partitions in it and no record: its markers end the old one too. It needs no right that Bide has not
// anyway. offsets says that the group's offsets partition is one of them. The id gets a new epoch, so
// whoever uses it is fenced.
//
// The requests are those of before transaction.version 2, in which a partition can be added without
// writing to it.
func (c *Cluster) endAgain(ctx context.Context, txnID string, producer int64, parts []topicPartition, commit bool) error {
	ctx, cancel := c.graceful(ctx, decideGrace)
	defer cancel()
	ctx, stop := context.WithTimeout(ctx, 2*callTimeout)
	defer stop()
	id, err := c.initProducer(ctx, txnID)
	if err != nil {
		return err
	}
	if producer >= 0 && id.id != producer {
		return fmt.Errorf("transactional id %s has another producer id by now: %w", txnID, kerr.InvalidProducerIDMapping)
	}
	wait := backoff{least: minBusyWait, most: maxBusyWait}
	for _, step := range []func() error{
		func() error { return c.addToTxn(ctx, id, parts) },
		func() error {
			req := kmsg.NewPtrEndTxnRequest()
			req.TransactionalID, req.ProducerID, req.ProducerEpoch, req.Commit = txnID, id.id, id.epoch, commit
			resp, err := req.RequestWith(ctx, c.capped)
			if err != nil {
				return err
			}
			return kerr.ErrorForCode(resp.ErrorCode)
		},
	} {
		for {
			err := step()
			if err == nil {
				break
			}
			if !errors.Is(err, kerr.ConcurrentTransactions) && !kerr.IsRetriable(err) || !wait.rest(ctx) {
				return fmt.Errorf("end the last transaction of %s once more: %w", txnID, err)
			}
		}
	}
	return nil
}

// addToTxn adds partitions to a transaction.
func (c *Cluster) addToTxn(ctx context.Context, id producerIdent, parts []topicPartition) error {
	var targets []topicPartition
	for _, p := range parts {
		if p.topic != offsetsTopic {
			targets = append(targets, p)
			continue
		}
		req := kmsg.NewPtrAddOffsetsToTxnRequest()
		req.TransactionalID, req.ProducerID, req.ProducerEpoch, req.Group = id.txnID, id.id, id.epoch, c.opt.Group
		resp, err := req.RequestWith(ctx, c.capped)
		if err == nil {
			err = kerr.ErrorForCode(resp.ErrorCode)
		}
		if err != nil {
			return err
		}
	}
	if len(targets) == 0 {
		return nil
	}
	req := kmsg.NewPtrAddPartitionsToTxnRequest()
	req.TransactionalID, req.ProducerID, req.ProducerEpoch = id.txnID, id.id, id.epoch
	for topic, numbers := range byTopic(targets) {
		t := kmsg.NewAddPartitionsToTxnRequestTopic()
		t.Topic, t.Partitions = topic, numbers
		req.Topics = append(req.Topics, t)
	}
	resp, err := req.RequestWith(ctx, c.capped)
	if err != nil {
		return err
	}
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
				return fmt.Errorf("add %s/%d: %w", t.Topic, p.Partition, err)
			}
		}
	}
	return nil
}

// offsetsPartition returns the partition that holds the group's offsets: the group's hash, as Java
// computes it, modulo the number of partitions.
func (c *Cluster) offsetsPartition(ctx context.Context) (topicPartition, error) {
	if n := c.offsetsCount.Load(); n > 0 {
		return offsetsPartitionOf(c.opt.Group, n), nil
	}
	if time.Now().UnixNano() < c.offsetsAsk.Load() {
		return topicPartition{topic: offsetsTopic, number: -1}, kerr.TopicAuthorizationFailed
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_, n, err := c.describe(ctx, offsetsTopic)
	if err != nil {
		if isDenied(err) {
			c.offsetsAsk.Store(time.Now().Add(time.Minute).UnixNano())
		}
		return topicPartition{topic: offsetsTopic, number: -1}, fmt.Errorf("describe %s: %w", offsetsTopic, err)
	}
	c.offsetsCount.Store(n)
	return offsetsPartitionOf(c.opt.Group, n), nil
}

func offsetsPartitionOf(group string, partitions int32) topicPartition {
	var h int32
	for _, u := range utf16.Encode([]rune(group)) {
		h = 31*h + int32(u)
	}
	switch {
	case h == math.MinInt32:
		h = 0
	case h < 0:
		h = -h
	}
	return topicPartition{topic: offsetsTopic, number: h % partitions}
}
