package kafka

import (
	"context"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/bide-mq/bide"
)

var testLane = bide.Lane{Topic: "delay-ingress", Partition: 2}

func accept(t *testing.T, c *Contract, rec bide.Record) *bide.Item {
	t.Helper()
	m, r := c.Accept(rec, bide.Rules{})
	if r != nil {
		t.Fatal(r)
	}
	return &bide.Item{Message: m}
}

// asRead is the record as a consumer of its topic gets it.
func asRead(r *kgo.Record, offset int64) bide.Record {
	rec := bide.Record{Offset: offset, TimestampMs: r.Timestamp.UnixMilli(), Key: r.Key, Value: r.Value}
	for _, h := range r.Headers {
		rec.Headers = append(rec.Headers, bide.Header(h))
	}
	return rec
}

// text draws headers in their order, null as <nil>.
func text(hs []kgo.RecordHeader) (s []string) {
	for _, h := range hs {
		if h.Value == nil {
			s = append(s, h.Key+"=<nil>")
			continue
		}
		s = append(s, fmt.Sprintf("%s=%s", h.Key, h.Value))
	}
	return s
}

func checkHeaders(t *testing.T, r *kgo.Record, want ...string) {
	t.Helper()
	if got := text(r.Headers); !slices.Equal(got, want) {
		t.Errorf("headers\n %q, expected\n %q", got, want)
	}
}

func TestADeliveredRecordIsWhatWasSentWithoutControlHeaders(t *testing.T) {
	c := newTestContract(t, ContractOptions{Annotate: true})
	for _, tt := range []struct{ key, value []byte }{
		{nil, nil}, {[]byte{}, []byte{}}, {[]byte("k"), nil}, {nil, []byte{0, 255}},
	} {
		rec := sent()
		rec.Key, rec.Value = tt.key, tt.value
		rec.Headers = []bide.Header{
			{Key: "twice", Value: []byte("1")},
			{Key: HeaderFor, Value: []byte("1s")},
			{Key: "", Value: []byte{0, 0xff}},
			{Key: "twice", Value: nil},
			{Key: HeaderTo, Value: []byte("orders")},
			{Key: "twice", Value: []byte{}},
		}
		r := c.record(testLane, accept(t, c, rec), sentMs+1003)
		if r.Topic != "orders" || r.Partition != byKey || r.Timestamp.UnixMilli() != sentMs+1003 {
			t.Errorf("%+v", r)
		}
		if !reflect.DeepEqual(r.Key, tt.key) || !reflect.DeepEqual(r.Value, tt.value) {
			t.Errorf("key %#v value %#v, sent %#v", r.Key, r.Value, tt)
		}
		checkHeaders(t, r, "twice=1", "=\x00\xff", "twice=<nil>", "twice=",
			"delay-origin=delay-ingress/2/7", "delay-due=1767323046678", "delay-origin-timestamp=1767323045678")
	}
}

func TestAnnotationsCanBeTurnedOff(t *testing.T) {
	c := newTestContract(t, ContractOptions{})
	checkHeaders(t, c.delivery(testLane, accept(t, c, sent("a", "1", HeaderTo, "orders")), sentMs), "a=1")
}

func TestHeadersChooseTargetPartitionAndKey(t *testing.T) {
	c := newTestContract(t, ContractOptions{Ingresses: []Ingress{{Topic: "delay-ingress", Target: "orders"}}})
	if r := c.delivery(testLane, accept(t, c, sent()), sentMs); r.Topic != "orders" || string(r.Key) != "k" || r.Partition != byKey {
		t.Errorf("%+v", r)
	}
	it := accept(t, c, sent(HeaderTo, "mail", HeaderToPartition, "0", HeaderToKey, "\x00\xff"))
	if r := c.delivery(testLane, it, sentMs); r.Topic != "mail" || string(r.Key) != "\x00\xff" || r.Partition != 0 {
		t.Errorf("%+v", r)
	}
	for _, key := range [][]byte{nil, {}} {
		rec := sent()
		rec.Headers = []bide.Header{{Key: HeaderToKey, Value: key}}
		if r := c.delivery(testLane, accept(t, c, rec), sentMs); !reflect.DeepEqual(r.Key, key) {
			t.Errorf("key %#v, asked for %#v", r.Key, key)
		}
	}
}

// D109.
func TestDelayingADeliveredMessageAgainKeepsTheNumberOfHeaders(t *testing.T) {
	c := newTestContract(t, ContractOptions{Ingresses: []Ingress{{Topic: "delay-ingress", Target: "orders"}}, Annotate: true})
	rec := sent("a", "1")
	for round := range int64(5) {
		rec.Offset = 100 + round
		it := accept(t, c, rec)
		r := c.delivery(testLane, it, rec.TimestampMs+10)
		checkHeaders(t, r, "a=1", fmt.Sprintf("delay-origin=delay-ingress/2/%d", 100+round),
			fmt.Sprintf("delay-due=%d", rec.TimestampMs), fmt.Sprintf("delay-origin-timestamp=%d", rec.TimestampMs))
		rec = asRead(r, 0)
	}
}

func TestARequeuedMessageIsDueWhenItWasToldTo(t *testing.T) {
	c := newTestContract(t, ContractOptions{
		Ingresses: []Ingress{{Topic: "delay-ingress", Target: "orders", Delay: time.Hour}}, Annotate: true,
	})
	rec := sent("a", "1", HeaderTo, "mail", HeaderFor, "1s", HeaderToPartition, "3", HeaderToKey, "other", "a", "2",
		HeaderDue, "1", HeaderOrigin, "old/0/1", HeaderOriginTimestamp, "1")
	it := accept(t, c, rec)
	if n := c.Attempt(&it.Message); n != 0 {
		t.Fatalf("attempt %d", n)
	}
	for attempt := 1; attempt <= 3; attempt++ {
		until := sentMs + int64(attempt)*5000 + 1
		it.Fate = bide.Fate{Kind: bide.Requeue, UntilMs: until, Attempt: attempt}
		r := c.record(testLane, it, until-4000)
		if r.Topic != testLane.Topic || r.Partition != testLane.Partition || r.Timestamp.UnixMilli() != until-4000 || string(r.Key) != "k" {
			t.Errorf("%+v", r)
		}
		checkHeaders(t, r, "a=1", "delay-to=mail", "delay-to-partition=3", "delay-to-key=other", "a=2",
			fmt.Sprintf("delay-until=%d", until), fmt.Sprintf("delay-attempt=%d", attempt), "delay-first-due=1767323046678",
			"delay-origin=delay-ingress/2/7", "delay-origin-timestamp=1767323045678")
		m, rejected := c.Accept(asRead(r, 50+int64(attempt)), bide.Rules{Delay: time.Hour, MaxDelay: time.Millisecond})
		if rejected != nil || m.DueMs != until || c.Attempt(&m) != attempt {
			t.Fatalf("due %d, attempt %d, %v", m.DueMs, c.Attempt(&m), rejected)
		}
		it = &bide.Item{Message: m}
	}
	r := c.delivery(testLane, it, sentMs+99_999)
	if r.Topic != "mail" || r.Partition != 3 || string(r.Key) != "other" {
		t.Errorf("%+v", r)
	}
	checkHeaders(t, r, "a=1", "a=2", "delay-origin=delay-ingress/2/7", "delay-due=1767323046678", "delay-origin-timestamp=1767323045678")
}

func TestARequeuedMessageKeepsAnyDue(t *testing.T) {
	c := newTestContract(t, ContractOptions{})
	for asked, due := range map[int64]int64{
		0: 0, 1: 1, 99_999_999_999: 99_999_999_999, maxDueMs: maxDueMs,
		-1: 0, math.MinInt64: 0, maxDueMs + 1: maxDueMs, math.MaxInt64: maxDueMs,
	} {
		it := accept(t, c, sent())
		it.Fate = bide.Fate{Kind: bide.Requeue, UntilMs: asked, Attempt: 1}
		if m, r := c.Accept(asRead(c.record(testLane, it, sentMs), 8), bide.Rules{}); r != nil || m.DueMs != due {
			t.Errorf("%d: due %d, %v", asked, m.DueMs, r)
		}
	}
	for asked, attempt := range map[int]int{0: 1, -1: 1, 5: 5, math.MaxInt32: math.MaxInt32, math.MaxInt: math.MaxInt32} {
		it := accept(t, c, sent())
		it.Fate = bide.Fate{Kind: bide.Requeue, UntilMs: 1, Attempt: asked}
		if m, r := c.Accept(asRead(c.record(testLane, it, sentMs), 8), bide.Rules{}); r != nil || c.Attempt(&m) != attempt {
			t.Errorf("attempt %d: %d, %v", asked, c.Attempt(&m), r)
		}
	}
}

func TestADeadLetterIsTheRecordAndTheReason(t *testing.T) {
	c := newTestContract(t, ContractOptions{DeadLetterTopic: "dead"})
	rec := sent("a", "1", HeaderFor, "1s", HeaderTo, "x y", "delay-fro", "2", "a", "3", HeaderToKey, "other", HeaderToPartition, "9",
		HeaderError, "old", HeaderErrorCode, "old", HeaderOrigin, "old/0/1")
	it := &bide.Item{Message: bide.Message{Record: rec}}
	it.Fate = bide.Fate{Kind: bide.DeadLetter, Rejection: reject(CodeUnknownHeader, "a sentence")}
	r := c.record(testLane, it, sentMs+5)
	if r.Topic != "dead" || r.Partition != byKey || string(r.Key) != "k" || string(r.Value) != "v" || r.Timestamp.UnixMilli() != sentMs+5 {
		t.Errorf("%+v", r)
	}
	checkHeaders(t, r, "a=1", "delay-for=1s", "delay-to=x y", "delay-fro=2", "a=3", "delay-to-key=other", "delay-to-partition=9",
		"delay-error=a sentence", "delay-error-code=unknown-header", "delay-origin=delay-ingress/2/7")
	bare := c.bareDeadLetter(it, sentMs+5)
	if got := asRead(bare, 7); bare.Topic != "dead" || bare.Partition != byKey || !reflect.DeepEqual(got.Headers, rec.Headers) || string(got.Key) != "k" || string(got.Value) != "v" {
		t.Errorf("bare: %+v", bare)
	}
}

func TestADeadLetterSentAgainBeginsAnew(t *testing.T) {
	c := newTestContract(t, ContractOptions{Ingresses: []Ingress{{Topic: "delay-ingress", Target: "orders"}}, Annotate: true})
	it := accept(t, c, sent("a", "1", HeaderFor, "1s"))
	it.Fate = bide.Fate{Kind: bide.Requeue, UntilMs: sentMs + 9000, Attempt: 4}
	it = accept(t, c, asRead(c.record(testLane, it, sentMs+2000), 8))
	it.Fate = bide.Fate{Kind: bide.DeadLetter, Rejection: reject(CodeTargetUnavailable, "a sentence")}
	dead := asRead(c.record(testLane, it, sentMs+9000), 3)
	if got := dead.Headers[len(dead.Headers)-1]; got.Key != HeaderOrigin || string(got.Value) != "delay-ingress/2/7" {
		t.Errorf("origin %s: %s", got.Key, got.Value)
	}

	dead.Offset, dead.TimestampMs = 20, sentMs+60_000
	it = accept(t, c, dead)
	if it.DueMs != sentMs+9000 || c.Attempt(&it.Message) != 0 {
		t.Errorf("due %d, attempt %d", it.DueMs, c.Attempt(&it.Message))
	}
	checkHeaders(t, c.delivery(testLane, it, sentMs+60_001), "a=1", "delay-origin=delay-ingress/2/20",
		fmt.Sprintf("delay-due=%d", sentMs+9000), fmt.Sprintf("delay-origin-timestamp=%d", sentMs+60_000))
	it.Fate = bide.Fate{Kind: bide.Requeue, UntilMs: sentMs + 70_000, Attempt: 1}
	again := accept(t, c, asRead(c.record(testLane, it, sentMs+60_001), 21))
	if again.DueMs != sentMs+70_000 || c.Attempt(&again.Message) != 1 || len(again.Headers) != 6 {
		t.Errorf("requeued: due %d, attempt %d, %v", again.DueMs, c.Attempt(&again.Message), again.Headers)
	}
}

func TestAddedHeadersDoNotShareCapacity(t *testing.T) {
	c := newTestContract(t, ContractOptions{Annotate: true})
	r := c.delivery(testLane, accept(t, c, sent(HeaderTo, "orders")), sentMs)
	for i := range r.Headers {
		_ = append(r.Headers[i].Value, "XXXXXXXX"...)
	}
	checkHeaders(t, r, "delay-origin=delay-ingress/2/7", "delay-due=1767323045678", "delay-origin-timestamp=1767323045678")
}

// The hashes are those of Kafka's own test of murmur2 (UtilsTest).
func TestPartitionsAreThoseOfTheJavaClient(t *testing.T) {
	p := Partitioner().ForTopic("orders")
	const n = 1_000_003
	for key, hash := range map[string]int32{
		"21": -973932308, "foobar": -790332482, "a-little-bit-long-string": -985981536,
		"a-little-bit-longer-string":                       -1486304829,
		"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
		"abc": 479470107,
	} {
		r := &kgo.Record{Key: []byte(key), Partition: byKey}
		if got := p.Partition(r, n); got != int(hash&math.MaxInt32)%n || !p.RequiresConsistency(r) {
			t.Errorf("%s at %d", key, got)
		}
	}
	for _, key := range [][]byte{nil, []byte("21")} {
		r := &kgo.Record{Key: key, Partition: 5}
		if got := p.Partition(r, 7); got != 5 || !p.RequiresConsistency(r) {
			t.Errorf("named partition: %d", got)
		}
	}
	if got := p.Partition(&kgo.Record{Partition: 9}, 7); got != 9 {
		t.Errorf("a partition that does not exist became %d", got)
	}
	keyless := &kgo.Record{Partition: byKey}
	seen := map[int]bool{}
	for range 200 {
		first := p.Partition(keyless, 3)
		if p.Partition(keyless, 3) != first || p.RequiresConsistency(keyless) {
			t.Fatal("a null key does not stay at its partition until the next batch")
		}
		seen[first] = true
		p.(kgo.TopicPartitionerOnNewBatch).OnNewBatch()
	}
	if len(seen) != 3 {
		t.Errorf("a null key went to %v", seen)
	}
}

func TestRecordsArriveWhereAndAsTheyWereBuilt(t *testing.T) {
	onBrokers(t, func(t *testing.T, b *bed) {
		c := newTestContract(t, ContractOptions{Ingresses: []Ingress{{Topic: b.ingress, Target: b.targets[0]}}})
		lane := b.lane(3)
		client, err := kgo.NewClient(kgo.SeedBrokers(b.addr), kgo.RecordPartitioner(Partitioner()))
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()

		rec := sent()
		rec.Key, rec.Value = nil, []byte{}
		rec.Headers = []bide.Header{{Key: "a", Value: nil}, {Key: "a", Value: []byte{}}, {Key: "", Value: []byte{0, 255}}}
		untouched := accept(t, c, rec)
		named := accept(t, c, sent(HeaderToPartition, "1"))
		missing := accept(t, c, sent(HeaderToPartition, "2")) // of partitions 0 and 1
		keyed := accept(t, c, sent(HeaderToKey, "abc"))       // hash 479470107
		again := accept(t, c, sent())
		again.Fate = bide.Fate{Kind: bide.Requeue, UntilMs: sentMs + 5, Attempt: 1}

		produce := func(it *bide.Item) (*kgo.Record, error) {
			r := c.record(lane, it, time.Now().UnixMilli())
			return r, client.ProduceSync(t.Context(), r).FirstErr()
		}
		if _, err := produce(missing); err == nil || !strings.HasPrefix(err.Error(), "invalid record partitioning choice") {
			t.Errorf("a partition that does not exist: %v", err)
		}
		for _, tt := range []struct {
			it        *bide.Item
			topic     string
			partition int32 // -1 for any
		}{
			{untouched, b.targets[0], -1},
			{named, b.targets[0], 1},
			{keyed, b.targets[0], 479470107 % 2},
			{again, b.ingress, 3},
		} {
			r, err := produce(tt.it)
			if err != nil || r.Topic != tt.topic || tt.partition >= 0 && r.Partition != tt.partition {
				t.Fatalf("at %s/%d, expected %s/%d: %v", r.Topic, r.Partition, tt.topic, tt.partition, err)
			}
			got := fetchOne(t, b.addr, r.Topic, r.Partition, r.Offset)
			if !reflect.DeepEqual(got.Key, r.Key) || !reflect.DeepEqual(got.Value, r.Value) || !reflect.DeepEqual(append([]kgo.RecordHeader{}, got.Headers...), r.Headers) {
				t.Errorf("read\n%#v, written\n%#v", got, r)
			}
			if tt.it == again {
				m, rejected := c.Accept(asRead(got, got.Offset), bide.Rules{})
				if rejected != nil || m.DueMs != sentMs+5 {
					t.Errorf("requeued: due %d, %v", m.DueMs, rejected)
				}
			}
		}
	})
}

func fetchOne(t *testing.T, addr, topic string, partition int32, offset int64) *kgo.Record {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{
		topic: {partition: kgo.NewOffset().At(offset)},
	}))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	fetches := client.PollRecords(ctx, 1)
	if err := fetches.Err(); err != nil || fetches.NumRecords() != 1 {
		t.Fatalf("%d records, %v", fetches.NumRecords(), err)
	}
	return fetches.Records()[0]
}

func BenchmarkDelivery(b *testing.B) {
	c := newTestContract(b, ContractOptions{Annotate: true})
	m, _ := c.Accept(sent("trace-id", "4bf92f3577b34da6", HeaderFor, "90s", HeaderTo, "orders"), bide.Rules{})
	it := &bide.Item{Message: m}
	b.ReportAllocs()
	for b.Loop() {
		if r := c.delivery(testLane, it, sentMs); len(r.Headers) != 4 {
			b.Fatal(r.Headers)
		}
	}
}
