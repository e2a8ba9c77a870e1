package kafka

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap/zapcore"
)

// settledTopic is a topic as it is, beside how it should be.
type settledTopic struct {
	plan     topicPlan
	facts    TopicFacts
	brokers  int               // how many the cluster has
	settings map[string]string // nil where they may not be read
	commands commandLines
	findings []TopicFinding
	err      error // why nothing more is known
}

// judge returns what is to be said of the topic, and what makes it unfit.
func (t *settledTopic) judge() (found []TopicFinding, faults []error) {
	if t.err != nil {
		return nil, []error{t.err}
	}
	if t.settings == nil {
		t.find(zapcore.WarnLevel, "DescribeConfigs", "denied", "the topic's settings cannot be checked; allow it: "+
			t.commands.allow(t.plan.name, "DescribeConfigs"))
		return t.findings, nil
	}
	// Kafka writes a list: "compact,delete" compacts as well.
	if policy := t.settings[cleanupPolicy]; strings.Contains(policy, "compact") {
		faults = append(faults, unfit(t.plan.name, "(%s) has cleanup.policy=%s, which deletes messages that share a key; run: %s",
			t.plan.role, policy, t.commands.alter(t.plan.name, cleanupPolicy, "delete")))
	}
	if t.plan.role == "ingress" {
		t.judgeRetention()
		if kind := t.settings[timestampType]; kind == "CreateTime" {
			t.find(zapcore.InfoLevel, timestampType, kind, "delay-for counts from the producers' clocks; with LogAppendTime it counts from the broker's: "+
				t.commands.alter(t.plan.name, timestampType, "LogAppendTime"))
		}
	}
	if t.facts.MaxMessageBytes > 0 && t.facts.MaxMessageBytes < t.plan.minBytes {
		want := strconv.Itoa(int(t.plan.minBytes))
		t.find(zapcore.WarnLevel, maxMessageBytes, t.settings[maxMessageBytes],
			"the ingress takes records as large, and a dead letter has headers more; where one is refused with and without them its lane stops: "+
				t.commands.alter(t.plan.name, maxMessageBytes, want))
	}
	t.judgeReplicas()
	return t.findings, faults
}

// leastCarriedRetention is the shortest retention that carrying is at ease with: messages are carried
// when their records have half of it behind them, and an outage must not last longer than the other half.
const leastCarriedRetention = 2 * time.Hour

// judgeRetention looks for what would delete messages before they are due.
func (t *settledTopic) judgeRetention() {
	if size := t.settings[retentionBytes]; size != "" && size != "-1" {
		t.find(zapcore.WarnLevel, retentionBytes, size, "Kafka deletes messages that still wait once a partition is that large, and the local disk is then the only copy: "+
			t.commands.alter(t.plan.name, retentionBytes, "-1"))
	}
	value := t.settings[retentionMs]
	ms, err := strconv.ParseInt(value, 10, 64)
	if err != nil || ms < 0 {
		return
	}
	retention := durationOfMs(ms)
	if t.plan.carried && retention >= leastCarriedRetention {
		return // what waits longer is carried forward
	}
	fix := t.commands.alter(t.plan.name, retentionMs, "-1")
	switch {
	case t.plan.maxDelay == 0:
		t.find(zapcore.WarnLevel, retentionMs, value, fmt.Sprintf(
			"Kafka deletes messages that wait longer than %v, and the local disk is then the only copy; set max-delay below it, or run: %s", retention, fix))
	case retention <= t.plan.maxDelay:
		t.find(zapcore.WarnLevel, retentionMs, value, fmt.Sprintf(
			"%v is not longer than max-delay %v: Kafka deletes messages that still wait, and the local disk is then the only copy; lower max-delay, or run: %s",
			retention, t.plan.maxDelay, fix))
	}
}

func (t *settledTopic) judgeReplicas() {
	if t.facts.Replicas == 1 && t.brokers > 1 {
		t.find(zapcore.WarnLevel, "replication.factor", "1", fmt.Sprintf(
			"the cluster has %d brokers, but the loss of one loses the messages that it alone holds; add replicas (kafka-reassign-partitions.sh)", t.brokers))
	}
	if n, err := strconv.Atoi(t.settings[minInsync]); err == nil && n > t.facts.Replicas && t.facts.Replicas > 0 {
		t.find(zapcore.WarnLevel, minInsync, t.settings[minInsync], fmt.Sprintf(
			"nothing can be written safely with %d replicas: %s", t.facts.Replicas, t.commands.alter(t.plan.name, minInsync, strconv.Itoa(max(1, t.facts.Replicas-1)))))
	}
}

func (t *settledTopic) find(level zapcore.Level, setting, value, advice string) {
	t.findings = append(t.findings, TopicFinding{Level: level, Topic: t.plan.name, Setting: setting, Value: value, Advice: advice})
}

// durationOfMs returns ms as a duration, the longest there is where that is too short: retention may be
// set to anything up to 2⁶³−1 ms.
func durationOfMs(ms int64) time.Duration {
	const longest = time.Duration(1<<63 - 1)
	if ms > longest.Milliseconds() {
		return longest
	}
	return time.Duration(ms) * time.Millisecond
}

// commandLines writes the commands of Kafka's own tools that mend a topic.
type commandLines struct{ bootstrap string }

func newCommandLines(brokers []string) commandLines {
	if len(brokers) == 0 {
		return commandLines{"<broker>"}
	}
	return commandLines{strings.Join(brokers, ",")}
}

func (c commandLines) create(p *topicPlan) string {
	var b strings.Builder
	fmt.Fprintf(&b, "kafka-topics.sh --bootstrap-server %s --create --topic %s", c.bootstrap, p.name)
	if p.partitions > 0 {
		fmt.Fprintf(&b, " --partitions %d", p.partitions)
	}
	if p.replicas > 0 {
		fmt.Fprintf(&b, " --replication-factor %d", p.replicas)
	}
	for _, s := range p.settings {
		fmt.Fprintf(&b, " --config %s=%s", s.name, s.value)
	}
	return b.String()
}

func (c commandLines) alter(topic, name, value string) string {
	return fmt.Sprintf("kafka-configs.sh --bootstrap-server %s --alter --entity-type topics --entity-name %s --add-config %s=%s",
		c.bootstrap, topic, name, value)
}

// allow takes the operations as Kafka's access control lists name them.
func (c commandLines) allow(topic string, operations ...string) string {
	return fmt.Sprintf("kafka-acls.sh --bootstrap-server %s --add --allow-principal User:<bide> --operation %s --topic %s",
		c.bootstrap, strings.Join(operations, " --operation "), topic)
}
