//go:build unix

package kafkatest_test

import (
	"slices"
	"syscall"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/bide-mq/bide/test/e2e/kafkatest"
)

// go test ./test/e2e/kafkatest -run TestConsoleToolsCarryHeadersAcrossARestart -v
func TestConsoleToolsCarryHeadersAcrossARestart(t *testing.T) {
	kafkatest.Need(t)
	b, err := kafkatest.Start(t.Context(), kafkatest.Versions[0], t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Stop(syscall.SIGKILL); err != nil {
			t.Error(err)
		}
	})
	cl, err := kgo.NewClient(kgo.SeedBrokers(b.Addr()))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	if _, err := kadm.NewClient(cl).CreateTopic(t.Context(), 1, 1, nil, "console"); err != nil {
		t.Fatal(err)
	}
	lines := []string{"h1:v1,h2:v2\tkey\tvalue", "h1:v1\tNULL\tvalue"}
	if err := b.ConsoleProduce(t.Context(), "console", lines...); err != nil {
		t.Fatal(err)
	}
	if err := b.Stop(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := b.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	got, err := b.ConsoleConsume(t.Context(), "console", len(lines))
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got, lines) {
		t.Errorf("read back %q, want %q", got, lines)
	}
}
