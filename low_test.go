package bide

import (
	"testing"
	"testing/synctest"
	"time"
)

// Low stands still while something may be unread. Once all is read it moves, though no message comes any more
// in whose plan it could.
func TestLowFollowsThoughNothingComesAnyMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newFakeKafka(laneA)
		due := time.Now().Add(-time.Second)
		k.produce(laneA, "delivered", dueAt(due))
		// The last owner delivered the message, and died before it could move low.
		k.commits[laneA] = Commit{Next: 1, Cursor: Position{due.UnixMilli(), 0}, TopicID: k.topicID, Lanes: 1}
		log := newFakeLog()
		r := start(t, k, log)
		time.Sleep(5 * time.Second)
		if c := k.commit(laneA); c.Low != 1 {
			t.Errorf("low is %d, want 1", c.Low)
		}
		plans := r.plans.Load()
		time.Sleep(time.Minute)
		if n := r.plans.Load() - plans; n != 0 {
			t.Errorf("%d plans of an idle lane", n)
		}
		r.end(t)
		if n := len(k.deliveries()); n != 0 {
			t.Errorf("%d delivered again", n)
		}
	})
}
