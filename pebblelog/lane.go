package pebblelog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"

	"github.com/bide-mq/bide"
)

// Lane is a [bide.LaneLog].
type Lane struct {
	log    *Log
	name   bide.Lane
	number uint32

	// waiting is how many messages are in the log; it may be ahead while an append is under way.
	waiting atomic.Int64

	// write is held while a batch of the lane is made and applied, not while it is synced: what a batch
	// adds depends on what is there.
	write struct {
		sync.Mutex
		// zero is a block: those below it have no messages.
		zero int64
		// swept is a block: the counts of those below it were deleted, or are few.
		swept int64
	}

	mu struct {
		sync.Mutex
		// damage says why the lane cannot be read until it is reset.
		damage error
		// corrupt says that something read was: a reset then takes the tables' parts out, which no compaction
		// could rewrite.
		corrupt bool
		state   bide.LaneState
		top     int64 // as in mark
		// floor is a position: no message at or below it is in the log, so that no read has to begin there.
		floor bide.Position
	}
}

var _ bide.LaneLog = (*Lane)(nil)

// openLane makes the handle of a lane, and gives it a number if it has none.
func (l *Log) openLane(name bide.Lane) (*Lane, error) {
	n := &Lane{log: l, name: name}
	key := dictionaryKey(nil, name)
	value, found, err := l.get(key)
	if err != nil {
		return nil, err
	}
	if !found {
		if l.mu.last == math.MaxUint32 {
			return nil, errors.New("all lane numbers are given out")
		}
		n.number = l.mu.last + 1
		b := l.db.NewBatch()
		if err := b.Set(key, laneKey(nil, 0, n.number)[1:], nil); err != nil {
			return nil, err
		}
		// Not synced: whatever is stored for the lane stands behind this in the write-ahead log.
		if err := l.apply(b); err != nil {
			return nil, err
		}
		l.mu.last = n.number
		n.mu.floor = bide.NoPosition
		return n, nil
	}
	if n.number, err = laneNumber(value); err != nil {
		return nil, err
	}
	err = n.load()
	if errors.Is(err, bide.ErrLogCorrupt) {
		n.clear(bide.LaneState{})
		n.mu.corrupt = true
		n.mu.damage = fmt.Errorf("lane %s of log %s: %w", name, l.dir, err)
		return n, nil
	}
	return n, err
}

// load reads what memory holds of a lane.
func (n *Lane) load() error {
	value, found, err := n.log.get(laneKey(nil, spaceState, n.number))
	if err != nil {
		return err
	}
	if found {
		if n.mu.state, err = decodeState(value); err != nil {
			return fmt.Errorf("%w: state: %w", bide.ErrLogCorrupt, err)
		}
	}
	value, found, err = n.log.get(laneKey(nil, spaceMark, n.number))
	if err != nil {
		return err
	}
	if found {
		m, err := decodeMark(value)
		if err != nil {
			return fmt.Errorf("%w: mark: %w", bide.ErrLogCorrupt, err)
		}
		n.mu.state.Checkpoint, n.mu.top = m.checkpoint, m.top
	}
	if err := n.loadCounts(); err != nil {
		return err
	}
	return n.loadFloor()
}

// loadCounts adds up what waits, and deletes the runs of zeros that it meets.
func (n *Lane) loadCounts() error {
	it, err := n.countsFrom(0)
	if err != nil {
		return err
	}
	sweep := n.log.db.NewBatch()
	first, total, err := n.addUp(it, sweep)
	if err = errors.Join(err, corrupt(it.Close())); err != nil {
		return err
	}
	n.waiting.Store(total)
	n.write.zero = max(first, 0)
	n.write.swept = n.write.zero
	if sweep.Empty() {
		return sweep.Close()
	}
	return n.log.apply(sweep)
}

// addUp returns the first block with messages, -1 if there is none, and the sum of all counts. Ranges of zeros go into sweep.
func (n *Lane) addUp(it *pebble.Iterator, sweep *pebble.Batch) (first, total int64, err error) {
	first = -1
	from, zeros := int64(0), 0 // the block after the last one with messages, and the zeros met since
	end := func(b int64) error {
		if zeros < sweepBlocks {
			return nil
		}
		return sweep.DeleteRange(countKey(nil, n.number, from), countKey(nil, n.number, b), nil)
	}
	b := int64(-1)
	for ok := it.First(); ok; ok = it.Next() {
		var count int64
		if b, count, err = readCount(it); err != nil {
			return 0, 0, err
		}
		total += count
		if count == 0 {
			zeros++
			continue
		}
		if first < 0 {
			first = b
		}
		if err := end(b); err != nil {
			return 0, 0, err
		}
		from, zeros = b+1, 0
	}
	return first, total, end(b + 1)
}

// loadFloor sets the floor to the confirmed cursor, unless a message is in the log at or below it: a
// crash may have forgotten what was settled, and a lane that is read again puts it back.
func (n *Lane) loadFloor() error {
	n.mu.floor = bide.NoPosition
	cursor := n.mu.state.Confirmed.Cursor
	if !n.mu.state.Known || cursor.DueMs < 0 {
		return nil
	}
	first, ok, err := n.next(bide.NoPosition)
	switch {
	case err != nil:
		return err
	case !ok || first.Compare(cursor) > 0:
		n.mu.floor = cursor
	default:
		n.mu.floor = before(first)
	}
	return nil
}

// before returns the position that comes directly before p, a message's.
func before(p bide.Position) bide.Position {
	return bide.Position{DueMs: p.DueMs, Offset: p.Offset - 1}
}

// State implements [bide.LaneLog].
func (n *Lane) State() bide.LaneState {
	n.mu.Lock()
	defer n.mu.Unlock()
	s := n.mu.state
	s.Confirmed.Rules = slices.Clone(s.Confirmed.Rules)
	return s
}

// Waiting implements [bide.LaneLog].
func (n *Lane) Waiting() int64 { return n.waiting.Load() }

// enter begins a call that needs the lane to be readable.
func (n *Lane) enter() error {
	if err := n.log.enter(); err != nil {
		return err
	}
	n.mu.Lock()
	err := n.mu.damage
	n.mu.Unlock()
	if err != nil {
		n.log.leave()
	}
	return err
}

func (n *Lane) leave() { n.log.leave() }

// fail names the act and the lane.
func (n *Lane) fail(act string, err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, bide.ErrLogCorrupt) {
		n.mu.Lock()
		n.mu.corrupt = true
		n.mu.Unlock()
	}
	return fmt.Errorf("%s lane %s of log %s: %w", act, n.name, n.log.dir, err)
}

func (n *Lane) floor() bide.Position {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.mu.floor
}

// countsFrom returns an iterator over the lane's counts from a block on.
func (n *Lane) countsFrom(b int64) (*pebble.Iterator, error) {
	it, err := n.log.db.NewIter(&pebble.IterOptions{
		LowerBound: countKey(nil, n.number, b),
		UpperBound: laneEnd(nil, spaceCount, n.number),
	})
	return it, corrupt(err)
}

// readCount returns the block and the count at which the iterator stands.
func readCount(it *pebble.Iterator) (b, count int64, err error) {
	key := it.Key()
	if len(key) != countKeyLen {
		return 0, 0, fmt.Errorf("%w: count key of %d bytes", bide.ErrLogCorrupt, len(key))
	}
	b = int64(binary.BigEndian.Uint64(key[laneKeyLen:]))
	value, err := it.ValueAndErr()
	if err != nil {
		return 0, 0, corrupt(err)
	}
	count, err = decodeCount(value)
	if err != nil {
		return 0, 0, fmt.Errorf("%w: count of block %d: %w", bide.ErrLogCorrupt, b, err)
	}
	if count < 0 {
		return 0, 0, fmt.Errorf("%w: block %d has %d messages", bide.ErrLogCorrupt, b, count)
	}
	return b, count, nil
}
