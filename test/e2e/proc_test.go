//go:build unix

package e2e

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// metrics scrapes /metrics.
func (p *sidecar) metrics() map[string]*dto.MetricFamily {
	p.t.Helper()
	code, body := p.get("/metrics")
	if code != 200 {
		p.t.Fatalf("/metrics: %d %s", code, body)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(body))
	if err != nil {
		p.t.Fatalf("/metrics: %v", err)
	}
	return families
}

// metric returns the sum over all labels of a counter or gauge, and of a histogram its count; ok is
// false where there is no such metric.
func (p *sidecar) metric(name string) (sum float64, ok bool) {
	p.t.Helper()
	family, ok := p.metrics()[name]
	for _, m := range family.GetMetric() {
		sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() + m.GetUntyped().GetValue() +
			float64(m.GetHistogram().GetSampleCount())
	}
	return sum, ok
}

// needMetric is metric for one that must be there.
func (p *sidecar) needMetric(name string) float64 {
	p.t.Helper()
	v, ok := p.metric(name)
	if !ok {
		p.t.Errorf("/metrics has no %s", name)
	}
	return v
}

// lintMetrics reports names and help texts that break Prometheus' conventions.
func (p *sidecar) lintMetrics() {
	p.t.Helper()
	_, body := p.get("/metrics")
	problems, err := promlint.New(strings.NewReader(body)).Lint()
	if err != nil {
		p.t.Errorf("lint /metrics: %v", err)
	}
	for _, problem := range problems {
		if strings.HasPrefix(problem.Metric, "bide_") {
			p.t.Errorf("metric %s: %s", problem.Metric, problem.Text)
		}
	}
}

// rss returns the process's resident memory in bytes, now and at most since its start; ok is false
// where the system does not tell.
func (p *sidecar) rss() (now, peak int64, ok bool) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		return 0, 0, false
	}
	return 1024 * statusField(status, "VmRSS"), 1024 * statusField(status, "VmHWM"), true
}

// wakeups returns how often threads of the process gave up the processor to wait, so far: each time
// something woke them.
func (p *sidecar) wakeups() int64 {
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", p.cmd.Process.Pid)) // the pattern is well-formed
	var sum int64
	for _, task := range tasks {
		if status, err := os.ReadFile(task); err == nil { // else the thread has ended
			sum += statusField(status, "voluntary_ctxt_switches")
		}
	}
	return sum
}

// cpu returns the processor time that the process used so far.
func (p *sidecar) cpu() time.Duration {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	if err != nil {
		return 0
	}
	// The second field, the name in brackets, may hold blanks; user and system time are 14th and 15th.
	_, rest, _ := strings.Cut(string(stat), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return 0
	}
	user, _ := strconv.ParseInt(fields[11], 10, 64)
	system, _ := strconv.ParseInt(fields[12], 10, 64)
	const tick = 10 * time.Millisecond // USER_HZ is 100 on every Linux that Go runs on
	return time.Duration(user+system) * tick
}

func statusField(status []byte, name string) int64 {
	lines := bufio.NewScanner(strings.NewReader(string(status)))
	for lines.Scan() {
		if rest, ok := strings.CutPrefix(lines.Text(), name+":"); ok {
			n, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			return n
		}
	}
	return 0
}
