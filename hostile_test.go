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

// A message whose target is away is put back into its lane with some headers more, which may be just too
// much for the lane. It must not stand in the way of those behind it for as long as the target is away.
func TestWhatIsTooLargeToBeRequeuedBecomesADeadLetter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newFakeKafka(laneA)
		k.fate = func(plans []*Plan) (bool, Result) {
			res := Result{Outcome: Committed}
			fail := func(i int, kind FailureKind, code string) {
				res.Outcome, res.Err = Aborted, errors.New(code)
				res.Failures = append(res.Failures, Failure{Item: i, Kind: kind, Rejection: &Rejection{Code: code, Reason: code}})
			}
			for i, item := range plans[0].Items {
				switch {
				case string(item.Key) != "large":
				case item.Fate.Kind == Deliver:
					fail(i, Unavailable, "target-unknown")
				case item.Fate.Kind == Requeue:
					fail(i, Refused, "too-large")
				}
			}
			return res.Outcome == Committed, res
		}
		r := start(t, k, newFakeLog())
		k.produce(laneA, "large")
		k.produce(laneA, "small")
		time.Sleep(10 * time.Second)
		seen := k.deliveries()
		if len(seen) != 2 || seen[0].item.Fate.Kind != DeadLetter || seen[1].item.Fate.Kind != Deliver {
			t.Fatalf("seen %+v, want a dead letter and the small message", seen)
		}
		if why := seen[0].item.Fate.Rejection; why.Code != "too-large" {
			t.Errorf("rejection %+v, want too-large", why)
		}
		r.end(t)
	})
}
