package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/zap"

	"github.com/bide-mq/bide"
	"github.com/bide-mq/bide/cmd/sidecar/internal/config"
	"github.com/bide-mq/bide/kafka"
)

const (
	// firstTopicPause and lastTopicPause bound the pause between two attempts at start.
	firstTopicPause = 250 * time.Millisecond
	lastTopicPause  = 10 * time.Second
	// topicAttempt bounds one attempt; the client tries again by itself within it, but not so long that
	// nobody learns why.
	topicAttempt = 20 * time.Second
	topicRetry   = 3 * time.Second
	// topicCheck is how often settings of topics are looked at while the sidecar runs.
	topicCheck = 5 * time.Minute
)

// topicKeeper sees to it that the topics are there and are set so that no message is lost.
type topicKeeper struct {
	client *kgo.Client
	conf   *config.Config
	log    *zap.Logger
	known  atomic.Pointer[kafka.Topics]
}

func newTopicKeeper(conf *config.Config, log *zap.Logger) (*topicKeeper, error) {
	opts, err := conf.Connection.Options(log.Named("topics"))
	if err != nil {
		return nil, err
	}
	client, err := kgo.NewClient(append(opts, kgo.DisableClientMetrics(), kgo.RetryTimeout(topicRetry), kgo.RequestRetries(2))...)
	if err != nil {
		return nil, err
	}
	k := &topicKeeper{client: client, conf: conf, log: log}
	k.known.Store(&kafka.Topics{})
	return k, nil
}

func (k *topicKeeper) close() { k.client.Close() }

// settle checks the topics and creates those that are missing. It tries until the brokers answer, and
// tells enter what it waits for; an error is one that a human must mend. It returns nil when ctx is
// done.
func (k *topicKeeper) settle(ctx context.Context, enter func(phase string)) error {
	brokers := strings.Join(k.conf.Connection.Brokers, ",")
	enter("asking the brokers " + brokers + " for the topics")
	for pause := firstTopicPause; ; pause = min(2*pause, lastTopicPause) {
		err := k.ensure(ctx)
		if err == nil || ctx.Err() != nil {
			return nil
		}
		if errors.Is(err, kafka.ErrTopicUnfit) {
			return err
		}
		enter(fmt.Sprintf("the brokers %s do not answer as they should, trying again: %v", brokers, err))
		k.log.Warn("brokers do not answer as they should, trying again", zap.String("brokers", brokers), zap.Duration("pause", pause), zap.Error(err))
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
}

func (k *topicKeeper) ensure(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, topicAttempt)
	defer cancel()
	found, err := kafka.EnsureTopics(ctx, k.client, k.options())
	if err != nil {
		return err
	}
	k.learn(found)
	return nil
}

// learn logs what is new about the topics, and keeps it.
func (k *topicKeeper) learn(found kafka.Topics) {
	found.Log(k.log, *k.known.Load())
	k.known.Store(&found)
}

func (k *topicKeeper) options() kafka.TopicOptions {
	o := k.conf.Topics
	o.DeadLetter, o.Bootstrap = k.conf.DeadLetterTopic, k.conf.Connection.Brokers
	for _, in := range k.conf.Ingress {
		o.Ingress = append(o.Ingress, kafka.IngressTopic{
			Name: in.Topic, MaxDelay: in.MaxDelay, Partitions: in.Partitions, Carried: in.Carried(),
		})
	}
	return o
}

// upkeep says how a topic is kept small, by the configuration and the topic's retention as last seen.
func (k *topicKeeper) upkeep(topic string) bide.Upkeep {
	for i := range k.conf.Ingress {
		if in := &k.conf.Ingress[i]; in.Topic == topic {
			return bide.Upkeep{Trim: in.Trim, Carry: in.Carried(), Retention: k.known.Load().Ingress[topic].Retention}
		}
	}
	return bide.Upkeep{}
}

// watch looks at the topics now and then until ctx is done: whoever changes retention learns what it
// leads to. It changes nothing.
func (k *topicKeeper) watch(ctx context.Context) error {
	tick := time.NewTicker(topicCheck)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		attempt, cancel := context.WithTimeout(ctx, topicAttempt)
		o := k.options()
		o.Create = false
		found, err := kafka.EnsureTopics(attempt, k.client, o)
		cancel()
		switch {
		case err == nil:
			k.learn(found)
		case errors.Is(err, kafka.ErrTopicUnfit):
			k.log.Error("topic unfit", zap.Error(err))
		default:
			k.log.Debug("topics not checked", zap.Error(err))
		}
	}
}
