package bide

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// Until a step of the clock is noticed, timers come by the old difference of the clocks: the one that loads the
// next stretch came at once again, and again, for the stretch was not due yet. In the virtual time of this
// test that is for ever.
func TestAClockSetBackUnnoticedDoesNotSpin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newFakeKafka(laneA)
		var ahead atomic.Int64
		r := start(t, k, newFakeLog(), func(o *Options) {
			o.Limits.ClockEvery = 24 * time.Hour
			o.Wall = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
		})
		due := time.Now().Add(20 * time.Second)
		k.produce(laneA, "later", dueAt(due))
		time.Sleep(15 * time.Second)
		ahead.Store(int64(-5 * time.Second))
		time.Sleep(10*time.Second - time.Millisecond)
		if n := len(k.deliveries()); n != 0 {
			t.Errorf("%d delivered before due", n)
		}
		time.Sleep(50 * time.Millisecond)
		if n := len(k.deliveries()); n != 1 {
			t.Errorf("%d delivered when due, want 1", n)
		}
		r.end(t)
	})
}
