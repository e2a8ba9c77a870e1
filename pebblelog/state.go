package pebblelog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/bide-mq/bide"
)

// stateVersion is the first byte of a lane's state, which [Lane.Settle] and [Lane.Reset] write:
//
//	┌───┬──────┬───────┬──────┬───────────────┬─────┬─────────────┬───────┐
//	│ 1 │ from │ known │ next │ cursor:       │ low │ topic id 16 │ lanes │
//	│   │      │       │      │  due │ offset │     │             │       │
//	├───┴──────┴───────┴┬─────┴───────┬──────┬┴─────┴┬── rules times ─────────┐
//	│ length │ instance │ incarnation │ plan │ rules │ from │ delay │ max-delay │
//	└────────┴──────────┴─────────────┴──────┴───────┴────────────────────────┘
//
// known is a byte, 0 or 1; incarnation takes 8 bytes; lengths and counts are unsigned varints, all else are
// signed ones. Durations are in nanoseconds.
const stateVersion = 1

// minSpanLen is what rules of one span take at least: it bounds what a wrong count can ask for.
const minSpanLen = 3

// appendState appends the stored form of a lane's state but its checkpoint, which is in the mark.
func appendState(dst []byte, s *bide.LaneState) []byte {
	c := &s.Confirmed
	dst = append(dst, stateVersion)
	dst = binary.AppendVarint(dst, s.From)
	dst = append(dst, known(s.Known))
	dst = binary.AppendVarint(dst, c.Next)
	dst = binary.AppendVarint(dst, c.Cursor.DueMs)
	dst = binary.AppendVarint(dst, c.Cursor.Offset)
	dst = binary.AppendVarint(dst, c.Low)
	dst = append(dst, c.TopicID[:]...)
	dst = binary.AppendVarint(dst, int64(c.Lanes))
	dst = binary.AppendUvarint(dst, uint64(len(c.Writer.Instance)))
	dst = append(dst, c.Writer.Instance...)
	dst = binary.BigEndian.AppendUint64(dst, c.Writer.Incarnation)
	dst = binary.AppendUvarint(dst, c.Writer.Plan)
	dst = binary.AppendUvarint(dst, uint64(len(c.Rules)))
	for _, span := range c.Rules {
		dst = binary.AppendVarint(dst, span.From)
		dst = binary.AppendVarint(dst, int64(span.Rules.Delay))
		dst = binary.AppendVarint(dst, int64(span.Rules.MaxDelay))
	}
	return dst
}

func known(k bool) byte {
	if k {
		return 1
	}
	return 0
}

// decodeState is the reverse of appendState. What it returns shares no memory with b.
func decodeState(b []byte) (bide.LaneState, error) {
	r := reader{b: b}
	if v := r.byte(); r.err == nil && v != stateVersion {
		return bide.LaneState{}, fmt.Errorf("state version %d, this release reads %d", v, stateVersion)
	}
	var s bide.LaneState
	c := &s.Confirmed
	s.From = r.varint()
	k := r.byte()
	s.Known = k == 1
	c.Next = r.varint()
	c.Cursor.DueMs = r.varint()
	c.Cursor.Offset = r.varint()
	c.Low = r.varint()
	copy(c.TopicID[:], r.bytes(uint64(len(c.TopicID))))
	lanes := r.varint()
	c.Lanes = int32(lanes)
	c.Writer.Instance = string(r.bytes(r.uvarint()))
	if inc := r.bytes(8); inc != nil {
		c.Writer.Incarnation = binary.BigEndian.Uint64(inc)
	}
	c.Writer.Plan = r.uvarint()
	n := r.uvarint()
	switch {
	case r.err != nil:
	case k > 1, int64(c.Lanes) != lanes:
		r.fail(errors.New("value out of range"))
	case n > uint64(len(r.b))/minSpanLen:
		r.fail(errors.New("more rules than bytes"))
	case n > 0:
		c.Rules = make([]bide.RuleSpan, n)
		for i := range c.Rules {
			c.Rules[i].From = r.varint()
			c.Rules[i].Rules.Delay = time.Duration(r.varint())
			c.Rules[i].Rules.MaxDelay = time.Duration(r.varint())
		}
	}
	if err := r.end(); err != nil {
		return bide.LaneState{}, err
	}
	return s, nil
}

// markVersion is the first byte of a lane's mark, which every append writes: version, checkpoint
// and top, both signed varints.
const markVersion = 1

// mark is what a lane's appends have come to.
type mark struct {
	// checkpoint is [bide.LaneState.Checkpoint].
	checkpoint int64
	// top is above the offset of every message that is in the log, so that a message at or above it
	// is new and need not be looked up.
	top int64
}

// appendMark appends the stored form of m.
func appendMark(dst []byte, m mark) []byte {
	dst = append(dst, markVersion)
	dst = binary.AppendVarint(dst, m.checkpoint)
	return binary.AppendVarint(dst, m.top)
}

// decodeMark is the reverse of appendMark.
func decodeMark(b []byte) (mark, error) {
	r := reader{b: b}
	if v := r.byte(); r.err == nil && v != markVersion {
		return mark{}, fmt.Errorf("mark version %d, this release reads %d", v, markVersion)
	}
	m := mark{checkpoint: r.varint(), top: r.varint()}
	if err := r.end(); err != nil {
		return mark{}, err
	}
	return m, nil
}
