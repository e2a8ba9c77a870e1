//go:build unix

package e2e

import (
	"encoding/json"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/bide-mq/bide/test/e2e/kafkatest"
)

// summary is the last line that demo --json prints.
type summary struct {
	Sent       *int `json:"sent"`
	Delivered  int  `json:"delivered"`
	Lost       *int `json:"lost"`
	Early      *int `json:"early"`
	Duplicates *int `json:"duplicates"`
	LateMs     *struct {
		P50, P99, Max float64
	} `json:"late_ms"`
}

// go test ./test/e2e -run TestDemoDeliversEachMessageOnce -v
func TestDemoDeliversEachMessageOnce(t *testing.T) {
	p := launch(t, []string{"demo", "--json"}, nil)
	checkDemo(t, p, 1000)
}

// go test ./test/e2e -run TestDemoOnARealBrokerDeliversEachMessageOnce -e2e.long -v
func TestDemoOnARealBrokerDeliversEachMessageOnce(t *testing.T) {
	for _, version := range kafkatest.Versions {
		t.Run(version, func(t *testing.T) { // one after the other: the lateness is to be its own
			c, n := newCluster(t, version), scale(2000, 30_000)
			p := launch(t, []string{
				"demo", "--json", "--brokers", strings.Join(c.addrs, ","),
				"--messages", strconv.Itoa(n), "--rate", "2000",
			}, nil)
			checkDemo(t, p, n)
		})
	}
}

func checkDemo(t *testing.T, p *sidecar, messages int) {
	t.Helper()
	if code := p.awaitEnd(2 * time.Minute); code != 0 {
		t.Fatalf("demo: exit code %d", code)
	}
	line := p.output.tail(1)
	var s summary
	if err := json.Unmarshal([]byte(line), &s); err != nil {
		t.Fatalf("the last line is no summary: %v: %q", err, line)
	}
	t.Log(line)
	if s.Sent == nil || s.Lost == nil || s.Early == nil || s.Duplicates == nil || s.LateMs == nil {
		t.Fatalf("fields are missing: %s", line)
	}
	if *s.Sent != messages || s.Delivered != messages || *s.Lost+*s.Early+*s.Duplicates != 0 {
		t.Errorf("want %d sent and delivered, none lost, early or twice: %s", messages, line)
	}
}
