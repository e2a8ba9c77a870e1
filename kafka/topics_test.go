package kafka

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// topicClient returns a client of a cluster.
func topicClient(t *testing.T, cluster *kfake.Cluster) *kgo.Client {
	t.Helper()
	opts, _ := connOptions(t, Connection{Brokers: cluster.ListenAddrs()})
	return connClient(t, opts...)
}

// makeTopic creates a topic with settings given as name=value.
func makeTopic(t *testing.T, cl *kgo.Client, name string, settings ...string) {
	t.Helper()
	configs := map[string]*string{}
	for _, s := range settings {
		name, value, _ := strings.Cut(s, "=")
		configs[name] = &value
	}
	if _, err := kadm.NewClient(cl).CreateTopic(t.Context(), 2, 1, configs, name); err != nil {
		t.Fatal(err)
	}
}

// topicSettingsOf returns what was set for a topic.
func topicSettingsOf(t *testing.T, cl *kgo.Client, topic string) map[string]string {
	t.Helper()
	resources, err := kadm.NewClient(cl).DescribeTopicConfigs(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	settings := map[string]string{}
	for _, c := range resources[0].Configs {
		if c.Source == kmsg.ConfigSourceDynamicTopicConfig {
			settings[c.Key] = c.MaybeValue()
		}
	}
	return settings
}

func wantSettings(t *testing.T, cl *kgo.Client, topic string, want map[string]string) {
	t.Helper()
	got := topicSettingsOf(t, cl, topic)
	for name, value := range want {
		if got[name] != value {
			t.Errorf("%s: %s=%q, want %q", topic, name, got[name], value)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%s: settings %v, want %v", topic, got, want)
	}
}

func TestMissingTopicsAreCreatedWithSettingsThatKeepWhatWaits(t *testing.T) {
	cl := topicClient(t, connCluster(t))
	o := TopicOptions{
		Ingress: []IngressTopic{{Name: "in"}, {Name: "in.5m", MaxDelay: time.Hour, Partitions: 1}}, DeadLetter: "dead",
		Create: true, Partitions: 6, DeadLetterPartitions: 2, ReplicationFactor: 1,
	}
	topics, err := EnsureTopics(t.Context(), cl, o)
	if err != nil {
		t.Fatal(err)
	}
	if len(topics.Findings) > 0 {
		t.Errorf("finds fault with its own topics: %+v", topics.Findings)
	}
	keep := map[string]string{
		"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1", "message.timestamp.type": "LogAppendTime",
	}
	wantSettings(t, cl, "in", keep)
	wantSettings(t, cl, "in.5m", keep)
	wantSettings(t, cl, "dead", map[string]string{
		"cleanup.policy": "delete", "retention.ms": "7776000000", "retention.bytes": "-1", "message.timestamp.type": "LogAppendTime",
		"max.message.bytes": "1114124",
	})

	details, err := kadm.NewClient(cl).ListTopics(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, facts := range topics.all() {
		want := TopicFacts{Name: facts.Name, ID: details[facts.Name].ID, Partitions: 6, Replicas: 1, MaxMessageBytes: 1048588, Created: true}
		switch facts.Name {
		case "in.5m":
			want.Partitions = 1
		case "dead":
			want.Partitions, want.MaxMessageBytes, want.Retention = 2, 1114124, 90*24*time.Hour
		}
		if facts != want || want.ID == [16]byte{} {
			t.Errorf("got %+v, want %+v", facts, want)
		}
	}
	if len(topics.all()) != 3 {
		t.Errorf("facts of %d topics", len(topics.all()))
	}

	o.Create = false
	again, err := EnsureTopics(t.Context(), cl, o)
	if err != nil {
		t.Fatal(err)
	}
	for _, facts := range again.all() {
		if facts.Created {
			t.Errorf("%s created twice", facts.Name)
		}
	}
}

func TestTopicsGetTheBrokersDefaults(t *testing.T) {
	cl := topicClient(t, connCluster(t, kfake.DefaultNumPartitions(7)))
	topics, err := EnsureTopics(t.Context(), cl, TopicOptions{Ingress: []IngressTopic{{Name: "in"}}, Create: true})
	if err != nil || topics.Ingress["in"].Partitions != 7 || topics.Ingress["in"].Replicas != 1 {
		t.Errorf("got %+v, %v", topics, err)
	}
	if topics.DeadLetter != (TopicFacts{}) {
		t.Errorf("a dead-letter topic that nobody asked for: %+v", topics.DeadLetter)
	}
}

func TestSettingsOfTopicsThatExistAreJudged(t *testing.T) {
	fit := []string{"retention.ms=-1", "message.timestamp.type=LogAppendTime"}
	for _, test := range []struct {
		name     string
		ingress  []string
		dead     []string
		maxDelay time.Duration
		findings []string // level topic setting=value
		faults   []string // what the error has
	}{
		{name: "as it should be", ingress: fit, dead: []string{"max.message.bytes=1114124"}},
		{
			name: "as a broker makes it", findings: []string{
				"warn in retention.ms=604800000", "info in message.timestamp.type=CreateTime", "warn dead max.message.bytes=1048588",
			},
		},
		{
			name: "retention beyond the longest delay", ingress: []string{"retention.ms=3600001", fit[1]}, maxDelay: time.Hour,
			dead: []string{"max.message.bytes=2000000"},
		},
		{
			name: "retention as long as the longest delay", ingress: []string{"retention.ms=3600000", fit[1]}, maxDelay: time.Hour,
			dead: []string{"max.message.bytes=2000000"}, findings: []string{"warn in retention.ms=3600000"},
		},
		{
			name: "retention longer than a duration can be", ingress: []string{"retention.ms=9223372036854775807", fit[1]}, maxDelay: 1<<63 - 2,
			dead: []string{"max.message.bytes=2000000"},
		},
		{
			name: "retention by size", ingress: append([]string{"retention.bytes=1000000"}, fit...),
			dead: []string{"max.message.bytes=1114124"}, findings: []string{"warn in retention.bytes=1000000"},
		},
		{
			name: "a larger ingress", ingress: append([]string{"max.message.bytes=6000000"}, fit...),
			dead: []string{"max.message.bytes=6000000"}, findings: []string{"warn dead max.message.bytes=6000000"},
		},
		{
			name: "too few replicas to write", ingress: append([]string{"min.insync.replicas=2"}, fit...),
			dead: []string{"max.message.bytes=1114124"}, findings: []string{"warn in min.insync.replicas=2"},
		},
		{
			name: "compaction", ingress: append([]string{"cleanup.policy=compact"}, fit...), dead: []string{"cleanup.policy=compact,delete", "max.message.bytes=1114124"},
			faults: []string{
				"topic unfit: in (ingress) has cleanup.policy=compact,", "--entity-name in --add-config cleanup.policy=delete",
				"topic unfit: dead (dead-letter topic) has cleanup.policy=compact,delete,", "--entity-name dead --add-config cleanup.policy=delete",
			},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			cl := topicClient(t, connCluster(t))
			makeTopic(t, cl, "in", test.ingress...)
			makeTopic(t, cl, "dead", test.dead...)
			topics, err := EnsureTopics(t.Context(), cl, TopicOptions{
				Ingress: []IngressTopic{{Name: "in", MaxDelay: test.maxDelay}}, DeadLetter: "dead", Create: true,
			})
			if len(topics.Findings) != len(test.findings) {
				t.Errorf("got %+v, want %v", topics.Findings, test.findings)
			}
			for i, f := range topics.Findings {
				text := f.Level.String() + " " + f.Topic + " " + f.Setting + "=" + f.Value
				if i < len(test.findings) && text != test.findings[i] {
					t.Errorf("got %q, want %q", text, test.findings[i])
				}
				if !strings.Contains(f.Advice, "kafka-configs.sh --bootstrap-server <broker> --alter --entity-type topics --entity-name "+f.Topic+" --add-config "+f.Setting+"=") {
					t.Errorf("no command in %q", f.Advice)
				}
			}
			if (err != nil) != (len(test.faults) > 0) || err != nil && !errors.Is(err, ErrTopicUnfit) {
				t.Errorf("got %v", err)
			}
			for _, fault := range test.faults {
				if err == nil || !strings.Contains(err.Error(), fault) {
					t.Errorf("%v does not say %q", err, fault)
				}
			}
		})
	}
}

func TestOneReplicaAmongSeveralBrokersIsFound(t *testing.T) {
	cl := topicClient(t, connCluster(t, kfake.NumBrokers(3)))
	o := TopicOptions{Ingress: []IngressTopic{{Name: "in"}}, Create: true, ReplicationFactor: 1}
	topics, err := EnsureTopics(t.Context(), cl, o)
	if err != nil || len(topics.Findings) != 1 || topics.Findings[0].Setting != "replication.factor" {
		t.Errorf("got %+v, %v", topics.Findings, err)
	}
}

func TestARepeatedCheckLogsOnlyWhatIsNew(t *testing.T) {
	cl := topicClient(t, connCluster(t))
	makeTopic(t, cl, "in")
	o := TopicOptions{Ingress: []IngressTopic{{Name: "in"}}}
	core, logs := observer.New(zap.InfoLevel)
	var last Topics
	check := func() {
		t.Helper()
		topics, err := EnsureTopics(t.Context(), cl, o)
		if err != nil {
			t.Fatal(err)
		}
		topics.Log(zap.New(core), last)
		last = topics
	}
	check()
	if logs.Len() != 2 {
		t.Fatalf("logged %s", logText(logs))
	}
	check()
	if logs.Len() != 2 {
		t.Errorf("logged again: %s", logText(logs))
	}
	short := "1000"
	if _, err := kadm.NewClient(cl).AlterTopicConfigs(t.Context(), []kadm.AlterConfig{{Name: "retention.ms", Value: &short}}, "in"); err != nil {
		t.Fatal(err)
	}
	check()
	if logs.Len() != 3 || logs.All()[2].ContextMap()["value"] != short {
		t.Errorf("logged %s", logText(logs))
	}
}

func TestTopicsThatCannotBeUsedAreAllNamed(t *testing.T) {
	cl := topicClient(t, connCluster(t))
	makeTopic(t, cl, "in", "retention.ms=-1", "message.timestamp.type=LogAppendTime")
	for _, test := range []struct {
		name string
		o    TopicOptions
		want []string
	}{
		{
			"missing and not to be created",
			TopicOptions{Ingress: []IngressTopic{{Name: "a"}, {Name: "in"}, {Name: "b"}}, Partitions: 3, ReplicationFactor: 2, Bootstrap: []string{"k1:9092", "k2:9092"}},
			[]string{
				"topic unfit: a (ingress) does not exist, and topics.create is false",
				"kafka-topics.sh --bootstrap-server k1:9092,k2:9092 --create --topic a --partitions 3 --replication-factor 2 --config cleanup.policy=delete --config retention.ms=-1 --config retention.bytes=-1 --config message.timestamp.type=LogAppendTime",
				"topic unfit: b (ingress) does not exist",
			},
		},
		{
			"a dead-letter topic too",
			TopicOptions{Ingress: []IngressTopic{{Name: "in"}}, DeadLetter: "dead"},
			[]string{"topic unfit: dead (dead-letter topic) does not exist", "--config max.message.bytes=1114124"},
		},
		{
			"refused by the broker",
			TopicOptions{Ingress: []IngressTopic{{Name: "a"}}, ReplicationFactor: 3, Create: true},
			[]string{"topic unfit: a (ingress) does not exist, and the broker refuses to create it (INVALID_REPLICATION_FACTOR"},
		},
		{
			"one name for two topics",
			TopicOptions{Ingress: []IngressTopic{{Name: "in"}}, DeadLetter: "in"},
			[]string{"topic unfit: in is both an ingress and the dead-letter topic"},
		},
		{
			"one topic twice",
			TopicOptions{Ingress: []IngressTopic{{Name: "in"}, {Name: "in"}}},
			[]string{"topic unfit: in is an ingress twice"},
		},
		{
			"Kafka's own",
			TopicOptions{Ingress: []IngressTopic{{Name: "__consumer_offsets"}}, Create: true},
			[]string{"topic unfit: __consumer_offsets is internal to Kafka"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := EnsureTopics(t.Context(), cl, test.o)
			if !errors.Is(err, ErrTopicUnfit) {
				t.Fatalf("got %v", err)
			}
			for _, want := range test.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%v does not say %q", err, want)
				}
			}
		})
	}
}

func TestMissingRightsAreNamedWithTheCommand(t *testing.T) {
	allow := func(op kmsg.ACLOperation, topics ...string) []kfake.ACL {
		var acls []kfake.ACL
		for _, topic := range topics {
			acls = append(acls, kfake.ACL{Resource: kmsg.ACLResourceTypeTopic, Name: topic, Pattern: kmsg.ACLResourcePatternTypeLiteral, Operation: op, Allow: true})
		}
		return acls
	}
	acls := append(allow(kmsg.ACLOperationDescribe, "absent", "closed"), allow(kmsg.ACLOperationAll, "in")...)
	cluster := connCluster(t, kfake.EnableSASL(), kfake.EnableACLs(), kfake.SeedTopics(2, "in", "closed", "hidden"),
		kfake.Superuser("PLAIN", "root", "root"), kfake.User("PLAIN", "bide", "bide", acls...))
	opts, _ := connOptions(t, Connection{Brokers: cluster.ListenAddrs(), SASL: SASL{Mechanism: SASLPlain, Username: "bide", Password: "bide"}})
	cl := connClient(t, opts...)

	_, err := EnsureTopics(t.Context(), cl, TopicOptions{
		Ingress: []IngressTopic{{Name: "absent"}, {Name: "hidden"}, {Name: "in"}}, Create: true, Bootstrap: cluster.ListenAddrs(),
	})
	if !errors.Is(err, ErrTopicUnfit) {
		t.Fatalf("got %v", err)
	}
	for _, want := range []string{
		"absent (ingress) does not exist, and Bide may not create it; allow Create on the topic",
		"--operation Create --operation Read --operation Write --operation DescribeConfigs --topic absent",
		"--create --topic absent --config cleanup.policy=delete",
		"hidden (ingress) may not be described, or does not exist; allow Read, Write, DescribeConfigs on it",
		"--operation Read --operation Write --operation DescribeConfigs --topic hidden",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%v\ndoes not say %q", err, want)
		}
	}

	topics, err := EnsureTopics(t.Context(), cl, TopicOptions{Ingress: []IngressTopic{{Name: "closed"}}, Create: true})
	if err != nil || len(topics.Findings) != 1 || topics.Findings[0].Setting != "DescribeConfigs" || topics.Ingress["closed"].MaxMessageBytes != 0 {
		t.Errorf("settings that may not be read: %+v, %v", topics, err)
	}
}

func TestATopicThatAnotherInstanceCreatedFirstIsTaken(t *testing.T) {
	cluster := connCluster(t)
	cl, other := topicClient(t, cluster), topicClient(t, cluster)
	var seen atomic.Bool
	cluster.ControlKey(int16(kmsg.CreateTopics), func(kmsg.Request) (kmsg.Response, error, bool) {
		if seen.Swap(true) {
			return nil, nil, false // the other one's
		}
		cluster.SleepControl(func() { makeTopic(t, other, "in") })
		return nil, nil, false
	})
	topics, err := EnsureTopics(t.Context(), cl, TopicOptions{Ingress: []IngressTopic{{Name: "in"}}, Create: true})
	if err != nil || topics.Ingress["in"].Partitions != 2 || !seen.Load() || topics.Ingress["in"].Created {
		t.Errorf("got %+v, %v", topics, err)
	}
}

func TestAClusterThatIsAwayIsWorthATryAgain(t *testing.T) {
	cluster := connCluster(t)
	cl := topicClient(t, cluster)
	o := TopicOptions{Ingress: []IngressTopic{{Name: "in"}}, Create: true}
	for _, key := range []kmsg.Key{kmsg.Metadata, kmsg.CreateTopics, kmsg.DescribeConfigs} {
		var up atomic.Bool
		cluster.ControlKey(key.Int16(), func(req kmsg.Request) (kmsg.Response, error, bool) {
			if m, ok := req.(*kmsg.MetadataRequest); up.Load() || ok && len(m.Topics) == 0 {
				return nil, nil, false
			}
			cluster.KeepControl()
			return nil, errors.New("connection closed"), true
		})
		if _, err := EnsureTopics(t.Context(), cl, o); err == nil || errors.Is(err, ErrTopicUnfit) {
			t.Errorf("%v fails: got %v", key.Name(), err)
		}
		up.Store(true)
	}
	cluster.ControlKey(int16(kmsg.CreateTopics), func(req kmsg.Request) (kmsg.Response, error, bool) {
		resp := req.ResponseKind().(*kmsg.CreateTopicsResponse)
		topic := kmsg.NewCreateTopicsResponseTopic()
		topic.Topic, topic.ErrorCode = "late", kerr.ThrottlingQuotaExceeded.Code
		resp.Topics = append(resp.Topics, topic)
		return resp, nil, true
	})
	o.Ingress[0].Name = "late"
	if _, err := EnsureTopics(t.Context(), cl, o); err == nil || errors.Is(err, ErrTopicUnfit) || !errors.Is(err, kerr.ThrottlingQuotaExceeded) {
		t.Errorf("throttled: got %v", err)
	}
	if _, err := EnsureTopics(t.Context(), cl, o); err != nil {
		t.Errorf("once it is back: %v", err)
	}
	cluster.Close()
	if _, err := EnsureTopics(t.Context(), cl, o); err == nil || errors.Is(err, ErrTopicUnfit) {
		t.Errorf("gone: got %v", err)
	}
}
