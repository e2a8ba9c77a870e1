package pebblelog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/bide-mq/bide"
)

// maxAppendBytes bounds one append. Pebble's own bound is 4 GiB, and it holds a batch in memory twice.
const maxAppendBytes = 1 << 30

// Append implements [bide.Log]. The messages of a durable append can be scanned a little before they
// are durable. Once the batch is on its way ctx is no longer looked at: it cannot be called back.
func (l *Log) Append(ctx context.Context, entries []bide.Append, d bide.Durability) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := l.enter(); err != nil {
		return err
	}
	defer l.leave()
	start := time.Now()
	a, err := l.gather(entries)
	if err != nil {
		return fmt.Errorf("append to log %s: %w", l.dir, err)
	}
	b, err := a.write(d)
	if err != nil {
		return fmt.Errorf("append %d messages to log %s: %w", len(a.messages), l.dir, err)
	}
	if b == nil {
		return nil
	}
	bytes := b.Len()
	if d == bide.Durable {
		if err := l.fault.guard(b.SyncWait); err != nil {
			return l.fault.raise(fmt.Errorf("sync the write-ahead log: %w", err))
		}
	}
	if err := b.Close(); err != nil {
		return fmt.Errorf("append to log %s: %w", l.dir, err)
	}
	l.metrics.appended(d, len(a.messages), bytes, time.Since(start))
	return nil
}

// addition is what one append adds.
type addition struct {
	log      *Log
	lanes    []laneAddition // in ascending order of number
	messages []added        // in ascending order of key, each position once
	bytes    int
}

// laneAddition is what one append adds to one lane.
type laneAddition struct {
	lane       *Lane
	checkpoint int64
	first      bide.Position // the least of the messages
	lowest     int64         // the least At
	highest    int64         // the greatest offset; -1 without messages
	stored     mark
	counts     counts // of messages that are new
	fresh      int64  // how many are
}

// added is one message to be appended.
type added struct {
	bide.Position
	lane, seq int32 // its lane's index in addition.lanes; its place among what was given
	m         *bide.Message
}

// gather sorts what the entries add by key. Pebble takes sorted keys faster, and of a position given
// twice the message with the greater At is taken, or the later one.
func (l *Log) gather(entries []bide.Append) (*addition, error) {
	a := &addition{log: l}
	total := 0
	for i := range entries {
		n, ok := entries[i].Lane.(*Lane)
		if !ok || n.log != l {
			return nil, errors.New("lane of another log")
		}
		total += len(entries[i].Messages)
		at, found := a.find(n)
		if !found {
			a.lanes = slices.Insert(a.lanes, at, laneAddition{
				lane: n, first: bide.LastPosition(math.MaxInt64), lowest: math.MaxInt64, highest: -1,
			})
		}
		a.lanes[at].checkpoint = max(a.lanes[at].checkpoint, entries[i].Checkpoint)
	}
	a.messages = make([]added, 0, total)
	for i := range entries {
		at, _ := a.find(entries[i].Lane.(*Lane))
		for j := range entries[i].Messages {
			if err := a.add(at, &entries[i].Messages[j]); err != nil {
				return nil, err
			}
		}
	}
	a.sort()
	return a, nil
}

func (a *addition) find(n *Lane) (at int, found bool) {
	return slices.BinarySearchFunc(a.lanes, n.number, func(la laneAddition, number uint32) int {
		return cmp.Compare(la.lane.number, number)
	})
}

func (a *addition) add(lane int, m *bide.Message) error {
	la, p := &a.lanes[lane], m.Position()
	switch {
	case p.DueMs < 0 || p.Offset < 0 || p.Offset == math.MaxInt64:
		return fmt.Errorf("lane %s: position %s is out of range", la.lane.name, p)
	case len(m.ID) > maxIDLen:
		return fmt.Errorf("lane %s: id of message %s has %d bytes", la.lane.name, p, len(m.ID))
	}
	if p.Compare(la.first) < 0 {
		la.first = p
	}
	la.lowest, la.highest = min(la.lowest, heldAt(m)), max(la.highest, p.Offset)
	a.bytes += messageKeyLen + encodedLen(m) + 16
	if a.bytes > maxAppendBytes {
		return fmt.Errorf("more than %d bytes at once", maxAppendBytes)
	}
	a.messages = append(a.messages, added{Position: p, lane: int32(lane), seq: int32(len(a.messages)), m: m})
	return nil
}

func (a *addition) sort() {
	slices.SortFunc(a.messages, func(x, y added) int {
		if c := cmp.Compare(x.lane, y.lane); c != 0 {
			return c
		}
		if c := x.Position.Compare(y.Position); c != 0 {
			return c
		}
		if c := cmp.Compare(heldAt(x.m), heldAt(y.m)); c != 0 {
			return c
		}
		return cmp.Compare(x.seq, y.seq)
	})
	kept := a.messages[:0]
	for i, x := range a.messages {
		if i+1 < len(a.messages) && a.messages[i+1].lane == x.lane && a.messages[i+1].Position == x.Position {
			continue
		}
		kept = append(kept, x)
	}
	a.messages = kept
}

// write makes the batch and applies it, not synced yet. It is nil where there is nothing to write.
//
// What a batch adds to the counts depends on which of its messages are in the log already, so from
// looking until it is applied no other batch of these lanes may be. Locks are taken in ascending
// order of lanes.
func (a *addition) write(d bide.Durability) (*pebble.Batch, error) {
	for i := range a.lanes {
		a.lanes[i].lane.write.Lock()
		defer a.lanes[i].lane.write.Unlock()
	}
	for i := range a.lanes {
		if err := a.lanes[i].begin(); err != nil {
			return nil, err
		}
	}
	b := a.log.db.NewBatchWithSize(a.bytes + 64)
	err := a.fill(b)
	if err != nil || b.Empty() {
		return nil, errors.Join(err, b.Close())
	}
	for i := range a.lanes {
		a.lanes[i].announce()
	}
	if err := a.apply(b, d); err != nil {
		return nil, a.log.fault.raise(fmt.Errorf("write: %w", err))
	}
	for i := range a.lanes {
		a.lanes[i].finish()
	}
	return b, nil
}

func (a *addition) apply(b *pebble.Batch, d bide.Durability) error {
	return a.log.fault.guard(func() error {
		if d == bide.Durable {
			return a.log.db.ApplyNoSyncWait(b, pebble.Sync)
		}
		return a.log.db.Apply(b, pebble.NoSync)
	})
}

func (a *addition) fill(b *pebble.Batch) error {
	for i := range a.messages {
		x := &a.messages[i]
		la := &a.lanes[x.lane]
		old, err := la.look(b, x)
		at := heldAt(x.m)
		switch {
		case err != nil:
			return la.lane.fail("look up a message of", err)
		case old > at:
			// A later copy is there, and may not be synced: a note in the write-ahead log has it synced.
			if err := b.LogData([]byte{messageVersion}, nil); err != nil {
				return err
			}
			continue
		case old < 0:
			la.fresh++
		default:
			la.counts.add(old, -1)
		}
		la.counts.add(at, 1)
		op := b.SetDeferred(messageKeyLen, encodedLen(x.m))
		messageKey(op.Key[:0], la.lane.number, x.Position)
		appendMessage(op.Value[:0], x.m)
		if err := op.Finish(); err != nil {
			return err
		}
		if x.m.ID != "" {
			if err := b.Set(idKey(nil, la.lane.number, x.m.ID, x.Position), nil, nil); err != nil {
				return err
			}
		}
	}
	for i := range a.lanes {
		if err := a.lanes[i].fill(b); err != nil {
			return err
		}
	}
	return nil
}

func (la *laneAddition) begin() error {
	n := la.lane
	n.mu.Lock()
	defer n.mu.Unlock()
	la.stored = mark{checkpoint: n.mu.state.Checkpoint, top: n.mu.top}
	return n.mu.damage
}

// look returns the At of a message in the log, or -1 where it is not there. At and above the top none
// is. Where it is there under another id, that id's index entry is removed.
func (la *laneAddition) look(b *pebble.Batch, x *added) (at int64, err error) {
	n := la.lane
	if x.Offset >= la.stored.top {
		return -1, nil
	}
	var key [messageKeyLen]byte
	stored, closer, err := n.log.db.Get(messageKey(key[:0], n.number, x.Position))
	if errors.Is(err, pebble.ErrNotFound) {
		return -1, nil
	}
	if err != nil {
		return 0, corrupt(err)
	}
	var old bide.Message
	_, err = decodeHead(&reader{b: stored}, &old, x.Position)
	switch {
	case err != nil:
		err = unreadable(x.Position, err)
	case old.ID != "" && old.ID != x.m.ID && old.At <= heldAt(x.m):
		err = b.Delete(idKey(nil, n.number, old.ID, x.Position), nil)
	}
	return old.At, errors.Join(err, closer.Close())
}

// fill adds counts and mark to the batch.
func (la *laneAddition) fill(b *pebble.Batch) error {
	n := la.lane
	if err := la.counts.write(b, n.number, 1); err != nil {
		return err
	}
	m := la.mark()
	if m == la.stored {
		return nil
	}
	return b.Set(laneKey(nil, spaceMark, n.number), appendMark(nil, m), nil)
}

// mark returns what is to be stored.
func (la *laneAddition) mark() mark {
	return mark{checkpoint: max(la.stored.checkpoint, la.checkpoint), top: max(la.stored.top, la.highest+1)}
}

// announce prepares the lane for messages that scans may see at any moment.
func (la *laneAddition) announce() {
	n := la.lane
	if la.highest < 0 {
		return
	}
	n.waiting.Add(la.fresh)
	n.write.zero = min(n.write.zero, block(la.lowest))
	n.write.swept = min(n.write.swept, n.write.zero)
	n.mu.Lock()
	defer n.mu.Unlock()
	if la.first.AtOrBelow(n.mu.floor) {
		n.mu.floor = before(la.first)
	}
}

// finish lets the lane know what is stored.
func (la *laneAddition) finish() {
	n := la.lane
	m := la.mark()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mu.state.Checkpoint, n.mu.top = m.checkpoint, m.top
}
