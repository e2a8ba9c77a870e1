package kafka

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/bide-mq/bide"
)

// readAtLimit is how long ReadAt waits for the first records: that of a broker which answers, twice over.
const readAtLimit = 2 * time.Second

// sideReader reads a few records apart from the lanes' reading, one call after the other.
type sideReader struct {
	turn   sync.Mutex
	client *kgo.Client // made when it is first needed
}

// ReadAt returns records of the lane from an offset on; see [bide.Cluster].
func (c *Cluster) ReadAt(ctx context.Context, lane bide.Lane, from int64, maxRecords int) ([]bide.Record, error) {
	s := &c.side
	s.turn.Lock()
	defer s.turn.Unlock()
	if c.life.Err() != nil {
		return nil, errClosed
	}
	if s.client == nil {
		client, err := c.client(c.reading(c.opt.FetchBytes / fetchesAtOnce)...)
		if err != nil {
			return nil, err
		}
		s.client = client
	}
	at := map[string][]int32{lane.Topic: {lane.Partition}}
	s.client.AddConsumePartitions(map[string]map[int32]kgo.Offset{
		lane.Topic: {lane.Partition: kgo.NewOffset().At(from)},
	})
	defer s.client.RemoveConsumePartitions(at)
	limited, cancel := context.WithTimeout(ctx, readAtLimit)
	defer cancel()
	fetches := s.client.PollRecords(limited, maxRecords)
	var records []bide.Record
	fetches.EachRecord(func(r *kgo.Record) {
		if r.Offset >= from && r.Topic == lane.Topic && r.Partition == lane.Partition {
			records = append(records, ingressRecord(r))
		}
	})
	if len(records) > 0 {
		return records, nil
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	for _, f := range fetches.Errors() {
		if errors.Is(f.Err, kerr.UnknownTopicID) || errors.Is(f.Err, kerr.UnknownTopicOrPartition) {
			s.client.PurgeTopicsFromConsuming(lane.Topic)
		}
		if !errors.Is(f.Err, context.DeadlineExceeded) {
			return nil, fmt.Errorf("read lane %s at %d: %w", lane, from, f.Err)
		}
	}
	return nil, nil
}

// Trim deletes the lane's records below an offset; see [bide.Cluster].
func (c *Cluster) Trim(ctx context.Context, lane bide.Lane, below int64) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	req := kmsg.NewPtrDeleteRecordsRequest()
	req.TimeoutMillis = int32(callTimeout.Milliseconds())
	t := kmsg.NewDeleteRecordsRequestTopic()
	t.Topic = lane.Topic
	p := kmsg.NewDeleteRecordsRequestTopicPartition()
	p.Partition, p.Offset = lane.Partition, below
	t.Partitions = append(t.Partitions, p)
	req.Topics = append(req.Topics, t)
	resp, err := req.RequestWith(ctx, c.plain)
	if err != nil {
		return fmt.Errorf("trim lane %s: %w", lane, err)
	}
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
				return fmt.Errorf("trim lane %s below %d: %w", lane, below, err)
			}
		}
	}
	return nil
}
