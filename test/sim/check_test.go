//go:build synctests

package sim

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/bide-mq/bide"
	"github.com/bide-mq/bide/kafka"
)

// mayFail are the reasons for which a message that is in order may become a dead letter after many tries:
// its target could not be written while faults lasted.
var mayFail = []string{kafka.CodeTargetUnavailable, kafka.CodeTargetUnknown, kafka.CodePartitionUnknown}

// checkCommits compares the commits with what is visible, as invariant I1 has it: a message below next is settled
// if and only if its offset is below low or its position at or below the cursor. In at-least-once mode
// what is not settled may be visible all the same.
func (w *world) checkCommits(s *snapshot) {
	for _, st := range s.stories {
		if st.target == bad {
			continue // refused when it is read, or when it is due
		}
		for i, in := range st.inputs {
			c := s.commits[in.record.Partition]
			if !c.found {
				continue
			}
			settled := in.at(c.next) < c.low || in.record.Offset < c.next && bide.Position{DueMs: in.dueMs, Offset: in.record.Offset}.AtOrBelow(c.cursor)
			visible := i < len(st.inputs)-1 || len(st.outputs) > 0
			if settled && !visible || visible && !settled && w.set.mode == kafka.ExactlyOnce {
				w.fail("I1: %s at %d/%d due %d: settled by the commit %t, but what settles it is visible: %t; next %d, %s; attempts %s",
					st.name, in.record.Partition, in.record.Offset, in.dueMs, settled, visible, c.next, c.text, w.triesOf(st.name))
			}
		}
	}
}

// checkAll compares everything, once nothing waits any more.
func (w *world) checkAll(s *snapshot) (duplicates int) {
	for _, st := range s.stories {
		duplicates += w.checkStory(st)
	}
	w.checkOrder(s)
	w.checkCommits(s)
	for p := range int32(w.set.lanes) {
		end := int64(0)
		if records := s.ingress[p]; len(records) > 0 {
			end = records[len(records)-1].Offset + 1
		}
		if c := s.commits[p]; !c.found || c.next != end || c.low != c.next {
			w.fail("lane %d: the last record is below %d, committed are next %d and %q", p, end, c.next, c.text)
		}
	}
	return duplicates
}

// checkStory tells whether a message ended where it should, as it should, once.
func (w *world) checkStory(st *story) (duplicates int) {
	in := st.first()
	where := fmt.Sprintf("%s (%d/%d, due %d, %d times requeued)", st, in.Partition, in.Offset, st.inputs[0].dueMs, len(st.inputs)-1)
	tries := w.triesOf(st.name)
	switch n := len(st.outputs); {
	case n == 0:
		w.fail("lost: %s; attempts %s", where, tries)
		return 0
	case n > 1 && w.set.mode == kafka.ExactlyOnce:
		w.fail("twice: %s is there %d times: %s; attempts %s", where, n, placesOf(st.outputs), tries)
	case n > 1:
		w.mu.Lock()
		most := 0
		for _, a := range w.attempts[st.name] {
			if a.kind == bide.Deliver || a.kind == bide.DeadLetter {
				most++
			}
		}
		w.mu.Unlock()
		if n > most {
			w.fail("twice: %s is there %d times: %s; attempts %s", where, n, placesOf(st.outputs), tries)
		}
	}
	for _, out := range st.outputs {
		if why := w.compare(st, in, out); why != "" {
			w.fail("%s at %s: %s; attempts %s", where, placesOf([]*kgo.Record{out}), why, tries)
		}
	}
	return len(st.outputs) - 1
}

// compare says what is wrong with an output.
func (w *world) compare(st *story, in, out *kgo.Record) string {
	code, _ := header(out, "delay-error-code")
	expect := st.target
	if st.target == bad || st.target == nowhere || out.Topic == dead && slices.Contains(mayFail, code) {
		expect = dead
	}
	if out.Topic != expect {
		return fmt.Sprintf("it should be in %s (error code %q)", expect, code)
	}
	if !same(in.Key, out.Key) || !same(in.Value, out.Value) {
		return "its key or value is not what was produced"
	}
	// In the end, everything but what Bide adds or removes is there, in its order.
	if theirs(in) != theirs(out) {
		return fmt.Sprintf("headers %s became %s", theirs(in), theirs(out))
	}
	origin := fmt.Sprintf("%s/%d/%d", in.Topic, in.Partition, in.Offset)
	if got, ok := header(out, "delay-origin"); !ok || got != origin {
		return fmt.Sprintf("delay-origin is %q, not %q", got, origin)
	}
	if out.Topic != dead {
		if early := st.inputs[0].dueMs - out.Timestamp.UnixMilli(); early > w.maxAhead.Milliseconds() {
			return fmt.Sprintf("early by %d ms", early)
		}
	}
	return ""
}

func same(a, b []byte) bool { return (a == nil) == (b == nil) && bytes.Equal(a, b) }

// theirs returns the headers that are the producer's own.
func theirs(r *kgo.Record) string {
	var b strings.Builder
	for _, h := range r.Headers {
		if !strings.HasPrefix(h.Key, "delay-") {
			fmt.Fprintf(&b, "%s=%q,%t ", h.Key, h.Value, h.Value == nil)
		}
	}
	return b.String()
}

// checkOrder finds messages of one lane with one due that overtook each other on a partition of their target.
// What was requeued has another due.
func (w *world) checkOrder(s *snapshot) {
	if w.set.mode != kafka.ExactlyOnce {
		return // what is there twice has two places
	}
	type key struct {
		lane int32
		due  int64
	}
	for _, topic := range targets {
		for partition, records := range s.outputs[topic] {
			last := make(map[key]*kgo.Record)
			for _, out := range records {
				text, _ := header(out, labelHeader)
				st := s.stories[parseLabel(text).name]
				if st.requeued() {
					continue
				}
				k := key{st.first().Partition, st.inputs[0].dueMs}
				if before := last[k]; before != nil && before.Offset > st.first().Offset {
					w.fail("order: in %s/%d, record %d of lane %d comes after record %d, both due %d", topic, partition, st.first().Offset, k.lane, before.Offset, k.due)
				}
				last[k] = st.first()
			}
		}
	}
}

func (w *world) triesOf(name string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var b strings.Builder
	for _, a := range w.attempts[name] {
		fmt.Fprintf(&b, "[%.3f %s %s %s]", a.at.Sub(w.began).Seconds(), a.by, kindName(a.kind), a.outcome)
	}
	return b.String()
}

func placesOf(records []*kgo.Record) string {
	var b strings.Builder
	for _, r := range records {
		by, _ := header(r, "delay-error-code")
		fmt.Fprintf(&b, "[%s/%d/%d %s]", r.Topic, r.Partition, r.Offset, by)
	}
	return b.String()
}

func kindName(kind bide.FateKind) string {
	switch kind {
	case bide.Deliver:
		return "deliver"
	case bide.DeadLetter:
		return "dead-letter"
	case bide.Requeue:
		return "requeue"
	case bide.Carry:
		return "carry"
	default:
		return "leave"
	}
}
