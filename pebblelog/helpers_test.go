package pebblelog

import (
	"context"
	"flag"
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/bide-mq/bide"
)

var seedFlag = flag.Uint64("seed", 0, "seed of random tests; 0 takes one from the clock")

// newSeed returns the seed of a random test, and prints it.
func newSeed(t testing.TB) uint64 {
	t.Helper()
	seed := *seedFlag
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("-seed=%d", seed)
	return seed
}

var (
	ordersA = bide.Lane{Topic: "orders", Partition: 0}
	ordersB = bide.Lane{Topic: "orders", Partition: 1}
)

// openMem opens a log on a file system in memory, closed when the test ends.
func openMem(t testing.TB, fs vfs.FS) *Log {
	t.Helper()
	return openWith(t, "data", Options{FS: fs})
}

func openWith(t testing.TB, dir string, o Options) *Log {
	t.Helper()
	l, err := Open(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil && l.Err() == nil {
			t.Errorf("close: %v", err)
		}
	})
	return l
}

func openLane(t testing.TB, l *Log, name bide.Lane) *Lane {
	t.Helper()
	n, err := l.Lane(name)
	if err != nil {
		t.Fatal(err)
	}
	return n.(*Lane)
}

func appendTo(t testing.TB, n *Lane, d bide.Durability, checkpoint int64, msgs ...bide.Message) {
	t.Helper()
	err := n.log.Append(context.Background(), []bide.Append{{Lane: n, Messages: msgs, Checkpoint: checkpoint}}, d)
	if err != nil {
		t.Fatal(err)
	}
}

// msg returns a message of which every field has something in it.
func msg(dueMs, offset int64) bide.Message {
	return bide.Message{
		Record: bide.Record{
			Offset: offset, TimestampMs: dueMs - 1000,
			Key: fmt.Appendf(nil, "key-%d", offset), Value: fmt.Appendf(nil, "value-%d-%d", dueMs, offset),
			Headers: []bide.Header{{Key: "delay-for", Value: []byte("1s")}},
		},
		DueMs: dueMs, At: offset,
	}
}

func withID(m bide.Message, id string) bide.Message {
	m.ID = id
	return m
}

// all returns every message of the lane by a scan from the start, past whatever the handle knows.
func all(t testing.TB, n *Lane) []bide.Message {
	t.Helper()
	msgs, more, err := n.Scan(bide.NoPosition, bide.LastPosition(1<<62), bide.Budget{Messages: 1 << 30, Bytes: 1 << 40})
	if err != nil {
		t.Fatal(err)
	}
	if more {
		t.Fatal("more messages than any budget")
	}
	return msgs
}

func sameMessages(t testing.TB, got, want []bide.Message) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%d messages, want %d", len(got), len(want))
	}
	for i := range got {
		if !reflect.DeepEqual(got[i], want[i]) {
			t.Fatalf("message %d is %+v, want %+v", i, got[i], want[i])
		}
	}
}

// checkCounts compares what the lane counts with a full scan.
func checkCounts(t testing.TB, n *Lane) {
	t.Helper()
	msgs := all(t, n)
	if got := n.Waiting(); got != int64(len(msgs)) {
		t.Fatalf("waiting %d, %d in the log", got, len(msgs))
	}
	want := map[int64]int64{}
	for i := range msgs {
		want[block(msgs[i].At)]++
	}
	got := map[int64]int64{}
	it, err := n.countsFrom(0)
	if err != nil {
		t.Fatal(err)
	}
	for ok := it.First(); ok; ok = it.Next() {
		b, count, err := readCount(it)
		if err != nil {
			t.Fatal(err)
		}
		if count != 0 {
			got[b] = count
		}
	}
	if err := it.Close(); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("counts are %v, want %v", got, want)
	}
}

func settle(t testing.TB, n *Lane, c bide.Commit, members ...bide.Message) {
	t.Helper()
	if err := n.Settle(c, members); err != nil {
		t.Fatal(err)
	}
}
