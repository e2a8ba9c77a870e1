//go:build unix

package e2e

import (
	"context"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// Two programs share the lanes. The second one is stopped or killed and started again, now before and now
// after its session ends, so that lanes go forth and back while messages arrive and fall due.
//
//	go test ./test/e2e -run TestLanesThatGoForthAndBackDeliverOnce -v
func TestLanesThatGoForthAndBackDeliverOnce(t *testing.T) {
	eachCluster(t, func(t *testing.T, c *cluster) {
		ts := c.makeTopics(t, topicSpec{lanes: 4})
		l, random := newLedger(t, c, ts), rng(t)
		s := c.settings(t, ts)
		s.args = []string{"--session-timeout", "6s"} // the shortest that brokers take
		s.startReady(t)

		ctx, stopLoad := context.WithCancel(t.Context())
		defer stopLoad()
		var load sync.WaitGroup
		delays := rng(t)
		load.Go(func() {
			l.send(ctx, batch{n: 1 << 30, rate: 500, delay: func(int) time.Duration {
				return time.Duration(delays.IntN(2000)) * time.Millisecond
			}})
		})
		s.dataDir = filepath.Join(t.TempDir(), "data")
		for i := range scale(2, 12) {
			p := s.startReady(t)
			p.await(30*time.Second, func() bool {
				lanes, ok := p.metric("bide_lane_state")
				return ok && lanes > 0
			}, func() string { return "a lane of its own" })
			time.Sleep(time.Duration(random.IntN(1000)) * time.Millisecond)
			if i%2 == 0 {
				p.stop()
			} else {
				p.kill()
			}
			if i%3 == 1 {
				time.Sleep(8 * time.Second) // the first one has all lanes again
			}
		}
		stopLoad()
		load.Wait()
		l.mustBeExact()
	})
}
