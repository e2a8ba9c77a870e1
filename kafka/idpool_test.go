package kafka

import (
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/bide-mq/bide"
)

// busyID makes a kfake answer CONCURRENT_TRANSACTIONS for one transactional id, as a broker does that
// cannot write the markers of its last transaction. It returns how to end that.
func busyID(fake *kfake.Cluster, id string) (end func()) {
	var mu sync.Mutex
	busy := true
	stuck := func() bool {
		mu.Lock()
		defer mu.Unlock()
		return busy
	}
	fake.ControlKey(kmsg.TxnOffsetCommit.Int16(), func(kreq kmsg.Request) (kmsg.Response, error, bool) {
		fake.KeepControl()
		req := kreq.(*kmsg.TxnOffsetCommitRequest)
		if req.TransactionalID != id || !stuck() {
			return nil, nil, false
		}
		resp := req.ResponseKind().(*kmsg.TxnOffsetCommitResponse)
		for _, t := range req.Topics {
			rt := kmsg.NewTxnOffsetCommitResponseTopic()
			rt.Topic, rt.TopicID = t.Topic, t.TopicID
			for _, p := range t.Partitions {
				rp := kmsg.NewTxnOffsetCommitResponseTopicPartition()
				rp.Partition, rp.ErrorCode = p.Partition, kerr.ConcurrentTransactions.Code
				rt.Partitions = append(rt.Partitions, rp)
			}
			resp.Topics = append(resp.Topics, rt)
		}
		return resp, nil, true
	})
	fake.ControlKey(kmsg.InitProducerID.Int16(), func(kreq kmsg.Request) (kmsg.Response, error, bool) {
		fake.KeepControl()
		req := kreq.(*kmsg.InitProducerIDRequest)
		if req.TransactionalID == nil || *req.TransactionalID != id || !stuck() {
			return nil, nil, false
		}
		resp := req.ResponseKind().(*kmsg.InitProducerIDResponse)
		resp.ErrorCode = kerr.ConcurrentTransactions.Code
		return resp, nil, true
	})
	return func() {
		mu.Lock()
		defer mu.Unlock()
		busy = false
	}
}

func TestBusyIDIsSetAsideAndComesBack(t *testing.T) {
	onBrokers(t, func(t *testing.T, b *bed) {
		if b.fake == nil {
			t.Skip("needs a broker that answers as it is told")
		}
		p := b.start("one", func(o *Options) { o.Transactions = 1 })
		m := p.await(4)
		first := b.plan(p.Cluster, b.lane(0), bide.Commit{}, item(b.targets[0], 0, "a"))
		b.wants(p.Transact(t.Context(), m, []*bide.Plan{first}), bide.Committed)

		end := busyID(b.fake, txnID(p.prefix, 0))
		start := time.Now()
		second := b.plan(p.Cluster, b.lane(0), first.Commit, item(b.targets[0], 1, "b"))
		b.wants(p.Transact(t.Context(), m, []*bide.Plan{second}), bide.Committed)
		if took := time.Since(start); took > 10*idBusyLimit {
			t.Errorf("took %v", took)
		}
		next, err := p.ids.acquire(t.Context())
		if err != nil || next.id != txnID(p.prefix, 1) {
			t.Fatalf("in turn: %+v, %v", next, err)
		}
		end()
		// Set the spare one aside: the first one has to come back.
		p.ids.setAside(next, kerr.ConcurrentTransactions)
		for seen := make([]string, 0, idLimit); ; {
			s, err := p.ids.acquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if strings.HasSuffix(s.id, "-0") {
				break
			}
			if slices.Contains(seen, s.id) {
				time.Sleep(10 * time.Millisecond)
			}
			seen = append(seen, s.id)
			p.ids.setAside(s, kerr.ConcurrentTransactions)
		}
	})
}

func TestPrefixesOfGroupsAreApart(t *testing.T) {
	if a, b := txnPrefix("orders", "eu-1"), txnPrefix("orders-eu", "1"); a == b {
		t.Fatalf("both %q", a)
	}
	for _, c := range []struct {
		group, prefix string
		own           bool
	}{
		{"orders", txnPrefix("orders", "pod-0"), true},
		{"orders", txnPrefix("orders-eu", "pod-0"), false},
		{"orders-eu", txnPrefix("orders", "eu-0"), false},
		{"orders", "bide-orders-", false},
		{"orders", "payments-1", false},
		{"orders", "", false},
	} {
		if got := ownsPrefix(c.group, c.prefix); got != c.own {
			t.Errorf("%s owns %q: %v", c.group, c.prefix, got)
		}
	}
}

func TestVerdictComparesTheCommitWithThePlan(t *testing.T) {
	before := bide.Commit{Next: 4, Cursor: bide.NoPosition, Low: 2, Writer: bide.Writer{Instance: "a", Incarnation: 1, Plan: 6}, Lanes: 1}
	after := before
	after.Next, after.Writer.Plan = 5, 7
	other := after
	other.Writer.Incarnation = 2
	moved := before
	moved.Low = 3
	text := func(c bide.Commit) storedOffset {
		meta, err := encodeCommit(c, "bide-g-a")
		if err != nil {
			t.Fatal(err)
		}
		return storedOffset{offset: c.Next, meta: meta}
	}
	plan := &bide.Plan{Previous: before, Commit: after}
	first := &bide.Plan{Commit: after}
	for name, c := range map[string]struct {
		plan   *bide.Plan
		stored storedOffset
		want   bide.Outcome
	}{
		"own":                 {plan, text(after), bide.Committed},
		"the one before":      {plan, text(before), bide.Aborted},
		"another owner's":     {plan, text(other), bide.Taken},
		"before, yet changed": {plan, text(moved), bide.Taken},
		"gone":                {plan, storedOffset{offset: -1}, bide.Taken},
		"still none":          {first, storedOffset{offset: -1}, bide.Aborted},
		"a first one":         {first, text(before), bide.Taken},
		"an operator's reset": {plan, storedOffset{offset: 4}, bide.Taken},
	} {
		if got := verdict(c.plan, c.stored); got != c.want {
			t.Errorf("%s: %s, want %s", name, outcomeWord(got), outcomeWord(c.want))
		}
	}
}
