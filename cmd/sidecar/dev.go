package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"github.com/bide-mq/bide/cmd/sidecar/internal/config"
)

// devPort is Kafka's own, so that clients find the broker by their defaults.
const devPort = 9092

// readyTick is how often a command that waits for its service looks: to a human it is at once.
const readyTick = 20 * time.Millisecond

func newDevCommand(p *program) *cobra.Command {
	var port int
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Run a broker in this process, and the sidecar on it, to try things out",
		Long: `Run a broker in this process on a port of the loopback interface that any Kafka client can use, and the
sidecar on it. Topics are created when they are asked for, and kept in the data directory. Settings are
those of 'sidecar run', but for the connection to the brokers. Not for production.`,
		Args: cobra.NoArgs,
	}
	base := config.Default()
	base.DataDir = "bide-dev"
	base.Log = config.Log{Level: "warn", Format: "console"}
	config.AddFlags(cmd.Flags(), base)
	hideFlags(cmd, "data-dir", "ingress", "http-addr", "delivery", "log.level", config.ConfigKey)
	cmd.Flags().IntVar(&port, "port", devPort, "port of the broker; 0: any that is free")
	cmd.RunE = fails(func(cmd *cobra.Command) error {
		conf, err := config.Load(base, cmd.Flags(), p.environ)
		if err != nil {
			return err
		}
		if port < 0 || port > 65535 {
			return &config.FaultError{Faults: []config.Fault{{Key: "port", Source: "--port", Problem: fmt.Sprintf("%d is not between 0 and 65535", port)}}}
		}
		log, err := newLogger(conf.Log, p.stderr)
		if err != nil {
			return err
		}
		return runDev(cmd.Context(), conf, port, log, p.stdout)
	})
	return cmd
}

// hideFlags keeps the help of a command short: of the settings it shows only those of shown. The others
// work all the same.
func hideFlags(cmd *cobra.Command, shown ...string) {
	keep := make(map[string]bool)
	for _, key := range shown {
		keep[key] = true
	}
	for _, s := range config.Settings() {
		if f := cmd.Flags().Lookup(s.Key); f != nil {
			f.Hidden = !keep[s.Key]
		}
	}
}

func runDev(ctx context.Context, conf config.Config, port int, log *zap.Logger, out io.Writer) error {
	broker, err := startBroker(filepath.Join(conf.DataDir, "broker"), port)
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("%w: choose another with --port; 0 is any that is free", err)
	}
	if err != nil {
		return err
	}
	defer broker.Close()
	own := []string{conf.DeadLetterTopic}
	for _, in := range conf.Ingress {
		own = append(own, in.Topic)
	}
	createOnDemand(broker, own)
	embedConnection(&conf, broker.ListenAddrs())

	s := newService(conf, log)
	done := make(chan error, 1)
	go func() { done <- s.run(ctx) }()
	if s.awaitReady(done) {
		fmt.Fprint(out, devText(s, broker.ListenAddrs()[0]))
	}
	return <-done
}

// embedConnection points a configuration to a broker in this process.
func embedConnection(conf *config.Config, addrs []string) {
	conf.Connection = config.Default().Connection
	conf.Connection.Brokers = addrs
}

// awaitReady waits until the service delivers, which it reports, or has ended; then done still has how.
func (s *service) awaitReady(done chan error) bool {
	tick := time.NewTicker(readyTick)
	defer tick.Stop()
	for {
		if r := s.ready(); r.Ready && len(r.Lanes) > 0 {
			return true
		}
		select {
		case err := <-done:
			done <- err
			return false
		case <-tick.C:
		}
	}
}

func devText(s *service, addr string) string {
	_, port, _ := strings.Cut(addr, ":")
	b := &strings.Builder{}
	fmt.Fprintf(b, `Bide runs with a broker of its own. Any Kafka client can use it:

  broker    localhost:%[1]s
  ingress   %[2]s
  rejected  %[3]s
  data      %[4]s
`, port, s.conf.Ingress[0].Topic, s.conf.DeadLetterTopic, s.conf.DataDir)
	if http := s.addr.Load(); http != nil {
		fmt.Fprintf(b, "  health    http://%s/\n", http)
	}
	fmt.Fprintf(b, `
Send a message that arrives in topic "orders" after 10 seconds:

  echo hello | kcat -P -b localhost:%[1]s -t %[2]s -H delay-for=10s -H delay-to=orders

or with Kafka's own tools (a tab between headers and value):

  printf 'delay-for:10s,delay-to:orders\thello\n' | kafka-console-producer.sh --bootstrap-server localhost:%[1]s \
    --topic %[2]s --reader-property parse.headers=true

Watch it arrive:

  kcat -C -u -b localhost:%[1]s -t orders -X isolation.level=read_committed -f '%%T %%h %%s\n'
  kafka-console-consumer.sh --bootstrap-server localhost:%[1]s --topic orders --from-beginning --isolation-level read_committed

Stop with Ctrl-C; what waits is delivered after the next start.
`, port, s.conf.Ingress[0].Topic)
	return b.String()
}
