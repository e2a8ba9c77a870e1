package pebblelog

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/bide-mq/bide"
)

const (
	benchBatch  = 2000
	benchSettle = 5000
	benchWaits  = 1_000_000
)

// benchMessages returns messages of 256 bytes in all, easily compressed by half, with a due within an hour at random.
func benchMessages(rng *rand.Rand, from int64, n int) []bide.Message {
	const text = `{"order":%8d,"customer":%8d,"state":"waiting","note":"%x"}`
	msgs := make([]bide.Message, n)
	for i := range msgs {
		noise := make([]byte, 60)
		for j := range noise {
			noise[j] = byte(rng.Uint32())
		}
		value := fmt.Appendf(nil, text, rng.IntN(1e8), rng.IntN(1e8), noise)
		msgs[i] = bide.Message{
			Record: bide.Record{
				Offset: from + int64(i), TimestampMs: 1_700_000_000_000, Key: fmt.Appendf(nil, "%016x", rng.Uint64()), Value: value,
				Headers: []bide.Header{{Key: "delay-for", Value: []byte("3600s")}, {Key: "delay-to", Value: []byte("orders")}},
			},
			DueMs: 1_700_000_000_000 + rng.Int64N(3_600_000),
		}
	}
	return msgs
}

// fillBench appends n messages to a log on disk, as a rebuild would.
func fillBench(b *testing.B, l *Log, n int) {
	b.Helper()
	lane := openLane(b, l, ordersA)
	rng := rand.New(rand.NewPCG(1, 1))
	for from := 0; from < n; from += benchBatch {
		appendTo(b, lane, bide.Replayed, int64(from+benchBatch), benchMessages(rng, int64(from), benchBatch)...)
	}
}

func perMessage(b *testing.B, n int, took time.Duration) {
	b.ReportMetric(float64(n)/took.Seconds(), "msg/s")
	b.ReportMetric(0, "ns/op")
}

func BenchmarkAppend(b *testing.B) {
	for name, d := range map[string]bide.Durability{"durable": bide.Durable, "replayed": bide.Replayed} {
		b.Run(name, func(b *testing.B) {
			l := openWith(b, b.TempDir(), Options{})
			lane := openLane(b, l, ordersA)
			rng := rand.New(rand.NewPCG(1, 1))
			made := benchMessages(rng, 0, 50*benchBatch)
			var took time.Duration
			b.ReportAllocs()
			for i := range b.N {
				msgs := made[i%50*benchBatch:][:benchBatch]
				if i >= 50 {
					for j := range msgs {
						msgs[j].Offset += int64(len(made))
						msgs[j].DueMs = 1_700_000_000_000 + rng.Int64N(3_600_000)
					}
				}
				start := time.Now()
				appendTo(b, lane, d, int64(i+1)*benchBatch, msgs...)
				took += time.Since(start)
			}
			perMessage(b, b.N*benchBatch, took)
		})
	}
}

// BenchmarkDrain scans and settles a million messages, 5000 at a time; an operation is the whole of it.
func BenchmarkDrain(b *testing.B) {
	b.ReportAllocs()
	var took time.Duration
	for range b.N {
		l := openWith(b, b.TempDir(), Options{})
		fillBench(b, l, benchWaits)
		n := openLane(b, l, ordersA)
		start := time.Now()
		cursor, left := bide.NoPosition, n.Waiting()
		for left > 0 {
			msgs, _, err := n.Scan(cursor, bide.LastPosition(1<<60), bide.Budget{Messages: benchSettle, Bytes: 8 << 20})
			if err != nil {
				b.Fatal(err)
			}
			cursor = msgs[len(msgs)-1].Position()
			low, err := n.Low(benchWaits, msgs)
			if err != nil {
				b.Fatal(err)
			}
			settle(b, n, bide.Commit{Next: benchWaits, Cursor: cursor, Low: low}, msgs...)
			left -= int64(len(msgs))
		}
		took += time.Since(start)
		if n.Waiting() != 0 {
			b.Fatalf("%d left", n.Waiting())
		}
		if err := l.Close(); err != nil {
			b.Fatal(err)
		}
	}
	perMessage(b, b.N*benchWaits, took)
}

// BenchmarkSteady delivers what is due every few milliseconds while messages come in: small appends, small settlements.
func BenchmarkSteady(b *testing.B) {
	const each = 20
	l := openWith(b, b.TempDir(), Options{})
	n := openLane(b, l, ordersA)
	made := benchMessages(rand.New(rand.NewPCG(1, 1)), 0, 10_000)
	b.ReportAllocs()
	b.ResetTimer()
	cursor := bide.NoPosition
	for i := range b.N {
		var batch []bide.Message
		for j := range each {
			m := made[(i*each+j)%len(made)]
			m.Offset, m.DueMs = int64(i*each+j), int64(i+100-j)
			batch = append(batch, m)
		}
		appendTo(b, n, bide.Replayed, int64(i+1)*each, batch...)
		msgs, _, err := n.Scan(cursor, bide.LastPosition(int64(i)), bide.Budget{Messages: benchSettle, Bytes: 8 << 20})
		if err != nil {
			b.Fatal(err)
		}
		cursor = bide.LastPosition(int64(i))
		low, err := n.Low(int64(i+1)*each, msgs)
		if err != nil {
			b.Fatal(err)
		}
		settle(b, n, bide.Commit{Next: int64(i+1) * each, Cursor: cursor, Low: low}, msgs...)
	}
}

// BenchmarkWaiting opens a log in which a million messages wait, and asks what is asked at start and at every plan.
func BenchmarkWaiting(b *testing.B) {
	dir := b.TempDir()
	l := openWith(b, dir, Options{})
	fillBench(b, l, benchWaits)
	b.Run("open", func(b *testing.B) {
		for range b.N {
			b.StopTimer()
			if err := l.Close(); err != nil {
				b.Fatal(err)
			}
			b.StartTimer()
			var err error
			if l, err = Open(dir, Options{}); err != nil {
				b.Fatal(err)
			}
			if openLane(b, l, ordersA).Waiting() != benchWaits {
				b.Fatal("messages are missing")
			}
		}
	})
	n := openLane(b, l, ordersA)
	rng := rand.New(rand.NewPCG(2, 2))
	b.Run("low", func(b *testing.B) {
		for range b.N {
			if _, err := n.Low(benchWaits, nil); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("next", func(b *testing.B) {
		for range b.N {
			if _, _, err := n.Next(bide.LastPosition(1_700_000_000_000 + rng.Int64N(3_600_000))); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("dues-of-a-minute", func(b *testing.B) {
		for range b.N {
			from, dues := 1_700_000_000_000+rng.Int64N(3_500_000), 0
			if err := n.Dues(from, from+60_000, func(int64) bool { dues++; return true }); err != nil || dues == 0 {
				b.Fatal(dues, err)
			}
		}
	})
	b.Run("append-known", func(b *testing.B) {
		var took time.Duration
		for range b.N {
			from := rng.Int64N(benchWaits / benchBatch)
			again := rand.New(rand.NewPCG(1, 1))
			var msgs []bide.Message
			for range from%8 + 1 { // the first batches, made as fillBench made them
				msgs = benchMessages(again, from%8*benchBatch, benchBatch)
			}
			start := time.Now()
			if err := l.Append(context.Background(), []bide.Append{{Lane: n, Messages: msgs}}, bide.Replayed); err != nil {
				b.Fatal(err)
			}
			took += time.Since(start)
		}
		perMessage(b, b.N*benchBatch, took)
	})
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	b.Logf("heap in use %d MiB, from the system %d MiB", m.HeapInuse>>20, m.Sys>>20)
}
