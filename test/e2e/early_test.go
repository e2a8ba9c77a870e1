//go:build unix

package e2e

import (
	"testing"
	"time"
)

// Delays of 0, 1 ms, 1 s and 40 s, to a target that has the broker's time of append, while the program
// is killed and stopped.
//
//	go test ./test/e2e -run TestNothingIsEarlyAcrossRestarts -e2e.long -v
func TestNothingIsEarlyAcrossRestarts(t *testing.T) {
	eachCluster(t, func(t *testing.T, c *cluster) {
		ts := c.makeTopics(t, topicSpec{})
		l := newLedger(t, c, ts)
		s := c.settings(t, ts)
		p := s.startReady(t)
		longest := 3 * time.Second
		if *long && c.name == newest {
			longest = 40 * time.Second
		}
		delays := []time.Duration{0, time.Millisecond, time.Second, longest}
		send := func() {
			l.send(t.Context(), batch{n: 1000, rate: 1000, delay: func(i int) time.Duration { return delays[i%len(delays)] }})
		}
		send()
		p.kill() // what was sent in the last second waits
		p = s.startReady(t)
		send()
		p.stop()
		send() // while nobody is there
		s.startReady(t)
		l.mustBeExact()
	})
}
