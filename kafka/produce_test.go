package kafka

import (
	"bytes"
	"crypto/rand"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/bide-mq/bide"
)

// noise is a value that does not compress.
func noise(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b)
	return string(bytes.ReplaceAll(b, []byte{0}, []byte{1}))
}

func (b *bed) limit(topic string, bytes string) {
	b.t.Helper()
	r, err := b.admin.AlterTopicConfigs(b.t.Context(), []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "max.message.bytes", Value: &bytes}}, topic)
	if err == nil {
		err = r[0].Err
	}
	if err != nil {
		b.t.Fatal(err)
	}
}

func TestRecordTooLargeForItsTargetIsFoundAmongItsNeighbours(t *testing.T) {
	onBrokers(t, func(t *testing.T, b *bed) {
		b.limit(b.targets[0], "10000")
		p := b.start("one")
		m := p.await(4)
		plan := b.plan(p.Cluster, b.lane(0), bide.Commit{},
			item(b.targets[0], 0, "a"), item(b.targets[0], 1, noise(20000)), item(b.targets[0], 2, "c"), item(b.targets[1], 3, "d"))
		plan.Commit.Next = 4
		got := p.Transact(t.Context(), m, []*bide.Plan{plan})
		b.wants(got, bide.Aborted)
		suspects := 0
		for _, f := range got[0].Failures {
			if f.Kind != bide.Suspect || f.Item == 3 {
				t.Fatalf("failure %+v", f)
			}
			plan.Items[f.Item].Fate.Alone = true
			suspects++
		}
		if suspects == 0 || !plan.Items[1].Fate.Alone {
			t.Fatalf("failures %+v", got[0].Failures)
		}
		got = p.Transact(t.Context(), m, []*bide.Plan{plan})
		b.wants(got, bide.Aborted)
		if f := got[0].Failures; len(f) != 1 || f[0].Item != 1 || f[0].Kind != bide.Refused || f[0].Rejection.Code != CodeTooLarge {
			t.Fatalf("failures %+v", f)
		}
		plan.Items[1].Fate = bide.Fate{Kind: bide.DeadLetter, Rejection: got[0].Failures[0].Rejection}
		b.wants(p.Transact(t.Context(), m, []*bide.Plan{plan}), bide.Committed)
		if got := b.read(3, b.targets[0], b.targets[1]); !slices.Equal(got, []string{"a", "c", "d"}) {
			t.Fatalf("read %q", got)
		}
		if got := b.read(1, b.dead); len(got) != 1 || len(got[0]) != 20000 {
			t.Fatalf("%d dead letters", len(got))
		}
	})
}

func TestDeadLetterTooLargeWithItsReasonGoesWithout(t *testing.T) {
	onBrokers(t, func(t *testing.T, b *bed) {
		p := b.start("one", func(o *Options) { o.Compression = "none" })
		m := p.await(4)
		dead := item("x", 0, noise(9000))
		dead.Fate = bide.Fate{Kind: bide.DeadLetter, Rejection: &bide.Rejection{Code: "no-target", Reason: noise(500)}}
		b.limit(b.dead, "9300")
		plan := b.plan(p.Cluster, b.lane(0), bide.Commit{}, dead)
		got := p.Transact(t.Context(), m, []*bide.Plan{plan})
		b.wants(got, bide.Aborted)
		if f := got[0].Failures; len(f) != 1 || f[0].Kind != bide.Suspect {
			t.Fatalf("failures %+v", f)
		}
		plan.Items[0].Fate.Alone = true
		b.wants(p.Transact(t.Context(), m, []*bide.Plan{plan}), bide.Committed)
		if got := b.read(1, b.dead); len(got) != 1 || len(got[0]) != 9000 {
			t.Fatalf("%d dead letters", len(got))
		}
	})
}

func TestRecordAboveBidesOwnLimitIsRefusedAtOnce(t *testing.T) {
	onBrokers(t, func(t *testing.T, b *bed) {
		p := b.start("one", func(o *Options) { o.MaxMessageBytes = 50_000 })
		m := p.await(4)
		plan := b.plan(p.Cluster, b.lane(0), bide.Commit{}, item(b.targets[0], 0, "a"), item(b.targets[0], 0, noise(60_000)))
		got := p.Transact(t.Context(), m, []*bide.Plan{plan})
		b.wants(got, bide.Aborted)
		if f := got[0].Failures; len(f) != 1 || f[0].Item != 1 || f[0].Kind != bide.Refused {
			t.Fatalf("failures %+v (%v)", f, got[0].Err)
		}
	})
}

func TestUnknownTargetIsUnavailableAndBlamesNoOther(t *testing.T) {
	onBrokers(t, func(t *testing.T, b *bed) {
		p := b.start("one")
		m := p.await(4)
		sound := b.plan(p.Cluster, b.lane(0), bide.Commit{}, item(b.targets[0], 0, "a"))
		part := item(b.targets[0], 1, "c", bide.Header{Key: HeaderToPartition, Value: []byte("77")})
		plan := b.plan(p.Cluster, b.lane(1), bide.Commit{}, item(b.name+"-nowhere", 0, "b"), part, item(b.targets[1], 2, "d"))
		plan.Commit.Next = 3
		start := time.Now()
		got := p.Transact(t.Context(), m, []*bide.Plan{sound, plan})
		b.wants(got, bide.Aborted)
		if took := time.Since(start); took > 5*time.Second {
			t.Errorf("took %v", took)
		}
		if len(got[0].Failures) != 0 || len(got[1].Failures) != 2 {
			t.Fatalf("failures %+v, %+v", got[0], got[1])
		}
		for i, code := range []string{CodeTargetUnknown, CodePartitionUnknown} {
			if f := got[1].Failures[i]; f.Item != i || f.Kind != bide.Unavailable || f.Rejection.Code != code {
				t.Fatalf("failure %d: %+v", i, f)
			}
		}
	})
}

func TestClusterThatCannotBeReachedBlamesNobody(t *testing.T) {
	onBrokers(t, func(t *testing.T, b *bed) {
		w := new(wire)
		p := b.start("one", w.options)
		m := p.await(4)
		plan := b.plan(p.Cluster, b.lane(0), bide.Commit{}, item(b.targets[0], 0, "a"))
		w.set(kmsg.Produce, always(cut))
		w.set(kmsg.Metadata, always(cut))
		got := p.Transact(t.Context(), m, []*bide.Plan{plan})
		b.wants(got, bide.Aborted)
		if len(got[0].Failures) != 0 || got[0].Err == nil {
			t.Fatalf("%+v", got[0])
		}
		w.set(kmsg.Metadata, nil)
		got = p.Transact(t.Context(), m, []*bide.Plan{plan})
		b.wants(got, bide.Aborted)
		if f := got[0].Failures; len(f) != 1 || f[0].Kind != bide.Unavailable {
			t.Fatalf("%+v", got[0])
		}
		w.set(kmsg.Produce, nil)
		b.wants(p.Transact(t.Context(), m, []*bide.Plan{plan}), bide.Committed)
	})
}
