package bide

import (
	"testing"
	"testing/synctest"
	"time"
)

// A message may fall due between the failure of a plan and its next try: the lane is marked already then,
// and the plan that is run does not have the message.
func TestWhatFallsDueBeforeAPlanRunsAgainIsDelivered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newFakeKafka(laneA)
		failed := false
		k.fate = func(plans []*Plan) (bool, Result) {
			if failed || len(plans[0].Items) == 0 {
				return true, Result{Outcome: Committed}
			}
			failed = true
			return false, Result{Outcome: Aborted, Failures: []Failure{{Kind: Refused, Rejection: &Rejection{Code: "too-large"}}}}
		}
		// The next transaction starts 50 ms after the one that fails.
		r := start(t, k, newFakeLog(), func(o *Options) { o.Limits.TransactionEvery = 50 * time.Millisecond })
		due := time.Now().Add(5 * time.Second)
		k.produce(laneA, "refused", dueAt(due))
		k.produce(laneA, "good", dueAt(due.Add(20*time.Millisecond)))
		time.Sleep(time.Until(due.Add(time.Second)))
		if n := len(k.deliveries()); n != 2 {
			t.Errorf("%d of 2 messages ended a second after they were due", n)
		}
		r.end(t)
	})
}
