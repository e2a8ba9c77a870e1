//go:build unix

package kafka

import (
	"context"
	"os"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/bide-mq/bide"
	"github.com/bide-mq/bide/test/e2e/kafkatest"
)

// healLimit is how long after its broker's return a committed record may stay invisible.
const healLimit = 5 * time.Second

// losingBed is two real brokers, with a target whose only replica is on the second.
type losingBed struct {
	*bed
	second *kafkatest.Broker
	target string
}

// newLosingBed starts the brokers; as other tests on real ones, these need BIDE_TEST_BROKERS.
func newLosingBed(t *testing.T, version string) *losingBed {
	if os.Getenv("BIDE_TEST_BROKERS") == "" {
		t.Skip("needs real brokers: set BIDE_TEST_BROKERS")
	}
	kafkatest.Need(t)
	first, err := kafkatest.Start(t.Context(), version, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = first.Stop(syscall.SIGKILL) })
	b := newBed(t, first.Addr())
	p := b.start("before") // makes the internal topics, on the first broker
	m := p.await(4)
	b.wants(p.Transact(t.Context(), m, []*bide.Plan{b.plan(p.Cluster, b.lane(0), bide.Commit{}, item(b.targets[0], 0, "x"))}), bide.Committed)
	p.leave()
	second, err := first.Join(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = second.Stop(syscall.SIGKILL) })
	l := &losingBed{bed: b, second: second, target: b.name + "-far"}
	req := kmsg.NewPtrCreateTopicsRequest()
	topic := kmsg.NewCreateTopicsRequestTopic()
	topic.Topic, topic.NumPartitions, topic.ReplicationFactor = l.target, -1, -1
	at := kmsg.NewCreateTopicsRequestTopicReplicaAssignment()
	at.Replicas = []int32{2}
	topic.ReplicaAssignment = append(topic.ReplicaAssignment, at)
	req.Topics = append(req.Topics, topic)
	resp, err := req.RequestWith(t.Context(), b.client)
	if err != nil || resp.Topics[0].ErrorCode != 0 {
		t.Fatal(err, resp)
	}
	return l
}

// lose commits a record whose broker dies between the produce and the end, and returns its plan.
func (l *losingBed) lose(p *process, w *wire, m bide.Membership, before bide.Commit) *bide.Plan {
	l.t.Helper()
	var once sync.Once
	w.set(kmsg.EndTxn, func() wireFate {
		once.Do(func() {
			if err := l.second.Stop(syscall.SIGKILL); err != nil {
				l.t.Error(err)
			}
		})
		return pass
	})
	plan := l.plan(p.Cluster, l.lane(1), before, item(l.target, 0, "committed"))
	l.wants(p.Transact(l.t.Context(), m, []*bide.Plan{plan}), bide.Committed)
	w.clear()
	return plan
}

// comeBack starts the second broker again and wants the committed record to be visible soon.
func (l *losingBed) comeBack(want ...string) {
	l.t.Helper()
	if err := l.second.Restart(l.t.Context()); err != nil {
		l.t.Fatal(err)
	}
	start := time.Now()
	got := l.read(len(want), l.target)
	took := time.Since(start)
	l.t.Logf("read %q %v after the broker answered", got, took)
	if !slices.Equal(got, want) || took > healLimit {
		l.t.Errorf("read %q after %v, want %q within %v", got, took, want, healLimit)
	}
}

func TestLostMarkerIsWrittenOnceTheBrokerIsBack(t *testing.T) {
	for _, version := range kafkatest.Versions {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			l := newLosingBed(t, version)
			w := new(wire)
			p := l.start("one", w.options, func(o *Options) { o.Transactions = 1 })
			m := p.await(4)
			l.lose(p, w, m, bide.Commit{})
			l.comeBack("committed")
		})
	}
}

// An aborted transaction of the same id must not take along what was committed before.
func TestLostMarkerSurvivesAnAbortOfItsID(t *testing.T) {
	for _, version := range kafkatest.Versions {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			l := newLosingBed(t, version)
			w := new(wire)
			p := l.start("one", w.options, func(o *Options) { o.Transactions = 1 })
			m := p.await(4)
			before := l.lose(p, w, m, bide.Commit{})
			ctx, cancel := context.WithCancel(t.Context())
			w.set(kmsg.Produce, func() wireFate { cancel(); return cut })
			next := l.plan(p.Cluster, l.lane(1), before.Commit, item(l.target, 1, "next"), item(l.targets[0], 1, "next"))
			l.wants(p.Transact(ctx, m, []*bide.Plan{next}), bide.Aborted)
			w.clear()
			l.comeBack("committed")
			for range 4 {
				ctx, cancel := context.WithCancel(t.Context())
				w.set(kmsg.EndTxn, func() wireFate { cancel(); return cut })
				l.wants(p.Transact(ctx, m, []*bide.Plan{next}), bide.Aborted)
				w.clear()
			}
			l.wants(p.Transact(t.Context(), m, []*bide.Plan{next}), bide.Committed)
			if got := l.read(2, l.target); !slices.Equal(got, []string{"committed", "next"}) {
				t.Errorf("read %q", got)
			}
		})
	}
}

// The process dies with the broker: its successor has nothing but what the cluster remembers.
func TestLostMarkerIsWrittenByTheNextProcess(t *testing.T) {
	t.Parallel()
	l := newLosingBed(t, kafkatest.Versions[0])
	w := new(wire)
	p := l.start("one", w.options, func(o *Options) { o.Transactions = 1 })
	m := p.await(4)
	plan := l.lose(p, w, m, bide.Commit{})
	p.stop()
	<-p.done
	p.Close()
	heir := l.start("one")
	heir.await(4)
	l.comeBack("committed")
	if got := l.stored(heir.Cluster, plan.Lane); got.Writer != plan.Commit.Writer {
		t.Errorf("stored %+v, want %+v", got, plan.Commit)
	}
}

// Without ClusterAction no marker can be written; another transaction of the id ends the old one.
func TestEndingOnceMoreNeedsNoRecord(t *testing.T) {
	t.Parallel()
	l := newLosingBed(t, kafkatest.Versions[0])
	w := new(wire)
	p := l.start("one", w.options, func(o *Options) { o.Transactions = 1 })
	m := p.await(4)
	l.lose(p, w, m, bide.Commit{})
	w.set(kmsg.WriteTxnMarkers, always(cut))
	if err := l.second.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	at, id := topicPartition{l.target, 0}, txnID(p.prefix, 0)
	for {
		if open, errs := p.openTxns(t.Context(), []topicPartition{at}); len(open[at]) == 1 {
			break
		} else if errs[at] == nil {
			t.Fatalf("the marker is not lost: %v", open)
		}
		time.Sleep(50 * time.Millisecond)
	}
	offsets, err := p.offsetsPartition(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := p.endAgain(t.Context(), id, -1, []topicPartition{at, offsets}, true); err != nil {
		t.Fatal(err)
	}
	if got := l.read(1, l.target); !slices.Equal(got, []string{"committed"}) {
		t.Errorf("read %q", got)
	}
}
