//go:build synctests

package sim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/bide-mq/bide"
)

// read returns what a read-committed consumer finds in a topic, by partition, up to its end. A transaction
// that nobody ends is an error.
func (w *world) read(topic string) (map[int32][]*kgo.Record, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	admin := w.admin()
	defer admin.Close()
	ends, err := admin.ListEndOffsets(ctx, topic)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return nil, err
	}
	client, err := w.client(kgo.ConsumeTopics(topic), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchMaxWait(100*time.Millisecond))
	if err != nil {
		return nil, err
	}
	defer client.Close()
	records, at := make(map[int32][]*kgo.Record), make(map[int32]int64)
	for {
		behind := ""
		for _, end := range ends[topic] {
			if at[end.Partition] < end.Offset {
				behind = fmt.Sprintf("%s/%d is read up to %d of %d", topic, end.Partition, at[end.Partition], end.Offset)
			}
		}
		if behind == "" {
			return records, nil
		}
		fetches := client.PollFetches(ctx)
		if ctx.Err() != nil {
			return nil, fmt.Errorf("%s: a transaction is open", behind)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			at[r.Partition] = r.Offset + 1
			if !r.Attrs.IsControl() {
				records[r.Partition] = append(records[r.Partition], r)
			}
		})
	}
}

// tail reads the ingress while the run lasts, before records of it are deleted.
type tail struct {
	mu      sync.Mutex
	records map[int32][]*kgo.Record
	at      map[int32]int64
}

// follow reads until ctx is done.
func (t *tail) follow(ctx context.Context, client *kgo.Client) {
	defer client.Close()
	for ctx.Err() == nil {
		fetches := client.PollFetches(ctx)
		t.mu.Lock()
		fetches.EachRecord(func(r *kgo.Record) {
			if r.Offset < t.at[r.Partition] {
				return // the client began anew, after leaders moved
			}
			t.at[r.Partition] = r.Offset + 1
			if !r.Attrs.IsControl() {
				t.records[r.Partition] = append(t.records[r.Partition], r)
			}
		})
		t.mu.Unlock()
	}
}

// all returns what was read, once that is all there is.
func (t *tail) all(w *world) (map[int32][]*kgo.Record, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	admin := w.admin()
	defer admin.Close()
	ends, err := admin.ListEndOffsets(ctx, ingress)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return nil, err
	}
	for ctx.Err() == nil {
		t.mu.Lock()
		behind := false
		for _, end := range ends[ingress] {
			behind = behind || t.at[end.Partition] < end.Offset
		}
		records := make(map[int32][]*kgo.Record)
		for p, rs := range t.records {
			records[p] = slices.Clone(rs)
		}
		t.mu.Unlock()
		if !behind {
			return records, nil
		}
		time.Sleep(10 * time.Millisecond)
	}
	return nil, errors.New("the ingress is not read to its end: a transaction is open")
}

// commit is what the group has for a lane.
type commit struct {
	next, low int64
	cursor    bide.Position
	found     bool
	text      string
}

// commits returns those of all lanes.
func (w *world) commits() (map[int32]commit, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	admin := w.admin()
	defer admin.Close()
	all, err := admin.FetchOffsets(ctx, group)
	if err != nil {
		return nil, err
	}
	commits := make(map[int32]commit)
	for p := range int32(w.set.lanes) {
		o, ok := all.Lookup(ingress, p)
		if !ok || o.At < 0 {
			continue
		}
		c, err := parseCommit(o.At, o.Metadata)
		if err != nil {
			return nil, err
		}
		commits[p] = c
	}
	return commits, nil
}

// parseCommit reads a commit's metadata, by its documentation and not by Bide's code.
func parseCommit(next int64, text string) (commit, error) {
	c := commit{next: next, cursor: bide.NoPosition, found: true, text: text}
	fields := strings.Fields(text)
	if len(fields) < 3 || fields[0] != "bide/1" {
		return c, fmt.Errorf("commit %d %q is not Bide's", next, text)
	}
	var err error
	if s, _ := strings.CutPrefix(fields[1], "c="); s != "-" {
		due, offset, _ := strings.Cut(s, "/")
		c.cursor.DueMs, err = strconv.ParseInt(due, 10, 64)
		if err != nil {
			return c, err
		}
		if c.cursor.Offset, err = strconv.ParseInt(offset, 10, 64); err != nil {
			return c, err
		}
	}
	low, _ := strings.CutPrefix(fields[2], "l=")
	c.low, err = strconv.ParseInt(low, 10, 64)
	return c, err
}

func header(r *kgo.Record, name string) (string, bool) {
	for i := len(r.Headers) - 1; i >= 0; i-- {
		if r.Headers[i].Key == name {
			return string(r.Headers[i].Value), true
		}
	}
	return "", false
}

// incarnation is one ingress record of a message: the producer's, or one that Bide put back.
type incarnation struct {
	record *kgo.Record
	dueMs  int64
	copies []int64 // offsets at which it was carried forward
}

// at returns the offset by which low counts the message: that of its latest copy that was accepted.
func (in *incarnation) at(next int64) int64 {
	at := in.record.Offset
	for _, offset := range in.copies {
		if offset < next {
			at = max(at, offset)
		}
	}
	return at
}

// story is what is known of one message.
type story struct {
	label
	inputs  []incarnation // in the order of their offsets
	outputs []*kgo.Record
}

func (s *story) first() *kgo.Record { return s.inputs[0].record }

// copiesOf returns how many incarnations there are that may have been copied; none of an unknown message.
func (s *story) copiesOf() int {
	if s == nil {
		return 0
	}
	return len(s.inputs)
}

func (s *story) requeued() bool { return len(s.inputs) > 1 }

// snapshot is what consumers see at one moment.
type snapshot struct {
	stories map[string]*story
	ingress map[int32][]*kgo.Record
	outputs map[string]map[int32][]*kgo.Record // by topic and partition
	commits map[int32]commit
}

// look reads everything.
func (w *world) look() (*snapshot, error) {
	s := &snapshot{stories: make(map[string]*story), outputs: make(map[string]map[int32][]*kgo.Record)}
	var err error
	if s.ingress, err = w.tail.all(w); err != nil {
		return nil, err
	}
	for p := range int32(w.set.lanes) {
		for _, r := range s.ingress[p] {
			if err := s.input(r); err != nil {
				return nil, err
			}
		}
	}
	for _, topic := range append([]string{dead}, targets...) {
		if s.outputs[topic], err = w.read(topic); err != nil {
			return nil, err
		}
		for _, records := range s.outputs[topic] {
			for _, r := range records {
				text, _ := header(r, labelHeader)
				st := s.stories[parseLabel(text+"|||").name]
				if st == nil {
					return nil, fmt.Errorf("%s/%d/%d: %q was never in the ingress", topic, r.Partition, r.Offset, text)
				}
				st.outputs = append(st.outputs, r)
			}
		}
	}
	s.commits, err = w.commits()
	return s, err
}

func (s *snapshot) input(r *kgo.Record) error {
	text, ok := header(r, labelHeader)
	if !ok {
		return fmt.Errorf("record %d of lane %d has no label", r.Offset, r.Partition)
	}
	l := parseLabel(text)
	st := s.stories[l.name]
	if origin, copied := header(r, "delay-carried"); copied {
		for i := range st.copiesOf() {
			if in := &st.inputs[i]; in.record.Partition == r.Partition && strconv.FormatInt(in.record.Offset, 10) == origin {
				in.copies = append(in.copies, r.Offset)
				return nil
			}
		}
		return fmt.Errorf("record %d of lane %d is a copy of %s, which is not that of %s", r.Offset, r.Partition, origin, l.name)
	}
	in := incarnation{record: r, dueMs: l.dueMs(r.Timestamp.UnixMilli())}
	if _, again := header(r, "delay-attempt"); again {
		if st == nil {
			return fmt.Errorf("%s was requeued before it was produced", l.name)
		}
		until, _ := header(r, "delay-until")
		due, err := strconv.ParseInt(until, 10, 64)
		if err != nil {
			return fmt.Errorf("%s was requeued until %q", l.name, until)
		}
		in.dueMs = due
	} else if st != nil {
		return fmt.Errorf("%s is in the ingress twice", l.name)
	}
	if st == nil {
		st = &story{label: l}
		s.stories[l.name] = st
	}
	st.inputs = append(st.inputs, in)
	return nil
}
