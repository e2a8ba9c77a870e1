package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/bide-mq/bide/cmd/sidecar/internal/config"
	"github.com/bide-mq/bide/kafka"
)

// checkedBroker returns the address of a broker with the topics of the default configuration.
func checkedBroker(t *testing.T, ingressSettings map[string]*string) string {
	t.Helper()
	broker, err := startBroker("", 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(broker.Close)
	addr := broker.ListenAddrs()[0]
	client, err := kgo.NewClient(kgo.SeedBrokers(addr))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	admin := kadm.NewClient(client)
	large := "1114124"
	for topic, settings := range map[string]map[string]*string{
		"delay-ingress": ingressSettings, "delay-dead-letter": {"max.message.bytes": &large}, "orders": nil,
	} {
		if r, err := admin.CreateTopic(t.Context(), 2, 1, settings, topic); err != nil || r.Err != nil {
			t.Fatal(topic, err, r.Err)
		}
	}
	return addr
}

func TestCheckEndsWithZeroWhereAllIsWell(t *testing.T) {
	addr, dir := checkedBroker(t, nil), filepath.Join(t.TempDir(), "data")
	code, stdout, stderr := once(t, nil, "check", "--brokers", addr, "--data-dir", dir, "--allow", "orders")
	if code != 0 || stderr != "" || !strings.HasSuffix(stdout, "\n0 errors, 0 warnings\n") {
		t.Errorf("exit code %d\n%s\n%s", code, stdout, stderr)
	}
	for line := range strings.SplitSeq(stdout, "\n") {
		level, _, _ := strings.Cut(line, " ")
		if level != "ok" && level != "note" && level != "" && !strings.HasPrefix(line, "0 errors") {
			t.Errorf("line %q", line)
		}
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("check made the data directory")
	}
}

func TestCheckEndsWithOneAndNamesEachErrorWithItsCommand(t *testing.T) {
	compact, dir := "compact", t.TempDir()
	addr := checkedBroker(t, map[string]*string{"cleanup.policy": &compact})
	if err := os.WriteFile(filepath.Join(dir, groupFile), []byte("another\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	code, stdout, stderr := once(t, nil, "check", "--brokers", addr, "--data-dir", dir, "--allow", "orders")
	if code != 1 || stderr != "sidecar: check: 2 errors\n" {
		t.Errorf("exit code %d, %q", code, stderr)
	}
	for _, want := range []string{
		"error    topics delay-ingress: ", "\n         run: kafka-configs.sh --bootstrap-server " + addr + " --alter --entity-type topics --entity-name delay-ingress --add-config cleanup.policy=delete\n",
		"error    data " + dir + ": belongs to group \"another\"",
	} {
		if !strings.Contains(stdout, want) {
			t.Errorf("%q is missing in\n%s", want, stdout)
		}
	}
}

func TestCheckEndsWithTwoWhereTheConfigurationIsWrong(t *testing.T) {
	if code, _, stderr := once(t, nil, "check", "--transactions", "99"); code != 2 || !strings.Contains(stderr, "transactions") {
		t.Errorf("exit code %d, %q", code, stderr)
	}
	if code, _, _ := once(t, nil, "check", "something"); code != 2 {
		t.Errorf("exit code %d", code)
	}
}

func TestCheckWritesJSON(t *testing.T) {
	addr := checkedBroker(t, nil)
	code, stdout, stderr := once(t, nil, "check", "--json", "--brokers", addr, "--data-dir", t.TempDir(), "--allow", "orders,absent")
	var got struct {
		Errors, Warnings int
		Checks           []kafka.Check
	}
	if err := json.Unmarshal([]byte(stdout), &got); err != nil || code != 0 {
		t.Fatalf("exit code %d, %v\n%s\n%s", code, err, stdout, stderr)
	}
	if got.Errors != 0 || got.Warnings != 1 || len(got.Checks) < 8 {
		t.Errorf("%+v", got)
	}
	for _, c := range got.Checks {
		if c.Level == kafka.CheckWarning && (c.Subject != "absent" || len(c.Fix) != 1) {
			t.Errorf("%+v", c)
		}
	}
}

func TestCheckOfTheDataDirectory(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	kept := t.TempDir()
	if err := os.WriteFile(filepath.Join(kept, instanceFile), []byte("pod-7\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	damaged := t.TempDir()
	if err := os.WriteFile(filepath.Join(damaged, instanceFile), []byte("?\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, dir string
		reserve   config.Bytes
		instance  string
		errors    int
		want      string
	}{
		{"good", kept, 1, "pod-7", 0, "can be written"},
		{"missing", filepath.Join(kept, "a", "b"), 1, "", 0, "run makes it in " + kept},
		{"file", file, 1, "", 1, "is no directory"},
		{"below a file", filepath.Join(file, "data"), 1, "", 1, "not a directory"},
		{"damaged", damaged, 1, "", 1, "is damaged"},
		{"full", kept, 1 << 60, "pod-7", 1, "nothing would be accepted"},
	} {
		t.Run(c.name, func(t *testing.T) {
			conf := config.Default()
			conf.DataDir, conf.DataReserve = c.dir, c.reserve
			instance, checks := checkDataDir(&conf)
			var text strings.Builder
			for _, k := range checks {
				text.WriteString(k.Text + "\n")
			}
			if n := countChecks(checks)[kafka.CheckError]; n != c.errors || instance != c.instance || !strings.Contains(text.String(), c.want) {
				t.Errorf("%d errors, instance %q:\n%s", n, instance, text.String())
			}
			left, err := filepath.Glob(filepath.Join(kept, ".bide-check-*"))
			if err != nil || len(left) > 0 {
				t.Errorf("left behind %v, %v", left, err)
			}
		})
	}
}
