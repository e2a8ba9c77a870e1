package bide

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"testing/synctest"
	"time"
)

// A stop may come before the group answers, within the takeover, in a transaction or between two.
func TestAStopAtAnyMomentEndsSoonAndLosesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, log := newFakeKafka(laneA, laneB), newFakeLog()
		const rounds = 150
		for i := range rounds {
			for _, l := range []Lane{laneA, laneB} {
				k.produce(l, strconv.Itoa(i), dueAt(time.Now().Add(time.Duration(i%40)*time.Millisecond)))
			}
			r := start(t, k, log)
			time.Sleep(time.Duration(i) * 200 * time.Microsecond)
			began := time.Now()
			r.end(t)
			if took := time.Since(began); took > 100*time.Millisecond {
				t.Errorf("a stop %d × 200 µs after the start took %v", i, took)
			}
		}
		r := start(t, k, log)
		time.Sleep(time.Minute)
		check(t, k, map[Lane]int{laneA: rounds, laneB: rounds})
		r.end(t)
	})
}

// hangingCluster is one whose transactions are never answered.
type hangingCluster struct{ *process }

func (hangingCluster) Transact(ctx context.Context, _ Membership, plans []*Plan) []Result {
	<-ctx.Done()
	results := make([]Result, len(plans))
	for i := range results {
		results[i] = Result{Outcome: Aborted, Err: ctx.Err()}
	}
	return results
}

func TestAStopWaitsNoLongerThanDrainForTransactionsThatHang(t *testing.T) {
	for _, after := range []time.Duration{0, time.Millisecond, time.Minute} {
		t.Run(fmt.Sprint(after), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := newFakeKafka(laneA, laneB)
				k.produce(laneA, "a")
				s, err := New(Options{Cluster: hangingCluster{k.process()}, Log: newFakeLog(), Contract: fakeContract{}, Instance: "one", Limits: Limits{Drain: 3 * time.Second}})
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan error, 1)
				go func() { done <- s.Run(ctx) }()
				time.Sleep(after)
				began := time.Now()
				cancel()
				if err := <-done; err != nil {
					t.Error(err)
				}
				if took := time.Since(began); took > 3*time.Second+100*time.Millisecond {
					t.Errorf("the stop took %v", took)
				}
			})
		})
	}
}
