package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// ErrTopicUnfit says that a topic is missing, may not be used, or has settings that would lose
// messages: a human must mend it. The error tells what, where, and the command that does it.
var ErrTopicUnfit = errors.New("topic unfit")

// TopicOptions says which topics Bide needs, and how to make those that are missing.
type TopicOptions struct {
	Ingress []IngressTopic `koanf:"-"`
	// DeadLetter is the dead-letter topic; empty for none.
	DeadLetter string `koanf:"-"`
	// Bootstrap are the brokers that the commands in error messages name.
	Bootstrap []string `koanf:"-"`

	// Create makes missing topics, where the cluster allows it.
	Create bool `koanf:"create"`
	// Partitions is how many a new ingress gets, DeadLetterPartitions the dead-letter topic; 0 or −1:
	// as many as the broker gives by default.
	Partitions           int32 `koanf:"partitions"`
	DeadLetterPartitions int32 `koanf:"dead-letter-partitions"`
	// ReplicationFactor is that of new topics; 0 or −1: the broker's default.
	ReplicationFactor int16 `koanf:"replication-factor"`
	// DeadLetterRetention is how long a new dead-letter topic keeps its records; 0 means 90 days.
	DeadLetterRetention time.Duration `koanf:"dead-letter-retention"`
}

// IngressTopic is an ingress. MaxDelay is the longest delay that it accepts, 0 means no bound;
// Partitions is how many it gets where it is new, 0 means those of [TopicOptions]; Carried says that what
// waits longer than the topic's retention is carried forward.
type IngressTopic struct {
	Name       string
	MaxDelay   time.Duration
	Partitions int32
	Carried    bool
}

// Topics is what the topics look like.
type Topics struct {
	Ingress    map[string]TopicFacts
	DeadLetter TopicFacts
	// Findings are what a human should know, though Bide can work with it.
	Findings []TopicFinding
}

// TopicFacts is what the cluster says of a topic.
type TopicFacts struct {
	Name       string
	ID         [16]byte
	Partitions int32
	// Replicas is the replication factor, the least of all partitions.
	Replicas int
	// MaxMessageBytes bounds a batch of records as the broker stores it; 0 where it cannot be read.
	MaxMessageBytes int32
	// Retention is the topic's retention.ms; 0 where it has none, or where it cannot be read.
	Retention time.Duration
	// Created says that this call made the topic.
	Created bool
}

// TopicFinding is one setting of a topic that is not as it should be.
type TopicFinding struct {
	// Level is Warn where messages may come to harm, Info for what is good to know.
	Level   zapcore.Level
	Topic   string
	Setting string
	Value   string
	// Advice says what it leads to and what to do.
	Advice string
}

const (
	// deadLetterHeadroom is how much larger than the ingress' the dead-letter topic's largest batch must
	// be: a dead letter is the record with added headers of at most some hundred bytes each, and a
	// batch has an overhead of its own.
	deadLetterHeadroom = 64 << 10

	defaultDeadLetterRetention = 90 * 24 * time.Hour
)

// The settings that are read and set.
const (
	cleanupPolicy   = "cleanup.policy"
	retentionMs     = "retention.ms"
	retentionBytes  = "retention.bytes"
	timestampType   = "message.timestamp.type"
	maxMessageBytes = "max.message.bytes"
	minInsync       = "min.insync.replicas"
)

// EnsureTopics checks the topics and creates those that are missing, where o allows it. It can be
// called again at any time; with Create off it changes nothing. Errors: those with [ErrTopicUnfit]
// tell of all topics that a human must mend; any other is worth trying again (a broker away, a
// topic in the making), authentication included, since credentials are read anew each time.
func EnsureTopics(ctx context.Context, cl *kgo.Client, o TopicOptions) (Topics, error) {
	result := Topics{Ingress: map[string]TopicFacts{}}
	var faults []error
	var ingress []topicPlan
	for _, in := range o.Ingress {
		switch {
		case in.Name == o.DeadLetter:
			faults = append(faults, unfit(in.Name, "is both an ingress and the dead-letter topic; name another one"))
		case slices.ContainsFunc(ingress, func(p topicPlan) bool { return p.name == in.Name }):
			faults = append(faults, unfit(in.Name, "is an ingress twice; name it once"))
		default:
			ingress = append(ingress, o.ingressPlan(in))
		}
	}
	topics, err := settleTopics(ctx, cl, &o, ingress)
	if err != nil {
		return result, joinTopicFaults(append(faults, err))
	}
	largest, known := int32(0), len(faults) == 0
	for _, t := range topics {
		result.Ingress[t.plan.name] = t.facts
		largest = max(largest, t.facts.MaxMessageBytes)
		known = known && t.err == nil
		found, wrong := t.judge()
		result.Findings, faults = append(result.Findings, found...), append(faults, wrong...)
	}
	// How large dead letters may be depends on every ingress: the dead-letter topic comes after them.
	if o.DeadLetter != "" && known {
		topics, err := settleTopics(ctx, cl, &o, []topicPlan{o.deadLetterPlan(largest)})
		if err != nil {
			return result, joinTopicFaults(append(faults, err))
		}
		result.DeadLetter = topics[0].facts
		found, wrong := topics[0].judge()
		result.Findings, faults = append(result.Findings, found...), append(faults, wrong...)
	}
	return result, joinTopicFaults(faults)
}

// Log writes what was created and found. Findings that before has as well are left out, so that a check
// that is repeated does not repeat itself; the zero Topics leaves out nothing.
func (t Topics) Log(log *zap.Logger, before Topics) {
	for _, facts := range t.all() {
		if facts.Created {
			log.Info("topic created", zap.String("topic", facts.Name), zap.Int32("partitions", facts.Partitions),
				zap.Int("replication_factor", facts.Replicas))
		}
	}
	for _, f := range t.Findings {
		if slices.Contains(before.Findings, f) {
			continue
		}
		log.Log(f.Level, "topic setting", zap.String("topic", f.Topic), zap.String("setting", f.Setting),
			zap.String("value", f.Value), zap.String("advice", f.Advice))
	}
}

// all returns the facts of all topics in order of name, the dead-letter topic last.
func (t Topics) all() []TopicFacts {
	var all []TopicFacts
	for _, facts := range t.Ingress {
		all = append(all, facts)
	}
	slices.SortFunc(all, func(a, b TopicFacts) int { return strings.Compare(a.Name, b.Name) })
	if t.DeadLetter.Name != "" {
		all = append(all, t.DeadLetter)
	}
	return all
}

// topicPlan is a topic as it should be.
type topicPlan struct {
	name       string
	role       string // what it is to Bide: ingress, dead-letter topic
	rights     []string
	partitions int32
	replicas   int16
	settings   []topicSetting // of a new topic
	maxDelay   time.Duration
	carried    bool
	minBytes   int32 // what max.message.bytes must reach; 0: anything
}

type topicSetting struct{ name, value string }

func (o *TopicOptions) ingressPlan(in IngressTopic) topicPlan {
	return topicPlan{
		name: in.Name, role: "ingress", rights: []string{"Read", "Write", "DescribeConfigs"},
		partitions: brokersDefault(cmp.Or(in.Partitions, o.Partitions)), replicas: brokersDefault(o.ReplicationFactor),
		settings: []topicSetting{
			{cleanupPolicy, "delete"},
			{retentionMs, "-1"},
			{retentionBytes, "-1"},
			{timestampType, "LogAppendTime"},
		},
		maxDelay: in.MaxDelay, carried: in.Carried,
	}
}

// deadLetterPlan plans for records of an ingress whose batches are ingressBytes at most; 0 where that
// is not known. A record that waited a year keeps no timestamp of a year ago with LogAppendTime: the
// retention would delete it at once.
func (o *TopicOptions) deadLetterPlan(ingressBytes int32) topicPlan {
	retention := o.DeadLetterRetention
	if retention == 0 {
		retention = defaultDeadLetterRetention
	}
	plan := topicPlan{
		name: o.DeadLetter, role: "dead-letter topic", rights: []string{"Write", "DescribeConfigs"},
		partitions: brokersDefault(o.DeadLetterPartitions), replicas: brokersDefault(o.ReplicationFactor),
		settings: []topicSetting{
			{cleanupPolicy, "delete"},
			{retentionMs, strconv.FormatInt(retention.Milliseconds(), 10)},
			{retentionBytes, "-1"},
			{timestampType, "LogAppendTime"},
		},
	}
	if ingressBytes > 0 {
		plan.minBytes = int32(min(int64(ingressBytes)+deadLetterHeadroom, 1<<31-1))
		plan.settings = append(plan.settings, topicSetting{maxMessageBytes, strconv.Itoa(int(plan.minBytes))})
	}
	return plan
}

// brokersDefault returns −1, which asks for the broker's default, where n is not set.
func brokersDefault[N int16 | int32](n N) N {
	if n <= 0 {
		return -1
	}
	return n
}

func unfit(topic, format string, args ...any) error {
	return fmt.Errorf("%w: %s %s", ErrTopicUnfit, topic, fmt.Sprintf(format, args...))
}

func isRetriableTopicFault(err error) bool { return !errors.Is(err, ErrTopicUnfit) }

// joinTopicFaults returns all faults, but those that a human must mend alone where there are any: a
// retry does not help before.
func joinTopicFaults(faults []error) error {
	mend := slices.DeleteFunc(slices.Clone(faults), isRetriableTopicFault)
	if len(mend) > 0 {
		return errors.Join(mend...)
	}
	return errors.Join(faults...)
}
