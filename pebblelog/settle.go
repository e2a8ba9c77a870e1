package pebblelog

import (
	"context"
	"errors"
	"slices"

	"github.com/cockroachdb/pebble/v2"
	"go.uber.org/zap"

	"github.com/bide-mq/bide"
)

const (
	// fewMessages is how many messages are deleted one by one rather than as a range: readers have to sort the ranges
	// that are in memory, which under small settlements would be thousands.
	fewMessages = 8
	// sweepBlocks is how many blocks of counts are deleted at once.
	sweepBlocks = 64
	// forgetMessages is how many messages one batch of [Lane.Forget] drops.
	forgetMessages = 50_000
)

// Settle implements [bide.LaneLog]. Members above c.Cursor leave too, each with a delete of its own.
func (n *Lane) Settle(c bide.Commit, members []bide.Message) error {
	if err := n.enter(); err != nil {
		return err
	}
	defer n.leave()
	n.write.Lock()
	defer n.write.Unlock()
	s := n.State()
	c.Rules = slices.Clone(c.Rules)
	s.From, s.Confirmed, s.Known = c.Next, c, true
	r := n.newRemoval()
	for i := range members {
		if err := r.drop(&members[i], c.Cursor); err != nil {
			return n.fail("settle", err)
		}
	}
	if err := r.b.Set(laneKey(nil, spaceState, n.number), appendState(nil, &s), nil); err != nil {
		return n.fail("settle", err)
	}
	return n.fail("settle", r.apply(c.Cursor, &s))
}

// Forget implements [bide.LaneLog]. It works in batches: a crash on the way leaves the rest to the next call.
func (n *Lane) Forget(cursor bide.Position) error {
	if err := n.enter(); err != nil {
		return err
	}
	defer n.leave()
	n.write.Lock()
	defer n.write.Unlock()
	if cursor.DueMs < 0 {
		return nil
	}
	for more := true; more; {
		var err error
		if more, err = n.forget(cursor); err != nil {
			return n.fail("forget settled messages of", err)
		}
	}
	return nil
}

// forget drops what lies at or below cursor, or the first part of it.
func (n *Lane) forget(cursor bide.Position) (more bool, err error) {
	it, err := n.messages(bide.NoPosition, cursor)
	if err != nil {
		return false, err
	}
	r := n.newRemoval()
	for ok := it.First(); ok; ok = it.Next() {
		m, err := readHead(it)
		if err == nil {
			err = r.drop(&m, cursor)
		}
		if err != nil {
			return false, errors.Join(err, it.Close())
		}
		if r.below == forgetMessages {
			more, cursor = true, m.Position()
			break
		}
	}
	if err := it.Close(); err != nil {
		return false, corrupt(err)
	}
	return more, r.apply(cursor, nil)
}

// readHead returns what decodeHead tells of the message at which the iterator stands; its ID is good
// until the iterator moves.
func readHead(it *pebble.Iterator) (m bide.Message, err error) {
	p, err := messagePosition(it.Key())
	if err != nil {
		return m, err
	}
	stored, err := it.ValueAndErr()
	if err != nil {
		return m, corrupt(err)
	}
	if _, err := decodeHead(&reader{b: stored}, &m, p); err != nil {
		return m, unreadable(p, err)
	}
	return m, nil
}

// removal is a batch of messages that leave.
type removal struct {
	lane   *Lane
	b      *pebble.Batch
	counts counts
	// below and above count the messages on both sides of the cursor.
	below, above int
	few          [fewMessages]bide.Position
}

func (n *Lane) newRemoval() *removal { return &removal{lane: n, b: n.log.db.NewBatch()} }

// drop adds one message.
func (r *removal) drop(m *bide.Message, cursor bide.Position) error {
	p := m.Position()
	r.counts.add(heldAt(m), 1)
	if m.ID != "" {
		if err := r.b.Delete(idKey(nil, r.lane.number, m.ID, p), nil); err != nil {
			return err
		}
	}
	if !p.AtOrBelow(cursor) {
		r.above++
		return r.b.Delete(messageKey(nil, r.lane.number, p), nil)
	}
	if r.below < len(r.few) {
		r.few[r.below] = p
	}
	r.below++
	return nil
}

// apply deletes everything at or below cursor together with what was dropped, and makes s, unless it is
// nil, the lane's state. The caller holds the lane's write lock.
func (r *removal) apply(cursor bide.Position, s *bide.LaneState) error {
	n := r.lane
	floor := n.floor()
	if err := r.deleteBelow(floor, cursor); err != nil {
		return err
	}
	if err := r.counts.write(r.b, n.number, -1); err != nil {
		return err
	}
	sweep := n.write.zero-n.write.swept >= sweepBlocks
	if sweep {
		from, to := countKey(nil, n.number, n.write.swept), countKey(nil, n.number, n.write.zero)
		if err := r.b.DeleteRange(from, to, nil); err != nil {
			return err
		}
	}
	if err := n.log.apply(r.b); err != nil {
		return err
	}
	if sweep {
		n.write.swept = n.write.zero
	}
	n.waiting.Add(-int64(r.below + r.above))
	n.log.metrics.removedMessages.Add(float64(r.below + r.above))
	if r.below+r.above > 0 {
		n.log.reclaimer.nudge()
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if s != nil {
		checkpoint := n.mu.state.Checkpoint
		n.mu.state = *s
		n.mu.state.Checkpoint = checkpoint
	}
	if floor.Compare(cursor) < 0 {
		n.mu.floor = cursor
	}
	return nil
}

// deleteBelow deletes the messages at or below cursor. A range begins at the floor, where the one
// before ended.
func (r *removal) deleteBelow(floor, cursor bide.Position) error {
	switch {
	case r.below == 0, cursor.AtOrBelow(floor):
		return nil
	case r.below <= len(r.few):
		for _, p := range r.few[:r.below] {
			if err := r.b.Delete(messageKey(nil, r.lane.number, p), nil); err != nil {
				return err
			}
		}
		return nil
	default:
		from := keyAbove(nil, r.lane.number, floor)
		return r.b.DeleteRange(from, keyAbove(nil, r.lane.number, cursor), nil)
	}
}

// laneSpaces are those that hold a lane's messages and what belongs to them.
var laneSpaces = [...]byte{spaceMessage, spaceID, spaceCount}

// Reset implements [bide.LaneLog]. It is synced: what it drops does not come back.
func (n *Lane) Reset(c bide.Commit) error {
	if err := n.log.enter(); err != nil {
		return err
	}
	defer n.log.leave()
	n.write.Lock()
	defer n.write.Unlock()
	s := bide.LaneState{From: c.Low, Checkpoint: c.Low, Confirmed: bide.Commit{TopicID: c.TopicID}}
	b := n.log.db.NewBatch()
	for _, space := range laneSpaces {
		from, to := laneKey(nil, space, n.number), laneEnd(nil, space, n.number)
		if err := b.DeleteRange(from, to, nil); err != nil {
			return n.fail("reset", err)
		}
	}
	if err := b.Set(laneKey(nil, spaceState, n.number), appendState(nil, &s), nil); err != nil {
		return n.fail("reset", err)
	}
	if err := b.Set(laneKey(nil, spaceMark, n.number), appendMark(nil, mark{checkpoint: c.Low}), nil); err != nil {
		return n.fail("reset", err)
	}
	if err := n.log.commit(b, pebble.Sync); err != nil {
		return n.fail("reset", err)
	}
	n.excise()
	n.clear(s)
	n.log.reclaimer.nudge()
	return nil
}

// excise cuts what was deleted out of the tables, if some of it is corrupt: a compaction that met it would fail, now and
// for ever, and hold up all others.
func (n *Lane) excise() {
	n.mu.Lock()
	corrupt := n.mu.corrupt
	n.mu.Unlock()
	if !corrupt {
		return
	}
	for _, space := range laneSpaces {
		span := pebble.KeyRange{Start: laneKey(nil, space, n.number), End: laneEnd(nil, space, n.number)}
		err := n.log.fault.guard(func() error { return n.log.db.Excise(context.Background(), span) })
		if err != nil {
			n.log.logger.Warn("corrupt data of a lane stays in the log's tables",
				zap.String("dir", n.log.dir), zap.Stringer("lane", n.name), zap.Error(err))
		}
	}
}

// clear makes the handle that of a lane without messages.
func (n *Lane) clear(s bide.LaneState) {
	n.waiting.Store(0)
	n.write.zero, n.write.swept = 0, 0
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mu.damage, n.mu.corrupt = nil, false
	n.mu.state, n.mu.top, n.mu.floor = s, 0, bide.NoPosition
}
