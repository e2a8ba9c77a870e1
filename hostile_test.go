package bide

import (
	"context"
	"errors"
	"fmt"
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
	for _, b := range batches {
		batches = append(batches, Batch{Lane: b.Lane, Epoch: b.Epoch, Err: errors.New("topic is unknown")})
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

// An operator sets the group's offset, and says that Bide shall begin there.
func TestALaneThatIsClearedBeginsAtTheOffsetThatWasSet(t *testing.T) {
	for _, to := range []int64{0, 3, 6} {
		t.Run(fmt.Sprint(to), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k, log := newFakeKafka(laneA), newFakeLog()
				r := start(t, k, log)
				for i := range 6 {
					due := time.Now()
					if i%2 == 1 {
						due = due.Add(time.Minute)
					}
					k.produce(laneA, strconv.Itoa(i), dueAt(due))
				}
				time.Sleep(5 * time.Second)
				r.end(t)
				if n := len(k.deliveries()); n != 3 {
					t.Fatalf("%d delivered, want the three that were due", n)
				}
				k.reset(laneA, to)
				r = start(t, k, log, func(o *Options) { o.Policy.ClearForeign = true })
				time.Sleep(2 * time.Minute)
				// Everything at or above the offset comes, again where it came before, and nothing below it.
				want := map[string]int{}
				for i := range int64(6) {
					if n := int((i + 1) % 2); i >= to {
						want[strconv.FormatInt(i, 10)] = n + 1
					} else if n > 0 {
						want[strconv.FormatInt(i, 10)] = n
					}
				}
				got := map[string]int{}
				for _, d := range k.deliveries() {
					got[string(d.item.Key)]++
				}
				if fmt.Sprint(got) != fmt.Sprint(want) {
					t.Errorf("delivered %v, want %v", got, want)
				}
				r.end(t)
			})
		})
	}
}

// smallReads is a cluster that reads few records at a time, as one does with large ones.
type smallReads struct{ *process }

func (c smallReads) ReadAt(ctx context.Context, l Lane, from int64, maxRecords int) ([]Record, error) {
	return c.process.ReadAt(ctx, l, from, min(maxRecords, 10))
}

// blockyLog knows the low by blocks of 4096 offsets, as the real one does.
type blockyLog struct{ *fakeLog }

type blockyLane struct{ *fakeLane }

func (g blockyLog) Lane(name Lane) (LaneLog, error) {
	l, err := g.fakeLog.Lane(name)
	return blockyLane{l.(*fakeLane)}, err
}

func (g blockyLog) Append(ctx context.Context, entries []Append, d Durability) error {
	for i := range entries {
		entries[i].Lane = entries[i].Lane.(blockyLane).fakeLane
	}
	return g.fakeLog.Append(ctx, entries, d)
}

func (l blockyLane) Low(next int64, leaving []Message) (int64, error) {
	low, err := l.fakeLane.Low(next, leaving)
	if low < next {
		low &^= 4095
	}
	return low, err
}

func TestCarryingFindsWhatWaitsBehindLargeDeadRecords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newFakeKafka(laneA)
		s, err := New(Options{
			Cluster: smallReads{k.process()}, Log: blockyLog{newFakeLog()}, Contract: fakeContract{}, Instance: "one",
			Limits: Limits{DeadOffsets: 10},
			Upkeep: func(string) Upkeep { return Upkeep{Trim: true, Carry: true} },
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		for range 1000 {
			k.produce(laneA, "short")
		}
		k.produce(laneA, "year", dueAt(time.Now().Add(365*24*time.Hour)))
		for range 100 {
			for range 100 {
				k.produce(laneA, "short")
			}
			time.Sleep(10 * time.Second)
		}
		if low := k.commit(laneA).Low; low < 8192 {
			t.Errorf("low %d: the ingress holds %d records while one waits", low, k.held(laneA))
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
