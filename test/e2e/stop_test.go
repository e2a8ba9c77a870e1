//go:build unix

package e2e

import (
	"testing"
	"time"
)

// stopLimit is how long an orderly stop may take, however many messages wait and however long.
const stopLimit = 5 * time.Second

// go test ./test/e2e -run TestStopIsQuickWithManyWaiting -v
func TestStopIsQuickWithManyWaiting(t *testing.T) {
	t.Parallel()
	for _, name := range []string{fake, newest} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, name)
			ts := c.makeTopics(t, topicSpec{})
			l := newLedger(t, c, ts)
			s := c.settings(t, ts)
			p := s.startReady(t)
			l.send(t.Context(), batch{n: 100_000, delay: func(i int) time.Duration { return time.Hour + time.Duration(i)*time.Second }})
			soon := time.Now().Add(time.Second)
			l.send(t.Context(), batch{n: 4000, due: func(i int) time.Time { return soon.Add(time.Duration(i) * time.Millisecond) }})
			l.awaitAccepted(p, time.Minute)
			time.Sleep(time.Until(soon.Add(time.Second))) // in the midst of deliveries
			took := p.stop()
			t.Logf("stopped in %s", took.Round(time.Millisecond))
			if took > stopLimit {
				t.Errorf("SIGTERM took %s, want at most %s", took, stopLimit)
			}
			s.startReady(t)
			time.Sleep(time.Until(soon.Add(6 * time.Second)))
			v := l.verdictNow(func(e entry) bool { return e.dueMs < time.Now().UnixMilli()-1000 })
			l.judge(v)
			if v.duplicates != 0 || v.disorders != 0 || v.delivered != 4000 {
				t.Errorf("want 4000 delivered, each once and in order: %s", v)
			}
		})
	}
}
