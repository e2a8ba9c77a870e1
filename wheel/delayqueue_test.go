package wheel

import (
	"math"
	"testing"
)

// TestTheDelayQueueOrdersBucketsByStart compares the queue with a sorted list.
func TestTheDelayQueueOrdersBucketsByStart(t *testing.T) {
	rnd := newRand(t)
	for range 200 {
		now := rnd.Uint64() >> rnd.IntN(64)
		var q delayQueue
		starts := map[uint64]bucket{}
		for range rnd.IntN(40) {
			when := now + rnd.Uint64()>>rnd.IntN(64)
			if when < now {
				continue
			}
			level := levelOf(when ^ now)
			b := bucketOn(level, when)
			q.offer(b)
			if starts[when>>(digitBits*level)<<(digitBits*level)] = b; rnd.IntN(4) == 0 {
				q.withdraw(b)
				delete(starts, when>>(digitBits*level)<<(digitBits*level))
			}
		}
		for len(starts) > 0 {
			first := uint64(math.MaxUint64)
			for start := range starts {
				first = min(first, start)
			}
			if first > 0 {
				if _, _, ok := q.poll(now, first-1); ok {
					t.Fatal("polled a bucket before its start")
				}
			}
			b, start, ok := q.poll(now, first)
			if !ok || start != first || b != starts[first] {
				t.Fatalf("poll = %d, %d, %v; first is %d at %d", b, start, ok, starts[first], first)
			}
			delete(starts, first)
		}
		if _, _, ok := q.peek(now); ok {
			t.Fatal("the queue has a stale entry")
		}
	}
}
