package httpd_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/bide-mq/bide/cmd/sidecar/internal/httpd"
)

// state is what the sources say; a test changes it.
type state struct {
	live, local error
	ready       httpd.Readiness
}

func (s *state) handler(profiles httpd.Profiles) http.Handler {
	reg := prometheus.NewRegistry()
	late := prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "lateness_seconds", Help: "late", NativeHistogramBucketFactor: 1.1, Buckets: prometheus.DefBuckets,
	})
	reg.MustRegister(late)
	late.Observe(0.001)
	return httpd.NewHandler(httpd.Sources{
		Gatherer: reg,
		Live:     func() error { return s.live },
		Local:    func() error { return s.local },
		Ready:    func() httpd.Readiness { return s.ready },
	}, profiles)
}

func get(t *testing.T, h http.Handler, path, accept string) (status int, contentType, body string) {
	t.Helper()
	rec := httptest.NewRecorder()
	req := httptest.NewRequest(http.MethodGet, path, nil)
	req.Header.Set("Accept", accept)
	h.ServeHTTP(rec, req)
	return rec.Code, rec.Header().Get("Content-Type"), rec.Body.String()
}

func TestProbesSayWhatIsWrong(t *testing.T) {
	s := &state{}
	h := s.handler(false)
	for _, path := range []string{"/livez", "/readyz/local"} {
		if status, _, body := get(t, h, path, ""); status != 200 || body != "ok\n" {
			t.Errorf("%s when well: %d %q", path, status, body)
		}
	}
	s.live, s.local = errors.New("loop deliver hangs"), errors.New("log is closed")
	for path, want := range map[string]string{"/livez": "deliver hangs", "/readyz/local": "log is closed"} {
		if status, _, body := get(t, h, path, ""); status != 503 || !strings.Contains(body, want) {
			t.Errorf("%s when ill: %d %q, want 503 with %q", path, status, body, want)
		}
	}
}

func TestReadyzGivesDetailOfEveryLane(t *testing.T) {
	s := &state{ready: httpd.Readiness{Ready: true, Joined: true}}
	h := s.handler(false)
	status, contentType, body := get(t, h, "/readyz", "")
	if status != 200 || contentType != "application/json" || !strings.Contains(body, `"lanes":[]`) {
		t.Errorf("no lanes owned: %d %s %s, want ready with an empty list", status, contentType, body)
	}
	s.ready = httpd.Readiness{
		Joined: true, Reason: "lane in/3 is stopped",
		Lanes: []httpd.Lane{{Lane: "in/3", State: "stopped", Waiting: 7, OverdueMs: 1500, Offsets: &httpd.Offsets{Next: 9, Low: 2, Read: 9, Cursor: "5/1"}, Reason: "recreated"}},
	}
	status, _, body = get(t, h, "/readyz", "")
	var got httpd.Readiness
	if err := json.Unmarshal([]byte(body), &got); err != nil {
		t.Fatal(err)
	}
	if status != 503 || got.Ready || len(got.Lanes) != 1 || !reflect.DeepEqual(got.Lanes, s.ready.Lanes) {
		t.Errorf("a lane stopped: %d %s", status, body)
	}
}

func TestMetricsAreOfferedAsTextOpenMetricsAndProtobuf(t *testing.T) {
	h := (&state{}).handler(false)
	for accept, want := range map[string]string{
		"text/plain": "text/plain",
		"application/openmetrics-text;version=1.0.0":                                                 "application/openmetrics-text",
		"application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited": "application/vnd.google.protobuf",
	} {
		status, contentType, body := get(t, h, "/metrics", accept)
		if status != 200 || !strings.HasPrefix(contentType, want) || !strings.Contains(body, "lateness_seconds") {
			t.Errorf("accept %s: %d %s", accept, status, contentType)
		}
	}
	if _, _, body := get(t, h, "/metrics", "text/plain"); !strings.Contains(body, `lateness_seconds_bucket{le="0.005"} 1`) {
		t.Errorf("text has no classic buckets:\n%s", body)
	}
}

func TestProfilesAreServedOnlyWhenAskedFor(t *testing.T) {
	s := &state{}
	if status, _, _ := get(t, s.handler(false), "/debug/pprof/", ""); status != 404 {
		t.Errorf("profiles off: %d, want 404", status)
	}
	if status, _, _ := get(t, s.handler(true), "/debug/pprof/", ""); status != 200 {
		t.Errorf("profiles on: %d, want 200", status)
	}
}

func TestIndexNamesThePathsAndOtherPathsAreNotFound(t *testing.T) {
	h := (&state{}).handler(false)
	if status, _, body := get(t, h, "/", ""); status != 200 || !strings.Contains(body, "/readyz/local") {
		t.Errorf("index: %d %s", status, body)
	}
	if status, _, _ := get(t, h, "/nothing", ""); status != 404 {
		t.Errorf("other path: %d, want 404", status)
	}
}

func TestServeEndsWithItsContext(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- httpd.Serve(ctx, ln, (&state{}).handler(false), zap.NewNop()) }()
	resp, err := http.Get("http://" + ln.Addr().String() + "/livez")
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(resp.Body)
	resp.Body.Close()
	if string(body) != "ok\n" {
		t.Errorf("livez: %s", body)
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("serve: %v", err)
	}
}

func TestServeReturnsTheFaultOfItsListener(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ln.Close()
	err = httpd.Serve(t.Context(), ln, (&state{}).handler(false), zap.NewNop())
	if err == nil || !strings.Contains(err.Error(), ln.Addr().String()) {
		t.Errorf("serve: %v, want an error that names the address", err)
	}
}
