package pebblelog

import (
	"context"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"go.uber.org/zap"
)

// scheduler lets Pebble run as many compactions as it allows itself. It does what Pebble's own one
// does but for looking ten times a second whether that number has changed: it may grow with a flush, which Pebble
// tells, and where a compaction waits, another one runs and will end. An idle log sleeps.
type scheduler struct {
	db   pebble.DBForCompaction
	poke chan struct{} // of capacity 1: a compaction more may be allowed
	stop chan struct{}
	done chan struct{}
	mu   struct {
		sync.Mutex
		running int
	}
}

var (
	_ pebble.CompactionScheduler   = (*scheduler)(nil)
	_ pebble.CompactionGrantHandle = (*scheduler)(nil)
)

func newScheduler() *scheduler {
	return &scheduler{poke: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{})}
}

// Register implements [pebble.CompactionScheduler].
func (s *scheduler) Register(_ int, db pebble.DBForCompaction) {
	s.db = db
	go s.grant()
}

// Unregister implements [pebble.CompactionScheduler].
func (s *scheduler) Unregister() {
	close(s.stop)
	<-s.done
}

// TrySchedule implements [pebble.CompactionScheduler].
func (s *scheduler) TrySchedule() (bool, pebble.CompactionGrantHandle) { return s.take(), s }

// UpdateGetAllowedWithoutPermission implements [pebble.CompactionScheduler].
func (s *scheduler) UpdateGetAllowedWithoutPermission() {
	select {
	case s.poke <- struct{}{}:
	default:
	}
}

// grant starts waiting compactions when there may be room. It has a goroutine of its own because Pebble pokes
// with its locks held.
func (s *scheduler) grant() {
	defer close(s.done)
	for {
		select {
		case <-s.stop:
			return
		case <-s.poke:
		}
		for {
			if waiting, _ := s.db.GetWaitingCompaction(); !waiting || !s.take() {
				break
			}
			if !s.db.Schedule(s) {
				s.release()
				break
			}
		}
	}
}

func (s *scheduler) take() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.running >= s.db.GetAllowedWithoutPermission() {
		return false
	}
	s.mu.running++
	return true
}

func (s *scheduler) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.running--
}

// Started implements [pebble.CompactionGrantHandle].
func (s *scheduler) Started() {}

// MeasureCPU implements [pebble.CompactionGrantHandle].
func (s *scheduler) MeasureCPU(pebble.CompactionGoroutineKind) {}

// CumulativeStats implements [pebble.CompactionGrantHandle].
func (s *scheduler) CumulativeStats(pebble.CompactionGrantHandleStats) {}

// Done implements [pebble.CompactionGrantHandle].
func (s *scheduler) Done() {
	s.release()
	s.UpdateGetAllowedWithoutPermission()
}

// reclaimer gives disk space back when things have become quiet.
//
// While messages come and go compactions do that by themselves. But what was deleted last stays: Pebble compacts a level
// when it is large, and range deletes that cover whole tables drop these, but a table that was flushed has keys
// of all kinds, and no range covers it. So when nothing was removed for a while, and much of
// the store is deleted data, the messages are compacted.
type reclaimer struct {
	log     *Log
	removed chan struct{} // of capacity 1: something was
	quiet   time.Duration
	least   uint64 // how many bytes of deleted data are worth it
	cancel  context.CancelFunc
	done    chan struct{}
}

// reclaimTries is how often a quiet store is looked at, each time after twice as long: Pebble learns of what is deleted in
// its own time, after a flush.
const reclaimTries = 8

// defaultReclaimBytes is about what a store takes that has nothing in it, in write-ahead logs to be used
// again.
const defaultReclaimBytes = 32 << 20

func startReclaimer(l *Log, o Options) *reclaimer {
	ctx, cancel := context.WithCancel(context.Background())
	// Range deletes are flushed after reclaimAfter, and only then known as garbage.
	r := &reclaimer{
		log: l, removed: make(chan struct{}, 1), quiet: o.reclaimAfter * 3 / 2, least: o.reclaimBytes,
		cancel: cancel, done: make(chan struct{}),
	}
	go r.run(ctx)
	return r
}

// nudge says that something was removed.
func (r *reclaimer) nudge() {
	select {
	case r.removed <- struct{}{}:
	default:
	}
}

func (r *reclaimer) stop() {
	r.cancel()
	<-r.done
}

func (r *reclaimer) run(ctx context.Context) {
	defer close(r.done)
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.removed:
		}
		wait := r.quiet
		for range reclaimTries {
			select {
			case <-ctx.Done():
				return
			case <-r.log.fault.done:
				return
			case <-time.After(wait):
			}
			if len(r.removed) > 0 {
				break
			}
			err := r.log.fault.guard(func() error { return r.reclaim(ctx) })
			if err != nil && ctx.Err() == nil {
				r.log.logger.Warn("space of the log not reclaimed", zap.String("dir", r.log.dir), zap.Error(err))
			}
			wait *= 2
		}
	}
}

func (r *reclaimer) reclaim(ctx context.Context) error {
	m := r.log.db.Metrics()
	garbage, size := m.Table.Garbage.RangeDeletionsBytesEstimate, uint64(m.Total().TablesSize)
	if r.log.messages() == 0 {
		garbage = size // Pebble's estimate is low where tables are covered in part
	}
	if garbage < r.least || garbage < size/4 {
		return nil
	}
	r.log.logger.Debug("reclaim space of the log", zap.Uint64("deleted_bytes", garbage), zap.Uint64("size_bytes", size))
	return r.log.db.Compact(ctx, []byte{spaceMessage}, []byte{spaceCount + 1}, false)
}
