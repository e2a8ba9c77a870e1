package pebblelog

import (
	"encoding/binary"
	"fmt"
	"io"

	"github.com/cockroachdb/pebble/v2"
)

// blockBits says how many offsets share a count: 4096. Fewer would make the low finer, and the
// counts more; a block is about what one poll reads, so that an append adds to one or two.
const blockBits = 12

// block returns the block that an offset belongs to.
func block(offset int64) int64 { return offset >> blockBits }

// blockStart returns the first offset of a block.
func blockStart(b int64) int64 { return b << blockBits }

// counts gathers what a batch adds to the counts of a lane's blocks.
type counts struct {
	byBlock map[int64]int64
	// last and n hold the block added to last: offsets come in runs.
	last, n int64
}

func (c *counts) add(offset, n int64) {
	b := block(offset)
	if b != c.last {
		c.spill()
		c.last = b
	}
	c.n += n
}

func (c *counts) spill() {
	if c.n == 0 {
		return
	}
	if c.byBlock == nil {
		c.byBlock = make(map[int64]int64)
	}
	c.byBlock[c.last] += c.n
	c.n = 0
}

// of returns what was added to a block.
func (c *counts) of(b int64) int64 {
	c.spill()
	return c.byBlock[b]
}

// write adds a merge a block to the batch, sign times what was gathered.
func (c *counts) write(b *pebble.Batch, lane uint32, sign int64) error {
	c.spill()
	var key [countKeyLen]byte
	var value [binary.MaxVarintLen64]byte
	for blk, n := range c.byBlock {
		if n == 0 {
			continue
		}
		if err := b.Merge(countKey(key[:0], lane, blk), appendCount(value[:0], sign*n), nil); err != nil {
			return err
		}
	}
	return nil
}

// appendCount appends the stored form of a count: a signed varint.
func appendCount(dst []byte, n int64) []byte { return binary.AppendVarint(dst, n) }

// decodeCount is the reverse of appendCount.
func decodeCount(b []byte) (int64, error) {
	r := reader{b: b}
	n := r.varint()
	return n, r.end()
}

// mergerName is kept by Pebble in the store: a store can only be opened with the merger of that name.
const mergerName = "bide.count.1"

// merger adds up counts.
func merger() *pebble.Merger {
	return &pebble.Merger{
		Name: mergerName,
		Merge: func(_, value []byte) (pebble.ValueMerger, error) {
			s := new(sum)
			return s, s.add(value)
		},
	}
}

// sum is a count being added up. Addition has no order, so newer and older are the same.
//
// It is not a [pebble.DeletableValueMerger], which would let what adds up to nothing vanish: up to
// v2.1.7 at least, compactions bring such keys back or panic (cockroachdb/pebble#6168). Zeros stay until
// [Lane.Settle] sweeps them away below the first block with messages, or the lane is opened.
type sum struct{ n int64 }

func (s *sum) add(value []byte) error {
	n, err := decodeCount(value)
	if err != nil {
		return fmt.Errorf("count: %w", err)
	}
	s.n += n
	return nil
}

// MergeNewer implements [pebble.ValueMerger].
func (s *sum) MergeNewer(value []byte) error { return s.add(value) }

// MergeOlder implements [pebble.ValueMerger].
func (s *sum) MergeOlder(value []byte) error { return s.add(value) }

// Finish implements [pebble.ValueMerger].
func (s *sum) Finish(bool) ([]byte, io.Closer, error) { return appendCount(nil, s.n), nil, nil }
