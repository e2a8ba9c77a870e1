package kafka

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/bide-mq/bide"
)

func TestUnansweredEndThatNeverArrivedIsAborted(t *testing.T) {
	onBrokers(t, func(t *testing.T, b *bed) {
		for name, items := range map[string][]bide.Item{"records": {item(b.targets[0], 0, "x")}, "none": nil} {
			w := new(wire)
			p := b.start("one-"+name, w.options)
			m := p.await(4)
			w.set(kmsg.EndTxn, always(cut))
			plan := b.plan(p.Cluster, b.lane(0), b.before(p.Cluster, b.lane(0)), items...)
			results := p.Transact(t.Context(), m, []*bide.Plan{plan})
			b.wants(results, bide.Aborted)
			if len(results[0].Failures) > 0 || results[0].Err == nil {
				t.Fatalf("%+v", results[0])
			}
			w.set(kmsg.EndTxn, nil)
			b.wants(p.Transact(t.Context(), m, []*bide.Plan{plan}), bide.Committed)
			p.leave()
		}
		if got := b.read(1, b.targets[0]); !slices.Equal(got, []string{"x"}) {
			t.Fatalf("read %q", got)
		}
	})
}

func TestUnansweredEndThatArrivedIsCommitted(t *testing.T) {
	onBrokers(t, func(t *testing.T, b *bed) {
		for name, items := range map[string][]bide.Item{"records": {item(b.targets[0], 0, "x")}, "none": nil} {
			w := new(wire)
			p := b.start("one-"+name, w.options)
			m := p.await(4)
			var ends atomic.Int32
			w.set(kmsg.EndTxn, func() wireFate {
				if ends.Add(1) == 1 {
					return unheard
				}
				return cut
			})
			plan := b.plan(p.Cluster, b.lane(0), b.before(p.Cluster, b.lane(0)), items...)
			b.wants(p.Transact(t.Context(), m, []*bide.Plan{plan}), bide.Committed)
			w.set(kmsg.EndTxn, nil)
			next := b.plan(p.Cluster, b.lane(0), plan.Commit)
			b.wants(p.Transact(t.Context(), m, []*bide.Plan{next}), bide.Committed)
			p.leave()
		}
		if got := b.read(1, b.targets[0]); !slices.Equal(got, []string{"x"}) {
			t.Fatalf("read %q", got)
		}
	})
}

func TestUnansweredCommitIsAborted(t *testing.T) {
	onBrokers(t, func(t *testing.T, b *bed) {
		w := new(wire)
		p := b.start("one", w.options)
		m := p.await(4)
		for _, items := range [][]bide.Item{{item(b.targets[0], 0, "x")}, nil} {
			w.set(kmsg.TxnOffsetCommit, always(unheard))
			plan := b.plan(p.Cluster, b.lane(0), b.before(p.Cluster, b.lane(0)), items...)
			b.wants(p.Transact(t.Context(), m, []*bide.Plan{plan}), bide.Aborted)
			w.set(kmsg.TxnOffsetCommit, nil)
			b.wants(p.Transact(t.Context(), m, []*bide.Plan{plan}), bide.Committed)
		}
		if got := b.read(1, b.targets[0]); !slices.Equal(got, []string{"x"}) {
			t.Fatalf("read %q", got)
		}
	})
}

func TestCancelledTransactionIsAbortedAndItsIDUsable(t *testing.T) {
	onBrokers(t, func(t *testing.T, b *bed) {
		w := new(wire)
		p := b.start("one", w.options, func(o *Options) { o.Transactions = 1 })
		m := p.await(4)
		ctx, cancel := context.WithCancel(t.Context())
		w.set(kmsg.Produce, func() wireFate { cancel(); return cut })
		plan := b.plan(p.Cluster, b.lane(0), bide.Commit{}, item(b.targets[0], 0, "x"))
		b.wants(p.Transact(ctx, m, []*bide.Plan{plan}), bide.Aborted)
		w.set(kmsg.Produce, nil)
		b.wants(p.Transact(t.Context(), m, []*bide.Plan{plan}), bide.Committed)
		if got := b.read(1, b.targets[0]); !slices.Equal(got, []string{"x"}) {
			t.Fatalf("read %q", got)
		}
	})
}

func TestSuccessorFencesAnOpenTransaction(t *testing.T) {
	onBrokers(t, func(t *testing.T, b *bed) {
		w := new(wire)
		dead := b.start("dead", w.options, func(o *Options) {
			o.TransactionTimeout = maxTransactionTimeout
			o.Mode = ExactlyOnce
		})
		m := dead.await(4)
		first := b.plan(dead.Cluster, b.lane(0), bide.Commit{}, item(b.targets[0], 0, "first"))
		b.wants(dead.Transact(t.Context(), m, []*bide.Plan{first}), bide.Committed)

		open, killed := make(chan struct{}), make(chan struct{})
		defer close(killed)
		var once sync.Once
		w.set(kmsg.EndTxn, func() wireFate { once.Do(func() { close(open) }); <-killed; return cut })
		second := b.plan(dead.Cluster, b.lane(0), first.Commit, item(b.targets[0], 1, "second"))
		go dead.Transact(t.Context(), m, []*bide.Plan{second})
		<-open
		start := time.Now()
		heir := b.cluster("heir")
		if got := b.stored(heir, b.lane(0)); got.Writer != first.Commit.Writer {
			t.Fatalf("stored %+v, want %+v", got, first.Commit)
		}
		if took := time.Since(start); took > 5*time.Second {
			t.Fatalf("took %v", took)
		} else {
			t.Logf("lane readable after %v", took)
		}
		if got := b.read(1, b.targets[0]); !slices.Equal(got, []string{"first"}) {
			t.Fatalf("read %q", got)
		}
	})
}

func TestSecondProcessWithOneInstanceIDFencesTheFirst(t *testing.T) {
	onBrokers(t, func(t *testing.T, b *bed) {
		w := new(wire)
		older := b.start("same", w.options)
		m := older.await(4)
		before := b.plan(older.Cluster, b.lane(0), bide.Commit{}, item(b.targets[0], 0, "first"))
		b.wants(older.Transact(t.Context(), m, []*bide.Plan{before}), bide.Committed)

		// The newer process takes over while the older one's transaction is about to end.
		open, taken := make(chan struct{}), make(chan struct{})
		var once sync.Once
		w.set(kmsg.EndTxn, func() wireFate {
			once.Do(func() {
				close(open)
				<-taken
			})
			return pass
		})
		results := make(chan []bide.Result, 1)
		plan := b.plan(older.Cluster, b.lane(0), before.Commit, item(b.targets[0], 1, "old"))
		go func() { results <- older.Transact(t.Context(), m, []*bide.Plan{plan}) }()
		<-open
		newer := b.start("same")
		m2 := newer.await(4)
		stored := b.stored(newer.Cluster, b.lane(0))
		if stored.Writer != before.Commit.Writer {
			t.Fatalf("stored %+v, want %+v", stored, before.Commit)
		}
		claim := b.plan(newer.Cluster, b.lane(0), stored, item(b.targets[0], 1, "new"))
		b.wants(newer.Transact(t.Context(), m2, []*bide.Plan{claim}), bide.Committed)
		close(taken)
		b.wants(<-results, bide.Taken)

		again := b.plan(older.Cluster, b.lane(1), bide.Commit{}, item(b.targets[0], 0, "old"))
		got := older.Transact(t.Context(), m, []*bide.Plan{again})
		b.wants(got, bide.Aborted)
		if !errors.Is(got[0].Err, bide.ErrStaleMembership) {
			t.Fatal(got[0].Err)
		}
		if err := <-older.done; !errors.Is(err, bide.ErrFenced) {
			t.Fatalf("join returned %v", err)
		}
		if got := b.read(2, b.targets[0]); !slices.Equal(got, []string{"first", "new"}) {
			t.Fatalf("read %q", got)
		}
	})
}
