package bide

import (
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// The timer that loads a lane's next stretch outlives the lane's assignment. When it came while the next one was
// still being claimed, there was no stretch, and the timer was set for a moment long past, again and again. In
// the virtual time of this test that is for ever.
func TestATimerOfAnEarlierAssignmentDoesNotSpin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newFakeKafka(laneA)
		var away atomic.Bool
		k.fate = func([]*Plan) (bool, Result) {
			if away.Load() {
				return false, Result{Outcome: Aborted, Err: errors.New("the cluster is away")}
			}
			return true, Result{Outcome: Committed}
		}
		r := start(t, k, newFakeLog())
		due := time.Now().Add(20 * time.Second)
		k.produce(laneA, "later", dueAt(due))
		time.Sleep(15 * time.Second) // the stretch with the message is loaded at 15.9 s
		away.Store(true)
		r.Lost([]Lane{laneA})
		r.Assigned(r.p.member, []Lane{laneA})
		time.Sleep(3 * time.Second)
		away.Store(false)
		time.Sleep(time.Until(due.Add(50 * time.Millisecond)))
		if n := len(k.deliveries()); n != 1 {
			t.Errorf("%d delivered when due, want 1", n)
		}
		r.end(t)
	})
}
