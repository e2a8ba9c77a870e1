package kafka

import (
	"errors"
	"slices"
	"testing"

	"github.com/bide-mq/bide"
)

func TestRecordsAndCommitsBecomeVisibleTogether(t *testing.T) {
	onBrokers(t, func(t *testing.T, b *bed) {
		p := b.start("one")
		m := p.await(4)
		first := b.plan(p.Cluster, b.lane(0), bide.Commit{}, item(b.targets[0], 0, "a"), item(b.targets[1], 0, "b"))
		second := b.plan(p.Cluster, b.lane(1), bide.Commit{}, item(b.targets[1], 0, "c"))
		b.wants(p.Transact(t.Context(), m, []*bide.Plan{first, second}), bide.Committed)
		if got := b.read(3, b.targets[0], b.targets[1]); !slices.Equal(got, []string{"a", "b", "c"}) {
			t.Fatalf("read %q", got)
		}
		for _, plan := range []*bide.Plan{first, second} {
			if got := b.stored(p.Cluster, plan.Lane); got.Writer != plan.Commit.Writer || got.Next != 1 {
				t.Fatalf("stored %+v, want %+v", got, plan.Commit)
			}
		}
	})
}

func TestManyTransactionsInTurn(t *testing.T) {
	onBrokers(t, func(t *testing.T, b *bed) {
		p := b.start("one")
		m := p.await(4)
		var before bide.Commit
		for range 30 {
			plan := b.plan(p.Cluster, b.lane(2), before, item(b.targets[0], before.Next, "x"))
			b.wants(p.Transact(t.Context(), m, []*bide.Plan{plan}), bide.Committed)
			before = plan.Commit
		}
		if got := b.read(30, b.targets[0]); len(got) != 30 {
			t.Fatalf("read %d", len(got))
		}
	})
}

func TestCommitWithoutRecords(t *testing.T) {
	onBrokers(t, func(t *testing.T, b *bed) {
		p := b.start("one")
		m := p.await(4)
		var before bide.Commit
		for range 5 {
			plan := b.plan(p.Cluster, b.lane(3), before)
			b.wants(p.Transact(t.Context(), m, []*bide.Plan{plan}), bide.Committed)
			before = plan.Commit
			if got := b.stored(p.Cluster, plan.Lane); got.Writer != before.Writer {
				t.Fatalf("stored %+v, want %+v", got, before)
			}
		}
	})
}

func TestStaleMembershipIsRefused(t *testing.T) {
	onBrokers(t, func(t *testing.T, b *bed) {
		p := b.start("one")
		m := p.await(4)
		stale := bide.Membership{Member: m.Member, Generation: m.Generation + 1}
		for name, items := range map[string][]bide.Item{"with records": {item(b.targets[0], 0, "x")}, "without": nil} {
			got := p.Transact(t.Context(), stale, []*bide.Plan{b.plan(p.Cluster, b.lane(0), bide.Commit{}, items...)})
			b.wants(got, bide.Aborted)
			if !errors.Is(got[0].Err, bide.ErrStaleMembership) {
				t.Fatalf("%s: %v", name, got[0].Err)
			}
		}
		got := p.Transact(t.Context(), bide.Membership{Generation: -1}, []*bide.Plan{b.plan(p.Cluster, b.lane(0), bide.Commit{})})
		if b.wants(got, bide.Aborted); !errors.Is(got[0].Err, bide.ErrStaleMembership) {
			t.Fatal(got[0].Err)
		}
		plan := b.plan(p.Cluster, b.lane(0), bide.Commit{}, item(b.targets[0], 0, "y"))
		b.wants(p.Transact(t.Context(), m, []*bide.Plan{plan}), bide.Committed)
		if got := b.read(1, b.targets[0]); !slices.Equal(got, []string{"y"}) {
			t.Fatalf("read %q", got)
		}
	})
}
