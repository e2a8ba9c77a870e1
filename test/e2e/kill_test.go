//go:build unix

package e2e

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bide-mq/bide/test/e2e/kafkatest"
)

const (
	exactlyOnce = "exactly-once"
	atLeastOnce = "at-least-once"
)

// go test ./test/e2e -run TestKillLosesNothingAndDoublesNothing -e2e.long -e2e.rounds 50 -v
func TestKillLosesNothingAndDoublesNothing(t *testing.T) {
	t.Parallel()
	oldest := kafkatest.Versions[len(kafkatest.Versions)-1]
	for name, n := range map[string]int{fake: scale(4, 10), newest: scale(5, *rounds), oldest: scale(0, *rounds/3)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if n == 0 {
				needLong(t)
			}
			k := killRounds(t, newCluster(t, name), exactlyOnce, n)
			k.ledger.mustBeExact()
			if n >= 50 && (k.inTransaction < 10 || k.beforeCommit < 10) {
				t.Errorf("want at least 10 kills inside an open transaction and 10 between fsync and commit, got %s", k)
			}
		})
	}
}

// go test ./test/e2e -run TestKillAtLeastOnceLosesNothing -e2e.long -v
func TestKillAtLeastOnceLosesNothing(t *testing.T) {
	t.Parallel()
	for _, name := range []string{fake, newest} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := killRounds(t, newCluster(t, name), atLeastOnce, scale(3, 12))
			k.ledger.mustBeThere()
		})
	}
}

// kills is a series of kills under load, and where they fell.
type kills struct {
	ledger *ledger
	total  int
	// inTransaction counts kills that left a transaction open; beforeCommit those after which the log
	// was ahead of the committed offset of a lane.
	inTransaction, beforeCommit int

	open  map[string]bool // transactions seen open: id and start
	ahead map[string]bool // lane and checkpoint seen ahead of next
}

func (k *kills) String() string {
	return fmt.Sprintf("%d kills: %d inside an open transaction, %d between fsync and commit", k.total, k.inTransaction, k.beforeCommit)
}

// killRounds kills the program n times at random moments of its life, while messages arrive and fall
// due, and at last lets it run. Everything that was sent is due within 10 s of the end.
func killRounds(t *testing.T, c *cluster, delivery string, n int) *kills {
	t.Helper()
	random := rng(t)
	ts := c.makeTopics(t, topicSpec{lanes: 3, targets: 3})
	s := c.settings(t, ts)
	s.delivery = delivery
	k := &kills{ledger: newLedger(t, c, ts), open: map[string]bool{}, ahead: map[string]bool{}}

	ctx, stopLoad := context.WithCancel(t.Context())
	defer stopLoad()
	var load sync.WaitGroup
	delays := rng(t)
	load.Go(func() {
		k.ledger.send(ctx, batch{n: 1 << 30, rate: 2000, size: 200, delay: func(int) time.Duration {
			return time.Duration(delays.IntN(scale(3000, 10_000))) * time.Millisecond
		}})
	})
	for i := range n {
		p := s.start(t)
		p.shown = 8
		// One kill in three falls anywhere from before the log is open to well into steady delivery, the
		// others fall into steady delivery, however slow the machine starts a program.
		least := 50
		if i%3 > 0 {
			p.awaitReady(30 * time.Second)
			least = 0
		}
		time.Sleep(time.Duration(least+random.IntN(1200)) * time.Millisecond)
		p.kill()
		k.total++
		k.lookForOpenTransactions(t, c, ts)
		k.lookAtCheckpoints(p)
	}
	stopLoad()
	load.Wait()
	k.lookAtCheckpoints(s.startReady(t))
	t.Log(k)
	return k
}

// lookForOpenTransactions asks the broker which of the killed program's transactions nobody has
// decided. One that an earlier kill left behind does not count again.
func (k *kills) lookForOpenTransactions(t *testing.T, c *cluster, ts topics) {
	t.Helper()
	undecided := []string{"Ongoing", "PrepareCommit", "PrepareAbort"}
	listed, err := c.adm.ListTransactions(t.Context(), nil, undecided)
	if err != nil {
		t.Fatalf("list transactions: %v", err)
	}
	var ids []string
	for _, id := range listed.TransactionalIDs() {
		if strings.HasPrefix(id, "bide-"+ts.group+"-") {
			ids = append(ids, id)
		}
	}
	if len(ids) == 0 {
		return
	}
	described, err := c.adm.DescribeTransactions(t.Context(), ids...)
	if err != nil {
		t.Fatalf("describe transactions: %v", err)
	}
	found := false
	for _, d := range described {
		key := fmt.Sprintf("%s@%d", d.TxnID, d.StartTimestamp)
		found = found || !k.open[key]
		k.open[key] = true
	}
	if found {
		k.inTransaction++
	}
}

// lookAtCheckpoints reads from the log of a run how it found its lanes: where the checkpoint is ahead
// of next, the kill before fell between fsync and commit.
func (k *kills) lookAtCheckpoints(p *sidecar) {
	found := false
	for _, line := range p.logged("lane assigned") {
		checkpoint, _ := line["checkpoint"].(float64)
		next, _ := line["next"].(float64)
		key := fmt.Sprintf("%v@%v", line["lane"], checkpoint)
		if checkpoint > next && !k.ahead[key] {
			k.ahead[key], found = true, true
		}
	}
	if found {
		k.beforeCommit++
	}
}
