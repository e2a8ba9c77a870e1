package kafka

import (
	"math"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/bide-mq/bide"
)

// byKey is the partition of a record that the partitioner places.
const byKey int32 = -1

// Partitioner places the records that a [Contract] builds: at the partition that a record names, else
// by murmur2 of its key as the Java client does, else, with a null key, at any partition, changing
// with each batch.
//
// The client writes the partition that was chosen into the record: a record to be sent again has to be
// built again.
func Partitioner() kgo.Partitioner { return partitioner{kgo.StickyKeyPartitioner(nil)} }

type partitioner struct{ byKey kgo.Partitioner }

func (p partitioner) ForTopic(topic string) kgo.TopicPartitioner {
	return &topicPartitioner{p.byKey.ForTopic(topic)}
}

type topicPartitioner struct{ byKey kgo.TopicPartitioner }

var _ kgo.TopicPartitionerOnNewBatch = (*topicPartitioner)(nil)

// RequiresConsistency holds for a named partition too: kgo then counts partitions as Kafka numbers
// them, and not those alone that have a leader.
func (p *topicPartitioner) RequiresConsistency(r *kgo.Record) bool {
	return r.Partition >= 0 || p.byKey.RequiresConsistency(r)
}

// Partition returns a named partition unseen; kgo fails the record if the topic has no such one.
func (p *topicPartitioner) Partition(r *kgo.Record, n int) int {
	if r.Partition >= 0 {
		return int(r.Partition)
	}
	return p.byKey.Partition(r, n)
}

func (p *topicPartitioner) OnNewBatch() {
	if b, ok := p.byKey.(kgo.TopicPartitionerOnNewBatch); ok {
		b.OnNewBatch()
	}
}

// record returns the record that settles it, as its fate says. nowMs is when it is produced, epoch
// milliseconds. It shares memory with it and belongs to one attempt at producing.
func (c *Contract) record(lane bide.Lane, it *bide.Item, nowMs int64) *kgo.Record {
	switch it.Fate.Kind {
	case bide.DeadLetter:
		return c.deadLetterRecord(lane, it, nowMs)
	case bide.Requeue:
		return c.requeue(lane, it, nowMs)
	case bide.Carry:
		return c.carry(lane, it, nowMs)
	default:
		return c.delivery(lane, it, nowMs)
	}
}

// delivery returns the record for the target that Judge found good: headers that begin with delay-
// removed, everything else as it came.
func (c *Contract) delivery(lane bide.Lane, it *bide.Item, nowMs int64) *kgo.Record {
	s, _ := findHeaders(it.Headers)
	r := newRecord(c.ingresses[lane.Topic].Target, it, nowMs)
	if s.has(idTo) {
		r.Topic = string(s.value(it.Headers, idTo))
	}
	if s.has(idToKey) {
		r.Key = s.value(it.Headers, idToKey)
	}
	if s.has(idToPartition) {
		if n, f := parsePartition(s.value(it.Headers, idToPartition)); f == faultNone {
			r.Partition = n
		}
	}
	r.Headers = make([]kgo.RecordHeader, 0, len(it.Headers)+3)
	for _, h := range it.Headers {
		if !isOurs(h.Key) {
			r.Headers = append(r.Headers, kgo.RecordHeader(h))
		}
	}
	if c.annotate {
		o := originOf(lane, it, &s)
		a := newAnnotator(r, o.placeBytes()+2*20)
		a.add(HeaderOrigin, o.appendPlace(a.buf))
		a.number(HeaderDue, o.dueMs)
		a.number(HeaderOriginTimestamp, o.timestampMs)
	}
	return r
}

// deadLetterRecord returns the record as it came, with the reason and its origin added. Its timestamp is
// nowMs: with its own, the dead-letter topic's retention could delete it at once.
func (c *Contract) deadLetterRecord(lane bide.Lane, it *bide.Item, nowMs int64) *kgo.Record {
	s, _ := findHeaders(it.Headers)
	r := newRecord(c.deadLetter, it, nowMs)
	r.Headers = make([]kgo.RecordHeader, 0, len(it.Headers)+3)
	for _, h := range it.Headers {
		switch h.Key {
		case HeaderError, HeaderErrorCode, HeaderOrigin:
		default:
			r.Headers = append(r.Headers, kgo.RecordHeader(h))
		}
	}
	why := it.Fate.Rejection
	o := originOf(lane, it, &s)
	a := newAnnotator(r, o.placeBytes()+len(why.Reason)+len(why.Code))
	a.text(HeaderError, why.Reason)
	a.text(HeaderErrorCode, why.Code)
	a.add(HeaderOrigin, o.appendPlace(a.buf))
	return r
}

// bareDeadLetter returns the record exactly as it came, for a dead letter that is refused because what
// deadLetterRecord adds makes it too large.
func (c *Contract) bareDeadLetter(it *bide.Item, nowMs int64) *kgo.Record {
	r := newRecord(c.deadLetter, it, nowMs)
	r.Headers = make([]kgo.RecordHeader, len(it.Headers))
	for i, h := range it.Headers {
		r.Headers[i] = kgo.RecordHeader(h)
	}
	return r
}

// requeue returns the record that makes the message wait in its lane until the fate's UntilMs. Accept of
// it gives that due to the millisecond; where it wants to go, and what it was at first, stay.
func (c *Contract) requeue(lane bide.Lane, it *bide.Item, nowMs int64) *kgo.Record {
	s, _ := findHeaders(it.Headers)
	r := newRecord(lane.Topic, it, nowMs)
	r.Partition = lane.Partition
	r.Headers = make([]kgo.RecordHeader, 0, len(it.Headers)+5)
	for _, h := range it.Headers {
		switch h.Key {
		case HeaderFor, HeaderUntil, HeaderAttempt, HeaderFirstDue, HeaderCarried,
			HeaderOrigin, HeaderOriginTimestamp, HeaderDue, HeaderError, HeaderErrorCode:
		default:
			r.Headers = append(r.Headers, kgo.RecordHeader(h))
		}
	}
	o := originOf(lane, it, &s)
	a := newAnnotator(r, o.placeBytes()+4*20)
	a.number(HeaderUntil, min(max(it.Fate.UntilMs, 0), maxDueMs))
	a.number(HeaderAttempt, int64(min(max(it.Fate.Attempt, 1), math.MaxInt32)))
	a.number(HeaderFirstDue, o.dueMs)
	a.add(HeaderOrigin, o.appendPlace(a.buf))
	a.number(HeaderOriginTimestamp, o.timestampMs)
	return r
}

// carry returns a copy of a message that goes on waiting, for the end of its lane. Accept of it gives the
// same message: its offset, timestamp and due to the millisecond.
func (c *Contract) carry(lane bide.Lane, it *bide.Item, nowMs int64) *kgo.Record {
	s, _ := findHeaders(it.Headers)
	requeued := s.requeued()
	r := newRecord(lane.Topic, it, nowMs)
	r.Partition = lane.Partition
	r.Headers = make([]kgo.RecordHeader, 0, len(it.Headers)+3)
	timestampMs := it.TimestampMs
	for _, h := range it.Headers {
		switch h.Key {
		case HeaderFor, HeaderUntil, HeaderCarried, HeaderOriginTimestamp:
			continue
		case HeaderOrigin, HeaderDue, HeaderError, HeaderErrorCode, HeaderAttempt, HeaderFirstDue, HeaderHop:
			if !requeued {
				continue // of an earlier life; they mean nothing here
			}
		}
		r.Headers = append(r.Headers, kgo.RecordHeader(h))
	}
	if requeued {
		timestampMs = originOf(lane, it, &s).timestampMs
	}
	a := newAnnotator(r, 3*20)
	a.number(HeaderUntil, it.DueMs)
	a.number(HeaderOriginTimestamp, timestampMs)
	a.number(HeaderCarried, it.Offset)
	return r
}

func newRecord(topic string, it *bide.Item, nowMs int64) *kgo.Record {
	return &kgo.Record{
		Topic:     topic,
		Partition: byKey,
		Key:       it.Key,
		Value:     it.Value,
		Timestamp: time.UnixMilli(nowMs),
	}
}

// origin is what a message was when its producer sent it.
type origin struct {
	lane        bide.Lane
	offset      int64
	dueMs       int64
	timestampMs int64
	// first is topic/partition/offset of a message that was requeued; lane and offset do not hold then.
	first []byte
}

// originOf returns the first origin of a requeued message, else the message's own.
func originOf(lane bide.Lane, it *bide.Item, s *headerSet) origin {
	if s.requeued() {
		if q, r := readRequeue(it.Headers, s); r == nil {
			return origin{dueMs: q.firstDueMs, timestampMs: q.originTimestampMs, first: s.value(it.Headers, idOrigin)}
		}
	}
	return origin{lane: lane, offset: it.Offset, dueMs: it.DueMs, timestampMs: it.TimestampMs}
}

// placeBytes bounds what appendPlace appends.
func (o *origin) placeBytes() int {
	return len(o.first) + len(o.lane.Topic) + len("/2147483647/9223372036854775807")
}

func (o *origin) appendPlace(b []byte) []byte {
	if o.first != nil {
		return append(b, o.first...)
	}
	b = append(b, o.lane.Topic...)
	b = append(b, '/')
	b = strconv.AppendInt(b, int64(o.lane.Partition), 10)
	b = append(b, '/')
	return strconv.AppendInt(b, o.offset, 10)
}

// annotator adds headers to a record, their values in one piece of memory.
type annotator struct {
	r   *kgo.Record
	buf []byte
}

func newAnnotator(r *kgo.Record, bytes int) annotator {
	return annotator{r, make([]byte, 0, bytes)}
}

func (a *annotator) text(name, value string) { a.add(name, append(a.buf, value...)) }

func (a *annotator) number(name string, n int64) { a.add(name, strconv.AppendInt(a.buf, n, 10)) }

// add takes buf with a value appended. The value's capacity ends with it, so that nobody appends to it
// over the next one.
func (a *annotator) add(name string, buf []byte) {
	from := len(a.buf)
	a.buf = buf
	a.r.Headers = append(a.r.Headers, kgo.RecordHeader{Key: name, Value: buf[from:len(buf):len(buf)]})
}
