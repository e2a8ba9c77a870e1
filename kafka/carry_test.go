package kafka

import (
	"fmt"
	"testing"
	"time"

	"github.com/bide-mq/bide"
)

// TestACarriedCopyIsTheMessageItself carries a message three times, as its producer wrote it and after it
// was requeued: each copy is accepted as the message, and the delivery does not show that there were any.
func TestACarriedCopyIsTheMessageItself(t *testing.T) {
	c := newTestContract(t, ContractOptions{
		Ingresses: []Ingress{{Topic: "delay-ingress", Target: "orders"}}, Annotate: true,
	})
	for _, requeued := range []bool{false, true} {
		t.Run(fmt.Sprintf("requeued %v", requeued), func(t *testing.T) {
			it := accept(t, c, sent("a", "1", HeaderTo, "mail", HeaderFor, "9h", HeaderDue, "1", HeaderOrigin, "old/0/1", "a", "2"))
			if requeued {
				it.Fate = bide.Fate{Kind: bide.Requeue, UntilMs: it.DueMs + 777, Attempt: 2}
				it = accept(t, c, asRead(c.record(testLane, it, it.DueMs+1), 20))
			}
			first := it.Message
			for offset := int64(100); offset < 103; offset++ {
				it.Fate = bide.Fate{Kind: bide.Carry}
				r := c.record(testLane, it, sentMs+offset)
				if r.Topic != testLane.Topic || r.Partition != testLane.Partition {
					t.Fatalf("copied to %s/%d", r.Topic, r.Partition)
				}
				m, rejected := c.Accept(asRead(r, offset), bide.Rules{Delay: time.Hour, MaxDelay: time.Millisecond})
				if rejected != nil {
					t.Fatal(rejected)
				}
				if m.Position() != first.Position() || m.At != offset || c.Attempt(&m) != c.Attempt(&first) {
					t.Errorf("position %v at %d attempt %d, expected %v at %d attempt %d",
						m.Position(), m.At, c.Attempt(&m), first.Position(), offset, c.Attempt(&first))
				}
				it = &bide.Item{Message: m}
			}
			checkHeaders(t, c.delivery(testLane, it, sentMs), text(c.delivery(testLane, &bide.Item{Message: first}, sentMs).Headers)...)
		})
	}
}

func TestMalformedCopiesAreRejected(t *testing.T) {
	c := newTestContract(t, ContractOptions{})
	for _, headers := range [][]string{
		{HeaderCarried, "3"},
		{HeaderCarried, "3", HeaderUntil, "1896073200000"},
		{HeaderCarried, "7", HeaderUntil, "1896073200000", HeaderOriginTimestamp, "1"}, // not below its own offset
		{HeaderCarried, "-1", HeaderUntil, "1896073200000", HeaderOriginTimestamp, "1"},
		{HeaderCarried, "x", HeaderUntil, "1896073200000", HeaderOriginTimestamp, "1"},
		{HeaderCarried, "3", HeaderUntil, "2030-01-31T08:00:00Z", HeaderOriginTimestamp, "1"},
		{HeaderCarried, "3", HeaderUntil, "1896073200000", HeaderOriginTimestamp, ""},
	} {
		_, r := c.Accept(sent(headers...), bide.Rules{})
		checkRejection(t, r, CodeMalformedHeader)
	}
}
