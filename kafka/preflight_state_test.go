package kafka

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/plain"

	"github.com/bide-mq/bide"
)

// TestPreflightNamesWhoPinsTheIngress has a foreign producer leave a transaction open.
func TestPreflightNamesWhoPinsTheIngress(t *testing.T) {
	onBrokers(t, func(t *testing.T, b *bed) {
		open := func(id string) {
			cl, err := kgo.NewClient(kgo.SeedBrokers(b.addr), kgo.TransactionalID(id), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.TransactionTimeout(time.Minute))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				_ = cl.EndTransaction(context.WithoutCancel(t.Context()), kgo.TryAbort)
				cl.Close()
			})
			if err := cl.BeginTransaction(); err != nil {
				t.Fatal(err)
			}
			if err := cl.ProduceSync(t.Context(), &kgo.Record{Topic: b.ingress, Partition: 2, Value: []byte("x")}).FirstErr(); err != nil {
				t.Fatal(err)
			}
		}
		foreign, own := b.name+"-else", txnID(txnPrefix(b.name, "pod"), 1)
		open(foreign)
		o := PreflightOptions{
			Connection: Connection{Brokers: []string{b.addr}}, Group: b.name, AnyTarget: true,
			Topics: TopicOptions{Ingress: []IngressTopic{{Name: b.ingress, Carried: true}}, DeadLetter: b.dead},
		}
		lane := b.lane(2).String()
		if young := at(Preflight(t.Context(), o), CheckError); young != "" {
			t.Errorf("a young transaction is reported:\n%s", young)
		}
		later := func(by time.Duration) []Check {
			o.Now = func() time.Time { return time.Now().Add(by) }
			return Preflight(t.Context(), o)
		}
		find(t, later(2*time.Minute), CheckWarning, "transactions", lane, foreign, "open for 2m", "from offset 0", "kafka-transactions.sh", "abort --topic "+b.ingress+" --partition 2 --start-offset 0")
		find(t, later(time.Hour), CheckError, "transactions", lane, foreign, "open for 1h")
		open(own)
		find(t, later(time.Hour), CheckError, "transactions", lane, own, "a Bide's own: do not abort")
	})
}

func TestPreflightReportsWhoElseIsInTheGroup(t *testing.T) {
	onBrokers(t, func(t *testing.T, b *bed) {
		o := PreflightOptions{
			Connection: Connection{Brokers: []string{b.addr}}, Group: b.name, Instance: "pod-0", AnyTarget: true,
			Topics: TopicOptions{Ingress: []IngressTopic{{Name: b.ingress, Carried: true}}, DeadLetter: b.dead},
		}
		find(t, Preflight(t.Context(), o), CheckOK, "group", b.name, "0 members")
		p := b.start("pod-0")
		p.await(4)
		find(t, Preflight(t.Context(), o), CheckNote, "group", b.name, "member pod-0", "has this instance id")
		o.Instance, o.GroupProtocol = "pod-1", ConsumerProtocol
		find(t, Preflight(t.Context(), o), CheckWarning, "group", b.name, "classic")
		o.GroupProtocol = ClassicProtocol
		o.Topics.Ingress = []IngressTopic{{Name: b.ingress + "-else"}}
		find(t, Preflight(t.Context(), o), CheckWarning, "group", b.name, "reads "+b.ingress)
		p.leave()

		other, err := kgo.NewClient(kgo.SeedBrokers(b.addr), kgo.ConsumerGroup(b.name), kgo.ConsumeTopics(b.ingress), kgo.Balancers(kgo.RangeBalancer()))
		if err != nil {
			t.Fatal(err)
		}
		defer other.Close()
		for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
			if member, _ := other.GroupMetadata(); member != "" {
				checks := Preflight(t.Context(), o)
				if strings.Contains(at(checks, CheckError), `"range"`) {
					find(t, checks, CheckError, "group", b.name, `"range"`, "name another group")
					return
				}
			}
			if time.Now().After(deadline) {
				t.Fatal("the other member's assignor is not reported")
			}
		}
	})
}

func TestPreflightReportsCommitsThatWouldStopALane(t *testing.T) {
	onBrokers(t, func(t *testing.T, b *bed) {
		b.produce(b.lane(0), "a", "b")
		var offsets kadm.Offsets
		offsets.AddOffset(b.ingress, 0, 1, -1)
		if err := b.admin.CommitAllOffsets(t.Context(), b.name, offsets); err != nil {
			t.Fatal(err)
		}
		o := PreflightOptions{
			Connection: Connection{Brokers: []string{b.addr}}, Group: b.name, AnyTarget: true,
			Topics: TopicOptions{Ingress: []IngressTopic{{Name: b.ingress, Carried: true}}, DeadLetter: b.dead},
		}
		find(t, Preflight(t.Context(), o), CheckError, "commits", b.lane(0).String(), "without metadata", "--on-foreign-commit clear")
	})
}

func TestPreflightWritesOnlyWhatIsAborted(t *testing.T) {
	onBrokers(t, func(t *testing.T, b *bed) {
		o := PreflightOptions{
			Connection: Connection{Brokers: []string{b.addr}}, Group: b.name, AnyTarget: true, Write: true,
			Topics: TopicOptions{Ingress: []IngressTopic{{Name: b.ingress, Carried: true}}, DeadLetter: b.dead},
		}
		find(t, Preflight(t.Context(), o), CheckOK, "rights", b.dead, "--write")
		if values := b.read(0, b.dead); len(values) != 0 {
			t.Errorf("a read-committed consumer sees %q", values)
		}
	})
}

// TestPreflightDoesNotAdviseToAbortWhatItCannotName has a transaction of an id that Bide may not describe.
func TestPreflightDoesNotAdviseToAbortWhatItCannotName(t *testing.T) {
	t.Parallel()
	fake, _ := guarded(t, leastRights(), "in", "dead", "orders")
	cl, err := kgo.NewClient(kgo.SeedBrokers(fake.ListenAddrs()...), kgo.SASL(plain.Auth{User: "admin", Pass: "admin"}.AsMechanism()), kgo.TransactionalID("stranger"))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	if err := cl.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	rec := &kgo.Record{Topic: "in", Value: []byte("x")}
	if err := cl.ProduceSync(t.Context(), rec).FirstErr(); err != nil {
		t.Fatal(err)
	}
	o := guardedOptions(fake)
	o.Now = func() time.Time { return time.Now().Add(2 * time.Minute) }
	checks := Preflight(t.Context(), o)
	find(t, checks, CheckWarning, "transactions", bide.Lane{Topic: "in", Partition: rec.Partition}.String(), "may not describe", "or longer", "describe-producers")
	if text := at(checks, CheckWarning); strings.Contains(text, " abort --topic") {
		t.Errorf("advises to abort:\n%s", text)
	}
}

// TestPreflightJudgesCommitsAsAStartWould looks at commits beside what the ingress has.
func TestPreflightJudgesCommitsAsAStartWould(t *testing.T) {
	lane, id := bide.Lane{Topic: "in", Partition: 3}, [16]byte{7}
	good := bide.Commit{
		Next: 20, Cursor: bide.NoPosition, Low: 10, TopicID: id, Lanes: 4,
		Writer: bide.Writer{Instance: "pod-0", Incarnation: 1, Plan: 1},
	}
	for _, c := range []struct {
		name       string
		id         [16]byte
		meta       string
		start, end int64
		level      CheckLevel // empty: nothing is said
		words      []string
	}{
		{name: "good", id: id, start: 10, end: 20},
		{name: "recreated", id: [16]byte{8}, end: 20, level: CheckError, words: []string{"created again", "--on-recreated discard"}},
		{name: "end lost", id: id, end: 19, level: CheckError, words: []string{"offset 20 is committed", "ends at 19"}},
		{name: "start beyond low", id: id, start: 11, end: 30, level: CheckWarning, words: []string{"begins at offset 11", "from 10 on"}},
		{name: "newer release", id: id, end: 20, meta: "bide/9 x", level: CheckError, words: []string{"version 9", "run the release"}},
		{name: "somebody else's", id: id, end: 20, meta: "hello", level: CheckError, words: []string{"--on-foreign-commit clear"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			meta, err := encodeCommit(good, txnPrefix("bide", "pod-0"))
			if err != nil {
				t.Fatal(err)
			}
			if c.meta != "" {
				meta = c.meta
			}
			p := &preflight{}
			fine := p.judgeCommit(lane, storedOffset{offset: good.Next, meta: meta}, c.id, listed{offset: c.start}, listed{offset: c.end})
			if fine != (c.level == "") || fine != (len(p.checks) == 0) {
				t.Fatalf("fine %v, %+v", fine, p.checks)
			}
			if !fine {
				find(t, p.checks, c.level, "commits", lane.String(), c.words...)
			}
		})
	}
}
