//go:build unix

package e2e

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// sample is a record as its producer wants it to arrive.
type sample struct {
	name       string
	key, value []byte
	headers    []kgo.RecordHeader
}

func samples() []sample {
	h := func(key string, value []byte) kgo.RecordHeader { return kgo.RecordHeader{Key: key, Value: value} }
	binary := make([]byte, 256)
	for i := range binary {
		binary[i] = byte(i)
	}
	return []sample{
		{name: "plain", key: []byte("k"), value: []byte("v")},
		{name: "null key", value: []byte("v")},
		{name: "empty key", key: []byte{}, value: []byte("v")},
		{name: "null value", key: []byte("k")},
		{name: "empty value", key: []byte("k"), value: []byte{}},
		{name: "nothing"},
		{name: "binary", key: binary, value: bytes.Repeat(binary, 40), headers: []kgo.RecordHeader{h("b", binary)}},
		{name: "null and empty headers", headers: []kgo.RecordHeader{h("null", nil), h("empty", []byte{}), h("", []byte("no name"))}},
		{name: "duplicate headers in their order", headers: []kgo.RecordHeader{
			h("a", []byte("1")), h("b", []byte("2")), h("a", []byte("1")), h("a", nil), h("b", []byte{0xff, 0xfe}),
		}},
		{name: "names that are almost ours", headers: []kgo.RecordHeader{h("delayed-by", []byte("1")), h("delay", nil), h("x-delay-for", nil), h("héader", []byte("ü"))}},
		{name: "many headers", headers: slices.Repeat([]kgo.RecordHeader{h("many", []byte("same"))}, 200)},
		{name: "900 KiB", key: []byte("big"), value: value(7, 900<<10)},
	}
}

// go test ./test/e2e -run TestRecordsArriveByteForByte -v
func TestRecordsArriveByteForByte(t *testing.T) {
	eachCluster(t, func(t *testing.T, c *cluster) {
		ts := c.makeTopics(t, topicSpec{lanes: 1, targets: 1})
		c.settings(t, ts).startReady(t)
		c.checkSamples(t, ts, samples())
	})
}

// go test ./test/e2e -run TestFiveMebibytesArriveWhereAllIsSetForThem -v
func TestFiveMebibytesArriveWhereAllIsSetForThem(t *testing.T) {
	t.Parallel()
	for _, name := range []string{fake, newest} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, name)
			ts := c.makeTopics(t, topicSpec{lanes: 1, targets: 1, maxBytes: 6 << 20})
			s := c.settings(t, ts)
			s.args = []string{"--max-message-bytes", "6MiB"}
			s.startReady(t)
			c.checkSamples(t, ts, []sample{
				{name: "5 MiB", key: []byte("k"), value: value(1, 5<<20)},
				{name: "small, behind it", value: []byte("v")},
				{name: "5 MiB again", value: value(2, 5<<20)},
			})
		})
	}
}

// checkSamples sends all samples to one lane with one due, half of them a while later than the others,
// and wants them back, equal and in order.
func (c *cluster) checkSamples(t *testing.T, ts topics, want []sample) {
	t.Helper()
	due := time.Now().Add(2 * time.Second).UnixMilli()
	cl := c.client(t, kgo.ProducerBatchMaxBytes(8<<20), kgo.ProducerLinger(0))
	for _, s := range want {
		r := &kgo.Record{Topic: ts.ingress, Key: s.key, Value: s.value}
		// Control headers stand between, and behind, those of the message.
		half := len(s.headers) / 2
		r.Headers = slices.Concat(s.headers[:half],
			[]kgo.RecordHeader{{Key: "delay-until", Value: strconv.AppendInt(nil, due, 10)}}, s.headers[half:],
			[]kgo.RecordHeader{{Key: "delay-to", Value: []byte(ts.target)}})
		if err := cl.ProduceSync(t.Context(), r).FirstErr(); err != nil {
			t.Fatalf("produce %s: %v", s.name, err)
		}
	}
	for i, r := range c.read(t, ts.target, len(want), 20*time.Second) {
		s := want[i]
		got := slices.DeleteFunc(slices.Clone(r.Headers), func(h kgo.RecordHeader) bool { return strings.HasPrefix(h.Key, "delay-") })
		if !same(r.Key, s.key) || !same(r.Value, s.value) {
			t.Errorf("%s: key %s, value %s; want %s, %s", s.name, short(r.Key), short(r.Value), short(s.key), short(s.value))
		}
		if !slices.EqualFunc(got, s.headers, func(a, b kgo.RecordHeader) bool { return a.Key == b.Key && same(a.Value, b.Value) }) {
			t.Errorf("%s: headers %v, want %v", s.name, got, s.headers)
		}
		if origin, want := header(r, "delay-origin"), fmt.Sprintf("%s/0/%d", ts.ingress, i); origin != want {
			t.Errorf("%s: delay-origin %q, want %q", s.name, origin, want)
		}
		if got := header(r, "delay-due"); got != strconv.FormatInt(due, 10) {
			t.Errorf("%s: delay-due %q, want %d", s.name, got, due)
		}
	}
}

// same reports whether a and b are equal, null and empty being different.
func same(a, b []byte) bool { return bytes.Equal(a, b) && (a == nil) == (b == nil) }

func short(b []byte) string {
	if b == nil {
		return "null"
	}
	return fmt.Sprintf("%d bytes %.16x", len(b), b)
}

// read returns the first n records of a topic with one partition, read committed; fewer, and the test
// fails, where they do not come within limit.
func (c *cluster) read(t *testing.T, topic string, n int, limit time.Duration) []*kgo.Record {
	t.Helper()
	cl := c.client(t, kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.FetchMaxBytes(16<<20))
	defer cl.Close()
	var records []*kgo.Record
	for deadline := time.After(limit); len(records) < n; {
		done := make(chan kgo.Fetches, 1)
		go func() { done <- cl.PollFetches(t.Context()) }()
		select {
		case fetches := <-done:
			records = append(records, fetches.Records()...)
		case <-deadline:
			t.Errorf("%s has %d records after %s, want %d", topic, len(records), limit, n)
			return records
		}
	}
	if len(records) > n {
		t.Fatalf("%s has %d records, want %d", topic, len(records), n)
	}
	return records
}

// go test ./test/e2e -run TestEqualDuesKeepTheirOrderInALane -v
func TestEqualDuesKeepTheirOrderInALane(t *testing.T) {
	eachCluster(t, func(t *testing.T, c *cluster) {
		ts := c.makeTopics(t, topicSpec{lanes: 3, targets: 1})
		l := newLedger(t, c, ts)
		c.settings(t, ts).startReady(t)
		due := time.Now().Add(3 * time.Second)
		l.send(t.Context(), batch{n: 6000, due: func(i int) time.Time {
			return due.Add(time.Duration(i%3) * time.Second) // thrice 2000 at once
		}})
		l.mustBeExact()
	})
}
