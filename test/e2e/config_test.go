//go:build unix

package e2e

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/bide-mq/bide/test/e2e/kafkatest"
)

// go test ./test/e2e -run TestBadConfigurationIsToldWhole -v
func TestBadConfigurationIsToldWhole(t *testing.T) {
	t.Parallel()
	p := launch(t, []string{"run", "--brokers", "no port", "--delivery", "maybe", "--data-dir", t.TempDir(), "--http-addr", "nowhere"},
		[]string{"BIDE_SESSION_TIMEOUT=soon", "BIDE_TRANSACTIONS=-1"})
	if code := p.awaitEnd(10 * time.Second); code != 2 {
		t.Errorf("exit code %d, want 2", code)
	}
	for _, key := range []string{"brokers", "delivery", "http-addr", "session-timeout", "transactions"} {
		if !strings.Contains(p.output.String(), key) {
			t.Errorf("the faults do not name %s:\n%s", key, p.output)
		}
	}
}

// The broker is not there at start. The process stays, says what is wrong, and goes on by itself when
// the broker comes.
//
//	go test ./test/e2e -run TestAnUnreachableBrokerIsWaitedFor -v
func TestAnUnreachableBrokerIsWaitedFor(t *testing.T) {
	t.Parallel()
	port, err := kafkatest.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{name: fake, addrs: []string{kafkatest.Loopback(port)}}
	ts := topics{ingress: "late-ingress", target: "late-target", deadLetter: "late-dead", group: "late"}
	p := c.settings(t, ts).start(t)
	var body string
	p.await(20*time.Second, func() bool {
		var code int
		code, body = p.get("/readyz")
		return code == http.StatusServiceUnavailable && strings.Contains(body, c.addrs[0])
	}, func() string { return "/readyz 503 that names " + c.addrs[0] + "; last: " + body })
	t.Logf("/readyz: %s", body)
	for end := time.Now().Add(scale(2*time.Second, 20*time.Second)); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		for _, path := range []string{"/livez", "/readyz/local"} {
			if code, body := p.get(path); code != http.StatusOK {
				t.Fatalf("%s without a broker: %d %s, want 200", path, code, body)
			}
		}
	}
	fc, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.Ports(port), kfake.SeedTopics(1, ts.target))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(fc.Close)
	p.awaitReady(30 * time.Second)
	late := connect(t, fake, c.addrs, nil)
	// The program made the ingress and the dead-letter topic by itself.
	l := newLedger(t, late, ts)
	l.send(t.Context(), batch{n: 100, delay: func(i int) time.Duration { return time.Duration(i) * time.Millisecond }})
	l.mustBeThere()
}
