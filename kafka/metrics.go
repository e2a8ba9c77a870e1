package kafka

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/bide-mq/bide"
)

// Metrics counts what a [Cluster] does. Safe for concurrent use; one for all clusters of a process.
type Metrics struct {
	transactionSeconds prometheus.Histogram
	transactions       *prometheus.CounterVec
	fenced             prometheus.Counter
	takeovers          prometheus.Counter
	produceFailures    *prometheus.CounterVec
	idsAside           prometheus.Gauge
	unknownOutcomes    prometheus.Counter
	fetched            prometheus.Counter
	lostMarkers        *prometheus.CounterVec
	unmarked           prometheus.Gauge
}

// NewMetrics registers the metrics of package kafka with reg; a nil reg registers them nowhere.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	auto := promauto.With(reg)
	m := &Metrics{
		transactionSeconds: auto.NewHistogram(prometheus.HistogramOpts{
			Name:                        "bide_transaction_seconds",
			Help:                        "Time from the start of a transaction to its known outcome.",
			Buckets:                     []float64{.001, .002, .003, .005, .0075, .01, .015, .025, .05, .1, .25, 1, 5, 15},
			NativeHistogramBucketFactor: 1.1,
		}),
		transactions: auto.NewCounterVec(prometheus.CounterOpts{
			Name: "bide_transactions_total",
			Help: "Transactions by outcome: committed, aborted, taken.",
		}, []string{"outcome"}),
		fenced: auto.NewCounter(prometheus.CounterOpts{
			Name: "bide_transactional_ids_fenced_total",
			Help: "Times one of the own transactional ids turned out to be fenced by somebody else or by its time-out.",
		}),
		takeovers: auto.NewCounter(prometheus.CounterOpts{
			Name: "bide_takeover_fences_total",
			Help: "Times the transactional ids of another instance were fenced to end its open transaction.",
		}),
		produceFailures: auto.NewCounterVec(prometheus.CounterOpts{
			Name: "bide_produce_failures_total",
			Help: "Records that could not be produced, by kind: unavailable, refused, suspect.",
		}, []string{"kind"}),
		idsAside: auto.NewGauge(prometheus.GaugeOpts{
			Name: "bide_transactional_ids_aside",
			Help: "Transactional ids set aside since their last transaction does not end.",
		}),
		unknownOutcomes: auto.NewCounter(prometheus.CounterOpts{
			Name: "bide_transaction_outcomes_read_back_total",
			Help: "Transactions whose end was not answered, so that their outcome was read back.",
		}),
		fetched: auto.NewCounter(prometheus.CounterOpts{
			Name: "bide_fetched_records_total",
			Help: "Ingress records read, those dropped as read before included.",
		}),
	}
	m.lostMarkers = auto.NewCounterVec(prometheus.CounterOpts{
		Name: "bide_lost_markers_total",
		Help: "Transaction markers that the cluster lost (KAFKA-20734), by the kind of partition: target, offsets.",
	}, []string{"partition"})
	m.unmarked = auto.NewGauge(prometheus.GaugeOpts{
		Name: "bide_unmarked_partitions",
		Help: "Lost transaction markers that are not written yet: readers of committed records stand still in their partitions.",
	})
	for _, kind := range []string{"target", "offsets"} {
		m.lostMarkers.WithLabelValues(kind)
	}
	for _, o := range []bide.Outcome{bide.Committed, bide.Aborted, bide.Taken} {
		m.transactions.WithLabelValues(outcomeWord(o))
	}
	for _, k := range []bide.FailureKind{bide.Unavailable, bide.Refused, bide.Suspect} {
		m.produceFailures.WithLabelValues(failureWord(k))
	}
	return m
}

func outcomeWord(o bide.Outcome) string {
	switch o {
	case bide.Committed:
		return "committed"
	case bide.Taken:
		return "taken"
	default:
		return "aborted"
	}
}

func failureWord(k bide.FailureKind) string {
	switch k {
	case bide.Refused:
		return "refused"
	case bide.Suspect:
		return "suspect"
	default:
		return "unavailable"
	}
}
