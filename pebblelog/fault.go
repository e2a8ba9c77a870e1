package pebblelog

import (
	"errors"
	"fmt"
	"runtime/debug"
	"sync"

	"github.com/cockroachdb/pebble/v2"
	"go.uber.org/zap"
)

// ErrFailed says that the log can no longer be written, because it is not known what reached the disk.
// The process has to end: at the next start the log is as its disk has it, and what is missing is read
// from the ingress again.
var ErrFailed = errors.New("log failed")

// fault is the first error after which nothing may be written any more.
//
// Pebble says so by Logger.Fatalf, which it expects not to return: behind a failed manifest write, for one,
// it would remove files that the disk's manifest still names. So Fatalf keeps its goroutine for ever,
// with whatever locks that has, and what waits for Pebble meanwhile waits in a goroutine of its own
// ([fault.guard]) that can be left behind. Nothing enters Pebble afterwards, not even Close.
type fault struct {
	logger *zap.Logger
	dir    string
	once   sync.Once
	done   chan struct{}
	err    error // set before done is closed
}

func newFault(dir string, logger *zap.Logger) *fault {
	return &fault{logger: logger, dir: dir, done: make(chan struct{})}
}

// raise records err unless one was recorded before, and returns what is recorded.
func (f *fault) raise(err error) error {
	f.once.Do(func() {
		f.err = fmt.Errorf("%w: %s: %w; the process must end and be started again", ErrFailed, f.dir, err)
		close(f.done)
		f.logger.Error("log failed", zap.String("dir", f.dir), zap.Error(err))
	})
	<-f.done
	return f.err
}

// raised returns what is recorded, nil if nothing is.
func (f *fault) raised() error {
	select {
	case <-f.done:
		return f.err
	default:
		return nil
	}
}

// guard runs act, and returns its error, or that of the fault as soon as there is one. It then leaves act
// behind, which may never return: what act uses must not be used again.
func (f *fault) guard(act func() error) error {
	result := make(chan error, 1)
	go func() {
		defer func() {
			if r := recover(); r != nil {
				f.logger.Error("store panicked", zap.Any("panic", r), zap.ByteString("stack", debug.Stack()))
				result <- f.raise(fmt.Errorf("store panicked: %v", r))
			}
		}()
		result <- act()
	}()
	select {
	case err := <-result:
		if raised := f.raised(); raised != nil {
			return raised
		}
		return err
	case <-f.done:
		return f.err
	}
}

// storeLogger gives Pebble's messages to zap, and its fatal ones to fault.
type storeLogger struct{ fault *fault }

var _ pebble.Logger = storeLogger{}

// Infof implements [pebble.Logger].
func (l storeLogger) Infof(format string, args ...any) {
	if l.fault.logger.Core().Enabled(zap.DebugLevel) {
		l.fault.logger.Debug("store event", zap.String("event", fmt.Sprintf(format, args...)))
	}
}

// Errorf implements [pebble.Logger].
func (l storeLogger) Errorf(format string, args ...any) {
	l.fault.logger.Warn("store trouble", zap.String("event", fmt.Sprintf(format, args...)))
}

// Fatalf implements [pebble.Logger]. It does not return.
func (l storeLogger) Fatalf(format string, args ...any) {
	l.fault.stop("write", "store", fmt.Errorf(format, args...))
}
