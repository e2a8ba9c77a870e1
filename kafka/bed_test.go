package kafka

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"

	"github.com/bide-mq/bide"
)

// onBrokers runs a test against kfake and, with BIDE_TEST_BROKERS=host:port,…, against each real broker
// named there.
func onBrokers(t *testing.T, test func(t *testing.T, b *bed)) {
	t.Parallel() // most of them wait
	t.Run("kfake", func(t *testing.T) {
		t.Parallel()
		fake, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.BrokerConfigs(map[string]string{
			"group.initial.rebalance.delay.ms": "0",
		}))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(fake.Close)
		b := newBed(t, fake.ListenAddrs()[0])
		b.fake = fake
		test(t, b)
	})
	for addr := range strings.SplitSeq(os.Getenv("BIDE_TEST_BROKERS"), ",") {
		if addr != "" {
			t.Run(addr, func(t *testing.T) {
				t.Parallel()
				test(t, newBed(t, addr))
			})
		}
	}
}

// bed is a broker with an ingress of its own, two targets and a dead-letter topic.
type bed struct {
	t       testing.TB
	fake    *kfake.Cluster // nil for a real broker
	addr    string
	name    string
	admin   *kadm.Client
	client  *kgo.Client
	ingress string
	targets [2]string
	dead    string
	plans   uint64
	id      [16]byte // of the ingress topic, once it was needed
}

func newBed(t testing.TB, addr string) *bed {
	b := &bed{t: t, addr: addr, name: fmt.Sprintf("core-%s-%08x", strings.ToLower(strings.NewReplacer("/", "-", ":", "-").Replace(t.Name())), rand.Uint32())}
	if len(b.name) > 150 {
		b.name = b.name[len(b.name)-150:]
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	b.client, b.admin = client, kadm.NewClient(client)
	b.ingress, b.dead = b.name+"-in", b.name+"-dead"
	b.targets = [2]string{b.name + "-a", b.name + "-b"}
	b.create(4, b.ingress)
	b.create(2, b.targets[0], b.targets[1], b.dead)
	t.Cleanup(func() {
		_, _ = b.admin.DeleteTopics(context.WithoutCancel(t.Context()), b.ingress, b.targets[0], b.targets[1], b.dead)
	})
	return b
}

func (b *bed) create(partitions int32, topics ...string) {
	b.t.Helper()
	for _, topic := range topics {
		r, err := b.admin.CreateTopic(b.t.Context(), partitions, 1, nil, topic)
		if err := errors.Join(err, r.Err); err != nil {
			b.t.Fatal(topic, err)
		}
	}
}

func (b *bed) lane(p int32) bide.Lane { return bide.Lane{Topic: b.ingress, Partition: p} }

// options returns those of a process with the instance id; edits change them.
func (b *bed) options(instance string, edits ...func(*Options)) Options {
	b.t.Helper()
	contract, err := NewContract(ContractOptions{
		Ingresses:       []Ingress{{Topic: b.ingress}},
		DeadLetterTopic: b.dead,
		Annotate:        true,
	})
	if err != nil {
		b.t.Fatal(err)
	}
	o := Options{
		Connection:         Connection{Brokers: []string{b.addr}},
		Group:              b.name,
		Instance:           instance,
		Topics:             []string{b.ingress},
		Contract:           contract,
		SessionTimeout:     6 * time.Second,
		TransactionTimeout: 6 * time.Second,
		DeliveryTimeout:    2 * time.Second,
		Logger:             zaptest.NewLogger(b.t, zaptest.Level(zap.WarnLevel)),
	}
	for _, edit := range edits {
		edit(&o)
	}
	return o
}

func (b *bed) cluster(instance string, edits ...func(*Options)) *Cluster {
	b.t.Helper()
	c, err := NewCluster(b.options(instance, edits...))
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(c.Close)
	return c
}

// process is a cluster that joined the group, and what its owner was told.
type process struct {
	*Cluster
	b    *bed
	stop context.CancelFunc
	done chan error

	mu         sync.Mutex
	membership bide.Membership
	lanes      []bide.Lane
	calls      []string
	changed    chan struct{}
}

func (b *bed) start(instance string, edits ...func(*Options)) *process {
	b.t.Helper()
	ctx, cancel := context.WithCancel(b.t.Context())
	p := &process{Cluster: b.cluster(instance, edits...), b: b, stop: cancel, done: make(chan error, 1), changed: make(chan struct{}, 1)}
	go func() { p.done <- p.Join(ctx, p) }()
	b.t.Cleanup(func() { cancel() })
	return p
}

func (p *process) tell(call string, change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
	p.calls = append(p.calls, call)
	select {
	case p.changed <- struct{}{}:
	default:
	}
}

func (p *process) Assigned(m bide.Membership, added []bide.Lane) {
	p.tell("assigned", func() { p.membership = m; p.lanes = append(p.lanes, added...) })
}

func (p *process) Revoked(_ context.Context, lanes []bide.Lane) {
	p.tell("revoked", func() { p.remove(lanes) })
}

func (p *process) Lost(lanes []bide.Lane) { p.tell("lost", func() { p.remove(lanes) }) }

func (p *process) remove(lanes []bide.Lane) {
	p.lanes = slices.DeleteFunc(p.lanes, func(l bide.Lane) bool { return slices.Contains(lanes, l) })
}

// await waits until the process owns n lanes, and returns its membership.
func (p *process) await(n int) bide.Membership {
	p.b.t.Helper()
	limit := time.After(40 * time.Second)
	for {
		p.mu.Lock()
		m, have := p.membership, len(p.lanes)
		p.mu.Unlock()
		if have == n {
			return m
		}
		select {
		case <-p.changed:
		case err := <-p.done:
			p.b.t.Fatalf("join returned %v", err)
		case <-limit:
			p.b.t.Fatalf("owns %d lanes, want %d", have, n)
		}
	}
}

// plan returns a plan for a lane with one more record accepted than before.
func (b *bed) plan(c *Cluster, lane bide.Lane, before bide.Commit, items ...bide.Item) *bide.Plan {
	b.t.Helper()
	if b.id == [16]byte{} {
		topics, err := b.admin.ListTopics(b.t.Context(), lane.Topic)
		if err != nil || topics[lane.Topic].Err != nil {
			b.t.Fatal(err, topics[lane.Topic].Err)
		}
		b.id = topics[lane.Topic].ID
	}
	b.plans++
	after := bide.Commit{
		Next: before.Next + 1, Cursor: bide.NoPosition, Low: before.Low,
		Writer:  bide.Writer{Instance: c.opt.Instance, Incarnation: 7, Plan: b.plans},
		TopicID: b.id, Lanes: 4,
	}
	return &bide.Plan{Lane: lane, Previous: before, Commit: after, Items: items}
}

// item returns an item that is delivered to a target.
func item(target string, offset int64, value string, headers ...bide.Header) bide.Item {
	return bide.Item{Message: bide.Message{
		Record: bide.Record{
			Offset: offset, TimestampMs: 1, Key: []byte("k"), Value: []byte(value),
			Headers: append(headers, bide.Header{Key: HeaderTo, Value: []byte(target)}),
		},
		DueMs: 1,
	}}
}

// read returns the values that a read-committed consumer finds in topics, once it found n, or, with n at
// zero, after it read up to their ends.
func (b *bed) read(n int, topics ...string) (values []string) {
	b.t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(b.addr), kgo.ConsumeTopics(topics...),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchMaxWait(200*time.Millisecond))
	if err != nil {
		b.t.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(b.t.Context(), 20*time.Second)
	defer cancel()
	quiet := 0
	for len(values) < n || quiet < 3 {
		poll, stop := context.WithTimeout(ctx, 300*time.Millisecond)
		fetches := client.PollFetches(poll)
		stop()
		if ctx.Err() != nil {
			b.t.Fatalf("read %d values of %d: %q", len(values), n, values)
		}
		if fetches.NumRecords() == 0 {
			quiet++
		}
		fetches.EachRecord(func(r *kgo.Record) { values = append(values, string(r.Value)) })
	}
	slices.Sort(values)
	return values
}

// produce writes values to a lane.
func (b *bed) produce(lane bide.Lane, values ...string) {
	b.t.Helper()
	for _, v := range values {
		rec := &kgo.Record{Topic: lane.Topic, Partition: lane.Partition, Value: []byte(v)}
		if err := b.client.ProduceSync(b.t.Context(), rec).FirstErr(); err != nil {
			b.t.Fatal(err)
		}
	}
}

// wants fails the test unless all results have the outcome.
func (b *bed) wants(results []bide.Result, want bide.Outcome) {
	b.t.Helper()
	for i, r := range results {
		if r.Outcome != want {
			b.t.Fatalf("plan %d: %s (%v, %v), want %s", i, outcomeWord(r.Outcome), r.Err, r.Failures, outcomeWord(want))
		}
	}
}

// stored returns a lane's commit, or fails.
func (b *bed) stored(c *Cluster, lane bide.Lane) bide.Commit {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), 30*time.Second)
	defer cancel()
	got, found, err := c.Committed(ctx, lane)
	if err != nil || !found {
		b.t.Fatalf("commit of %s: found %v, %v", lane, found, err)
	}
	return got
}

// before returns a lane's commit, zero where there is none.
func (b *bed) before(c *Cluster, lane bide.Lane) bide.Commit {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), 30*time.Second)
	defer cancel()
	got, _, err := c.Committed(ctx, lane)
	if err != nil {
		b.t.Fatal(err)
	}
	return got
}

// leave ends the membership for good, so that another instance need not wait for a session to end.
func (p *process) leave() {
	p.b.t.Helper()
	p.stop()
	if err := <-p.done; err != nil {
		p.b.t.Fatalf("join returned %v", err)
	}
	instance := p.opt.Instance
	resp, err := p.b.admin.LeaveGroup(p.b.t.Context(), kadm.LeaveGroup(p.opt.Group).InstanceIDs(instance))
	if err == nil {
		err = resp[instance].Err
	}
	if err != nil {
		p.b.t.Fatal(err)
	}
	p.Close()
}
