//go:build unix

package kafkatest

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	// startTimeout is ten times what a start takes on two busy cores.
	startTimeout = 60 * time.Second
	// stopTimeout is how long an orderly stop may take before the broker is killed.
	stopTimeout = 40 * time.Second
)

// Broker is one broker of Apache Kafka, a cluster by itself. Its methods are not safe for concurrent
// use, but for Addr, Version and the tools.
type Broker struct {
	version string
	jars    string
	dir     string
	port    int

	cmd     *exec.Cmd
	exited  chan struct{}
	release func()
}

// Start starts a broker of a version with its data in dir and waits until it answers. settings are
// further lines of server.properties, like "message.max.bytes=6291456"; of two lines with one name the
// later one wins. Topics are not created by themselves.
func Start(ctx context.Context, version, dir string, settings ...string) (*Broker, error) {
	port, err := FreePort()
	if err != nil {
		return nil, err
	}
	return StartAt(ctx, version, dir, port, settings...)
}

// StartAt is [Start] on a given port.
func StartAt(ctx context.Context, version, dir string, port int, settings ...string) (*Broker, error) {
	jars, err := Jars(ctx, version)
	if err != nil {
		return nil, err
	}
	controller, err := FreePort()
	if err != nil {
		return nil, err
	}
	b := &Broker{version: version, jars: jars, dir: dir, port: port}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	properties := append(b.properties(controller), settings...)
	if err := os.WriteFile(b.path("server.properties"), []byte(strings.Join(properties, "\n")+"\n"), 0o644); err != nil {
		return nil, err
	}
	id := make([]byte, 16)
	_, _ = rand.Read(id) // never fails
	id[0] &= 0x7f        // the text of a cluster id may not begin with '-' or '_'
	format := b.java(ctx, "-Xmx128m", "kafka.tools.StorageTool", "format",
		"-t", base64.RawURLEncoding.EncodeToString(id), "-c", b.path("server.properties"))
	if out, err := format.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("format the data of Kafka %s: %w\n%s", version, err, out)
	}
	return b, b.Restart(ctx)
}

func (b *Broker) properties(controller int) []string {
	return []string{
		"process.roles=broker,controller",
		"node.id=1",
		"controller.quorum.voters=1@" + Loopback(controller),
		"listeners=PLAINTEXT://" + b.Addr() + ",CONTROLLER://" + Loopback(controller),
		"advertised.listeners=PLAINTEXT://" + b.Addr(),
		"controller.listener.names=CONTROLLER",
		"listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
		"log.dirs=" + b.path("data"),
		"auto.create.topics.enable=false",
		// One node cannot have the three replicas that are the default, and needs few partitions.
		"offsets.topic.replication.factor=1",
		"offsets.topic.num.partitions=4",
		"transaction.state.log.replication.factor=1",
		"transaction.state.log.min.isr=1",
		"transaction.state.log.num.partitions=4",
		// The default makes the first member of a group wait 3 s for others.
		"group.initial.rebalance.delay.ms=0",
	}
}

// Restart starts the broker again on its port with its data and waits until it answers. The broker
// must have been stopped.
func (b *Broker) Restart(ctx context.Context) error {
	log, err := os.OpenFile(b.path("broker.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := b.java(context.WithoutCancel(ctx), "-Xms256m", "-Xmx768m", "-XX:+UseG1GC",
		"-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "kafka.Kafka", b.path("server.properties"))
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return err
	}
	release, err := Guard(cmd.Process.Pid)
	if err != nil {
		return errors.Join(err, cmd.Process.Kill())
	}
	exited := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(exited)
	}()
	b.cmd, b.exited, b.release = cmd, exited, release
	return b.awaitReady(ctx)
}

// awaitReady waits until the broker has registered with the controller and answers for itself.
func (b *Broker) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	cl, err := kgo.NewClient(kgo.SeedBrokers(b.Addr()), kgo.RetryTimeout(time.Second))
	if err != nil {
		return err
	}
	defer cl.Close()
	adm := kadm.NewClient(cl)
	for {
		brokers, err := adm.ListBrokers(ctx)
		if err == nil && slices.ContainsFunc(brokers, func(d kadm.BrokerDetail) bool { return int(d.Port) == b.port }) {
			return nil
		}
		select {
		case <-b.exited:
			return fmt.Errorf("kafka %s ended at start:\n%s", b.version, b.logTail())
		case <-ctx.Done():
			return fmt.Errorf("kafka %s does not answer on port %d: %w\n%s", b.version, b.port, ctx.Err(), b.logTail())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// Stop sends the broker a signal, SIGTERM for an orderly stop or SIGKILL for a crash, and waits for
// its end. The data stays for [Broker.Restart]. A broker that was stopped already is left alone.
func (b *Broker) Stop(sig syscall.Signal) error {
	select {
	case <-b.exited:
	default:
		if err := b.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return err
		}
	}
	defer b.release()
	select {
	case <-b.exited:
		return nil
	case <-time.After(stopTimeout):
		err := b.cmd.Process.Kill()
		<-b.exited
		return errors.Join(fmt.Errorf("kafka %s did not stop within %s of %s", b.version, stopTimeout, sig), err)
	}
}

// Addr returns the broker's address, host:port.
func (b *Broker) Addr() string { return Loopback(b.port) }

// Version returns the release that the broker runs.
func (b *Broker) Version() string { return b.version }

// java returns the command for a Java program with Kafka's jars: JVM options, class, arguments.
func (b *Broker) java(ctx context.Context, args ...string) *exec.Cmd {
	args = append([]string{"-cp", b.jars + "/*", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"}, args...)
	return exec.CommandContext(ctx, "java", args...)
}

func (b *Broker) path(name string) string { return filepath.Join(b.dir, name) }

// logTail returns the end of the broker's log.
func (b *Broker) logTail() string {
	log, err := os.ReadFile(b.path("broker.log"))
	if err != nil {
		return err.Error()
	}
	const keep = 4096 // some forty lines
	return string(log[max(0, len(log)-keep):])
}
