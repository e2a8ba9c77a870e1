// Command embed shows how a Go program runs Bide in its own process: the packages that the sidecar is
// made of, wired by hand. It sends itself a message that is due in two seconds, and ends when it
// arrived.
//
// The broker is in this process too (kfake), so that the example runs anywhere. Give kafka.Connection
// the brokers of a cluster, and the rest stays as it is.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/zap"

	"github.com/bide-mq/bide"
	"github.com/bide-mq/bide/kafka"
	"github.com/bide-mq/bide/pebblelog"
)

const (
	ingress = "reminders"
	target  = "emails"
	delay   = 2 * time.Second
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "embed:", err)
		os.Exit(1) //nolint:forbidigo // this is main
	}
}

func run(ctx context.Context, out io.Writer) error {
	broker, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(4, target))
	if err != nil {
		return err
	}
	defer broker.Close()
	dir, err := os.MkdirTemp("", "bide-embed-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)

	b, err := open(ctx, broker.ListenAddrs(), dir)
	if err != nil {
		return err
	}
	// Bide runs beside the program's own work. Its Run ends with the context, within seconds however
	// long the delays; what waits is in the log and in Kafka, and is delivered after the next start.
	running, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- b.scheduler.Run(running) }()

	err = remind(running, broker.ListenAddrs(), out)
	stop()
	return errors.Join(err, <-ended, b.close())
}

// embedded is Bide inside this program.
type embedded struct {
	log       *pebblelog.Log
	cluster   *kafka.Cluster
	scheduler *bide.Scheduler
}

// open wires Bide: what holds the messages, what reads their headers, what speaks with Kafka, and the
// scheduler between them.
func open(ctx context.Context, brokers []string, dir string) (_ *embedded, err error) {
	const instance = "embed-0" // one for each process of the group, the same after a restart
	logger, metrics := zap.NewNop(), prometheus.NewRegistry()
	connection := kafka.Connection{Brokers: brokers}
	if err := ensureTopics(ctx, connection, logger); err != nil {
		return nil, err
	}
	contract, err := kafka.NewContract(kafka.ContractOptions{
		// Messages that name no target go to the ingress's own.
		Ingresses: []kafka.Ingress{{Topic: ingress, Target: target}},
		Annotate:  true,
	})
	if err != nil {
		return nil, err
	}
	b := &embedded{}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.close())
		}
	}()
	b.log, err = pebblelog.Open(filepath.Join(dir, "log"), pebblelog.Options{Logger: logger, Metrics: pebblelog.NewMetrics(metrics)})
	if err != nil {
		return nil, err
	}
	b.cluster, err = kafka.NewCluster(kafka.Options{
		Connection: connection, Group: "embed", Instance: instance, Topics: []string{ingress}, Contract: contract,
		Logger: logger, Metrics: kafka.NewMetrics(metrics),
	})
	if err != nil {
		return nil, err
	}
	b.scheduler, err = bide.New(bide.Options{
		Cluster: b.cluster, Log: b.log, Contract: contract, Instance: instance,
		Logger: logger, Metrics: bide.NewMetrics(metrics),
	})
	return b, err
}

// close ends what open began, the log last. The scheduler does not run any more.
func (b *embedded) close() error {
	if b.cluster != nil {
		b.cluster.Close()
	}
	if b.log != nil {
		return b.log.Close()
	}
	return nil
}

// ensureTopics makes the ingress and the dead-letter topic with the settings that they need.
func ensureTopics(ctx context.Context, connection kafka.Connection, logger *zap.Logger) error {
	opts, err := connection.Options(logger)
	if err != nil {
		return err
	}
	client, err := kgo.NewClient(opts...)
	if err != nil {
		return err
	}
	defer client.Close()
	topics, err := kafka.EnsureTopics(ctx, client, kafka.TopicOptions{
		Ingress: []kafka.IngressTopic{{Name: ingress}}, DeadLetter: kafka.DefaultDeadLetterTopic, Create: true,
	})
	topics.Log(logger, kafka.Topics{})
	return err
}

// remind is the program's own work: it sends a message and waits until it comes.
func remind(ctx context.Context, brokers []string, out io.Writer) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.ConsumeTopics(target), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	if err != nil {
		return err
	}
	defer client.Close()
	sent := &kgo.Record{
		Topic: ingress, Key: []byte("ada"), Value: []byte("your trial ends today"),
		Headers: []kgo.RecordHeader{{Key: "delay-for", Value: []byte(delay.String())}},
	}
	if err := client.ProduceSync(ctx, sent).FirstErr(); err != nil {
		return err
	}
	fmt.Fprintf(out, "sent to %s\n", ingress)
	for ctx.Err() == nil {
		for _, rec := range client.PollFetches(ctx).Records() {
			fmt.Fprintf(out, "%s got %q for %s\n", rec.Topic, rec.Value, rec.Key)
			fmt.Fprintf(out, "after %s at least: %t\n", delay, rec.Timestamp.Sub(sent.Timestamp) >= delay)
			return nil
		}
	}
	return ctx.Err()
}
