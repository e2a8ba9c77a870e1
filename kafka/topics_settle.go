package kafka

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	// A topic that was created is known to every broker within milliseconds; one that a busy
	// controller has not spread after topicSpreadTries waits is left to the caller's next try.
	topicSpreadWait  = 50 * time.Millisecond
	topicSpreadTries = 100

	// topicCreateTimeout is what the controller is given to create topics.
	topicCreateTimeout = 15 * time.Second
)

// kafkasOwn are topics that brokers make when they are first needed: they must not be made before.
var kafkasOwn = map[string]bool{"__consumer_offsets": true, "__transaction_state": true, "__share_group_state": true}

// settleTopics brings topics into being, where o allows it, and reads what they are like: one result a
// plan, in their order, with its own error. An error of the whole is the cluster's, which cannot be
// asked at present.
func settleTopics(ctx context.Context, cl *kgo.Client, o *TopicOptions, plans []topicPlan) ([]*settledTopic, error) {
	topics := make([]*settledTopic, len(plans))
	for i := range plans {
		t := &settledTopic{plan: plans[i], facts: TopicFacts{Name: plans[i].name}, commands: newCommandLines(o.Bootstrap)}
		if kafkasOwn[t.plan.name] {
			t.internal()
		}
		topics[i] = t
	}
	missing, err := describeTopics(ctx, cl, topics)
	if err != nil {
		return nil, err
	}
	if !o.Create {
		for _, t := range missing {
			t.err = unfit(t.plan.name, "(%s) does not exist, and topics.create is false; run: %s", t.plan.role, t.commands.create(&t.plan))
		}
	} else if err := createTopics(ctx, cl, missing); err != nil {
		return nil, err
	}
	if err := awaitTopics(ctx, cl, missing); err != nil {
		return nil, err
	}
	return topics, describeSettings(ctx, cl, topics)
}

// awaitTopics waits until created topics are known to the brokers.
func awaitTopics(ctx context.Context, cl *kgo.Client, created []*settledTopic) (err error) {
	for range topicSpreadTries {
		if created, err = describeTopics(ctx, cl, created); err != nil || len(created) == 0 {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(topicSpreadWait):
		}
	}
	for _, t := range created {
		t.err = fmt.Errorf("topic %s was created, but is not known to the brokers yet", t.plan.name)
	}
	return nil
}

// healthy returns the topics that have no error so far.
func healthy(topics []*settledTopic) []*settledTopic {
	var rest []*settledTopic
	for _, t := range topics {
		if t.err == nil {
			rest = append(rest, t)
		}
	}
	return rest
}

// describeTopics fills in the facts of the topics that have no error so far, and returns those that
// are missing.
func describeTopics(ctx context.Context, cl *kgo.Client, topics []*settledTopic) (missing []*settledTopic, err error) {
	topics = healthy(topics)
	if len(topics) == 0 {
		return nil, nil
	}
	byName := make(map[string]*settledTopic, len(topics))
	req := kmsg.NewPtrMetadataRequest()
	for _, t := range topics {
		byName[t.plan.name] = t
		rt := kmsg.NewMetadataRequestTopic()
		rt.Topic = kmsg.StringPtr(t.plan.name)
		req.Topics = append(req.Topics, rt)
	}
	resp, err := req.RequestWith(ctx, cl)
	if err == nil {
		err = kerr.ErrorForCode(resp.ErrorCode)
	}
	if err != nil {
		return nil, fmt.Errorf("describe topics: %w", err)
	}
	for i := range resp.Topics {
		rt := &resp.Topics[i]
		if rt.Topic == nil || byName[*rt.Topic] == nil {
			continue
		}
		t := byName[*rt.Topic]
		switch err := kerr.ErrorForCode(rt.ErrorCode); {
		case err == nil:
			t.described(rt, len(resp.Brokers))
		case errors.Is(err, kerr.UnknownTopicOrPartition):
			missing = append(missing, t)
		case errors.Is(err, kerr.TopicAuthorizationFailed):
			t.err = unfit(t.plan.name, "(%s) may not be described, or does not exist; allow %s on it (and Create, where Bide is to make it): %s",
				t.plan.role, strings.Join(t.plan.rights, ", "), t.commands.allow(t.plan.name, t.plan.rights...))
		case kerr.IsRetriable(err):
			t.err = fmt.Errorf("describe topic %s: %w", t.plan.name, err)
		default:
			t.err = unfit(t.plan.name, "(%s) cannot be used: %v", t.plan.role, err)
		}
	}
	return missing, nil
}

func (t *settledTopic) described(rt *kmsg.MetadataResponseTopic, brokers int) {
	t.brokers = brokers
	t.facts.ID = rt.TopicID
	t.facts.Partitions = int32(len(rt.Partitions))
	for i := range rt.Partitions {
		if n := len(rt.Partitions[i].Replicas); i == 0 || n < t.facts.Replicas {
			t.facts.Replicas = n
		}
	}
	if rt.IsInternal {
		t.internal()
	}
}

func (t *settledTopic) internal() {
	t.err = unfit(t.plan.name, "is internal to Kafka; name another %s", t.plan.role)
}

// createTopics creates topics. That somebody else was faster is no error.
func createTopics(ctx context.Context, cl *kgo.Client, topics []*settledTopic) error {
	return askCreate(ctx, cl, topics, createRequest(topics))
}

// tryCreate is createTopics but for the effect: topics that could be made count as created.
func tryCreate(ctx context.Context, cl *kgo.Client, topics []*settledTopic) error {
	req := createRequest(topics)
	req.ValidateOnly = true
	return askCreate(ctx, cl, topics, req)
}

func createRequest(topics []*settledTopic) *kmsg.CreateTopicsRequest {
	req := kmsg.NewPtrCreateTopicsRequest()
	req.TimeoutMillis = int32(topicCreateTimeout.Milliseconds())
	for _, t := range topics {
		rt := kmsg.NewCreateTopicsRequestTopic()
		rt.Topic, rt.NumPartitions, rt.ReplicationFactor = t.plan.name, t.plan.partitions, t.plan.replicas
		for _, s := range t.plan.settings {
			rc := kmsg.NewCreateTopicsRequestTopicConfig()
			rc.Name, rc.Value = s.name, kmsg.StringPtr(s.value)
			rt.Configs = append(rt.Configs, rc)
		}
		req.Topics = append(req.Topics, rt)
	}
	return req
}

func askCreate(ctx context.Context, cl *kgo.Client, topics []*settledTopic, req *kmsg.CreateTopicsRequest) error {
	if len(topics) == 0 {
		return nil
	}
	byName := make(map[string]*settledTopic, len(topics))
	for _, t := range topics {
		byName[t.plan.name] = t
	}
	resp, err := req.RequestWith(ctx, cl)
	if err != nil {
		return fmt.Errorf("create topics: %w", err)
	}
	for i := range resp.Topics {
		if t := byName[resp.Topics[i].Topic]; t != nil {
			t.createAnswered(&resp.Topics[i])
		}
	}
	return nil
}

func (t *settledTopic) createAnswered(rt *kmsg.CreateTopicsResponseTopic) {
	err := kerr.ErrorForCode(rt.ErrorCode)
	switch {
	case err == nil:
		t.facts.Created = true
	case errors.Is(err, kerr.TopicAlreadyExists):
	case errors.Is(err, kerr.TopicAuthorizationFailed), errors.Is(err, kerr.ClusterAuthorizationFailed):
		t.err = unfit(t.plan.name, "(%s) does not exist, and Bide may not create it; allow Create on the topic: %s; or run: %s",
			t.plan.role, t.commands.allow(t.plan.name, append([]string{"Create"}, t.plan.rights...)...), t.commands.create(&t.plan))
	case kerr.IsRetriable(err):
		t.err = fmt.Errorf("create topic %s: %w", t.plan.name, err)
	default:
		reason := err.Error()
		if rt.ErrorMessage != nil {
			reason += ": " + *rt.ErrorMessage
		}
		t.err = unfit(t.plan.name, "(%s) does not exist, and the broker refuses to create it (%s); change topics.*, or create it by hand as in: %s",
			t.plan.role, reason, t.commands.create(&t.plan))
	}
}

// describeSettings reads the settings of the topics that have no error so far.
func describeSettings(ctx context.Context, cl *kgo.Client, topics []*settledTopic) error {
	topics = healthy(topics)
	if len(topics) == 0 {
		return nil
	}
	byName := make(map[string]*settledTopic, len(topics))
	req := kmsg.NewPtrDescribeConfigsRequest()
	for _, t := range topics {
		byName[t.plan.name] = t
		rr := kmsg.NewDescribeConfigsRequestResource()
		rr.ResourceType, rr.ResourceName = kmsg.ConfigResourceTypeTopic, t.plan.name
		rr.ConfigNames = []string{cleanupPolicy, retentionMs, retentionBytes, timestampType, maxMessageBytes, minInsync}
		req.Resources = append(req.Resources, rr)
	}
	resp, err := req.RequestWith(ctx, cl)
	if err != nil {
		return fmt.Errorf("describe topic settings: %w", err)
	}
	for i := range resp.Resources {
		rr := &resp.Resources[i]
		t := byName[rr.ResourceName]
		if t == nil {
			continue
		}
		switch err := kerr.ErrorForCode(rr.ErrorCode); {
		case err == nil:
			t.read(rr.Configs)
		case errors.Is(err, kerr.TopicAuthorizationFailed), errors.Is(err, kerr.ClusterAuthorizationFailed):
			// Settings stay unknown, which is a finding, not a fault.
		default:
			t.err = fmt.Errorf("describe settings of topic %s: %w", t.plan.name, err)
		}
	}
	return nil
}

func (t *settledTopic) read(configs []kmsg.DescribeConfigsResponseResourceConfig) {
	t.settings = make(map[string]string, len(configs))
	for i := range configs {
		if configs[i].Value != nil {
			t.settings[configs[i].Name] = *configs[i].Value
		}
	}
	if n, err := strconv.ParseInt(t.settings[maxMessageBytes], 10, 32); err == nil {
		t.facts.MaxMessageBytes = int32(n)
	}
	if ms, err := strconv.ParseInt(t.settings[retentionMs], 10, 64); err == nil && ms >= 0 {
		t.facts.Retention = durationOfMs(ms)
	}
}
