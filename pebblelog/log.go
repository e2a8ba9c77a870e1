package pebblelog

import (
	"errors"
	"fmt"
	"math"
	"sync"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/zap"

	"github.com/bide-mq/bide"
)

// Log is a [bide.Log] in one directory. Safe for concurrent use.
type Log struct {
	dir     string
	fs      vfs.FS
	db      *pebble.DB
	lock    *pebble.Lock
	logger  *zap.Logger
	metrics *Metrics
	fault   *fault

	reclaimer *reclaimer

	mu struct {
		sync.Mutex
		lanes map[bide.Lane]*Lane
		// last is the greatest lane number given out.
		last uint32
		// users counts the calls inside; idle is closed when the last one leaves a closed log.
		users  int
		closed bool
		idle   chan struct{}
	}
}

var _ bide.Log = (*Log)(nil)

// Lane returns the lane's handle, a [*Lane]. A lane whose stored state or counts cannot be read has a
// handle too: its methods return [bide.ErrLogCorrupt] until [Lane.Reset].
// Cost: the first time a read of the lane's counts, one for every 4096 ingress offsets that have
// messages waiting; a lookup then.
func (l *Log) Lane(lane bide.Lane) (bide.LaneLog, error) {
	if err := l.enter(); err != nil {
		return nil, err
	}
	defer l.leave()
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := l.mu.lanes[lane]; n != nil {
		return n, nil
	}
	n, err := l.openLane(lane)
	if err != nil {
		return nil, fmt.Errorf("open lane %s of log %s: %w", lane, l.dir, err)
	}
	l.mu.lanes[lane] = n
	return n, nil
}

// FreeBytes implements [bide.Log]. A file system that does not know counts as endless.
func (l *Log) FreeBytes() (uint64, error) {
	if err := l.enter(); err != nil {
		return 0, err
	}
	defer l.leave()
	usage, err := l.fs.GetDiskUsage(l.dir)
	switch {
	case errors.Is(err, vfs.ErrUnsupported):
		return math.MaxUint64, nil
	case err != nil:
		return 0, fmt.Errorf("free space of log %s: %w", l.dir, err)
	default:
		return usage.AvailBytes, nil
	}
}

// Failed is closed once the log can no longer be written: the process has to end, and [Log.Err] says why.
func (l *Log) Failed() <-chan struct{} { return l.fault.done }

// Err returns why the log failed, an [ErrFailed]; nil while it works.
func (l *Log) Err() error { return l.fault.raised() }

// Close waits for calls inside, and closes the store: later calls return [bide.ErrLogClosed]. Closing again
// does nothing. A log that failed is left as it is, and locked, until the process ends.
func (l *Log) Close() error {
	l.mu.Lock()
	if l.mu.closed {
		l.mu.Unlock()
		return nil
	}
	l.mu.closed = true
	if l.mu.users == 0 {
		close(l.mu.idle)
	}
	l.mu.Unlock()
	<-l.mu.idle
	l.reclaimer.stop()
	l.metrics.log.CompareAndSwap(l, nil)
	if err := l.fault.raised(); err != nil {
		return err
	}
	if err := l.fault.guard(l.db.Close); err != nil {
		return fmt.Errorf("close log %s: %w", l.dir, err)
	}
	if err := l.lock.Close(); err != nil {
		return fmt.Errorf("unlock log %s: %w", l.dir, err)
	}
	return nil
}

// enter begins a call; leave ends it. Close waits in between.
func (l *Log) enter() error {
	if err := l.fault.raised(); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.closed {
		return bide.ErrLogClosed
	}
	l.mu.users++
	return nil
}

func (l *Log) leave() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.users--
	if l.mu.closed && l.mu.users == 0 {
		close(l.mu.idle)
	}
}

// apply writes a batch without waiting for the disk, and releases it.
func (l *Log) apply(b *pebble.Batch) error { return l.commit(b, pebble.NoSync) }

func (l *Log) commit(b *pebble.Batch, o *pebble.WriteOptions) error {
	err := l.fault.guard(func() error { return l.db.Apply(b, o) })
	if err != nil {
		return l.fault.raise(fmt.Errorf("write: %w", err))
	}
	return b.Close()
}

// get returns a copy of what is stored under key; found is false where nothing is.
func (l *Log) get(key []byte) (value []byte, found bool, err error) {
	v, closer, err := l.db.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, corrupt(err)
	}
	value = append([]byte{}, v...)
	return value, true, closer.Close()
}

// messages returns how many messages the opened lanes have.
func (l *Log) messages() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	var n int64
	for _, lane := range l.mu.lanes {
		n += lane.waiting.Load()
	}
	return n
}

// corrupt marks errors by which Pebble says that what it read is corrupt.
func corrupt(err error) error {
	if err != nil && pebble.IsCorruptionError(err) {
		return fmt.Errorf("%w: %w", bide.ErrLogCorrupt, err)
	}
	return err
}
