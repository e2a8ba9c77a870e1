package kafka

import (
	"errors"
	"testing"
	"time"

	"github.com/bide-mq/bide"
)

// Another lane of the topic, or the upkeep, may have asked for the topic's facts before the reader looks
// whether the topic is still the one that it read.
func TestARecreatedTopicIsNotReadOnThoughSomebodyElseSawItFirst(t *testing.T) {
	onBrokers(t, func(t *testing.T, b *bed) {
		c := b.cluster("one")
		b.produce(b.lane(0), "a")
		if _, err := c.Facts(t.Context(), b.lane(0)); err != nil {
			t.Fatal(err)
		}
		c.Start(b.lane(0), 0, 1)
		b.poll(c, b.lane(0))
		if _, err := b.admin.DeleteTopics(t.Context(), b.ingress); err != nil {
			t.Fatal(err)
		}
		for {
			if r, err := b.admin.CreateTopic(t.Context(), 4, 1, nil, b.ingress); err == nil && r.Err == nil {
				break
			}
			time.Sleep(50 * time.Millisecond)
		}
		b.client.PurgeTopicsFromClient(b.ingress)
		b.produce(b.lane(0), "x", "y")
		if _, err := c.Facts(t.Context(), b.lane(1)); err != nil {
			t.Fatal(err)
		}
		for {
			batch, got := b.poll(c, b.lane(0))
			if len(got) > 0 {
				t.Fatalf("polled %q", got)
			}
			if errors.Is(batch.Err, bide.ErrIngressReplaced) {
				break
			}
		}
	})
}
