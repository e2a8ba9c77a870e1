package kafka

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl/plain"
)

// grant allows the user of a test an operation.
func grant(kind kmsg.ACLResourceType, name string, op kmsg.ACLOperation) kfake.ACL {
	a := kfake.ACL{Resource: kind, Name: name, Pattern: kmsg.ACLResourcePatternTypeLiteral, Operation: op, Allow: true}
	if kind == kmsg.ACLResourceTypeTransactionalId {
		a.Pattern = kmsg.ACLResourcePatternTypePrefixed
	}
	return a
}

// leastRights are the rights of docs/operations.md for the topics of guardedOptions.
func leastRights() []kfake.ACL {
	return []kfake.ACL{
		grant(kmsg.ACLResourceTypeTopic, "in", kmsg.ACLOperationRead),
		grant(kmsg.ACLResourceTypeTopic, "in", kmsg.ACLOperationWrite),
		grant(kmsg.ACLResourceTypeTopic, "in", kmsg.ACLOperationDelete),
		grant(kmsg.ACLResourceTypeTopic, "in", kmsg.ACLOperationDescribeConfigs),
		grant(kmsg.ACLResourceTypeTopic, "dead", kmsg.ACLOperationWrite),
		grant(kmsg.ACLResourceTypeTopic, "dead", kmsg.ACLOperationDescribeConfigs),
		grant(kmsg.ACLResourceTypeTopic, "orders", kmsg.ACLOperationWrite),
		grant(kmsg.ACLResourceTypeGroup, "bide", kmsg.ACLOperationRead),
		grant(kmsg.ACLResourceTypeTransactionalId, "bide-bide-", kmsg.ACLOperationWrite),
		grant(kmsg.ACLResourceTypeCluster, "kafka-cluster", kmsg.ACLOperationClusterAction),
	}
}

// guarded returns a cluster that enforces rights, with topics, and an administrator's client.
func guarded(t *testing.T, rights []kfake.ACL, topics ...string) (*kfake.Cluster, *kgo.Client) {
	t.Helper()
	fake, err := kfake.NewCluster(kfake.NumBrokers(2), kfake.EnableSASL(), kfake.EnableACLs(),
		kfake.Superuser("PLAIN", "admin", "admin"), kfake.User("PLAIN", "bide", "secret", rights...))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(fake.Close)
	admin, err := kgo.NewClient(kgo.SeedBrokers(fake.ListenAddrs()...), kgo.SASL(plain.Auth{User: "admin", Pass: "admin"}.AsMechanism()),
		kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(admin.Close)
	keep := map[string]*string{}
	for name, value := range map[string]string{cleanupPolicy: "delete", retentionMs: "-1", retentionBytes: "-1", timestampType: "LogAppendTime"} {
		keep[name] = &value
	}
	for _, topic := range topics {
		configs := keep
		if topic == "dead" {
			configs = map[string]*string{timestampType: keep[timestampType], maxMessageBytes: kadm.StringPtr("1114124")}
		}
		if r, err := kadm.NewClient(admin).CreateTopic(t.Context(), 2, 2, configs, topic); err != nil || r.Err != nil {
			t.Fatal(topic, err, r.Err)
		}
	}
	return fake, admin
}

func guardedOptions(fake *kfake.Cluster) PreflightOptions {
	return PreflightOptions{
		Connection: Connection{
			Brokers: fake.ListenAddrs(), SASL: SASL{Mechanism: SASLPlain, Username: "bide", Password: "secret"},
		},
		Group: "bide", Instance: "pod-0",
		Topics:  TopicOptions{Ingress: []IngressTopic{{Name: "in", Carried: true}}, DeadLetter: "dead", Create: true},
		Trimmed: []string{"in"}, Targets: []string{"orders"},
	}
}

// at returns the checks of a level, one a line.
func at(checks []Check, levels ...CheckLevel) string {
	var b strings.Builder
	for _, c := range checks {
		if slices.Contains(levels, c.Level) {
			fmt.Fprintf(&b, "%s %s %s: %s %q\n", c.Level, c.Area, c.Subject, c.Text, c.Fix)
		}
	}
	return b.String()
}

// find fails the test unless a check of that level, area and subject has all words in its text or fix.
func find(t *testing.T, checks []Check, level CheckLevel, area, subject string, words ...string) {
	t.Helper()
	for _, c := range checks {
		all := c.Text + " " + strings.Join(c.Fix, " ")
		if c.Level == level && c.Area == area && c.Subject == subject &&
			!slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(all, w) }) {
			return
		}
	}
	t.Errorf("no %s of %s %s with %q in\n%s", level, area, subject, words, at(checks, CheckOK, CheckNote, CheckWarning, CheckError))
}

func TestPreflightIsContentWithTheLeastRights(t *testing.T) {
	t.Parallel()
	fake, _ := guarded(t, leastRights(), "in", "dead", "orders")
	checks := Preflight(t.Context(), guardedOptions(fake))
	if bad := at(checks, CheckWarning, CheckError); bad != "" {
		t.Errorf("finds\n%s", bad)
	}
	for _, subject := range []string{"in", "dead", "orders", "bide", "bide-bide-", "cluster"} {
		find(t, checks, CheckOK, "rights", subject)
	}
}

// TestPreflightNamesEachMissingRight takes away one right after the other.
func TestPreflightNamesEachMissingRight(t *testing.T) {
	t.Parallel()
	for i, lost := range leastRights() {
		t.Run(lost.Name+" "+operationName(lost.Operation), func(t *testing.T) {
			t.Parallel()
			rights := leastRights()
			fake, _ := guarded(t, slices.Delete(rights, i, i+1), "in", "dead", "orders")
			checks := Preflight(t.Context(), guardedOptions(fake))
			subject, flag, level := lost.Name, "--topic "+lost.Name, CheckError
			switch {
			case lost.Resource == kmsg.ACLResourceTypeCluster:
				subject, flag, level = "cluster", "--cluster", CheckNote
			case lost.Resource == kmsg.ACLResourceTypeGroup:
				flag = "--group bide"
			case lost.Resource == kmsg.ACLResourceTypeTransactionalId:
				flag = "--transactional-id bide-bide- --resource-pattern-type prefixed"
			case lost.Operation == kmsg.ACLOperationDescribeConfigs:
				level = CheckWarning
			}
			find(t, checks, level, "rights", subject, "missing "+operationName(lost.Operation), "--operation "+operationName(lost.Operation), flag, "User:bide")
			for _, c := range checks {
				if c.Level == CheckError && c.Subject != subject {
					t.Errorf("also: %+v", c)
				}
			}
		})
	}
}

func TestPreflightNamesAllMissingRightsAtOnce(t *testing.T) {
	t.Parallel()
	fake, _ := guarded(t, nil, "in", "dead", "orders")
	checks := Preflight(t.Context(), guardedOptions(fake))
	for _, subject := range []string{"in", "dead", "orders", "bide", "bide-bide-"} {
		find(t, checks, CheckError, "rights", subject, "missing", "kafka-acls.sh")
	}
}

// TestPreflightTellsWriteOnTransactionalIDsFromDescribe needs a request that is refused for the one alone.
func TestPreflightTellsWriteOnTransactionalIDsFromDescribe(t *testing.T) {
	t.Parallel()
	rights := leastRights()
	for i := range rights {
		if rights[i].Resource == kmsg.ACLResourceTypeTransactionalId {
			rights[i].Operation = kmsg.ACLOperationDescribe
		}
	}
	fake, _ := guarded(t, rights, "in", "dead", "orders")
	find(t, Preflight(t.Context(), guardedOptions(fake)), CheckError, "rights", "bide-bide-", "missing Write on")
}

func TestPreflightNeedsTheIDsOfOtherInstancesToo(t *testing.T) {
	t.Parallel()
	rights := leastRights()
	for i := range rights {
		if rights[i].Resource == kmsg.ACLResourceTypeTransactionalId {
			rights[i].Name = txnPrefix("bide", "pod-0")
		}
	}
	fake, _ := guarded(t, rights, "in", "dead", "orders")
	find(t, Preflight(t.Context(), guardedOptions(fake)), CheckError, "rights", "bide-bide-", "of the whole group")
	o := guardedOptions(fake)
	o.Mode = AtLeastOnce
	if bad := at(Preflight(t.Context(), o), CheckError); bad != "" {
		t.Errorf("at least once finds\n%s", bad)
	}
}

func TestPreflightOfTopicsThatAreMissing(t *testing.T) {
	t.Parallel()
	rights := append(leastRights(), grant(kmsg.ACLResourceTypeTopic, "in", kmsg.ACLOperationCreate))
	fake, admin := guarded(t, rights)
	o := guardedOptions(fake)
	checks := Preflight(t.Context(), o)
	find(t, checks, CheckOK, "topics", "in", "run creates it")
	find(t, checks, CheckError, "topics", "dead", "may not create it", "--operation Create", "kafka-topics.sh")
	find(t, checks, CheckWarning, "topics", "orders", "does not exist", "kafka-topics.sh", "--topic orders")
	o.Topics.Create = false
	find(t, Preflight(t.Context(), o), CheckError, "topics", "in", "topics.create is false", "kafka-topics.sh", "LogAppendTime")
	topics, err := kadm.NewClient(admin).ListTopics(t.Context())
	if err != nil || len(topics) != 0 {
		t.Errorf("made %v, %v", topics.Names(), err)
	}
}

func TestPreflightReportsUnfitSettingsWithTheirCommands(t *testing.T) {
	t.Parallel()
	fake, err := kfake.NewCluster(kfake.NumBrokers(2))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(fake.Close)
	cl := topicClient(t, fake)
	makeTopic(t, cl, "compacted", "cleanup.policy=compact")
	makeTopic(t, cl, "short", "retention.ms=3600000")
	makeTopic(t, cl, "dead", "max.message.bytes=1000")
	makeTopic(t, cl, "compacted.too", "cleanup.policy=compact")
	o := PreflightOptions{
		Connection: Connection{Brokers: fake.ListenAddrs()}, Group: "bide", AnyTarget: true,
		Topics: TopicOptions{Ingress: []IngressTopic{{Name: "compacted"}, {Name: "compacted.too"}, {Name: "short", MaxDelay: 24 * time.Hour}}, DeadLetter: "dead"},
	}
	checks := Preflight(t.Context(), o)
	find(t, checks, CheckError, "topics", "compacted", "cleanup.policy=compact", "kafka-configs.sh", "--add-config cleanup.policy=delete")
	find(t, checks, CheckError, "topics", "compacted.too", "--entity-name compacted.too")
	find(t, checks, CheckWarning, "topics", "short", "retention.ms=3600000", "max-delay", "--add-config retention.ms=-1")
	find(t, checks, CheckNote, "topics", "short", "message.timestamp.type=CreateTime", "LogAppendTime")
	find(t, checks, CheckWarning, "topics", "dead", "max.message.bytes=1000", "--add-config max.message.bytes=")
	find(t, checks, CheckWarning, "topics", "short", "replication.factor=1")
	find(t, checks, CheckNote, "rights", "targets", "allow is empty")
	for _, c := range checks {
		for _, fix := range c.Fix {
			if strings.Contains(fix, "; or run") || strings.Contains(c.Text, "kafka-configs.sh") {
				t.Errorf("command and text are mixed: %+v", c)
			}
		}
	}
}

func TestPreflightMeasuresTheClock(t *testing.T) {
	t.Parallel()
	fake, _ := guarded(t, leastRights(), "in", "dead", "orders")
	o := guardedOptions(fake)
	find(t, Preflight(t.Context(), o), CheckNote, "clock", "skew", "cannot be told", "--cluster")
	o.Write = true
	find(t, Preflight(t.Context(), o), CheckOK, "clock", "skew")
	o.Now = func() time.Time { return time.Now().Add(-2 * time.Second) }
	find(t, Preflight(t.Context(), o), CheckWarning, "clock", "skew", "behind")
	o.Now = func() time.Time { return time.Now().Add(time.Hour) }
	find(t, Preflight(t.Context(), o), CheckError, "clock", "skew", "ahead")
}

func TestPreflightSeesRecordsOfItsFuture(t *testing.T) {
	t.Parallel()
	fake, admin := guarded(t, leastRights(), "in", "dead", "orders")
	if err := admin.ProduceSync(t.Context(), &kgo.Record{Topic: "in", Value: []byte("x")}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	o := guardedOptions(fake)
	o.Now = func() time.Time { return time.Now().Add(-time.Minute) }
	find(t, Preflight(t.Context(), o), CheckError, "clock", "skew", "behind by", "at least")
}

// TestPreflightEndsSoonWhereNoBrokerAnswers has a port that refuses, and one that never says a word.
func TestPreflightEndsSoonWhereNoBrokerAnswers(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	refused := ln.Addr().String()
	if err := ln.Close(); err != nil {
		t.Fatal(err)
	}
	mute, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = mute.Close() })
	for _, addr := range []string{refused, mute.Addr().String()} {
		began := time.Now()
		checks := Preflight(t.Context(), PreflightOptions{Connection: Connection{Brokers: []string{addr}}, Group: "bide"})
		if took := time.Since(began); took > 15*time.Second {
			t.Errorf("%s: took %v", addr, took)
		}
		find(t, checks, CheckError, "brokers", addr)
	}
}

func TestPreflightSaysThatCredentialsAreWrong(t *testing.T) {
	t.Parallel()
	fake, _ := guarded(t, leastRights(), "in", "dead", "orders")
	o := guardedOptions(fake)
	o.Connection.SASL.Password = "wrong"
	checks := Preflight(t.Context(), o)
	if len(checks) != 1 {
		t.Errorf("%d checks", len(checks))
	}
	find(t, checks, CheckError, "brokers", strings.Join(fake.ListenAddrs(), ","), "sasl.")
}
