package watchdog_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/bide-mq/bide/watchdog"
)

var errBroken = errors.New("broken")

func TestCorePanicEndsTheGroupAndNamesTheLoop(t *testing.T) {
	group, ctx := watchdog.NewGroup(t.Context(), zap.NewNop())
	group.Core("deliver", func(context.Context) error { panic(errBroken) })
	group.Core("ingest", func(ctx context.Context) error { <-ctx.Done(); return nil })
	err := group.Wait()
	var panicked *watchdog.PanicError
	if !errors.As(err, &panicked) || panicked.Loop != "deliver" || !errors.Is(err, errBroken) {
		t.Fatalf("wait: %v, want the panic of deliver", err)
	}
	if !strings.Contains(string(panicked.Stack), "TestCorePanicEndsTheGroup") {
		t.Errorf("stack does not say where it panicked:\n%s", panicked.Stack)
	}
	if ctx.Err() == nil {
		t.Error("the group's context is not done")
	}
}

func TestCoreErrorNamesTheLoop(t *testing.T) {
	group, _ := watchdog.NewGroup(t.Context(), zap.NewNop())
	group.Core("deliver", func(context.Context) error { return errBroken })
	if err := group.Wait(); !errors.Is(err, errBroken) || !strings.HasPrefix(err.Error(), "deliver: ") {
		t.Errorf("wait: %v", err)
	}
}

func TestCoreThatEndsUnaskedIsAFault(t *testing.T) {
	group, _ := watchdog.NewGroup(t.Context(), zap.NewNop())
	group.Core("deliver", func(context.Context) error { return nil })
	if err := group.Wait(); !errors.Is(err, watchdog.ErrEnded) {
		t.Errorf("wait: %v, want %v", err, watchdog.ErrEnded)
	}
}

func TestCoreThatEndsWhenAskedIsNone(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	group, _ := watchdog.NewGroup(ctx, zap.NewNop())
	group.Core("deliver", func(ctx context.Context) error { <-ctx.Done(); return nil })
	cancel()
	if err := group.Wait(); err != nil {
		t.Errorf("wait: %v", err)
	}
}

func TestAuxiliaryIsStartedAgainWithBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zapcore.WarnLevel)
		ctx, cancel := context.WithCancel(t.Context())
		group, _ := watchdog.NewGroup(ctx, zap.New(core))
		began := time.Now()
		var starts []time.Duration
		group.Auxiliary("http", func(ctx context.Context) error {
			starts = append(starts, time.Since(began))
			switch len(starts) {
			case 1:
				return errBroken
			case 2:
				panic("again")
			case 3:
				time.Sleep(2 * time.Minute) // long enough to count as recovered
				return errBroken
			}
			<-ctx.Done()
			return nil
		})
		time.Sleep(10 * time.Minute)
		cancel()
		if err := group.Wait(); err != nil {
			t.Errorf("wait: %v", err)
		}
		want := []time.Duration{0, time.Second, 3 * time.Second, 2*time.Minute + 4*time.Second}
		if len(starts) != len(want) {
			t.Fatalf("started at %v, want %v", starts, want)
		}
		for i := range want {
			if starts[i] != want[i] {
				t.Errorf("start %d at %s, want %s", i, starts[i], want[i])
			}
		}
		again := logs.FilterMessage("loop started again").All()
		if len(again) != 3 || again[1].ContextMap()["stack"] == nil || again[0].ContextMap()["stack"] != nil {
			t.Errorf("log: %v", again)
		}
	})
}
