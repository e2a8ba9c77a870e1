package kafka

import (
	"context"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/bide-mq/bide"
)

// Timestamps with a meaning of their own in ListOffsets.
const (
	listEnd   = -1
	listStart = -2
)

// Facts asks what the lane's partition looks like now; see [bide.Cluster]. Cost: five requests.
func (c *Cluster) Facts(ctx context.Context, lane bide.Lane) (bide.LaneFacts, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*callTimeout)
	defer cancel()
	facts, err := c.facts(ctx, lane)
	if err != nil {
		return bide.LaneFacts{}, fmt.Errorf("facts of lane %s: %w", lane, err)
	}
	return facts, nil
}

func (c *Cluster) facts(ctx context.Context, lane bide.Lane) (f bide.LaneFacts, err error) {
	if f.TopicID, f.Lanes, err = c.describe(ctx, lane.Topic); err != nil {
		return f, err
	}
	c.topics.Store(lane.Topic, f.TopicID)
	c.asked.Store(lane, f.TopicID)
	if lane.Partition >= f.Lanes {
		return f, fmt.Errorf("the topic has %d partitions: %w", f.Lanes, kerr.UnknownTopicOrPartition)
	}
	if f.Start, _, err = c.listOffset(ctx, lane, listStart); err != nil {
		return f, err
	}
	if f.End, _, err = c.listOffset(ctx, lane, listEnd); err != nil {
		return f, err
	}
	if f.End > f.Start {
		// The first record whose timestamp is not negative: the first one, for practical purposes.
		offset, ms, err := c.listOffset(ctx, lane, 0)
		if err != nil {
			return f, err
		}
		if offset >= 0 {
			f.First = time.UnixMilli(ms)
		}
	}
	partitions := make([]int32, f.Lanes)
	for i := range partitions {
		partitions[i] = int32(i)
	}
	stored, err := c.fetchOffsets(ctx, lane.Topic, partitions, false)
	if err != nil {
		return f, err
	}
	for p, s := range stored {
		if s.offset < 0 {
			continue
		}
		f.OtherCommits = f.OtherCommits || p != lane.Partition
		if commit, _, err := decodeCommit(s.offset, s.meta); err == nil && commit.TopicID == f.TopicID {
			f.KnownLanes = max(f.KnownLanes, commit.Lanes)
		}
	}
	return f, nil
}

// allTopics returns the topics that Bide may see, with how many partitions each has.
func (c *Cluster) allTopics(ctx context.Context) (map[string]int32, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	req := kmsg.NewPtrMetadataRequest()
	req.Topics = nil // all
	resp, err := req.RequestWith(ctx, c.plain)
	if err != nil {
		return nil, fmt.Errorf("list topics: %w", err)
	}
	topics := make(map[string]int32, len(resp.Topics))
	for _, t := range resp.Topics {
		if t.Topic != nil && t.ErrorCode == 0 {
			topics[*t.Topic] = int32(len(t.Partitions))
		}
	}
	return topics, nil
}

// describe returns a topic's id and how many partitions it has.
func (c *Cluster) describe(ctx context.Context, topic string) (id [16]byte, partitions int32, err error) {
	req := kmsg.NewPtrMetadataRequest()
	t := kmsg.NewMetadataRequestTopic()
	t.Topic = &topic
	req.Topics = append(req.Topics, t)
	resp, err := req.RequestWith(ctx, c.plain)
	if err != nil {
		return id, 0, err
	}
	if len(resp.Topics) != 1 {
		return id, 0, fmt.Errorf("%d topics in the answer", len(resp.Topics))
	}
	if err := kerr.ErrorForCode(resp.Topics[0].ErrorCode); err != nil {
		return id, 0, err
	}
	return resp.Topics[0].TopicID, int32(len(resp.Topics[0].Partitions)), nil
}

// listOffset asks for the first offset at or after a timestamp, listStart or listEnd; −1 if none is.
func (c *Cluster) listOffset(ctx context.Context, lane bide.Lane, timestamp int64) (offset, ms int64, err error) {
	req := kmsg.NewPtrListOffsetsRequest()
	req.ReplicaID = -1
	t := kmsg.NewListOffsetsRequestTopic()
	t.Topic = lane.Topic
	p := kmsg.NewListOffsetsRequestTopicPartition()
	p.Partition, p.CurrentLeaderEpoch, p.Timestamp = lane.Partition, -1, timestamp
	t.Partitions = append(t.Partitions, p)
	req.Topics = append(req.Topics, t)
	resp, err := req.RequestWith(ctx, c.plain)
	if err != nil {
		return 0, 0, err
	}
	if len(resp.Topics) != 1 || len(resp.Topics[0].Partitions) != 1 {
		return 0, 0, fmt.Errorf("list offsets: the partition is missing in the answer")
	}
	got := resp.Topics[0].Partitions[0]
	if err := kerr.ErrorForCode(got.ErrorCode); err != nil {
		return 0, 0, err
	}
	return got.Offset, got.Timestamp, nil
}
