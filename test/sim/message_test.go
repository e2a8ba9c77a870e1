//go:build synctests

package sim

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/bide-mq/bide"
)

// labelHeader is a header of the producer's own; it comes through whatever else is in the record.
const labelHeader = "sim"

// label is what the checker has to know of a message, in the producer's words: name, where it shall end,
// and when, which is epoch ms, or a delay after the record's timestamp.
type label struct {
	name   string
	target string // or bad, or nowhere
	until  int64
	after  int64
}

const (
	bad     = "bad"     // shall be a dead letter at once
	nowhere = "nowhere" // its target does not exist: a dead letter after some tries
)

func (l label) String() string {
	return fmt.Sprintf("%s|%s|%d|%d", l.name, l.target, l.until, l.after)
}

func parseLabel(s string) (l label) {
	parts := strings.Split(s, "|")
	l.name, l.target = parts[0], parts[1]
	l.until, _ = strconv.ParseInt(parts[2], 10, 64)
	l.after, _ = strconv.ParseInt(parts[3], 10, 64)
	return l
}

func labelOf(headers []bide.Header) string {
	for _, h := range headers {
		if h.Key == labelHeader {
			return parseLabel(string(h.Value)).name
		}
	}
	return ""
}

// dueMs is when a record with the label may be delivered.
func (l label) dueMs(timestampMs int64) int64 {
	if l.until != 0 {
		return l.until
	}
	return timestampMs + l.after
}

// draft draws a record.
func (w *world) draft(rng *rand.Rand, shared int64) *kgo.Record {
	w.made++
	l := label{name: fmt.Sprintf("m%d", w.made), target: targets[rng.IntN(len(targets))]}
	r := &kgo.Record{Topic: ingress, Partition: int32(rng.IntN(w.set.lanes)), Timestamp: time.Now(), Key: bytesOrNot(rng, "k"), Value: bytesOrNot(rng, "v")}
	add := func(name, value string) {
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: name, Value: []byte(value)})
	}
	if rng.IntN(6) == 0 {
		add("own", "1")
		add("own", "")
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: "null"})
	}
	switch {
	case shared != 0:
		l.until = shared
		add("delay-until", strconv.FormatInt(shared, 10))
	case rng.IntN(3) == 0:
		l.until = time.Now().UnixMilli() + drawDelay(rng)
		add("delay-until", strconv.FormatInt(l.until, 10))
	case rng.IntN(12) == 0:
		// no delay: due at once
	default:
		l.after = max(drawDelay(rng), 0)
		add("delay-for", strconv.FormatInt(l.after, 10))
	}
	switch rng.IntN(120) {
	case 0, 1:
		l.target = bad
		add("delay-to", targets[0])
		add([...]string{"delay-for", "delay-to", "delay-unknown", "delay-to-partition"}[rng.IntN(4)], "no good")
	case 2:
		l.target = bad // no target
	case 3:
		l.target = bad
		add("delay-to", ingress)
	case 4:
		l.target = nowhere
		add("delay-to", nowhere)
	default:
		add("delay-to", l.target)
	}
	add(labelHeader, l.String())
	return r
}

// drawDelay returns −1 to 20 s in ms, more often short.
func drawDelay(rng *rand.Rand) int64 {
	switch rng.IntN(6) {
	case 0:
		return rng.Int64N(21_000) - 1000
	case 1:
		return rng.Int64N(20)
	default:
		return rng.Int64N(5000)
	}
}

// bytesOrNot returns null, nothing, or some bytes.
func bytesOrNot(rng *rand.Rand, prefix string) []byte {
	switch rng.IntN(8) {
	case 0:
		return nil
	case 1:
		return []byte{}
	case 2:
		return bytes.Repeat([]byte(prefix), 1+rng.IntN(3000))
	default:
		return fmt.Appendf(nil, "%s%d", prefix, rng.IntN(20))
	}
}

// produce writes messages until ctx is done: single ones, bursts with one due, and transactions, of which
// some are aborted.
func (w *world) produce(ctx context.Context, rng *rand.Rand) error {
	opts := []kgo.Opt{kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerLinger(0), kgo.ProducerBatchCompression(kgo.NoCompression())}
	plain, err := w.client(opts...)
	if err != nil {
		return err
	}
	defer plain.Close()
	txn, err := w.client(append(slices.Clone(opts), kgo.TransactionalID("producer"))...)
	if err != nil {
		return err
	}
	defer txn.Close()
	for ctx.Err() == nil {
		n, shared := 1+rng.IntN(4), int64(0)
		if rng.IntN(8) == 0 {
			n, shared = 5+rng.IntN(60), time.Now().UnixMilli()+drawDelay(rng)
		}
		records := make([]*kgo.Record, n)
		for i := range records {
			records[i] = w.draft(rng, shared)
		}
		if rng.IntN(5) == 0 {
			err = w.produceInTransaction(txn, records, rng.IntN(3) > 0)
		} else {
			err = plain.ProduceSync(context.Background(), records...).FirstErr()
		}
		if err != nil {
			return fmt.Errorf("produce: %w", err)
		}
		select {
		case <-time.After(time.Duration(rng.IntN(w.set.producePauseMs)) * time.Millisecond):
		case <-ctx.Done():
		}
	}
	return nil
}

func (w *world) produceInTransaction(client *kgo.Client, records []*kgo.Record, commit bool) error {
	if err := client.BeginTransaction(); err != nil {
		return err
	}
	if err := client.ProduceSync(context.Background(), records...).FirstErr(); err != nil {
		return err
	}
	return client.EndTransaction(context.Background(), kgo.TransactionEndTry(commit))
}
