// Package httpd serves a sidecar's metrics and health over HTTP:
//
//	/metrics       Prometheus: text, OpenMetrics, or protobuf with native histograms
//	/livez         200 while loops make progress; a failure means: restart the process
//	/readyz        200 when connected and every owned lane delivers; always with JSON detail
//	/readyz/local  200 while the log is open and loops run, whatever the brokers do
//
// Nothing here changes anything, and no answer has a key, a value or a credential.
package httpd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.uber.org/zap"
)

const (
	// headerTimeout and answerTimeout bound how long a slow client holds a connection. An answer may
	// take as long as the longest profile that is usually asked for.
	headerTimeout = 5 * time.Second
	answerTimeout = 90 * time.Second
	// scrapesAtATime is one for each of two Prometheus servers and one for a human.
	scrapesAtATime = 3
	// shutdownTimeout is short: probes and scrapes take milliseconds.
	shutdownTimeout = time.Second
)

// Readiness is the answer of /readyz.
type Readiness struct {
	// Ready is true when Joined is, and all lanes are.
	Ready bool `json:"ready"`
	// Reason is a sentence that says what is missing; empty when ready.
	Reason string `json:"reason,omitempty"`
	// Joined says that the process is a member of the group.
	Joined bool   `json:"joined"`
	Lanes  []Lane `json:"lanes"`
}

// Lane is what /readyz says of a lane that the process owns.
type Lane struct {
	Lane  string `json:"lane"`
	State string `json:"state"`
	// Waiting is how many messages wait in the lane.
	Waiting int64 `json:"waiting"`
	// OverdueMs is by how long the oldest message that is due has not been delivered yet.
	OverdueMs int64 `json:"overdue_ms"`
	// Offsets are nil, and not in the answer, while they are not known.
	*Offsets
	// Reason says why the lane does not deliver.
	Reason string `json:"reason,omitempty"`
}

// Offsets is how far a lane is. Next, Low and Read are ingress offsets, Cursor is due/offset.
type Offsets struct {
	Next   int64  `json:"next"`
	Low    int64  `json:"low"`
	Read   int64  `json:"read"`
	Cursor string `json:"cursor,omitempty"`
}

// Sources are what a handler asks. Live, Local and Ready are called at every request, from any
// goroutine.
type Sources struct {
	Gatherer prometheus.Gatherer
	// Live and Local return what is wrong, or nil.
	Live, Local func() error
	Ready       func() Readiness
}

// Profiles says whether profiles are served.
type Profiles bool

// NewHandler returns the handler for all paths.
func NewHandler(src Sources, profiles Profiles) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(src.Gatherer, promhttp.HandlerOpts{
		EnableOpenMetrics:   true,
		MaxRequestsInFlight: scrapesAtATime,
		ErrorHandling:       promhttp.ContinueOnError,
	}))
	mux.HandleFunc("GET /livez", check(src.Live))
	mux.HandleFunc("GET /readyz/local", check(src.Local))
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		ready := src.Ready()
		if ready.Lanes == nil {
			ready.Lanes = []Lane{}
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "no-store")
		if !ready.Ready {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_ = json.NewEncoder(w).Encode(ready) // the client is gone: nobody to tell
	})
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		text(w, http.StatusOK, index)
		if profiles {
			fmt.Fprintln(w, "/debug/pprof/  profiles")
		}
	})
	if profiles {
		mux.HandleFunc("GET /debug/pprof/", pprof.Index)
		mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
		mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	}
	return mux
}

const index = `Bide: delayed messages for Apache Kafka

/metrics       Prometheus metrics
/livez         loops make progress
/readyz        connected, and every owned lane delivers (JSON)
/readyz/local  log open and loops running, whatever the brokers do
`

func check(ask func() error) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		if err := ask(); err != nil {
			text(w, http.StatusServiceUnavailable, err.Error()+"\n")
			return
		}
		text(w, http.StatusOK, "ok\n")
	}
}

func text(w http.ResponseWriter, status int, body string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	fmt.Fprint(w, body)
}

// Serve answers on ln until ctx is done, then ends within a second and returns nil. It closes ln.
func Serve(ctx context.Context, ln net.Listener, handler http.Handler, log *zap.Logger) error {
	server := &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       headerTimeout,
		WriteTimeout:      answerTimeout,
		IdleTimeout:       answerTimeout,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          zap.NewStdLog(log),
	}
	stopped := make(chan struct{})
	undo := context.AfterFunc(ctx, func() {
		defer close(stopped)
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
		defer cancel()
		if err := server.Shutdown(grace); err != nil {
			_ = server.Close() // cuts off who is still there
		}
	})
	err := server.Serve(ln)
	if undo() {
		return fmt.Errorf("serve http on %s: %w", ln.Addr(), err)
	}
	<-stopped
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("serve http on %s: %w", ln.Addr(), err)
}
