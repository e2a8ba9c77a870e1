package pebblelog

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/cockroachdb/pebble/v2"

	"github.com/bide-mq/bide"
)

// messages returns an iterator over keys after < position ≤ upTo. It never begins below the floor, where
// only tombstones are.
func (n *Lane) messages(after, upTo bide.Position) (*pebble.Iterator, error) {
	if floor := n.floor(); after.Compare(floor) < 0 {
		after = floor
	}
	buf := make([]byte, 0, 2*messageKeyLen)
	buf = keyAbove(buf, n.number, after)
	buf = keyAbove(buf, n.number, upTo)
	it, err := n.log.db.NewIter(&pebble.IterOptions{LowerBound: buf[:messageKeyLen], UpperBound: buf[messageKeyLen:]})
	return it, corrupt(err)
}

// Scan implements [bide.LaneLog]. The messages of one scan share a few large pieces of memory: one
// that is kept keeps its neighbours.
func (n *Lane) Scan(after, upTo bide.Position, budget bide.Budget) (msgs []bide.Message, more bool, err error) {
	if err := n.enter(); err != nil {
		return nil, false, err
	}
	defer n.leave()
	if upTo.DueMs < 0 || after.Compare(upTo) >= 0 {
		return nil, false, nil
	}
	it, err := n.messages(after, upTo)
	if err != nil {
		return nil, false, n.fail("scan", err)
	}
	msgs, more, err = scan(it, budget)
	if err = errors.Join(err, corrupt(it.Close())); err != nil {
		return nil, false, n.fail("scan", err)
	}
	return msgs, more, nil
}

func scan(it *pebble.Iterator, budget bide.Budget) (msgs []bide.Message, more bool, err error) {
	a := arena{limit: budget.Bytes}
	bytes := 0
	for ok := it.First(); ok; ok = it.Next() {
		if len(msgs) > 0 && len(msgs) >= budget.Messages {
			return msgs, true, nil
		}
		if len(msgs) == cap(msgs) {
			msgs = slices.Grow(msgs, min(max(budget.Messages, 1), max(2*len(msgs), 64))-len(msgs))
		}
		msgs = msgs[:len(msgs)+1]
		m := &msgs[len(msgs)-1]
		ok, err := a.message(m, it, budget.Bytes-bytes, len(msgs) == 1)
		if err != nil {
			return nil, false, err
		}
		if !ok {
			return msgs[:len(msgs)-1], true, nil
		}
		bytes += m.Bytes()
	}
	return msgs, false, nil
}

// Next implements [bide.LaneLog].
func (n *Lane) Next(after bide.Position) (p bide.Position, ok bool, err error) {
	if err := n.enter(); err != nil {
		return bide.Position{}, false, err
	}
	defer n.leave()
	p, ok, err = n.next(after)
	return p, ok, n.fail("look for the next message of", err)
}

func (n *Lane) next(after bide.Position) (p bide.Position, ok bool, err error) {
	it, err := n.messages(after, bide.LastPosition(math.MaxInt64))
	if err != nil {
		return bide.Position{}, false, err
	}
	if ok = it.First(); ok {
		p, err = messagePosition(it.Key())
	}
	if err = errors.Join(err, corrupt(it.Close())); err != nil {
		return bide.Position{}, false, err
	}
	return p, ok, nil
}

// Where implements [bide.LaneLog].
func (n *Lane) Where(p bide.Position) (at int64, ok bool, err error) {
	if err := n.enter(); err != nil {
		return 0, false, err
	}
	defer n.leave()
	stored, closer, err := n.log.db.Get(messageKey(nil, n.number, p))
	if errors.Is(err, pebble.ErrNotFound) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, n.fail("look into", corrupt(err))
	}
	var m bide.Message
	if _, err = decodeHead(&reader{b: stored}, &m, p); err != nil {
		err = unreadable(p, err)
	}
	return m.At, err == nil, n.fail("look into", errors.Join(err, closer.Close()))
}

// nextsBeforeSeek is how many messages of one due are passed one by one before the rest is jumped over: a
// seek costs about that many steps.
const nextsBeforeSeek = 8

// Dues implements [bide.LaneLog]. visit may use the lane; while it runs, the store keeps what it deletes.
func (n *Lane) Dues(fromMs, toMs int64, visit func(dueMs int64) bool) error {
	if err := n.enter(); err != nil {
		return err
	}
	defer n.leave()
	fromMs = max(fromMs, 0)
	if fromMs > toMs {
		return nil
	}
	it, err := n.messages(bide.Position{DueMs: fromMs, Offset: -1}, bide.LastPosition(toMs))
	if err != nil {
		return n.fail("list dues of", err)
	}
	err = n.dues(it, visit)
	return n.fail("list dues of", errors.Join(err, corrupt(it.Close())))
}

func (n *Lane) dues(it *pebble.Iterator, visit func(dueMs int64) bool) error {
	var key [messageKeyLen]byte
	last, passed := int64(-1), 0
	ok := it.First()
	for ok {
		p, err := messagePosition(it.Key())
		if err != nil {
			return err
		}
		if p.DueMs != last {
			if !visit(p.DueMs) {
				return nil
			}
			last, passed = p.DueMs, 0
		}
		switch passed++; {
		case passed <= nextsBeforeSeek:
			ok = it.Next()
		case last == math.MaxInt64:
			return nil
		default:
			ok = it.SeekGE(keyAbove(key[:0], n.number, bide.LastPosition(last)))
		}
	}
	return nil
}

// lowBlocks bounds how many blocks without messages one call of Low passes: 16 million offsets.
const lowBlocks = 4096

// Low implements [bide.LaneLog]. Where millions of offsets have to be passed at once it stops on the
// way, and the next call goes on from there. The block of the answer may begin below a low found before.
func (n *Lane) Low(next int64, leaving []bide.Message) (int64, error) {
	if err := n.enter(); err != nil {
		return 0, err
	}
	defer n.leave()
	var gone counts
	for i := range leaving {
		gone.add(heldAt(&leaving[i]), 1)
	}
	n.write.Lock()
	defer n.write.Unlock()
	b, err := n.lowBlock(block(next), &gone)
	if err != nil {
		return 0, n.fail("find the low of", err)
	}
	return min(next, blockStart(b)), nil
}

// lowBlock returns the first block up to last that has messages beside those gone, last+1 where there is none; or
// one below it.
func (n *Lane) lowBlock(last int64, gone *counts) (int64, error) {
	if n.write.zero > last {
		return last + 1, nil
	}
	it, err := n.countsFrom(n.write.zero)
	if err != nil {
		return 0, err
	}
	end := min(last+1, n.write.zero+lowBlocks)
	b, err := firstLeft(it, n, end, gone)
	return b, errors.Join(err, corrupt(it.Close()))
}

func firstLeft(it *pebble.Iterator, n *Lane, end int64, gone *counts) (int64, error) {
	limit := countKey(nil, n.number, end)
	left := false // whether a block with messages, all of them leaving, was met
	for at := it.SeekGEWithLimit(countKey(nil, n.number, n.write.zero), limit); at == pebble.IterValid; at = it.NextWithLimit(limit) {
		b, count, err := readCount(it)
		if err != nil {
			return 0, err
		}
		if b >= end {
			break
		}
		if count == 0 {
			continue
		}
		if !left {
			n.write.zero, left = b, true
		}
		if g := gone.of(b); g < count {
			return b, nil
		} else if g > count {
			return 0, fmt.Errorf("%d messages leave block %d, which has %d", g, b, count)
		}
	}
	if err := it.Error(); err != nil {
		return 0, corrupt(err)
	}
	if !left {
		n.write.zero = end
	}
	return end, nil
}

// Positions returns where the messages with an id are, in ascending order. Cost: one seek, and the positions returned.
func (n *Lane) Positions(id string) ([]bide.Position, error) {
	if err := n.enter(); err != nil {
		return nil, err
	}
	defer n.leave()
	if id == "" || len(id) > maxIDLen {
		return nil, nil
	}
	it, err := n.log.db.NewIter(&pebble.IterOptions{
		LowerBound: idKey(nil, n.number, id, bide.Position{}),
		UpperBound: idKey(nil, n.number, id, bide.Position{DueMs: -1, Offset: -1}),
	})
	if err != nil {
		return nil, n.fail("look up an id of", corrupt(err))
	}
	var found []bide.Position
	for ok := it.First(); ok; ok = it.Next() {
		found = append(found, position(it.Key()))
	}
	return found, n.fail("look up an id of", corrupt(it.Close()))
}

// messagePosition reads a message key.
func messagePosition(key []byte) (bide.Position, error) {
	if len(key) != messageKeyLen {
		return bide.Position{}, fmt.Errorf("%w: message key of %d bytes", bide.ErrLogCorrupt, len(key))
	}
	return position(key), nil
}
