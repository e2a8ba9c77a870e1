//go:build unix

package e2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// bad is a message that Bide must refuse, with the code of the reason.
type bad struct {
	code    string
	headers []string // name, value, name, value, …
	size    int
}

func badMessages(ts topics) []bad {
	to := func(more ...string) []string { return append([]string{"delay-to", ts.target}, more...) }
	return []bad{
		{code: "no-target", headers: []string{"delay-for", "1s"}},
		{code: "no-target"},
		{code: "two-delays", headers: to("delay-for", "1s", "delay-until", "2030-01-01T00:00:00Z")},
		{code: "malformed-header", headers: to("delay-for", "abc")},
		{code: "malformed-header", headers: to("delay-for", "")},
		{code: "malformed-header", headers: to("delay-until", "2030-01-01 00:00")},
		{code: "malformed-header", headers: to("delay-to-partition", "one")},
		{code: "negative-delay", headers: to("delay-for", "-1")},
		{code: "due-out-of-range", headers: to("delay-until", "1700000000")}, // seconds
		{code: "due-out-of-range", headers: to("delay-until", "9223372036854775807")},
		{code: "due-out-of-range", headers: to("delay-until", "1600-01-01T00:00:00Z")},
		{code: "due-out-of-range", headers: to("delay-for", "9223372036854775807")},
		{code: "due-out-of-range", headers: to("delay-for", "99999999999999999999")},
		{code: "unknown-header", headers: to("delay-fro", "90s")},
		{code: "unknown-header", headers: to("Delay-For", "90s")}, // names are in lower case
		{code: "target-is-ingress", headers: []string{"delay-to", ts.ingress}},
		{code: "target-internal", headers: []string{"delay-to", "__consumer_offsets"}},
		{code: "target-invalid", headers: []string{"delay-to", "no such/name"}},
		{code: "partition-unknown", headers: to("delay-to-partition", "77")},
		{code: "target-unknown", headers: []string{"delay-to", "no-such-topic"}},
		{code: "too-large", headers: []string{"delay-to", small(ts)}, size: 5000},
	}
}

// small is the name of a target that takes only small records.
func small(ts topics) string { return ts.target + "-small" }

// go test ./test/e2e -run TestBadInputBecomesADeadLetterAndTheLaneGoesOn -v
func TestBadInputBecomesADeadLetterAndTheLaneGoesOn(t *testing.T) {
	eachCluster(t, func(t *testing.T, c *cluster) {
		ts := c.makeTopics(t, topicSpec{lanes: 1, targets: 1})
		c.makeTopic(t, small(ts), 1, map[string]*string{"max.message.bytes": kadm.StringPtr("1000")})
		s := c.settings(t, ts)
		s.args = []string{"--retry.max-attempts", "2"} // a partition or a topic may yet be made, so it is tried again
		p := s.startReady(t)
		cl := c.client(t, kgo.ProducerLinger(0))
		messages := badMessages(ts)
		for i, b := range messages {
			c.produceBad(t, cl, ts, i, b)
		}
		good := c.read(t, ts.target, len(messages), 60*time.Second)
		for i, r := range good {
			if want := fmt.Sprintf("good %d", i); string(r.Value) != want {
				t.Errorf("delivery %d is %q, want %q", i, r.Value, want)
			}
		}
		dead := map[string]*kgo.Record{}
		for _, r := range c.read(t, ts.deadLetter, len(messages), 60*time.Second) {
			dead[string(r.Key)] = r
		}
		for i, b := range messages {
			checkDead(t, i, b, dead[fmt.Sprint(i)])
		}
		if n := p.needMetric("bide_messages_dead_lettered_total"); n != float64(len(messages)) {
			t.Errorf("bide_messages_dead_lettered_total is %.0f, want %d", n, len(messages))
		}
	})
}

// produceBad sends a bad message and a good one behind it.
func (c *cluster) produceBad(t *testing.T, cl *kgo.Client, ts topics, i int, b bad) {
	t.Helper()
	r := &kgo.Record{Topic: ts.ingress, Key: []byte(fmt.Sprint(i)), Value: value(i, b.size)}
	for j := 0; j < len(b.headers); j += 2 {
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: b.headers[j], Value: []byte(b.headers[j+1])})
	}
	next := &kgo.Record{Topic: ts.ingress, Value: []byte(fmt.Sprintf("good %d", i)), Headers: []kgo.RecordHeader{{Key: "delay-to", Value: []byte(ts.target)}}}
	if err := cl.ProduceSync(t.Context(), r, next).FirstErr(); err != nil {
		t.Fatal(err)
	}
}

// checkDead wants the record unchanged, but for the reason.
func checkDead(t *testing.T, i int, b bad, r *kgo.Record) {
	t.Helper()
	if r == nil {
		t.Errorf("message %d (%s %q) is no dead letter", i, b.code, b.headers)
		return
	}
	if got := header(r, "delay-error-code"); got != b.code {
		t.Errorf("message %d %q: delay-error-code %q, want %q (%s)", i, b.headers, got, b.code, header(r, "delay-error"))
	}
	if header(r, "delay-error") == "" {
		t.Errorf("message %d %q has no delay-error", i, b.headers)
	}
	if !same(r.Value, value(i, b.size)) {
		t.Errorf("message %d: the value has changed", i)
	}
	for j := 0; j < len(b.headers); j += 2 {
		if at := j / 2; at >= len(r.Headers) || r.Headers[at].Key != b.headers[j] || string(r.Headers[at].Value) != b.headers[j+1] {
			t.Errorf("message %d: headers %v, want %q first", i, r.Headers, b.headers)
			break
		}
	}
}
