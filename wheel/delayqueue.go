package wheel

import "math/bits"

const (
	digitBits = 6
	slots     = 1 << digitBits
	// levels is how many digits of six bits cover 64 bits.
	levels = 11
)

// bucket names a slot of a wheel: level·64 + slot.
type bucket uint16

const noBucket bucket = levels * slots

// bucketOn returns the bucket of the wheel at level in which a timer due at when lies.
func bucketOn(level int, when uint64) bucket {
	return bucket(level<<digitBits) | bucket(when>>(digitBits*level)&(slots-1))
}

func (b bucket) level() int { return int(b >> digitBits) }
func (b bucket) slot() int  { return int(b & (slots - 1)) }

// levelOf returns the highest digit in which two times differ, given their exclusive or.
func levelOf(diff uint64) int {
	return (63 - bits.LeadingZeros64(diff|(slots-1))) / digitBits
}

// delayQueue orders the buckets that hold timers by the tick at which they start: what
// java.util.concurrent.DelayQueue is to Kafka's purgatory. Alignment makes a heap needless: seen
// from now, every bucket of a wheel starts before every bucket of the wheel above it, so the first
// bucket is the lowest bit of the lowest wheel that has one.
//
// A bucket is in the queue once, from its first timer until it is polled or its last timer is
// cancelled, so that no entry is stale. All methods are O(1).
type delayQueue struct {
	wheels uint16 // bit l: the wheel at level l has a bucket in the queue
	slots  [levels]uint64
}

// offer adds b, if it is not in the queue.
func (q *delayQueue) offer(b bucket) {
	q.slots[b.level()] |= 1 << b.slot()
	q.wheels |= 1 << b.level()
}

// withdraw takes b out, wherever it stands.
func (q *delayQueue) withdraw(b bucket) {
	q.slots[b.level()] &^= 1 << b.slot()
	if q.slots[b.level()] == 0 {
		q.wheels &^= 1 << b.level()
	}
}

// peek returns the first bucket and the tick at which it starts, seen from now. ok is false where
// the queue is empty.
func (q *delayQueue) peek(now uint64) (b bucket, start uint64, ok bool) {
	if q.wheels == 0 {
		return noBucket, 0, false
	}
	level := bits.TrailingZeros16(q.wheels)
	slot := bits.TrailingZeros64(q.slots[level])
	above := digitBits * (level + 1) // 66 at the top: Go's shifts make that 0
	start = now>>above<<above | uint64(slot)<<(digitBits*level)
	return bucket(level<<digitBits | slot), start, true
}

// poll takes out the first bucket if it starts at or before until.
func (q *delayQueue) poll(now, until uint64) (b bucket, start uint64, ok bool) {
	b, start, ok = q.peek(now)
	if !ok || start > until {
		return noBucket, 0, false
	}
	q.withdraw(b)
	return b, start, true
}

// overflowing returns how many overflow wheels have a bucket in the queue.
func (q *delayQueue) overflowing() int { return bits.OnesCount16(q.wheels >> 1) }
