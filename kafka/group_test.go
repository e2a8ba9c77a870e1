package kafka

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/bide-mq/bide"
)

func TestLanesAreSharedAndMembershipsRenewed(t *testing.T) {
	onBrokers(t, func(t *testing.T, b *bed) {
		one := b.start("one")
		old := one.await(4)
		two := b.start("two")
		m2 := two.await(2)
		m1 := one.await(2)
		// The membership that is told last holds for the lanes that were kept.
		deadline := time.Now().Add(20 * time.Second)
		for m1.Generation != m2.Generation && time.Now().Before(deadline) {
			time.Sleep(20 * time.Millisecond)
			one.mu.Lock()
			m1 = one.membership
			one.mu.Unlock()
			two.mu.Lock()
			m2 = two.membership
			two.mu.Unlock()
		}
		stale := b.plan(one.Cluster, one.lanes[0], bide.Commit{}, item(b.targets[0], 0, "stale"))
		got := one.Transact(t.Context(), old, []*bide.Plan{stale})
		if b.wants(got, bide.Aborted); !errors.Is(got[0].Err, bide.ErrStaleMembership) {
			t.Fatal(got[0].Err)
		}
		b.wants(one.Transact(t.Context(), m1, []*bide.Plan{stale}), bide.Committed)
		fresh := b.plan(two.Cluster, two.lanes[0], bide.Commit{}, item(b.targets[0], 0, "fresh"))
		b.wants(two.Transact(t.Context(), m2, []*bide.Plan{fresh}), bide.Committed)
		if got := b.read(2, b.targets[0]); !slices.Equal(got, []string{"fresh", "stale"}) {
			t.Fatalf("read %q", got)
		}
	})
}

func TestRestartKeepsItsLanesWithoutARebalance(t *testing.T) {
	onBrokers(t, func(t *testing.T, b *bed) {
		first := b.start("one")
		m := first.await(4)
		first.stop()
		if err := <-first.done; err != nil {
			t.Fatal(err)
		}
		first.Close()
		second := b.start("one")
		again := second.await(4)
		if again.Generation != m.Generation || again.Member == m.Member {
			t.Fatalf("%+v after %+v", again, m)
		}
	})
}

func TestConsumerProtocolSharesLanesToo(t *testing.T) {
	onBrokers(t, func(t *testing.T, b *bed) {
		if b.fake == nil {
			versions, err := b.admin.ApiVersions(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			known := true
			for _, v := range versions {
				if _, ok := v.KeyMaxVersion(68); !ok {
					known = false
				}
			}
			if !known {
				t.Skip("the broker does not know ConsumerGroupHeartbeat")
			}
		}
		kip848 := func(o *Options) { o.GroupProtocol = ConsumerProtocol }
		one := b.start("one", kip848)
		m := one.await(4)
		plan := b.plan(one.Cluster, b.lane(0), bide.Commit{}, item(b.targets[0], 0, "a"))
		b.wants(one.Transact(t.Context(), m, []*bide.Plan{plan}), bide.Committed)
		two := b.start("two", kip848)
		m2 := two.await(2)
		one.await(2)
		plan = b.plan(two.Cluster, two.lanes[0], b.before(two.Cluster, two.lanes[0]), item(b.targets[0], 1, "b"))
		b.wants(two.Transact(t.Context(), m2, []*bide.Plan{plan}), bide.Committed)
		if got := b.read(2, b.targets[0]); !slices.Equal(got, []string{"a", "b"}) {
			t.Fatalf("read %q", got)
		}
	})
}

func TestFactsOfALane(t *testing.T) {
	onBrokers(t, func(t *testing.T, b *bed) {
		p := b.start("one")
		m := p.await(4)
		empty, err := p.Facts(t.Context(), b.lane(0))
		if err != nil {
			t.Fatal(err)
		}
		if empty.TopicID == [16]byte{} || empty.Lanes != 4 || empty.Start != 0 || empty.End != 0 || !empty.First.IsZero() || empty.OtherCommits || empty.KnownLanes != 0 {
			t.Fatalf("%+v", empty)
		}
		b.produce(b.lane(0), "a", "b", "c")
		offsets := kadm.Offsets{}
		offsets.AddOffset(b.ingress, 0, 1, -1)
		if _, err := b.admin.DeleteRecords(t.Context(), offsets); err != nil {
			t.Fatal(err)
		}
		b.wants(p.Transact(t.Context(), m, []*bide.Plan{b.plan(p.Cluster, b.lane(1), bide.Commit{})}), bide.Committed)
		b.before(p.Cluster, b.lane(1)) // the commit is visible once its markers are written
		full, err := p.Facts(t.Context(), b.lane(0))
		if err != nil {
			t.Fatal(err)
		}
		if full.Start != 1 || full.End != 3 || time.Since(full.First) > time.Minute || !full.OtherCommits || full.KnownLanes != 4 {
			t.Fatalf("%+v", full)
		}
	})
}

func TestForeignCommitIsTold(t *testing.T) {
	onBrokers(t, func(t *testing.T, b *bed) {
		c := b.cluster("one")
		if _, found, err := c.Committed(t.Context(), b.lane(0)); found || err != nil {
			t.Fatal(found, err)
		}
		offsets := kadm.Offsets{}
		offsets.AddOffset(b.ingress, 0, 3, -1)
		if err := b.admin.CommitAllOffsets(t.Context(), b.name, offsets); err != nil {
			t.Fatal(err)
		}
		if _, _, err := c.Committed(t.Context(), b.lane(0)); !errors.Is(err, bide.ErrForeignCommit) {
			t.Fatal(err)
		}
	})
}

func TestAtLeastOnceProducesThenCommits(t *testing.T) {
	onBrokers(t, func(t *testing.T, b *bed) {
		p := b.start("one", func(o *Options) { o.Mode = AtLeastOnce })
		m := p.await(4)
		var before bide.Commit
		for range 3 {
			plan := b.plan(p.Cluster, b.lane(0), before, item(b.targets[0], before.Next, "a"))
			b.wants(p.Transact(t.Context(), m, []*bide.Plan{plan}), bide.Committed)
			before = plan.Commit
		}
		if got := b.stored(p.Cluster, b.lane(0)); got.Writer != before.Writer {
			t.Fatalf("stored %+v", got)
		}
		plan := b.plan(p.Cluster, b.lane(0), before, item(b.name+"-nowhere", 0, "b"), item(b.targets[0], 1, "c"))
		plan.Commit.Next++
		got := p.Transact(t.Context(), m, []*bide.Plan{plan})
		if b.wants(got, bide.Aborted); len(got[0].Failures) != 1 || got[0].Failures[0].Kind != bide.Unavailable {
			t.Fatalf("%+v", got[0])
		}
		stale := bide.Membership{Member: m.Member, Generation: m.Generation + 1}
		got = p.Transact(t.Context(), stale, []*bide.Plan{b.plan(p.Cluster, b.lane(0), before)})
		if b.wants(got, bide.Aborted); !errors.Is(got[0].Err, bide.ErrStaleMembership) {
			t.Fatal(got[0].Err)
		}
	})
}
