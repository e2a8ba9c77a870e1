package bide

import (
	"slices"
	"time"
)

// Rules are the settings that decide when a message is due. A change of them holds from an offset
// on (see [Commit.Rules]), so that a rebuild reads every record as it was read the first time.
type Rules struct {
	// Delay applies to records that carry no delay of their own: due = record timestamp + Delay.
	Delay time.Duration
	// MaxDelay bounds due against the record's timestamp; 0 means no bound but the year 9999.
	MaxDelay time.Duration
}

// RuleSpan says which rules hold for offsets at and above From, up to the next span.
type RuleSpan struct {
	From  int64
	Rules Rules
}

// RulesAt returns the rules that hold for offset; spans are in ascending order of From. Offsets
// below the first span get the first span's rules; no span at all gives the zero Rules.
func RulesAt(spans []RuleSpan, offset int64) Rules {
	i, _ := slices.BinarySearchFunc(spans, offset, func(s RuleSpan, off int64) int {
		if s.From <= off {
			return -1
		}
		return 1
	})
	switch {
	case len(spans) == 0:
		return Rules{}
	case i == 0:
		return spans[0].Rules
	default:
		return spans[i-1].Rules
	}
}

// Rejection says why a message becomes a dead letter. It is an error, so that a contract can
// return it.
type Rejection struct {
	// Code is one word of a fixed set (see docs), fit for a metric label: malformed-header, no-target, …
	Code string
	// Reason is a sentence that names what, where and what to do. It may quote
	// a few bytes of the header value at fault, never keys or other values.
	Reason string
}

// Error returns the reason.
func (r *Rejection) Error() string { return r.Reason }

// Contract reads what producers ask for in their headers. Its methods are pure functions of their
// arguments and static configuration: they never look at a clock, so that a record read twice, on
// any machine, gets the same answer. Safe for concurrent use.
type Contract interface {
	// Accept returns the message that rec stands for, or a [Rejection] where its delay cannot be
	// read or is out of bounds. The message shares the record's memory. A copy that a [Carry] made comes
	// back as the message that it is a copy of: with its Offset, and At as the copy's.
	Accept(rec Record, rules Rules) (Message, *Rejection)

	// Judge returns why m may not be delivered to the target that it names (none named, an ingress,
	// an internal topic, …), or nil. It is asked when m is planned.
	Judge(lane Lane, m *Message) *Rejection

	// Attempt returns how many deliveries of m were tried before it was requeued; 0 for a message as its
	// producer wrote it.
	Attempt(m *Message) int

	// Rules returns the rules that static configuration gives an ingress topic today.
	Rules(topic string) Rules
}
