package kafka

import (
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/plugin/kzap"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// TraceLevel is the zap level at which the Kafka client logs every request. It lies below debug,
// because a client at work writes thousands of such lines a second.
const TraceLevel = zapcore.DebugLevel - 1

const (
	// A client that cannot reach its brokers says so at every attempt, several times a second on
	// each of its loops: clientLogBurst lines of one text in clientLogWindow are enough to see it.
	clientLogBurst  = 3
	clientLogWindow = 10 * time.Second
)

// clientLogger logs what the Kafka client says, one level below what the client thinks of it: its
// info lines are the steps of its own loops, and most of its errors are met by trying again, here or
// in the client itself. What no retry mends stays an error.
type clientLogger struct {
	core zapcore.Core
	out  *kzap.Logger
}

var _ kgo.Logger = (*clientLogger)(nil)

// clientFaults are the lines of the client that a human must act on: the broker does not take this
// client's protocol or credentials.
var clientFaults = map[string]bool{
	"unable to request api versions": true,
	"unable to initialize sasl":      true,
}

func newClientLogger(log *zap.Logger) *clientLogger {
	log = log.Named("kgo").WithOptions(zap.WrapCore(func(c zapcore.Core) zapcore.Core {
		return zapcore.NewSamplerWithOptions(c, clientLogWindow, clientLogBurst, 0)
	}))
	return &clientLogger{core: log.Core(), out: kzap.New(log)}
}

// Level tells the client what it need not format.
func (l *clientLogger) Level() kgo.LogLevel {
	switch {
	case l.core.Enabled(TraceLevel):
		return kgo.LogLevelDebug
	case l.core.Enabled(zapcore.DebugLevel):
		return kgo.LogLevelInfo
	case l.core.Enabled(zapcore.WarnLevel):
		return kgo.LogLevelWarn
	case l.core.Enabled(zapcore.ErrorLevel):
		return kgo.LogLevelError
	default:
		return kgo.LogLevelNone
	}
}

// Log writes one line of the client's.
func (l *clientLogger) Log(level kgo.LogLevel, msg string, keyvals ...any) {
	switch {
	case level == kgo.LogLevelInfo:
		level = kgo.LogLevelDebug
	case level == kgo.LogLevelError && !clientFaults[msg]:
		level = kgo.LogLevelWarn
	}
	l.out.Log(level, msg, keyvals...)
}
