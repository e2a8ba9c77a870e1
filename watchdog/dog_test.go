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

	"github.com/bide-mq/bide"
	"github.com/bide-mq/bide/watchdog"
)

var _ bide.Pulse = (*watchdog.Pulse)(nil)

const limit = 30 * time.Second

// start runs a dog inside a bubble; verdict has what Run returned.
func start(t *testing.T, log *zap.Logger) (dog *watchdog.Dog, verdict <-chan error, stop func()) {
	t.Helper()
	dog = watchdog.New(limit, log)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- dog.Run(ctx) }()
	synctest.Wait()
	return dog, done, cancel
}

func TestHangFailsCheckAtHalfTheLimitThenEndsRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zapcore.InfoLevel)
		dog, verdict, stop := start(t, zap.New(core))
		defer stop()
		pulse := dog.Pulse("deliver")
		dog.Pulse("ingest").Rest()
		pulse.Work()
		began := time.Now()

		time.Sleep(limit/2 - 2*time.Second)
		if err := dog.Check(); err != nil {
			t.Fatalf("check before half the limit: %v", err)
		}
		time.Sleep(5 * time.Second)
		var hang *watchdog.HangError
		if err := dog.Check(); !errors.As(err, &hang) || hang.Loop != "deliver" {
			t.Fatalf("check after half the limit: %v, want a hang of deliver", err)
		}
		err := <-verdict
		if !errors.As(err, &hang) || hang.Loop != "deliver" {
			t.Fatalf("run: %v, want a hang of deliver", err)
		}
		if took := time.Since(began); took < limit || took > limit+5*time.Second {
			t.Errorf("hang seen after %s, want soon after %s", took, limit)
		}
		if n := logs.FilterMessage("goroutine").Len(); n < 2 {
			t.Errorf("%d goroutines in the log, want all", n)
		}
		dump := logs.FilterMessage("goroutine").All()
		if !strings.Contains(dump[0].ContextMap()["stack"].(string), "goroutine ") {
			t.Errorf("dump without stacks: %v", dump[0].ContextMap())
		}
	})
}

func TestRestMayLastForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dog, verdict, stop := start(t, zap.NewNop())
		pulse := dog.Pulse("deliver")
		pulse.Work()
		pulse.Rest()
		time.Sleep(100 * limit)
		if err := dog.Check(); err != nil {
			t.Errorf("check: %v", err)
		}
		stop()
		if err := <-verdict; err != nil {
			t.Errorf("run: %v", err)
		}
	})
}

func TestManyShortStepsAreNoHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dog, verdict, stop := start(t, zap.NewNop())
		pulse := dog.Pulse("deliver")
		for range 50 {
			pulse.Work() // without a Rest between: the next step
			time.Sleep(limit / 3)
		}
		if err := dog.Check(); err != nil {
			t.Errorf("check: %v", err)
		}
		stop()
		if err := <-verdict; err != nil {
			t.Errorf("run: %v", err)
		}
	})
}

func TestCheckRecoversWithTheLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dog, verdict, stop := start(t, zap.NewNop())
		pulse := dog.Pulse("deliver")
		pulse.Work()
		time.Sleep(limit * 2 / 3)
		if dog.Check() == nil {
			t.Fatal("check passes while the loop is stuck")
		}
		pulse.Rest()
		if err := dog.Check(); err != nil {
			t.Errorf("check right after the step ended: %v", err)
		}
		stop()
		if err := <-verdict; err != nil {
			t.Errorf("run: %v", err)
		}
	})
}

func TestSecondPulseOfANameTakesThePlaceOfTheFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dog, verdict, stop := start(t, zap.NewNop())
		dog.Pulse("http").Work() // panics, say, and never rests
		dog.Pulse("http")
		time.Sleep(10 * limit)
		if err := dog.Check(); err != nil {
			t.Errorf("check: %v", err)
		}
		stop()
		if err := <-verdict; err != nil {
			t.Errorf("run: %v", err)
		}
	})
}

func TestCheckFailsWithoutARunningDog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		if watchdog.New(limit, zap.NewNop()).Check() == nil {
			t.Error("check passes before Run")
		}
		dog, verdict, stop := start(t, zap.NewNop())
		if err := dog.Check(); err != nil {
			t.Errorf("check while it runs: %v", err)
		}
		stop()
		<-verdict
		if dog.Check() == nil {
			t.Error("check passes after Run")
		}
	})
}
