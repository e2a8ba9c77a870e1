//go:build unix

package e2e

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// idHeader names a test's message from its producer to its consumer.
const idHeader = "test-id"

// ledger knows of every message of a test what was sent, due when, and what came, how often and when.
// A read-committed consumer of the target and of the dead-letter topic fills its second half.
type ledger struct {
	t       *testing.T
	cluster *cluster
	topics  topics

	mu struct {
		sync.Mutex
		sent []entry
		// acked and seen count distinct messages; the others are violations.
		acked, seen                  int
		early, duplicates, disorders int
		dead, strange                []string
		refused                      []error
		late                         []time.Duration
		last                         map[lanePair]place
		firstSeen                    time.Time
		// dues are the dues of what came, in the order in which it came.
		dues []int64
	}
	stop func()
	done chan struct{}
}

// entry is one message: what its producer knows and what its consumer saw.
type entry struct {
	dueMs int64
	size  int
	acked bool
	seen  bool
}

// lanePair is an ingress lane and a target partition: between them equal dues stay in order.
type lanePair struct {
	lane   string
	target int32
}

type place struct{ dueMs, offset int64 }

// newLedger starts the consumer. It ends with the test.
func newLedger(t *testing.T, c *cluster, ts topics) *ledger {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	l := &ledger{t: t, cluster: c, topics: ts, stop: cancel, done: make(chan struct{})}
	l.mu.last = map[lanePair]place{}
	cl := c.client(t,
		kgo.ConsumeTopics(ts.target, ts.deadLetter),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.FetchMaxBytes(16<<20),
	)
	go func() {
		defer close(l.done)
		for ctx.Err() == nil {
			fetches := cl.PollFetches(ctx)
			now := time.Now()
			l.mu.Lock()
			fetches.EachRecord(func(r *kgo.Record) { l.receive(r, now) })
			l.mu.Unlock()
		}
	}()
	t.Cleanup(func() { cancel(); <-l.done })
	return l
}

// receive takes note of a record from the target or the dead-letter topic.
func (l *ledger) receive(r *kgo.Record, now time.Time) {
	id, err := strconv.Atoi(header(r, idHeader))
	if err != nil || id < 0 || id >= len(l.mu.sent) {
		l.mu.strange = append(l.mu.strange, fmt.Sprintf("%s/%d/%d", r.Topic, r.Partition, r.Offset))
		return
	}
	e := &l.mu.sent[id]
	if r.Topic == l.topics.deadLetter {
		l.mu.dead = append(l.mu.dead, fmt.Sprintf("%d: %s", id, header(r, "delay-error")))
		return
	}
	if l.mu.firstSeen.IsZero() {
		l.mu.firstSeen = now
	}
	// The target has the broker's time of append; the consumer's clock is that of the same machine.
	if r.Timestamp.UnixMilli() < e.dueMs || now.UnixMilli() < e.dueMs {
		l.mu.early++
	}
	if !slices.Equal(r.Value, value(id, e.size)) {
		l.mu.strange = append(l.mu.strange, fmt.Sprintf("message %d has another value", id))
	}
	if e.seen {
		l.mu.duplicates++
		return
	}
	e.seen = true
	l.mu.seen++
	l.mu.late = append(l.mu.late, now.Sub(time.UnixMilli(e.dueMs)))
	l.mu.dues = append(l.mu.dues, e.dueMs)
	l.order(r, e.dueMs)
}

// order checks that messages of one lane with equal dues arrive in their order in the lane.
func (l *ledger) order(r *kgo.Record, dueMs int64) {
	origin := header(r, "delay-origin")
	lane, offset, ok := cutLast(origin, "/")
	n, err := strconv.ParseInt(offset, 10, 64)
	if !ok || err != nil || !strings.HasPrefix(lane, l.topics.ingress+"/") {
		l.mu.strange = append(l.mu.strange, fmt.Sprintf("delay-origin %q", origin))
		return
	}
	pair := lanePair{lane, r.Partition}
	if last, ok := l.mu.last[pair]; ok && last.dueMs == dueMs && last.offset > n {
		l.mu.disorders++
	}
	l.mu.last[pair] = place{dueMs, n}
}

// batch says what to send.
type batch struct {
	n int
	// rate is in messages a second; 0 sends as fast as the brokers take them.
	rate int
	// size is the value's in bytes; 0 means 64.
	size int
	// delay returns the delay of the i-th message; nil means none.
	delay func(i int) time.Duration
	// due, where it is set, returns the due of the i-th message instead.
	due func(i int) time.Time
}

// send produces messages to the ingress and returns when the brokers have them all. Every second one
// asks for delay-for, the others for delay-until.
func (l *ledger) send(ctx context.Context, b batch) {
	l.t.Helper()
	cl := l.cluster.client(l.t, kgo.ProducerLinger(time.Millisecond), kgo.MaxBufferedRecords(50_000),
		kgo.RecordPartitioner(kgo.StickyKeyPartitioner(nil)))
	defer cl.Close()
	if b.size == 0 {
		b.size = 64
	}
	began := time.Now()
	for i := range b.n {
		if b.rate > 0 {
			time.Sleep(time.Until(began.Add(time.Duration(i) * time.Second / time.Duration(b.rate))))
		}
		if ctx.Err() != nil {
			break
		}
		l.produce(cl, i, b)
	}
	if err := cl.Flush(context.WithoutCancel(ctx)); err != nil {
		l.t.Errorf("flush the producer: %v", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := len(l.mu.refused); n > 0 {
		l.t.Errorf("the brokers refused %d messages, the first with: %v", n, l.mu.refused[0]) // nothing can be said of them
	}
}

func (l *ledger) produce(cl *kgo.Client, i int, b batch) {
	now := time.Now().Truncate(time.Millisecond)
	var delay time.Duration
	if b.delay != nil {
		delay = b.delay(i)
	}
	due := now.Add(delay)
	if b.due != nil {
		due = b.due(i).Truncate(time.Millisecond)
	}
	l.mu.Lock()
	id := len(l.mu.sent)
	l.mu.sent = append(l.mu.sent, entry{dueMs: due.UnixMilli(), size: b.size})
	l.mu.Unlock()

	r := &kgo.Record{Topic: l.topics.ingress, Timestamp: now, Key: strconv.AppendInt(nil, int64(id), 10), Value: value(id, b.size)}
	form := kgo.RecordHeader{Key: "delay-until", Value: strconv.AppendInt(nil, due.UnixMilli(), 10)}
	if id%2 == 1 && !due.Before(now) {
		form = kgo.RecordHeader{Key: "delay-for", Value: strconv.AppendInt(nil, due.Sub(now).Milliseconds(), 10)}
	}
	r.Headers = []kgo.RecordHeader{{Key: idHeader, Value: r.Key}, form, {Key: "delay-to", Value: []byte(l.topics.target)}}
	cl.Produce(context.Background(), r, func(_ *kgo.Record, err error) {
		l.mu.Lock()
		defer l.mu.Unlock()
		if err != nil {
			l.mu.refused = append(l.mu.refused, err)
			return
		}
		l.mu.sent[id].acked = true
		l.mu.acked++
	})
}

// value returns the value of a message: its id, then bytes that depend on it and do not compress.
func value(id, size int) []byte {
	v := make([]byte, max(size, 8))
	binary.BigEndian.PutUint64(v, uint64(id))
	x := uint64(id)*0x9e3779b97f4a7c15 + 1
	for i := 8; i < len(v); i++ {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		v[i] = byte(x)
	}
	return v
}

// header returns the value of a record's last header of a name.
func header(r *kgo.Record, name string) string {
	for _, h := range slices.Backward(r.Headers) {
		if h.Key == name {
			return string(h.Value)
		}
	}
	return ""
}

func cutLast(s, sep string) (before, after string, found bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}
