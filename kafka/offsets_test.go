package kafka

import (
	"context"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/bide-mq/bide"
)

// The client looks topic ids up by itself for some requests, and where it cannot it sends the zero id: a
// lane that has a commit must not seem to have none.
func TestACommitIsFoundWhileTopicsCannotBeLookedUp(t *testing.T) {
	onBrokers(t, func(t *testing.T, b *bed) {
		p := b.start("one")
		plan := b.plan(p.Cluster, b.lane(0), b.before(p.Cluster, b.lane(0)))
		b.wants(p.Transact(t.Context(), p.await(4), []*bide.Plan{plan}), bide.Committed)

		if b.fake != nil { // a real broker has no such mood, and no need of one
			b.fake.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Metadata}, Topic: b.ingress, Err: kerr.LeaderNotAvailable, Count: -1})
		}
		c := b.cluster("two")
		c.topics.Store(b.ingress, plan.Commit.TopicID) // as Facts does
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		got, found, err := c.Committed(ctx, b.lane(0))
		if err != nil || !found || got.Writer != plan.Commit.Writer {
			t.Errorf("found %v, %v, %+v; want the commit of %+v", found, err, got, plan.Commit.Writer)
		}
		p.leave()
	})
}
