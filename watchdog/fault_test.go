//go:build bidefault

package watchdog_test

import (
	"errors"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/bide-mq/bide/watchdog"
)

func TestFaultOfTheEnvironmentPanicsTheNamedLoop(t *testing.T) {
	t.Setenv("BIDE_FAULT", "panic:ingest@0s,panic:later@1h")
	dog := watchdog.New(limit, zap.NewNop())
	dog.Pulse("later").Work()
	dog.Pulse("other").Work()
	ingest := dog.Pulse("ingest")
	err := watchdog.Guard("ingest", func() error { ingest.Work(); return nil })
	var panicked *watchdog.PanicError
	if !errors.As(err, &panicked) {
		t.Errorf("ingest: %v, want a panic", err)
	}
}

func TestFaultOfTheEnvironmentHangsTheNamedLoop(t *testing.T) {
	t.Setenv("BIDE_FAULT", "hang:deliver@0s")
	dog := watchdog.New(200*time.Millisecond, zap.NewNop())
	go dog.Pulse("deliver").Work() // stays for good
	var hang *watchdog.HangError
	if err := dog.Run(t.Context()); !errors.As(err, &hang) || hang.Loop != "deliver" {
		t.Errorf("run: %v, want a hang of deliver", err)
	}
}
