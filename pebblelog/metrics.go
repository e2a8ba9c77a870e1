package pebblelog

import (
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/bide-mq/bide"
)

// Metrics are what a log tells Prometheus. One of them serves one log at a time: that opened last.
type Metrics struct {
	appendSeconds    *prometheus.HistogramVec
	appendedMessages prometheus.Counter
	appendedBytes    prometheus.Counter
	removedMessages  prometheus.Counter
	stalls           prometheus.Counter
	backgroundErrors prometheus.Counter
	corruptions      prometheus.Counter
	log              atomic.Pointer[Log]
}

// NewMetrics returns metrics registered with reg; a nil reg registers nothing. It panics where reg has
// metrics of these names.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: "bide", Subsystem: "log", Name: name, Help: help})
	}
	m := &Metrics{
		appendSeconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: "bide", Subsystem: "log", Name: "append_seconds",
			Help:                            "Time of an append to the log: with its fsync where it is durable, without where it is replayed.",
			Buckets:                         prometheus.ExponentialBuckets(0.00025, 2, 15), // 0.25 ms … 4.1 s
			NativeHistogramBucketFactor:     1.1,
			NativeHistogramMaxBucketNumber:  100,
			NativeHistogramMinResetDuration: time.Hour,
		}, []string{"durability"}),
		appendedMessages: counter("appended_messages_total", "Messages appended to the log, repeated ones included."),
		appendedBytes:    counter("appended_bytes_total", "Bytes of batches appended to the log."),
		removedMessages:  counter("removed_messages_total", "Messages that left the log."),
		stalls:           counter("write_stalls_total", "Times that writing waited for flushes or compactions."),
		backgroundErrors: counter("background_errors_total", "Errors of flushes and compactions, which are tried again."),
		corruptions:      counter("corruptions_total", "Stored data found to be corrupt."),
	}
	for _, d := range []bide.Durability{bide.Durable, bide.Replayed} {
		m.appendSeconds.WithLabelValues(durabilityLabel(d)) // there from the start, at 0
	}
	if reg != nil {
		reg.MustRegister(m.appendSeconds, m.appendedMessages, m.appendedBytes, m.removedMessages,
			m.stalls, m.backgroundErrors, m.corruptions, gauges{m})
	}
	return m
}

func durabilityLabel(d bide.Durability) string {
	if d == bide.Replayed {
		return "replayed"
	}
	return "durable"
}

func (m *Metrics) appended(d bide.Durability, messages, bytes int, took time.Duration) {
	m.appendSeconds.WithLabelValues(durabilityLabel(d)).Observe(took.Seconds())
	m.appendedMessages.Add(float64(messages))
	m.appendedBytes.Add(float64(bytes))
}

// gauges asks the open log when it is scraped.
type gauges struct{ m *Metrics }

var (
	sizeDesc    = prometheus.NewDesc("bide_log_size_bytes", "Disk space that the log takes.", nil, nil)
	freeDesc    = prometheus.NewDesc("bide_log_free_bytes", "Free space of the log's file system.", nil, nil)
	waitingDesc = prometheus.NewDesc("bide_log_messages", "Messages in the log, over all lanes opened.", nil, nil)
	debtDesc    = prometheus.NewDesc("bide_log_compaction_debt_bytes", "Bytes that compactions still have to rewrite.", nil, nil)
	readAmpDesc = prometheus.NewDesc("bide_log_read_amplification", "Places that a read of the log has to look at.", nil, nil)
	memDesc     = prometheus.NewDesc("bide_log_memory_bytes", "Memory of the log's memtables and block cache.", nil, nil)
)

// Describe implements [prometheus.Collector].
func (gauges) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{sizeDesc, freeDesc, waitingDesc, debtDesc, readAmpDesc, memDesc} {
		ch <- d
	}
}

// Collect implements [prometheus.Collector]. Without an open log there is nothing to tell.
func (g gauges) Collect(ch chan<- prometheus.Metric) {
	l := g.m.log.Load()
	if l == nil || l.enter() != nil {
		return
	}
	defer l.leave()
	gauge := func(d *prometheus.Desc, v float64) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v)
	}
	var s *pebble.Metrics
	if err := l.fault.guard(func() error { s = l.db.Metrics(); return nil }); err != nil {
		return
	}
	gauge(sizeDesc, float64(s.DiskSpaceUsage()))
	gauge(debtDesc, float64(s.Compact.EstimatedDebt))
	gauge(readAmpDesc, float64(s.ReadAmp()))
	gauge(memDesc, float64(s.MemTable.Size)+float64(s.MemTable.ZombieSize)+float64(s.BlockCache.Size))
	gauge(waitingDesc, float64(l.messages()))
	if free, err := l.FreeBytes(); err == nil {
		gauge(freeDesc, float64(free))
	}
}
