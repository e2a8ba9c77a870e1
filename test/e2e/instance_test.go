//go:build unix

package e2e

import (
	"context"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// Somebody starts a second program with the instance id of the first. The older one ends and names the
// id; the younger one goes on, with a log of its own that it fills from the ingress.
//
//	go test ./test/e2e -run TestASecondProcessWithOneInstanceIDReplacesTheFirst -v
func TestASecondProcessWithOneInstanceIDReplacesTheFirst(t *testing.T) {
	eachCluster(t, func(t *testing.T, c *cluster) {
		const id = "twin-0"
		ts := c.makeTopics(t, topicSpec{})
		l, random := newLedger(t, c, ts), rng(t)
		s := c.settings(t, ts)
		s.instance = id
		older := s.startReady(t)

		ctx, stopLoad := context.WithCancel(t.Context())
		defer stopLoad()
		var load sync.WaitGroup
		load.Go(func() {
			l.send(ctx, batch{n: 1 << 30, rate: 1000, delay: func(int) time.Duration {
				return time.Duration(random.IntN(4000)) * time.Millisecond
			}})
		})
		time.Sleep(2 * time.Second)
		s.dataDir = filepath.Join(t.TempDir(), "data")
		younger := s.start(t)
		if code := older.awaitEnd(30 * time.Second); code == 0 {
			t.Error("the older one exited with 0")
		}
		if end := older.output.tail(5); !strings.Contains(end, id) {
			t.Errorf("the last lines of the older one do not name %s:\n%s", id, end)
		}
		younger.awaitReady(30 * time.Second)
		time.Sleep(2 * time.Second)
		stopLoad()
		load.Wait()
		l.mustBeExact()
	})
}
