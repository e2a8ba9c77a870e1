package pebblelog

import (
	"encoding/binary"

	"github.com/bide-mq/bide"
)

// What the first byte of a key says. The package comment draws the keys.
const (
	spaceFormat  byte = 0x00
	spaceLane    byte = 0x01
	spaceState   byte = 0x02
	spaceMark    byte = 0x03
	spaceMessage byte = 0x10
	spaceID      byte = 0x11
	spaceCount   byte = 0x12
)

const (
	// laneKeyLen is space and lane: the prefix of all that belongs to one lane.
	laneKeyLen = 1 + 4
	// messageKeyLen is the prefix, due and offset.
	messageKeyLen = laneKeyLen + 8 + 8
	// countKeyLen is the prefix and a block.
	countKeyLen = laneKeyLen + 8
	// maxIDLen is the greatest length that two bytes can say; the contract allows ids of 256 bytes.
	maxIDLen = 1<<16 - 1
)

// laneKey appends the prefix of a lane in a space: the least key there.
func laneKey(dst []byte, space byte, lane uint32) []byte {
	return binary.BigEndian.AppendUint32(append(dst, space), lane)
}

// laneEnd appends the least key above all of a lane in a space.
func laneEnd(dst []byte, space byte, lane uint32) []byte {
	if lane == 1<<32-1 {
		return append(dst, space+1)
	}
	return laneKey(dst, space, lane+1)
}

// messageKey appends the key of a message.
func messageKey(dst []byte, lane uint32, p bide.Position) []byte {
	dst = laneKey(dst, spaceMessage, lane)
	dst = binary.BigEndian.AppendUint64(dst, uint64(p.DueMs))
	return binary.BigEndian.AppendUint64(dst, uint64(p.Offset))
}

// keyAbove appends the least key that a message above p can have. Positions of messages are not
// negative; whatever is below them stands for the start of the lane.
func keyAbove(dst []byte, lane uint32, p bide.Position) []byte {
	dst = laneKey(dst, spaceMessage, lane)
	if p.DueMs < 0 {
		p = bide.NoPosition
		p.DueMs = 0
	}
	p.Offset = max(p.Offset, -1)
	dst = binary.BigEndian.AppendUint64(dst, uint64(p.DueMs))
	return binary.BigEndian.AppendUint64(dst, uint64(p.Offset)+1)
}

// position reads the end of a message or id key.
func position(key []byte) bide.Position {
	tail := key[len(key)-16:]
	return bide.Position{
		DueMs:  int64(binary.BigEndian.Uint64(tail)),
		Offset: int64(binary.BigEndian.Uint64(tail[8:])),
	}
}

// idPrefix appends the start of the keys of all messages with an id. The length comes first, so
// that no id's keys lie among another's.
func idPrefix(dst []byte, lane uint32, id string) []byte {
	dst = laneKey(dst, spaceID, lane)
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(id)))
	return append(dst, id...)
}

// idKey appends the index key of one message with an id.
func idKey(dst []byte, lane uint32, id string, p bide.Position) []byte {
	dst = idPrefix(dst, lane, id)
	dst = binary.BigEndian.AppendUint64(dst, uint64(p.DueMs))
	return binary.BigEndian.AppendUint64(dst, uint64(p.Offset))
}

// countKey appends the key of a block's count.
func countKey(dst []byte, lane uint32, block int64) []byte {
	return binary.BigEndian.AppendUint64(laneKey(dst, spaceCount, lane), uint64(block))
}

// dictionaryKey appends the key under which a lane's number is kept.
func dictionaryKey(dst []byte, lane bide.Lane) []byte {
	dst = binary.BigEndian.AppendUint32(append(dst, spaceLane), uint32(lane.Partition))
	return append(dst, lane.Topic...)
}
