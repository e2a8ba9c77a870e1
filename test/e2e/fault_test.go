//go:build unix

package e2e

import (
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// A loop hangs: /livez says so first, then the process ends and names the loop. Nothing is lost, and
// nothing comes twice once it runs again.
//
//	go test ./test/e2e -run TestAHangingLoopEndsTheProcess -v
func TestAHangingLoopEndsTheProcess(t *testing.T) {
	t.Parallel()
	for _, loop := range []string{"deliver", "ingest"} {
		t.Run(loop, func(t *testing.T) {
			t.Parallel()
			l, s, p := startFaulty(t, "hang:"+loop+"@2s")
			var unlive time.Time
			var load sync.WaitGroup
			load.Go(func() { l.send(t.Context(), faultLoad) })
			p.await(20*time.Second, func() bool { code, _ := p.get("/livez"); return code == http.StatusServiceUnavailable },
				func() string { return "/livez 503 before the end" })
			unlive = time.Now()
			code := p.awaitEnd(20 * time.Second)
			t.Logf("the process ended %s after /livez failed, with exit code %d", time.Since(unlive).Round(time.Millisecond), code)
			load.Wait()
			afterFault(t, l, s, p, loop)
		})
	}
}

// go test ./test/e2e -run TestAPanickingLoopEndsTheProcess -v
func TestAPanickingLoopEndsTheProcess(t *testing.T) {
	t.Parallel()
	for _, loop := range []string{"deliver", "ingest"} {
		t.Run(loop, func(t *testing.T) {
			t.Parallel()
			l, s, p := startFaulty(t, "panic:"+loop+"@2s")
			l.send(t.Context(), faultLoad)
			p.awaitEnd(20 * time.Second)
			afterFault(t, l, s, p, loop)
		})
	}
}

// faultLoad goes on for longer than the program with a fault lives.
var faultLoad = batch{n: 2000, rate: 400, delay: func(i int) time.Duration { return time.Duration(i%4) * 700 * time.Millisecond }}

func startFaulty(t *testing.T, fault string) (*ledger, settings, *sidecar) {
	t.Helper()
	c := newCluster(t, fake)
	ts := c.makeTopics(t, topicSpec{})
	l := newLedger(t, c, ts)
	s := c.settings(t, ts)
	s.args = []string{"--watchdog-limit", "2s"}
	s.env = []string{"BIDE_FAULT=" + fault}
	p := s.startReady(t)
	s.env = nil
	return l, s, p
}

func afterFault(t *testing.T, l *ledger, s settings, p *sidecar, loop string) {
	t.Helper()
	if code := p.cmd.ProcessState.ExitCode(); code == 0 {
		t.Error("exit code 0 after a fault")
	}
	if !strings.Contains(p.output.tail(3), loop) {
		t.Errorf("the last lines name no loop %s:\n%s", loop, p.output.tail(3))
	}
	s.startReady(t)
	l.mustBeExact()
}
