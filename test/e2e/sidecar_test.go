//go:build unix

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/bide-mq/bide/test/e2e/kafkatest"
)

// sidecar is one run of the program: a process.
type sidecar struct {
	t      *testing.T
	cmd    *exec.Cmd
	http   string // address of its HTTP server
	began  time.Time
	output *output
	ended  chan struct{}
	// shown is how many lines of its output are shown where the test failed.
	shown int
}

// settings are what a test runs the program with.
type settings struct {
	topics
	cluster *cluster
	dataDir string
	// instance is the instance id; empty leaves it to the program, which keeps one in the data directory.
	instance string
	delivery string
	args     []string
	env      []string
}

func (c *cluster) settings(t *testing.T, ts topics) settings {
	t.Helper()
	return settings{topics: ts, cluster: c, dataDir: filepath.Join(t.TempDir(), "data")}
}

// start starts the program and returns at once.
func (s settings) start(t *testing.T) *sidecar {
	t.Helper()
	port, err := kafkatest.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	addr := kafkatest.Loopback(port)
	args := []string{
		"run", "--brokers", strings.Join(s.cluster.addrs, ","), "--ingress", s.ingress, "--group", s.group,
		"--data-dir", s.dataDir, "--http-addr", addr, "--dead-letter-topic", s.deadLetter,
	}
	if s.instance != "" {
		args = append(args, "--instance-id", s.instance)
	}
	if s.delivery != "" {
		args = append(args, "--delivery", s.delivery)
	}
	p := launch(t, append(args, s.args...), s.env)
	p.http = addr
	return p
}

// startReady starts the program and waits until it delivers.
func (s settings) startReady(t *testing.T) *sidecar {
	t.Helper()
	p := s.start(t)
	p.awaitReady(60 * time.Second)
	return p
}

// launch starts the program with bare arguments. It is killed with the test, and where the test
// failed, the end of what it printed is shown.
func launch(t *testing.T, args, env []string) *sidecar {
	t.Helper()
	path, err := sidecarBinary()
	if err != nil {
		t.Fatal(err)
	}
	p := &sidecar{t: t, cmd: exec.Command(path, args...), output: &output{}, ended: make(chan struct{}), shown: 60}
	p.cmd.Env = append(cleanEnv(), env...)
	p.cmd.Stdout, p.cmd.Stderr = p.output, p.output
	p.began = time.Now()
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	release, err := kafkatest.Guard(p.cmd.Process.Pid)
	if err != nil {
		t.Fatal(errors.Join(err, p.cmd.Process.Kill()))
	}
	go func() {
		_ = p.cmd.Wait() // the exit code says it
		release()
		close(p.ended)
	}()
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("the end of the output of sidecar %d (%s), exit code %d:\n%s",
				p.cmd.Process.Pid, strings.Join(args, " "), p.cmd.ProcessState.ExitCode(), p.output.tail(p.shown))
		}
	})
	return p
}

// cleanEnv is this process's environment without settings of the program.
func cleanEnv() []string {
	var env []string
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "BIDE_") {
			env = append(env, e)
		}
	}
	return env
}

// kill ends the process with SIGKILL and waits for its end.
func (p *sidecar) kill() {
	_ = p.cmd.Process.Signal(syscall.SIGKILL) // has ended already: fine
	<-p.ended
}

// stop ends the process with SIGTERM and returns how long that took; it must exit 0.
func (p *sidecar) stop() time.Duration {
	p.t.Helper()
	began := time.Now()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		p.t.Errorf("sidecar had ended before SIGTERM, exit code %d", p.awaitEnd(time.Second))
		return 0
	}
	if code := p.awaitEnd(30 * time.Second); code != 0 {
		p.t.Errorf("exit code %d after SIGTERM, want 0", code)
	}
	return time.Since(began)
}

// awaitEnd waits for the process to end by itself and returns its exit code.
func (p *sidecar) awaitEnd(limit time.Duration) int {
	p.t.Helper()
	select {
	case <-p.ended:
	case <-time.After(limit):
		p.t.Fatalf("sidecar has not ended within %s", limit)
	}
	return p.cmd.ProcessState.ExitCode()
}

func (p *sidecar) hasEnded() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

func (p *sidecar) awaitReady(limit time.Duration) {
	p.t.Helper()
	var last string
	p.await(limit, func() bool {
		code, body := p.get("/readyz")
		last = fmt.Sprintf("%d %s", code, body)
		return code == http.StatusOK
	}, func() string { return "/readyz 200; last answer: " + last })
}

// await polls until ok says so. The test fails where the process ends first or time runs out.
func (p *sidecar) await(limit time.Duration, ok func() bool, what func() string) {
	p.t.Helper()
	for deadline := time.Now().Add(limit); !ok(); time.Sleep(5 * time.Millisecond) {
		if p.hasEnded() {
			p.t.Fatalf("sidecar ended with exit code %d while waiting for %s", p.cmd.ProcessState.ExitCode(), what())
		}
		if time.Now().After(deadline) {
			p.t.Fatalf("after %s still no %s", limit, what())
		}
	}
}

// get asks the process's HTTP server and returns the status, 0 where it does not answer, and the body.
func (p *sidecar) get(path string) (int, string) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.http+path, nil)
	if err != nil {
		return 0, err.Error()
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer res.Body.Close()
	var body bytes.Buffer
	if _, err := body.ReadFrom(res.Body); err != nil {
		return 0, err.Error()
	}
	return res.StatusCode, body.String()
}

// logged returns the log lines with a message, each as its fields.
func (p *sidecar) logged(msg string) []map[string]any {
	var found []map[string]any
	for line := range strings.Lines(p.output.String()) {
		var fields map[string]any
		if json.Unmarshal([]byte(line), &fields) == nil && fields["msg"] == msg {
			found = append(found, fields)
		}
	}
	return found
}

// output collects what a process prints.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

func (o *output) tail(lines int) string {
	all := strings.Split(strings.TrimSuffix(o.String(), "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
