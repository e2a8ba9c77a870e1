//go:build unix

package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/bide-mq/bide/test/e2e/kafkatest"
)

const fake = "kfake"

// newest is the release that tests use which run against one real broker.
var newest = kafkatest.Versions[0]

// cluster is what a test runs against: kfake or a real broker.
type cluster struct {
	name  string
	addrs []string
	adm   *kadm.Client
	// broker is nil for kfake.
	broker *kafkatest.Broker
}

// eachCluster runs a test against kfake and Apache Kafka, against older releases in a long run only.
func eachCluster(t *testing.T, test func(t *testing.T, c *cluster)) {
	t.Helper()
	t.Parallel()
	for _, name := range append([]string{fake}, scale(kafkatest.Versions[:1], kafkatest.Versions)...) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, newCluster(t, name))
		})
	}
}

// newCluster returns kfake, new for the test, or the shared broker of a release.
func newCluster(t *testing.T, name string) *cluster {
	t.Helper()
	if name == fake {
		c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.BrokerConfigs(map[string]string{"message.max.bytes": "8388608"}))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		return connect(t, name, c.ListenAddrs(), nil)
	}
	kafkatest.Need(t)
	b, err := sharedBroker(name)
	if err != nil {
		t.Fatal(err)
	}
	return connect(t, name, []string{b.Addr()}, b)
}

// ownBroker returns a broker that is the test's alone, to stop.
func ownBroker(t *testing.T, version string) *cluster {
	t.Helper()
	kafkatest.Need(t)
	b, err := kafkatest.Start(t.Context(), version, t.TempDir(), bigRecords)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Stop(syscall.SIGKILL); err != nil {
			t.Error(err)
		}
	})
	return connect(t, version, []string{b.Addr()}, b)
}

func connect(t *testing.T, name string, addrs []string, b *kafkatest.Broker) *cluster {
	t.Helper()
	c := &cluster{name: name, addrs: addrs, broker: b}
	c.adm = kadm.NewClient(c.client(t))
	return c
}

// client returns a client that is closed with the test. It finds a broker that was away quickly again.
func (c *cluster) client(t *testing.T, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	opts = append([]kgo.Opt{
		kgo.SeedBrokers(c.addrs...),
		kgo.MetadataMinAge(100 * time.Millisecond),
		kgo.RetryBackoffFn(func(int) time.Duration { return 100 * time.Millisecond }),
	}, opts...)
	cl, err := kgo.NewClient(opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	return cl
}

var topicSets atomic.Int64

// topics are one test's names in a cluster.
type topics struct {
	ingress, target, deadLetter, group string
}

// topicSpec says how a test's topics are made; zero values give two lanes and two target partitions.
type topicSpec struct {
	lanes, targets int32
	// maxBytes is the largest record batch of ingress and target; 0 keeps Kafka's own limit.
	maxBytes int
}

// makeTopics makes an ingress that keeps everything, a target with the broker's time, and a
// dead-letter topic that takes larger records than both.
func (c *cluster) makeTopics(t *testing.T, spec topicSpec) topics {
	t.Helper()
	n := fmt.Sprintf("%s-%d", strings.ToLower(strings.NewReplacer("/", "-", "#", "-").Replace(t.Name())), topicSets.Add(1))
	ts := topics{ingress: n + "-ingress", target: n + "-target", deadLetter: n + "-dead", group: n + "-group"}
	spec.lanes, spec.targets = max(spec.lanes, 0), max(spec.targets, 0)
	if spec.lanes == 0 {
		spec.lanes = 2
	}
	if spec.targets == 0 {
		spec.targets = 2
	}
	if spec.maxBytes == 0 {
		spec.maxBytes = 1048588 // Kafka's default
	}
	size := func(n int) map[string]*string {
		return map[string]*string{"max.message.bytes": kadm.StringPtr(fmt.Sprint(n))}
	}
	ingress, target := size(spec.maxBytes), size(spec.maxBytes)
	ingress["retention.ms"] = kadm.StringPtr("-1")
	target["message.timestamp.type"] = kadm.StringPtr("LogAppendTime")
	c.makeTopic(t, ts.ingress, spec.lanes, ingress)
	c.makeTopic(t, ts.target, spec.targets, target)
	c.makeTopic(t, ts.deadLetter, 1, size(spec.maxBytes+1<<20))
	return ts
}

func (c *cluster) makeTopic(t *testing.T, name string, partitions int32, configs map[string]*string) {
	t.Helper()
	_, err := c.adm.CreateTopic(t.Context(), partitions, 1, configs, name)
	if err != nil && !errors.Is(err, kerr.TopicAlreadyExists) {
		t.Fatalf("make topic %s: %v", name, err)
	}
}

// committed returns the group's committed offset of each lane of the ingress, and the sum.
func (c *cluster) committed(ctx context.Context, ts topics) (sum int64, err error) {
	offsets, err := c.adm.FetchOffsets(ctx, ts.group)
	if err != nil {
		return 0, err
	}
	offsets.Each(func(o kadm.OffsetResponse) {
		if o.Topic == ts.ingress && o.At > 0 {
			sum += o.At
		}
	})
	return sum, nil
}
