package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/zap"

	"github.com/bide-mq/bide/cmd/sidecar/internal/config"
	"github.com/bide-mq/bide/cmd/sidecar/internal/demo"
)

const (
	// maxDemoMessages bounds the ledger, which has some 40 bytes for each.
	maxDemoMessages = 10_000_000
	// tidyTimeout bounds the deletion of what a run on a real cluster made.
	tidyTimeout = 20 * time.Second
)

// demoOptions are the flags of demo that are no settings.
type demoOptions struct {
	messages, rate int
	maxDelay       time.Duration
	json           bool
	// embedded says that the broker is in this process.
	embedded bool
}

func newDemoCommand(p *program) *cobra.Command {
	var o demoOptions
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Send messages with random delays and report what became of each",
		Long: `Send messages with random delays through the sidecar, and report what a read-committed consumer of the
target sees: lost, early and duplicate messages, and how late they came. The broker is in this process;
with --brokers it is a real cluster, on which topics and a group with random names are made and deleted
afterwards. That takes the flag: brokers of the file or the environment are not used, the other settings
of the connection are. Exits 1 if a message was lost, early or came twice.`,
		Args: cobra.NoArgs,
	}
	base := config.Default()
	base.Log = config.Log{Level: "error", Format: "console"}
	base.HTTPAddr = ""
	config.AddFlags(cmd.Flags(), base)
	hideFlags(cmd, "brokers", "delivery", "log.level", config.ConfigKey)
	brokers := cmd.Flags().Lookup("brokers")
	brokers.Usage, brokers.DefValue = "first brokers of a real cluster, as host:port; without it: a broker in this process", ""
	cmd.Flags().IntVar(&o.messages, "messages", 1000, "how many are sent")
	cmd.Flags().IntVar(&o.rate, "rate", 500, "how many are sent a second")
	cmd.Flags().DurationVar(&o.maxDelay, "max-delay", 5*time.Second, "each delay is random, up to this")
	cmd.Flags().BoolVar(&o.json, "json", false, "the last line of the output is one JSON object with the figures")
	cmd.RunE = fails(func(cmd *cobra.Command) error {
		conf, err := config.Load(base, cmd.Flags(), p.environ)
		if err := errors.Join(err, o.validate()); err != nil {
			return err
		}
		o.embedded = !cmd.Flags().Changed("brokers")
		log, err := newLogger(conf.Log, p.stderr)
		if err != nil {
			return err
		}
		return runDemo(cmd.Context(), conf, o, log, p.stdout)
	})
	return cmd
}

func (o *demoOptions) validate() error {
	var faults []config.Fault
	add := func(key, format string, args ...any) {
		faults = append(faults, config.Fault{Key: key, Source: "--" + key, Problem: fmt.Sprintf(format, args...)})
	}
	if o.messages < 1 || o.messages > maxDemoMessages {
		add("messages", "%d is not between 1 and %d", o.messages, maxDemoMessages)
	}
	if o.rate < 1 || o.rate > 1_000_000 {
		add("rate", "%d is not between 1 and 1000000", o.rate)
	}
	if o.maxDelay < 0 || o.maxDelay > 24*time.Hour {
		add("max-delay", "%s is not between 0s and 24h", o.maxDelay)
	}
	if len(faults) > 0 {
		return &config.FaultError{Faults: faults}
	}
	return nil
}

// runDemo runs a sidecar in this process with names and a data directory of its own, and a load through
// it.
func runDemo(ctx context.Context, conf config.Config, o demoOptions, log *zap.Logger, out io.Writer) (err error) {
	dir, err := os.MkdirTemp("", "bide-demo-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	name := "bide-demo-" + strconv.FormatUint(uint64(rand.Uint32()), 36)
	target := name + "-target"
	conf.DataDir, conf.InstanceID, conf.Group = dir, name, name
	conf.Ingress = []config.Ingress{{Topic: name + "-ingress"}}
	conf.DeadLetterTopic, conf.Allow = name+"-dead-letter", nil
	conf.Topics.Create, conf.Topics.Partitions = true, embeddedPartitions
	if o.embedded {
		broker, err := startBroker("", 0)
		if err != nil {
			return err
		}
		defer broker.Close()
		embedConnection(&conf, broker.ListenAddrs())
	}
	opts, err := conf.Connection.Options(log)
	if err != nil {
		return err
	}
	client, err := kgo.NewClient(append(opts[:len(opts):len(opts)], kgo.DisableClientMetrics())...)
	if err != nil {
		return err
	}
	defer client.Close()
	adm := kadm.NewClient(client)
	made, err := adm.CreateTopic(ctx, embeddedPartitions, -1, nil, target)
	if err := errors.Join(err, made.Err); err != nil {
		return fmt.Errorf("create topic %s: %w", target, err)
	}
	defer func() { err = errors.Join(err, tidy(adm, &conf, target)) }()

	load := demo.Load{
		Messages: o.messages, Rate: o.rate, MaxDelay: o.maxDelay,
		Ingress: conf.Ingress[0].Topic, Target: target, DeadLetter: conf.DeadLetterTopic,
	}
	summary, err := measure(ctx, newService(conf, log), load, opts, newProgressWriter(out))
	if err != nil {
		return err
	}
	report(out, o, summary)
	return summary.Fault()
}

// measure runs the service, and the load once it is ready.
func measure(ctx context.Context, s *service, load demo.Load, opts []kgo.Opt, progress *progressWriter) (demo.Summary, error) {
	serving, stop := context.WithCancel(ctx)
	defer stop()
	done := make(chan error, 1)
	go func() { done <- s.run(serving) }()
	progress.say("starting the sidecar, brokers %s", s.conf.Connection.Brokers[0])
	if !s.awaitReady(done) {
		return demo.Summary{}, ended(<-done)
	}
	run, err := demo.New(load, opts)
	if err != nil {
		stop()
		return demo.Summary{}, errors.Join(err, <-done)
	}
	defer run.Close()
	progress.say("sending %d messages, %d a second, each due within %s", load.Messages, load.Rate, load.MaxDelay)
	drawing := make(chan struct{})
	go func() { defer close(drawing); progress.draw(serving, load, run.Progress) }()

	measuring, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	died := make(chan error, 1)
	go func() {
		err := <-done
		if serving.Err() == nil {
			giveUp(ended(err))
		}
		died <- err
	}()
	summary, err := run.Measure(measuring, func() error { stop(); return <-died })
	stop()
	<-drawing
	if cause := context.Cause(measuring); err != nil && cause != nil {
		err = cause
	}
	if err != nil && ctx.Err() != nil {
		err = errors.New("interrupted; nothing was measured")
	}
	return summary, err
}

// ended is the error of a service that ended by itself.
func ended(err error) error {
	if err == nil {
		return errors.New("interrupted; nothing was measured")
	}
	return fmt.Errorf("the sidecar ended: %w", err)
}

// tidy deletes what the run made. It does so on a broker in this process too: it is the same code.
func tidy(adm *kadm.Client, conf *config.Config, target string) error {
	ctx, cancel := context.WithTimeout(context.Background(), tidyTimeout)
	defer cancel()
	// A static member does not leave by itself, and a group with members is not deleted.
	_, leave := adm.LeaveGroup(ctx, kadm.LeaveGroup(conf.Group).InstanceIDs(conf.InstanceID))
	_, group := adm.DeleteGroup(ctx, conf.Group)
	_, topics := adm.DeleteTopics(ctx, target, conf.Ingress[0].Topic, conf.DeadLetterTopic)
	if err := errors.Join(leave, group, topics); err != nil {
		return fmt.Errorf("delete topics and group %s: %w", conf.Group, err)
	}
	return nil
}

func report(out io.Writer, o demoOptions, s demo.Summary) {
	fmt.Fprintf(out, `
sent        %6d
delivered   %6d
lost        %6d
early       %6d
duplicates  %6d
late        p50 %.1f ms, p99 %.1f ms, max %.1f ms
`, s.Sent, s.Delivered, s.Lost, s.Early, s.Duplicates, s.LateMs.P50, s.LateMs.P99, s.LateMs.Max)
	if o.json {
		_ = json.NewEncoder(out).Encode(s) // a reader that is gone
	}
}
