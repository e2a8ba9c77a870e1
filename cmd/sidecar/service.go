package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"go.uber.org/zap"

	"github.com/bide-mq/bide"
	"github.com/bide-mq/bide/cmd/sidecar/internal/config"
	"github.com/bide-mq/bide/cmd/sidecar/internal/httpd"
	"github.com/bide-mq/bide/kafka"
	"github.com/bide-mq/bide/pebblelog"
	"github.com/bide-mq/bide/watchdog"
)

// closeGrace is how long a stop may take beyond the drain: the group is told, clients and the log are
// closed. The watchdog does not see calls that hang there.
const closeGrace = 6 * time.Second

// service is a sidecar in this process: it opens the log, finds the topics, and runs a scheduler and the
// loops around it.
//
//	run ─┬─ watchdog
//	     ├─ http      answers from the start to the very end
//	     └─ work      log ─► topics ─► scheduler;  ends in the order: scheduler, cluster, log
type service struct {
	conf     config.Config
	log      *zap.Logger
	registry *prometheus.Registry
	dog      *watchdog.Dog
	// addr is where http listens; set before run does anything else.
	addr atomic.Pointer[net.TCPAddr]

	// What readiness is made of.
	phase     atomic.Pointer[string]
	logOpen   atomic.Bool
	scheduler atomic.Pointer[bide.Scheduler]
}

func newService(conf config.Config, log *zap.Logger) *service {
	s := &service{conf: conf, log: log, registry: prometheus.NewRegistry(), dog: watchdog.New(conf.WatchdogLimit, log)}
	s.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	thisBuild().register(s.registry)
	s.enter("starting")
	return s
}

// enter says what the service does before there is a scheduler to ask.
func (s *service) enter(phase string) { s.phase.Store(&phase) }

// run blocks until ctx is done and everything is closed, or until the first fault that a human must
// mend. Where a loop hangs it returns without waiting: the process has to end.
func (s *service) run(ctx context.Context) error {
	around, stopAround := context.WithCancel(context.WithoutCancel(ctx))
	defer stopAround()
	verdict := make(chan error, 1)
	go func() { verdict <- s.dog.Run(around) }()
	group, _ := watchdog.NewGroup(around, s.log)
	if s.conf.HTTPAddr != "" {
		ln, err := net.Listen("tcp", s.conf.HTTPAddr)
		if err != nil {
			return fmt.Errorf("http-addr: %w: choose another address, or an empty one for none", err)
		}
		s.addr.Store(ln.Addr().(*net.TCPAddr))
		s.log.Info("http listens", zap.Stringer("addr", ln.Addr()))
		group.Auxiliary("http", func(ctx context.Context) error { return s.serveHTTP(ctx, &ln) })
	}
	done := make(chan error, 1)
	go func() { done <- watchdog.Guard("sidecar", func() error { return s.work(ctx) }) }()

	late := make(chan struct{})
	unarm := context.AfterFunc(ctx, func() {
		time.AfterFunc(s.conf.Limits.Drain+closeGrace, func() { close(late) })
	})
	defer unarm()
	select {
	case err := <-done:
		stopAround()
		return errors.Join(err, group.Wait(), <-verdict)
	case err := <-verdict:
		return err
	case <-late:
		return fmt.Errorf("stop took longer than limits.drain (%s) and %s; ended as it stood, the next start settles the rest", s.conf.Limits.Drain, closeGrace)
	}
}

// serveHTTP serves on *ln, and on a new listener when it is started again.
func (s *service) serveHTTP(ctx context.Context, ln *net.Listener) error {
	if *ln == nil {
		again, err := net.Listen("tcp", s.addr.Load().String())
		if err != nil {
			return err
		}
		*ln = again
	}
	handler := httpd.NewHandler(httpd.Sources{
		Gatherer: s.registry, Live: s.dog.Check, Local: s.local, Ready: s.ready,
	}, httpd.Profiles(s.conf.Pprof))
	defer func() { *ln = nil }()
	return httpd.Serve(ctx, *ln, handler, s.log)
}

// work runs from the opening of the log to its closing.
func (s *service) work(ctx context.Context) (err error) {
	s.enter("opening the log")
	log, err := pebblelog.Open(filepath.Join(s.conf.DataDir, "log"), pebblelog.Options{
		CacheBytes: int64(s.conf.DataCache), Logger: s.log.Named("log"), Metrics: pebblelog.NewMetrics(s.registry),
	})
	if err != nil {
		return oneLine{err}
	}
	s.logOpen.Store(true)
	defer func() {
		s.logOpen.Store(false)
		if e := log.Close(); e != nil {
			err = errors.Join(err, fmt.Errorf("close log: %w", e))
		}
		s.log.Info("stopped")
	}()
	if err := bindGroup(s.conf.DataDir, s.conf.Group); err != nil {
		return err
	}
	instance := s.conf.InstanceID
	if instance == "" {
		if instance, err = keptInstance(s.conf.DataDir); err != nil {
			return err
		}
	}
	s.log.Info("starting", zap.String("version", thisBuild().version), zap.String("instance", instance), zap.String("group", s.conf.Group),
		zap.Strings("brokers", s.conf.Connection.Brokers), zap.String("delivery", s.conf.Delivery), zap.Int("pid", os.Getpid()))

	contract, err := s.conf.Contract()
	if err != nil {
		return err
	}
	s.conf.Connection.Metrics = kafka.NewConnectionMetrics(s.registry)
	topics, err := newTopicKeeper(&s.conf, s.log)
	if err != nil {
		return err
	}
	defer topics.close()
	if err := topics.settle(ctx, s.enter); err != nil || ctx.Err() != nil {
		return err
	}
	cluster, err := kafka.NewCluster(s.clusterOptions(instance, contract))
	if err != nil {
		return err
	}
	defer cluster.Close()
	scheduler, err := bide.New(s.schedulerOptions(instance, cluster, log, contract, topics.upkeep))
	if err != nil {
		return err
	}
	s.scheduler.Store(scheduler)
	group, _ := watchdog.NewGroup(ctx, s.log)
	group.Core("scheduler", scheduler.Run)
	group.Core("log", func(ctx context.Context) error {
		select {
		case <-ctx.Done():
			return nil
		case <-log.Failed():
			return log.Err()
		}
	})
	group.Auxiliary("topics", topics.watch)
	return group.Wait()
}

// oneLine is an error whose text may have several lines, of which the last says what to do: standard error
// shows the first.
type oneLine struct{ error }

// Error returns the text with its lines joined.
func (e oneLine) Error() string { return strings.ReplaceAll(e.error.Error(), "\n", " ") }

func (e oneLine) Unwrap() error { return e.error }

func (s *service) clusterOptions(instance string, contract *kafka.Contract) kafka.Options {
	c := &s.conf
	mode := kafka.ExactlyOnce
	if c.Delivery == config.AtLeastOnce {
		mode = kafka.AtLeastOnce
	}
	var topics []string
	for _, in := range c.Ingress {
		topics = append(topics, in.Topic)
	}
	return kafka.Options{
		Connection: c.Connection, Group: c.Group, Instance: instance, Topics: topics, Contract: contract,
		Mode: mode, GroupProtocol: kafka.GroupProtocol(c.GroupProtocol), SessionTimeout: c.SessionTimeout,
		TransactionTimeout: c.TransactionTimeout, DeliveryTimeout: c.DeliveryTimeout, Transactions: c.Transactions,
		MaxMessageBytes: int(c.MaxMessageBytes), Compression: c.Compression, FetchBytes: int(c.Limits.FetchBytes),
		Logger: s.log.Named("kafka"), Metrics: kafka.NewMetrics(s.registry),
	}
}

func (s *service) schedulerOptions(instance string, cluster bide.Cluster, log bide.Log, contract bide.Contract, upkeep func(string) bide.Upkeep) bide.Options {
	c := &s.conf
	return bide.Options{
		Cluster: cluster, Log: log, Contract: contract, Instance: instance,
		Limits: bide.Limits{
			PollRecords: c.Limits.PollRecords, PlanMessages: c.Limits.PlanMessages, PlanBytes: int(c.Limits.PlanBytes),
			Transactions: c.Transactions, TransactionEvery: c.Limits.TransactionEvery,
			CommitEvery: c.Limits.CommitEvery, CommitOffsets: int64(c.Limits.CommitOffsets),
			LagPause: c.Limits.LagPause, FreeBytes: uint64(c.DataReserve), Drain: c.Limits.Drain,
			UpkeepEvery: c.Limits.UpkeepEvery, DeadOffsets: int64(c.Limits.DeadOffsets),
		},
		Upkeep: upkeep,
		Policy: bide.Policy{
			StartEarliest: c.Start == "earliest", ClearForeign: c.OnForeignCommit == "clear", DiscardRecreated: c.OnRecreated == "discard",
		},
		Retry:  bide.Retry{Backoff: c.Retry.Backoff, MaxBackoff: c.Retry.MaxBackoff, MaxAttempts: c.Retry.MaxAttempts},
		Logger: s.log.Named("scheduler"), Metrics: bide.NewMetrics(s.registry),
		Pulse: func(loop string) bide.Pulse { return s.dog.Pulse(loop) },
	}
}

// local is the answer of /readyz/local.
func (s *service) local() error {
	if !s.logOpen.Load() {
		return fmt.Errorf("the log is not open: %s", *s.phase.Load())
	}
	return s.dog.Check()
}

// ready is the answer of /readyz.
func (s *service) ready() httpd.Readiness {
	scheduler := s.scheduler.Load()
	if scheduler == nil {
		return httpd.Readiness{Reason: *s.phase.Load()}
	}
	status := scheduler.Status()
	r := httpd.Readiness{Ready: status.Ready(), Joined: status.Joined}
	for _, l := range status.Lanes {
		lane := httpd.Lane{
			Lane: l.Lane.String(), State: l.State, Waiting: l.Waiting, OverdueMs: l.OverdueMs,
			Reason: l.Reason,
		}
		if l.Loaded {
			lane.Offsets = &httpd.Offsets{Next: l.Next, Low: l.Low, Read: l.Read}
			if l.Cursor != bide.NoPosition {
				lane.Cursor = l.Cursor.String()
			}
		}
		if !l.Delivers() && r.Reason == "" {
			r.Reason = strings.TrimSuffix(fmt.Sprintf("lane %s is %s: %s", lane.Lane, l.State, l.Reason), ": ")
		}
		r.Lanes = append(r.Lanes, lane)
	}
	switch {
	case !status.Joined:
		r.Reason = fmt.Sprintf("not a member of group %s: the brokers %s have not let it in, or cannot be reached; what waits is kept, and the log has the cause", s.conf.Group, strings.Join(s.conf.Connection.Brokers, ","))
	case status.DiskFull && r.Reason == "":
		r.Reason = fmt.Sprintf("nothing is accepted: the file system of %s has less than data-reserve (%s) free", s.conf.DataDir, s.conf.DataReserve)
	}
	return r
}
