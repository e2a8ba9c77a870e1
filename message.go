package bide

import (
	"cmp"
	"fmt"
	"math"
)

// Lane names one partition of an ingress topic: one owner, one order.
type Lane struct {
	Topic     string
	Partition int32
}

// String returns the lane as topic/partition, the form used in logs, metrics and delay-origin.
func (l Lane) String() string { return fmt.Sprintf("%s/%d", l.Topic, l.Partition) }

// Compare orders lanes by topic, then by partition.
func (l Lane) Compare(o Lane) int {
	if c := cmp.Compare(l.Topic, o.Topic); c != 0 {
		return c
	}
	return cmp.Compare(l.Partition, o.Partition)
}

// Position is a message's place in its lane: its identity, its order, and its key in the log.
// DueMs is epoch milliseconds, 0 or more for a message; Offset is the ingress offset.
type Position struct {
	DueMs  int64
	Offset int64
}

// NoPosition comes before every message: the cursor of a lane that has settled nothing by position.
var NoPosition = Position{DueMs: -1, Offset: -1}

// LastPosition returns the greatest position whose due is dueMs: the end of a scan that takes all
// that is due by then.
func LastPosition(dueMs int64) Position { return Position{DueMs: dueMs, Offset: math.MaxInt64} }

// Compare orders positions by due, then by offset.
func (p Position) Compare(o Position) int {
	if c := cmp.Compare(p.DueMs, o.DueMs); c != 0 {
		return c
	}
	return cmp.Compare(p.Offset, o.Offset)
}

// AtOrBelow reports whether p is o or comes before it.
func (p Position) AtOrBelow(o Position) bool { return p.Compare(o) <= 0 }

// String returns due/offset, as delay-position has it.
func (p Position) String() string { return fmt.Sprintf("%d/%d", p.DueMs, p.Offset) }

// Header is a record header. A nil Value is null and differs from an empty one; order and
// duplicates matter.
type Header struct {
	Key   string
	Value []byte
}

// Record is a record of an ingress lane as its producer wrote it. A nil Key or Value is null and
// differs from an empty one. TimestampMs is epoch milliseconds: the producer's clock, or the
// broker's where the topic has message.timestamp.type=LogAppendTime.
type Record struct {
	Offset      int64
	TimestampMs int64
	Key         []byte
	Value       []byte
	Headers     []Header
}

// Message is a record with the moment before which it may not be delivered. Its headers are those
// of the ingress record, control headers included, so that a dead letter is the record unchanged.
type Message struct {
	Record
	DueMs int64
	// At is the ingress offset of the record that holds the message: Offset, or that of the latest copy
	// where the message was carried forward. Offset stays what it was: the message's identity.
	At int64
	// ID is the value of delay-id; empty where there is none.
	ID string
}

// Position returns the message's place in its lane.
func (m *Message) Position() Position { return Position{DueMs: m.DueMs, Offset: m.Offset} }

// Bytes returns about how much memory the message takes: key, value and headers and 96 bytes for
// the rest.
func (m *Message) Bytes() int {
	n := 96 + len(m.Key) + len(m.Value) + len(m.ID)
	for i := range m.Headers {
		n += 40 + len(m.Headers[i].Key) + len(m.Headers[i].Value)
	}
	return n
}
