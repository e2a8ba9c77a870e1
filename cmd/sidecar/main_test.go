package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/bide-mq/bide/cmd/sidecar/internal/config"
	"github.com/bide-mq/bide/cmd/sidecar/internal/demo"
)

// patience bounds what a test waits for; it never waits that long when all is well.
const patience = 30 * time.Second

// output is what a program wrote. Safe for concurrent use.
type output struct {
	mu struct {
		sync.Mutex
		bytes.Buffer
	}
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.mu.Buffer.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.mu.Buffer.String()
}

// process is the program running inside the test.
type process struct {
	t              *testing.T
	stdout, stderr output
	stop           context.CancelFunc
	ended          chan struct{}
	code           int // once ended is closed
}

// start runs the program with args; the test stops it at its end.
func start(t *testing.T, environ []string, args ...string) *process {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	p := &process{t: t, stop: cancel, ended: make(chan struct{})}
	go func() {
		defer close(p.ended)
		p.code = run(ctx, args, environ, &p.stdout, &p.stderr)
	}()
	t.Cleanup(func() {
		cancel()
		p.end()
	})
	return p
}

// end returns the exit code.
func (p *process) end() int {
	p.t.Helper()
	select {
	case <-p.ended:
		return p.code
	case <-time.After(patience):
		p.t.Fatalf("the program does not end; it wrote\n%s\n%s", p.stdout.String(), p.stderr.String())
		return -1
	}
}

// await returns the first submatch of pattern in what the program writes.
func (p *process) await(out *output, pattern string) string {
	p.t.Helper()
	re := regexp.MustCompile(pattern)
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if m := re.FindStringSubmatch(out.String()); m != nil {
			return m[len(m)-1]
		}
		select {
		case <-p.ended:
			p.t.Fatalf("exit code %d before %q was written:\n%s\n%s", p.code, pattern, p.stdout.String(), p.stderr.String())
		default:
		}
	}
	p.t.Fatalf("%q was not written:\n%s\n%s", pattern, p.stdout.String(), p.stderr.String())
	return ""
}

// once runs the program to its end.
func once(t *testing.T, environ []string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	p := start(t, environ, args...)
	return p.end(), p.stdout.String(), p.stderr.String()
}

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

func TestVersionTellsVersionCommitAndGo(t *testing.T) {
	code, stdout, _ := once(t, nil, "version")
	if code != 0 || !regexp.MustCompile(`(?s)^bide .+\ncommit .+\ngo1\..+/.+\n$`).MatchString(stdout) {
		t.Errorf("exit code %d\n%s", code, stdout)
	}
}

func TestBadConfigurationExits2AndListsAllFaults(t *testing.T) {
	code, _, stderr := once(t, []string{"BIDE_DELIVERY=twice", "BIDE_NOTHING=1"}, "run", "--session-timeout", "soon", "--data-dir", t.TempDir())
	if code != exitUsage {
		t.Errorf("exit code %d, want %d", code, exitUsage)
	}
	for _, part := range []string{"3 faults", "delivery (BIDE_DELIVERY)", "BIDE_NOTHING", "session-timeout (--session-timeout)"} {
		if !strings.Contains(stderr, part) {
			t.Errorf("stderr lacks %q:\n%s", part, stderr)
		}
	}
}

func TestBadCommandLinesExit2(t *testing.T) {
	for _, args := range [][]string{
		{"fly"}, {"run", "fast"}, {"run", "--fast"}, {"demo", "--messages", "0", "--rate", "-1"}, {"demo", "--max-delay", "5"}, {"dev", "--port", "70000"},
	} {
		if code, _, stderr := once(t, nil, args...); code != exitUsage || stderr == "" {
			t.Errorf("%v: exit code %d, want %d\n%s", args, code, exitUsage, stderr)
		}
	}
}

func TestHelpNamesTheCommandsAndTheSettings(t *testing.T) {
	code, stdout, _ := once(t, nil)
	for _, command := range []string{"run", "dev", "demo", "config", "version"} {
		if code != 0 || !strings.Contains(stdout, "\n  "+command+" ") {
			t.Errorf("exit code %d, help lacks %s:\n%s", code, command, stdout)
		}
	}
	_, stdout, _ = once(t, nil, "run", "--help")
	if !strings.Contains(stdout, "--sasl.mechanism string") || !strings.Contains(stdout, "$BIDE_SASL_MECHANISM") {
		t.Errorf("help of run lacks sasl.mechanism:\n%s", stdout)
	}
	_, stdout, _ = once(t, nil, "demo", "--help")
	if strings.Contains(stdout, "sasl.mechanism") || !strings.Contains(stdout, "--messages") {
		t.Errorf("help of demo:\n%s", stdout)
	}
}

func TestHelpShowsTheDefaultsOfTheCommandItself(t *testing.T) {
	for command, want := range map[string][]string{
		"run":  {`(default "bide-data")`, "trace|debug|info|warn|error", "($BIDE_LOG_LEVEL) (default info)", "(default localhost:9092)"},
		"dev":  {`(default "bide-dev")`, "($BIDE_LOG_LEVEL) (default warn)"},
		"demo": {"($BIDE_LOG_LEVEL) (default error)", "without it: a broker in this process\n"},
	} {
		_, stdout, _ := once(t, nil, command, "--help")
		for _, part := range want {
			if !strings.Contains(stdout, part) {
				t.Errorf("help of %s lacks %q:\n%s", command, part, stdout)
			}
		}
	}
}

func TestAMistypedCommandLineIsToldWhatItMayHaveMeant(t *testing.T) {
	for want, args := range map[string][]string{
		"did you mean run?":          {"runn"},
		"did you mean --brokers?":    {"run", "--broker", "x:1"},
		"did you mean --messages?":   {"demo", "--message", "5"},
		"BIDE_SASL_PASSWORD":         {"run", "--sasl.password", "x"},
		"'sidecar dev --help'":       {"dev", "--bad"},
		"has no port from 0 to":      {"run", "--http-addr", "127.0.0.1:99999"},
		"did you mean instance-id?":  {"run", "--config", writeFile(t, "INSTANCE_ID: a\n")},
		"did you mean sasl.username": {"run", "--config", writeFile(t, "sasl: {user: a}\n")},
	} {
		if code, _, stderr := once(t, nil, args...); code != exitUsage || !strings.Contains(stderr, want) {
			t.Errorf("%v: exit code %d, lacks %q\n%s", args, code, want, stderr)
		}
	}
}

// writeFile returns the path of a file with that text.
func writeFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "bide.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestAPortInUseNamesTheSettingThatMendsIt(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	_, port, _ := net.SplitHostPort(ln.Addr().String())
	code, _, stderr := once(t, nil, "dev", "--port", port, "--data-dir", t.TempDir(), "--http-addr", "")
	if code != exitFault || !strings.Contains(stderr, "--port") {
		t.Errorf("exit code %d, want %d and --port in\n%s", code, exitFault, stderr)
	}
}

// Whoever has a cluster in the environment does not make topics on it by trying out a demo.
func TestDemoLeavesTheClusterOfTheEnvironmentAlone(t *testing.T) {
	cluster, err := startBroker("", 0)
	if err != nil {
		t.Fatal(err)
	}
	defer cluster.Close()
	asked := make(chan struct{}, 1)
	cluster.Control(func(kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		select {
		case asked <- struct{}{}:
		default:
		}
		return nil, nil, false
	})
	code, stdout, stderr := once(t, []string{"BIDE_BROKERS=" + strings.Join(cluster.ListenAddrs(), ",")}, "demo", "--messages", "10", "--max-delay", "10ms")
	if code != 0 || len(asked) != 0 {
		t.Errorf("exit code %d, asked the cluster %d times\n%s\n%s", code, len(asked), stdout, stderr)
	}
}

func TestAnErrorOfTheLogKeepsWhatToDoOnItsLine(t *testing.T) {
	cause := errors.New("checksum mismatch\ndetail")
	err := error(oneLine{fmt.Errorf("open log: %w (move the directory away)", cause)})
	if want := "open log: checksum mismatch detail (move the directory away)"; err.Error() != want || !errors.Is(err, cause) {
		t.Errorf("%q, want %q that wraps its cause", err, want)
	}
}

func TestConfigPrintsEverySetting(t *testing.T) {
	for _, args := range [][]string{{"config"}, {"config", "--markdown"}} {
		code, stdout, _ := once(t, nil, args...)
		for _, s := range config.Settings() {
			if code != 0 || !strings.Contains(stdout, s.Key) || !strings.Contains(stdout, s.Env()) {
				t.Errorf("%v: exit code %d, lacks %s", args, code, s.Key)
			}
		}
	}
}

// A demo in this process is the whole sidecar from end to end.
func TestDemoDeliversEachMessageOnceAndNeverEarly(t *testing.T) {
	for _, delivery := range []string{config.ExactlyOnce, config.AtLeastOnce} {
		t.Run(delivery, func(t *testing.T) {
			code, stdout, stderr := once(t, nil, "demo", "--json", "--messages", "200", "--rate", "1000", "--max-delay", "1s", "--delivery", delivery)
			lines := strings.Split(strings.TrimSpace(stdout), "\n")
			var s demo.Summary
			if err := json.Unmarshal([]byte(lines[len(lines)-1]), &s); err != nil {
				t.Fatalf("exit code %d, the last line is no summary: %v\n%s\n%s", code, err, stdout, stderr)
			}
			if code != 0 || s.Sent != 200 || s.Delivered != 200 || s.Lost+s.Early+s.Duplicates != 0 || s.LateMs.Max < s.LateMs.P50 {
				t.Errorf("exit code %d: %+v\n%s", code, s, stderr)
			}
			t.Log(lines[len(lines)-1])
		})
	}
}

func TestRunWaitsForBrokersThatAreNotThereAndStopsCleanly(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	broker := ln.Addr().String()
	ln.Close() // nobody listens there now
	p := start(t, nil, "run", "--brokers", broker, "--data-dir", t.TempDir(), "--http-addr", "127.0.0.1:0")
	url := "http://" + p.await(&p.stderr, `"http listens","addr":"([^"]+)"`)
	p.await(&p.stderr, `(brokers do not answer as they should, trying again)`)
	if code, body := get(t, url+"/readyz"); code != 503 || !strings.Contains(body, broker) {
		t.Errorf("/readyz: %d %s, want 503 that names %s", code, body, broker)
	}
	for _, path := range []string{"/livez", "/readyz/local"} {
		if code, body := get(t, url+path); code != 200 {
			t.Errorf("%s: %d %s, want 200", path, code, body)
		}
	}
	if _, body := get(t, url+"/metrics"); !strings.Contains(body, "bide_build_info{") || !strings.Contains(body, "bide_log_size_bytes") {
		t.Errorf("/metrics lacks what is expected:\n%s", body)
	}
	p.stop()
	if code := p.end(); code != 0 {
		t.Errorf("exit code %d after a stop, want 0:\n%s", code, p.stderr.String())
	}
}

func TestFaultsAtStartExit1WithOneSentence(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for want, args := range map[string][]string{
		"http-addr: ": {"run", "--data-dir", t.TempDir(), "--http-addr", ln.Addr().String()},
		file:          {"run", "--data-dir", file, "--http-addr", ""},
	} {
		code, _, stderr := once(t, nil, args...)
		lines := strings.Split(strings.TrimSpace(stderr), "\n")
		if last := lines[len(lines)-1]; code != exitFault || !strings.HasPrefix(last, "sidecar: ") || !strings.Contains(last, want) {
			t.Errorf("%v: exit code %d, last line %q, want %q in it", args, code, last, want)
		}
	}
}

func TestASecondProcessOnADataDirectoryIsToldSo(t *testing.T) {
	dir := t.TempDir()
	p := start(t, nil, "dev", "--port", "0", "--data-dir", dir, "--http-addr", "")
	p.await(&p.stdout, `(broker    localhost:\d+)`)
	code, _, stderr := once(t, nil, "run", "--data-dir", dir, "--http-addr", "")
	if code != exitFault || !strings.Contains(stderr, dir) || !strings.Contains(stderr, "in use") {
		t.Errorf("exit code %d\n%s", code, stderr)
	}
}

func TestDemoOnAClusterDeletesWhatItMade(t *testing.T) {
	cluster, err := startBroker("", 0)
	if err != nil {
		t.Fatal(err)
	}
	defer cluster.Close()
	addrs := cluster.ListenAddrs()
	code, stdout, stderr := once(t, nil, "demo", "--messages", "50", "--max-delay", "200ms", "--brokers", strings.Join(addrs, ","))
	if code != 0 || !strings.Contains(stdout, "delivered       50\n") {
		t.Errorf("exit code %d\n%s\n%s", code, stdout, stderr)
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(addrs...))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	adm := kadm.NewClient(client)
	topics, err := adm.ListTopics(t.Context())
	if err != nil || len(topics) != 0 {
		t.Errorf("topics left: %v, %v", topics.Names(), err)
	}
	groups, err := adm.ListGroups(t.Context())
	if err != nil || len(groups) != 0 {
		t.Errorf("groups left: %v, %v", groups.Groups(), err)
	}
}

func TestAnInterruptedDemoSaysSoAndFails(t *testing.T) {
	p := start(t, nil, "demo", "--json", "--max-delay", "1h")
	p.await(&p.stdout, `(sent 1000 of 1000)`)
	p.stop()
	if code := p.end(); code != exitFault || !strings.Contains(p.stderr.String(), "interrupted") || strings.Contains(p.stdout.String(), `"sent"`) {
		t.Errorf("exit code %d, want %d\n%s\n%s", code, exitFault, p.stdout.String(), p.stderr.String())
	}
}
