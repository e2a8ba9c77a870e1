package kafka

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// ConnectionMetrics counts what goes wrong with the certificates and credentials of a [Connection].
// A nil one counts nothing.
type ConnectionMetrics struct {
	reloadFailures     *prometheus.CounterVec
	credentialFailures prometheus.Counter
	certificateExpiry  prometheus.Gauge
}

// NewConnectionMetrics registers the metrics with reg; a nil reg registers them nowhere. One is enough
// for all clients of a process.
func NewConnectionMetrics(reg prometheus.Registerer) *ConnectionMetrics {
	auto := promauto.With(reg)
	m := &ConnectionMetrics{
		reloadFailures: auto.NewCounterVec(prometheus.CounterOpts{
			Name: "bide_connection_certificate_reload_failures_total",
			Help: "Changed certificate files that could not be used, so that the old ones stayed in use.",
		}, []string{"certificate"}),
		credentialFailures: auto.NewCounter(prometheus.CounterOpts{
			Name: "bide_connection_credential_failures_total",
			Help: "Authentications for which no credentials could be had: a file unread, a token endpoint down.",
		}),
		certificateExpiry: auto.NewGauge(prometheus.GaugeOpts{
			Name: "bide_connection_certificate_expiry_timestamp_seconds",
			Help: "When the client certificate in use expires; 0 without one.",
		}),
	}
	for _, certificate := range []string{certificateCA, certificateClient} {
		m.reloadFailures.WithLabelValues(certificate)
	}
	return m
}

// Which certificate files a metric or a log line is about.
const (
	certificateCA     = "ca"
	certificateClient = "client"
)

func (m *ConnectionMetrics) reloadFailed(certificate string) {
	if m != nil {
		m.reloadFailures.WithLabelValues(certificate).Inc()
	}
}

func (m *ConnectionMetrics) credentialFailed() {
	if m != nil {
		m.credentialFailures.Inc()
	}
}

func (m *ConnectionMetrics) certificateExpires(at time.Time) {
	if m != nil {
		m.certificateExpiry.Set(float64(at.Unix()))
	}
}
