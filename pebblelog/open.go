package pebblelog

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/zap"

	"github.com/bide-mq/bide"
)

// Errors of [Open].
var (
	// ErrInUse says that another process has the store open.
	ErrInUse = errors.New("log in use by another process")
	// ErrVersion says that the store was written by a newer release.
	ErrVersion = errors.New("log of a newer version")
	// ErrForeign says that the directory holds a store that is not Bide's.
	ErrForeign = errors.New("not a log of Bide")
)

// formatVersion is the version of the store that this release writes, and the greatest it reads.
const formatVersion = 1

// formatMagic begins the value of the format key; the version follows, an unsigned varint.
const formatMagic = "bide"

// storeFormat is Pebble's own version of its files: the one with checksums in footers too, and with sync marks
// in the write-ahead log, which tell a torn end from a damaged middle.
const storeFormat = pebble.FormatTableFormatV6

// Options say how a log is opened. The zero value is good for a sidecar: about 40 MiB of memory
// at most, however many messages wait.
type Options struct {
	// FS is the file system; nil is the disk.
	FS vfs.FS
	// CacheBytes bounds the cache of blocks read; 0 means 8 MiB. Messages are read once, in order, so a larger
	// one gains little.
	CacheBytes int64
	// MemtableBytes is the size at which what was appended is written out in order; 0 means 8 MiB.
	// Up to three of them are in memory.
	MemtableBytes int64
	// Logger gets events; nil drops them.
	Logger *zap.Logger
	// Metrics are kept up to date; nil means none are.
	Metrics *Metrics

	// reclaimAfter is how long a range delete may stay in memory; 0 means a minute. Space comes back after that.
	reclaimAfter time.Duration
	// reclaimBytes is how much deleted data is compacted when things are quiet; 0 means the default.
	reclaimBytes uint64
	// retryAfter is as in diskFS; 0 means the default.
	retryAfter time.Duration
}

const (
	defaultCacheBytes    = 8 << 20
	defaultMemtableBytes = 8 << 20
	defaultReclaimAfter  = time.Minute
	// memtables is how many may be in memory: one written to, one written out, and one so that the two
	// need not wait for each other.
	memtables = 3
)

// Open opens the log in dir, and makes one where there is none. Errors: [ErrInUse], [ErrVersion], [ErrForeign],
// [bide.ErrLogCorrupt], or the file system's; all name dir and what to do.
func Open(dir string, o Options) (*Log, error) {
	l, err := open(dir, o)
	if err == nil {
		return l, nil
	}
	hint := "check that the directory exists on a disk that this user can write"
	switch {
	case errors.Is(err, ErrInUse):
		hint = "stop that process, or give this one a data directory of its own"
	case errors.Is(err, ErrVersion):
		hint = "run the newer release, or move the directory away: the log is rebuilt from the ingress"
	case errors.Is(err, ErrForeign):
		hint = "give the log a directory of its own"
	case errors.Is(err, bide.ErrLogCorrupt):
		hint = "move the directory away: the log is rebuilt from the ingress"
	case errors.Is(err, syscall.ENOSPC):
		hint = "free some space on that disk"
	}
	return nil, fmt.Errorf("open log %s: %w (%s)", dir, err, hint)
}

func open(dir string, o Options) (*Log, error) {
	o = o.withDefaults()
	if err := o.FS.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	lock, err := pebble.LockDirectory(dir, o.FS)
	if err != nil {
		return nil, lockError(err)
	}
	l := &Log{dir: dir, fs: o.FS, lock: lock, logger: o.Logger, metrics: o.Metrics, fault: newFault(dir, o.Logger)}
	l.mu.lanes = make(map[bide.Lane]*Lane)
	l.mu.idle = make(chan struct{})
	err = l.fault.guard(func() error {
		var err error
		l.db, err = pebble.Open(dir, l.storeOptions(o))
		return err
	})
	if l.fault.raised() != nil {
		return nil, err // Pebble still stands in the directory, which stays locked
	}
	if err != nil {
		return nil, errors.Join(storeError(err), lock.Close())
	}
	if err := l.begin(); err != nil {
		if l.fault.raised() != nil {
			return nil, err
		}
		return nil, errors.Join(err, l.db.Close(), lock.Close())
	}
	l.reclaimer = startReclaimer(l, o)
	o.Metrics.log.Store(l)
	return l, nil
}

func (o Options) withDefaults() Options {
	if o.FS == nil {
		o.FS = vfs.Default
	}
	if o.CacheBytes == 0 {
		o.CacheBytes = defaultCacheBytes
	}
	if o.MemtableBytes == 0 {
		o.MemtableBytes = defaultMemtableBytes
	}
	if o.Logger == nil {
		o.Logger = zap.NewNop()
	}
	if o.Metrics == nil {
		o.Metrics = NewMetrics(nil)
	}
	if o.reclaimAfter == 0 {
		o.reclaimAfter = defaultReclaimAfter
	}
	if o.reclaimBytes == 0 {
		o.reclaimBytes = defaultReclaimBytes
	}
	if o.retryAfter == 0 {
		o.retryAfter = defaultRetryAfter
	}
	return o
}

// storeOptions returns Pebble's options.
func (l *Log) storeOptions(o Options) *pebble.Options {
	p := &pebble.Options{
		FS:                          &diskFS{FS: o.FS, fault: l.fault, retryAfter: o.retryAfter},
		Lock:                        l.lock,
		Logger:                      storeLogger{l.fault},
		Merger:                      merger(),
		FormatMajorVersion:          storeFormat,
		CacheSize:                   o.CacheBytes,
		MemTableSize:                uint64(o.MemtableBytes),
		MemTableStopWritesThreshold: memtables,
		FlushDelayDeleteRange:       o.reclaimAfter,
		// Scans read what is due now, which is a narrow range of every flush: so what costs is the number
		// of flushes that lie over each other, and appends profit from a few more of them.
		L0CompactionThreshold: 8,
		L0StopWritesThreshold: 32,
		LBaseMaxBytes:         64 << 20,
		// A sidecar leaves cores to others: a second compaction only where the first falls behind.
		CompactionConcurrencyRange: func() (int, int) { return 1, 2 },
		MaxOpenFiles:               256,
		MaxManifestFileSize:        4 << 20,
	}
	p.TargetFileSizes[0] = 8 << 20
	p.Levels[0].BlockSize = 16 << 10
	p.Experimental.CompactionScheduler = newScheduler()
	p.EventListener = l.listener()
	return p
}

// listener tells what an operator wants to know; everything else is told at debug level, and costs
// nothing where that is off.
func (l *Log) listener() *pebble.EventListener {
	own := pebble.EventListener{
		BackgroundError: func(err error) {
			l.metrics.backgroundErrors.Inc()
			l.logger.Warn("flush or compaction of the log failed, it is tried again", zap.String("dir", l.dir), zap.Error(err))
		},
		DataCorruption: func(info pebble.DataCorruptionInfo) {
			l.metrics.corruptions.Inc()
			l.logger.Error("log has corrupt data", zap.String("file", info.Path), zap.Error(info.Details))
		},
		WriteStallBegin: func(info pebble.WriteStallBeginInfo) {
			l.metrics.stalls.Inc()
			l.logger.Debug("appends wait for the log to be written out", zap.String("reason", info.Reason))
		},
	}
	if !l.logger.Core().Enabled(zap.DebugLevel) {
		return &own
	}
	tee := pebble.TeeEventListener(own, pebble.MakeLoggingEventListener(storeLogger{l.fault}))
	tee.DataCorruption = own.DataCorruption // Pebble's would end the process
	return &tee
}

// begin checks the format, or writes it into a new store, and loads the dictionary.
func (l *Log) begin() error {
	key := []byte{spaceFormat}
	value, found, err := l.get(key)
	if err != nil {
		return err
	}
	if !found {
		if err := l.mustBeEmpty(); err != nil {
			return err
		}
		b := l.db.NewBatch()
		if err := b.Set(key, binary.AppendUvarint([]byte(formatMagic), formatVersion), nil); err != nil {
			return err
		}
		return l.commit(b, pebble.Sync)
	}
	rest, ok := bytes.CutPrefix(value, []byte(formatMagic))
	if !ok {
		return ErrForeign
	}
	r := reader{b: rest}
	v := r.uvarint()
	switch {
	case r.err != nil || v == 0:
		return fmt.Errorf("%w: format version unreadable", bide.ErrLogCorrupt)
	case v > formatVersion:
		return fmt.Errorf("%w: it is of version %d, this release reads up to %d", ErrVersion, v, formatVersion)
	}
	return l.loadDictionary()
}

func (l *Log) mustBeEmpty() error {
	it, err := l.db.NewIter(nil)
	if err != nil {
		return corrupt(err)
	}
	if it.First() {
		return errors.Join(ErrForeign, it.Close())
	}
	return corrupt(it.Close())
}

// loadDictionary finds the greatest lane number given out.
func (l *Log) loadDictionary() error {
	it, err := l.db.NewIter(&pebble.IterOptions{LowerBound: []byte{spaceLane}, UpperBound: []byte{spaceLane + 1}})
	if err != nil {
		return corrupt(err)
	}
	for ok := it.First(); ok; ok = it.Next() {
		number, err := laneNumber(it.Value())
		if err != nil {
			return errors.Join(err, it.Close())
		}
		l.mu.last = max(l.mu.last, number)
	}
	return corrupt(it.Close())
}

func laneNumber(value []byte) (uint32, error) {
	if len(value) != 4 {
		return 0, fmt.Errorf("%w: lane number unreadable", bide.ErrLogCorrupt)
	}
	return binary.BigEndian.Uint32(value), nil
}

// lockError tells a lock that another has from a directory that cannot be locked.
func lockError(err error) error {
	if errors.Is(err, syscall.EAGAIN) || strings.Contains(err.Error(), "lock held by current process") {
		return fmt.Errorf("%w: %w", ErrInUse, err)
	}
	return err
}

// storeError sorts what Pebble says of a store that it does not open. It has no sentinels for the last two.
func storeError(err error) error {
	text := err.Error()
	switch {
	case pebble.IsCorruptionError(err):
		return corrupt(err)
	case strings.Contains(text, "unknown format major version"), strings.Contains(text, "cannot be downgraded"):
		return fmt.Errorf("%w: %w", ErrVersion, err)
	case strings.Contains(text, "merger name"):
		return fmt.Errorf("%w: %w", ErrForeign, err)
	default:
		return err
	}
}
