//go:build unix

package e2e

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
)

// The group's commits are deleted, as a broker does after a week without members. The log knows what
// was settled, so nothing comes twice and nothing is lost.
//
//	go test ./test/e2e -run TestDeletedCommitsAreKnownFromTheLog -v
func TestDeletedCommitsAreKnownFromTheLog(t *testing.T) {
	eachCluster(t, func(t *testing.T, c *cluster) {
		l, s := waitingLane(t, c)
		c.emptyGroup(t, s.topics, func() error {
			deleted, err := c.adm.DeleteGroups(t.Context(), s.group)
			if err != nil {
				return err
			}
			return deleted[s.group].Err
		})
		s.startReady(t)
		l.mustBeExact()
	})
}

// An operator sets the group back. What Bide knew of the lane no longer holds, so the lane stops and
// says so, until it is told to begin there.
//
//	go test ./test/e2e -run TestACommitOfSomebodyElseStopsTheLane -v
func TestACommitOfSomebodyElseStopsTheLane(t *testing.T) {
	eachCluster(t, func(t *testing.T, c *cluster) {
		l, s := waitingLane(t, c)
		c.emptyGroup(t, s.topics, func() error {
			var reset kadm.Offsets
			reset.Add(kadm.Offset{Topic: s.ingress, Partition: 0, At: 100, LeaderEpoch: -1})
			committed, err := c.adm.CommitOffsets(t.Context(), s.group, reset)
			if err != nil {
				return err
			}
			return committed.Error()
		})
		p := s.start(t)
		var body string
		p.await(30*time.Second, func() bool {
			var code int
			code, body = p.get("/readyz")
			return code == http.StatusServiceUnavailable && strings.Contains(body, "stopped")
		}, func() string { return "/readyz 503 that says that the lane is stopped; last: " + body })
		t.Logf("/readyz: %s", body)
		p.stop()
		if _, seen := l.counts(); seen != 100 {
			t.Errorf("%d were delivered, want the first 100 alone", seen)
		}
		s.args = append(s.args, "--on-foreign-commit", "clear")
		s.startReady(t)
		l.mustBeExact()
	})
}

// waitingLane returns a program that was stopped after it had delivered the first 100 messages of its
// one lane, with another 100 waiting.
func waitingLane(t *testing.T, c *cluster) (*ledger, settings) {
	t.Helper()
	if c.name != fake {
		needLong(t)
	}
	ts := c.makeTopics(t, topicSpec{lanes: 1, targets: 1})
	l := newLedger(t, c, ts)
	s := c.settings(t, ts)
	s.args = []string{"--session-timeout", "6s"} // the shortest that brokers take
	p := s.startReady(t)
	l.send(t.Context(), batch{n: 100})
	l.awaitAll()
	l.send(t.Context(), batch{n: 100, delay: func(int) time.Duration { return 20 * time.Second }})
	l.awaitAccepted(p, 20*time.Second)
	p.stop()
	return l, s
}

// emptyGroup does something that needs a group without members. A static member stays in it until its
// session ends.
func (c *cluster) emptyGroup(t *testing.T, ts topics, do func() error) {
	t.Helper()
	var err error
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		if err = do(); err == nil {
			return
		}
	}
	t.Fatalf("change the commits of group %s: %v", ts.group, err)
}
