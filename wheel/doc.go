// Package wheel keeps timers by the million: a hierarchical timing wheel in which adding and
// cancelling cost O(1) and no allocation, and in which waiting costs nothing. It needs the standard
// library only.
//
// There are two types. [Wheel] is the pure core: time is an argument, and there is no clock, lock
// or goroutine in it. [Runner] puts a mutex and one sleeping goroutine around a Wheel, and is what
// most programs want.
//
// # Problem
//
// A program that waits for many things at once (time-outs, retries, messages that become due) adds
// timers all the time, cancels most of them, and wants the rest on time: never early, late by no
// more than a tick, in the order in which they were added where they are due together. A heap pays
// O(log n) and a cache miss a step for each; one runtime timer apiece pays an allocation and work
// for the garbage collector.
//
// # Approach
//
// A wheel has 64 slots, and a slot is a bucket: a list of timers. The first wheel's slots are one
// tick wide. What does not fit goes to an overflow wheel, whose slots are as wide as the whole
// wheel below. Eleven wheels cover every int64; an overflow wheel exists once a timer has needed
// it. Written to the base of 64, a deadline has a digit for each wheel, and the digit names the
// slot:
//
//	                                   now = 2·64² + 5·64 + 61
//	wheel 0  ticks            [ ][ ][ ] … [now 61][a 62][ ]        a: now + 1
//	wheel 1  64 ticks each    [ ] … [now 5][b 6][ ] … [ ]          b: now + 5, after the turn of wheel 0
//	wheel 2  4096 ticks each  [ ][ ][now 2][ ][c 4] … [ ]          c: now + 2·64² − 3
//	   ⋮
//	wheel 10 2⁶⁰ ticks each   [ ][ ] …                             math.MaxInt64
//
// A timer lies on the wheel of the highest digit in which its deadline differs from now, in the
// slot that this digit names. So every bucket of a wheel starts before those of the wheels above
// it, and two bitmaps answer which bucket is next: that is the delay queue of Kafka's purgatory,
// without a heap. When a bucket of an overflow wheel starts, its timers are re-inserted
// ("cascade"): they now differ from now in a lower digit, and move to a wheel below, at most ten
// times in a life. When a bucket of wheel 0 starts, its timers are due.
//
// Because windows are aligned to the digits and do not slide with now, all timers of a tick are in
// one bucket at any time. A bucket is a first-in, first-out list, and keeps its order when it
// cascades: equal deadlines fire in the order in which they were added. (Kafka's window slides, and
// a later timer can land below an earlier one of the same tick.)
//
// Timers live in a slab: nodes of 24 bytes and the value, linked by 32-bit numbers, in chunks that
// the garbage collector need not look into where values hold no pointers. An [ID] is a node's
// number and a generation, so that a late Cancel finds out that its timer is gone. A chunk with no
// timer in it is given back.
//
// [Wheel.Advance] works in bounded slices, so that a lock around it is never held for a backlog: it
// stops after so many timers, even in the middle of a bucket, and goes on from there. While a
// bucket is half emptied, timers that belong to it are added at its end, not to the wheel below, or
// they would overtake what is still in it.
//
// # Tried and left
//
// Measured on prototypes with 10⁶ timers (2 cores, AMD Zen 3, Go 1.26) before this package was
// written; the folder bench compares what was made of it with other timers:
//
//   - nodes as heap objects: 264 ns and an allocation an add, where the slab took 67;
//   - Kafka's layout, sliding windows and a heap of buckets: twice the time over a timer's whole
//     life when timers are sparse, since a heap of buckets pops about two of them a timer;
//   - the lock held for the whole backlog, as in Kafka: with 10⁶ timers due at once, an add waited
//     1.5 s (p99); in slices of 256 with a yield between them 0.2 ms, at the same throughput;
//   - shards by hash, 8 of them for two producers: 227 ns an add, where one wheel behind one mutex
//     took 140 and one wheel for each owner 67.
//
// Sources: Varghese and Lauck, "Hashed and Hierarchical Timing Wheels" (1987), scheme 7; Apache
// Kafka's server-common, package util.timer (KAFKA-1989).
package wheel
