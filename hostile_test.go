package bide

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"testing/synctest"
	"time"
)

// twiceCluster returns, with each batch of records, a second one of the same lane that tells of a fault:
// as a client does whose topic goes away while records of it are buffered.
type twiceCluster struct{ *process }

func (c twiceCluster) Poll(ctx context.Context, maxRecords int) ([]Batch, error) {
	batches, err := c.process.Poll(ctx, maxRecords)
	for i := range len(batches) {
		batches = append(batches, Batch{Lane: batches[i].Lane, Epoch: batches[i].Epoch, Err: errors.New("topic is unknown")})
	}
	return batches, err
}

func TestTwoBatchesOfALaneInOnePollBlockNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newFakeKafka(laneA, laneB)
		s, err := New(Options{Cluster: twiceCluster{k.process()}, Log: newFakeLog(), Contract: fakeContract{}, Instance: "one"})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		for i := range 10 {
			k.produce(laneA, strconv.Itoa(i))
			k.produce(laneB, strconv.Itoa(i))
			time.Sleep(100 * time.Millisecond)
		}
		time.Sleep(time.Second)
		check(t, k, map[Lane]int{laneA: 10, laneB: 10})
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
