package kafka

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
)

func TestTheClientLogsOneLevelLower(t *testing.T) {
	for _, test := range []struct {
		level  kgo.LogLevel
		msg    string
		want   zapcore.Level
		fields []any
	}{
		{kgo.LogLevelDebug, "wrote Produce", zap.DebugLevel, []any{"broker", 1}},
		{kgo.LogLevelInfo, "metadata update triggered", zap.DebugLevel, nil},
		{kgo.LogLevelWarn, "unable to open connection", zap.WarnLevel, nil},
		{kgo.LogLevelError, "group manage loop errored", zap.WarnLevel, nil},
		{kgo.LogLevelError, "unable to initialize sasl", zap.ErrorLevel, nil},
	} {
		core, logs := observer.New(TraceLevel)
		newClientLogger(zap.New(core)).Log(test.level, test.msg, test.fields...)
		if logs.Len() != 1 || logs.All()[0].Level != test.want || logs.All()[0].Message != test.msg || len(logs.All()[0].Context) != len(test.fields)/2 {
			t.Errorf("%v %s: logged %v, want at %v", test.level, test.msg, logs.All(), test.want)
		}
	}
}

func TestTheClientFormatsOnlyWhatIsLogged(t *testing.T) {
	for enabled, want := range map[zapcore.Level]kgo.LogLevel{
		TraceLevel: kgo.LogLevelDebug, zap.DebugLevel: kgo.LogLevelInfo, zap.InfoLevel: kgo.LogLevelWarn,
		zap.WarnLevel: kgo.LogLevelWarn, zap.ErrorLevel: kgo.LogLevelError, zap.FatalLevel: kgo.LogLevelNone,
	} {
		core, _ := observer.New(enabled)
		if got := newClientLogger(zap.New(core)).Level(); got != want {
			t.Errorf("zap %v: client %v, want %v", enabled, got, want)
		}
	}
}

func TestALineThatRepeatsIsCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zap.InfoLevel)
		l := newClientLogger(zap.New(core))
		for window := 1; window <= 3; window++ {
			for range 100 {
				l.Log(kgo.LogLevelWarn, "unable to open connection to broker")
			}
			l.Log(kgo.LogLevelWarn, "something else")
			if n := logs.FilterMessage("unable to open connection to broker").Len(); n != window*clientLogBurst {
				t.Errorf("window %d: %d lines in all, want %d", window, n, window*clientLogBurst)
			}
			if n := logs.FilterMessage("something else").Len(); n != window {
				t.Errorf("window %d: another line was cut too: %d in all", window, n)
			}
			time.Sleep(clientLogWindow + time.Millisecond)
		}
	})
}
