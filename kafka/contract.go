package kafka

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/bide-mq/bide"
)

// DefaultDeadLetterTopic is the dead-letter topic where none is configured.
const DefaultDeadLetterTopic = "delay-dead-letter"

// Ingress is a topic that Bide consumes, and what holds for records that do not say otherwise.
type Ingress struct {
	Topic string
	// Target is the topic for records without delay-to; empty: such records are dead-lettered.
	Target string
	// Delay is for records without a delay of their own; 0: they are delivered now. Whole milliseconds.
	Delay time.Duration
	// MaxDelay bounds due against the record's timestamp; 0: the year 9999 does. Whole milliseconds.
	MaxDelay time.Duration
}

// ContractOptions configures a [Contract].
type ContractOptions struct {
	Ingresses []Ingress
	// DeadLetterTopic gets what cannot be delivered. Default: [DefaultDeadLetterTopic].
	DeadLetterTopic string
	// Allow lists the topics that producers may name as targets: names, prefixes with a * at the end,
	// or * alone. Empty: every topic that is neither internal nor an ingress. Configured targets need
	// not be listed; internal topics and ingresses stay forbidden whatever is.
	Allow []string
	// Annotate adds delay-origin, delay-due and delay-origin-timestamp to what is delivered.
	Annotate bool
}

// Contract reads control headers, judges targets, and builds the records that Bide writes. It is
// immutable, so safe for concurrent use. Accepting a message allocates nothing.
type Contract struct {
	ingresses  map[string]Ingress
	deadLetter string
	allowAll   bool
	allowed    map[string]struct{}
	prefixes   []string
	annotate   bool
}

var _ bide.Contract = (*Contract)(nil)

// NewContract returns the contract that o describes, or every fault of o.
func NewContract(o ContractOptions) (*Contract, error) {
	c := &Contract{
		ingresses:  make(map[string]Ingress, len(o.Ingresses)),
		deadLetter: o.DeadLetterTopic,
		allowAll:   len(o.Allow) == 0,
		allowed:    make(map[string]struct{}),
		annotate:   o.Annotate,
	}
	if c.deadLetter == "" {
		c.deadLetter = DefaultDeadLetterTopic
	}
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	for _, in := range o.Ingresses {
		if _, twice := c.ingresses[in.Topic]; twice {
			fault("ingress %q is listed twice", in.Topic)
		}
		c.ingresses[in.Topic] = in
	}
	if len(o.Ingresses) == 0 {
		fault("no ingress topic")
	}
	for _, in := range o.Ingresses {
		faults = append(faults, c.checkIngress(in)...)
		if in.Target != "" {
			c.allowed[in.Target] = struct{}{}
		}
	}
	if _, both := c.ingresses[c.deadLetter]; both {
		fault("dead-letter topic %q is an ingress: a dead letter would be read and rejected for ever", c.deadLetter)
	}
	if !isTopic(c.deadLetter) || isInternal(c.deadLetter) {
		fault("dead-letter topic %q is no topic name that Bide may write", c.deadLetter)
	}
	for _, entry := range o.Allow {
		prefix, isPrefix := strings.CutSuffix(entry, "*")
		switch {
		case isPrefix && prefix == "":
			c.allowAll = true
		case !isTopic(prefix):
			fault("allowed target %q is neither a topic name nor a prefix with a * at the end", entry)
		case isPrefix:
			c.prefixes = append(c.prefixes, prefix)
		default:
			if code := c.forbids(entry); code != "" {
				fault("allowed targets: %w", rejectTarget(code, entry))
			}
			c.allowed[entry] = struct{}{}
		}
	}
	if len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	return c, nil
}

func (c *Contract) checkIngress(in Ingress) (faults []error) {
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if !isTopic(in.Topic) || isInternal(in.Topic) {
		fault("ingress %q is no topic name that Bide may use", in.Topic)
	}
	if in.Target != "" {
		if code := c.forbids(in.Target); code != "" {
			fault("ingress %q: %w", in.Topic, rejectTarget(code, in.Target))
		}
	}
	if in.Delay < 0 || in.Delay%time.Millisecond != 0 {
		fault("ingress %q: delay %v is not 0 or more whole milliseconds", in.Topic, in.Delay)
	}
	if in.MaxDelay < 0 || in.MaxDelay%time.Millisecond != 0 {
		fault("ingress %q: max-delay %v is not 0 or more whole milliseconds", in.Topic, in.MaxDelay)
	}
	if in.MaxDelay > 0 && in.Delay > in.MaxDelay {
		fault("ingress %q: delay %v is beyond max-delay %v", in.Topic, in.Delay, in.MaxDelay)
	}
	return faults
}

// DeadLetterTopic returns the topic of dead letters.
func (c *Contract) DeadLetterTopic() string { return c.deadLetter }

// Rules returns the rules that configuration gives an ingress topic; none for another topic.
func (c *Contract) Rules(topic string) bide.Rules {
	in := c.ingresses[topic]
	return bide.Rules{Delay: in.Delay, MaxDelay: in.MaxDelay}
}

// Accept implements [bide.Contract]. It reads everything but the target, which Judge does.
func (c *Contract) Accept(rec bide.Record, rules bide.Rules) (bide.Message, *bide.Rejection) {
	s, unknown := findHeaders(rec.Headers)
	if unknown >= 0 {
		return bide.Message{}, rejectUnknown(rec.Headers[unknown].Key)
	}
	if rec.TimestampMs < 0 {
		return bide.Message{}, reject(CodeBadTimestamp, "the record's timestamp is %d ms, before 1970: correct the clock or the timestamp of the producer", rec.TimestampMs)
	}
	if s.has(idToPartition) {
		v := s.value(rec.Headers, idToPartition)
		if _, f := parsePartition(v); f != faultNone {
			return bide.Message{}, rejectValue(f, HeaderToPartition, v, "a partition from 0 to 2147483647")
		}
	}
	m := bide.Message{Record: rec, At: rec.Offset}
	if s.carried() {
		c, r := readCarry(rec.Headers, &s, rec.Offset)
		if r != nil {
			return bide.Message{}, r
		}
		// What the message was, and not what its copy is.
		m.Offset, m.TimestampMs, m.DueMs = c.offset, c.originTimestampMs, c.untilMs
		return m, nil
	}
	due, r := dueOf(&rec, &s, rules)
	if r != nil {
		return bide.Message{}, r
	}
	m.DueMs = due
	return m, nil
}

// dueOf returns when a record is due, in epoch milliseconds from 0 to maxDueMs.
func dueOf(rec *bide.Record, s *headerSet, rules bide.Rules) (due int64, r *bide.Rejection) {
	if s.requeued() {
		q, r := readRequeue(rec.Headers, s)
		return q.untilMs, r // its first due was within max-delay, or the rules of that time
	}
	if r := rejectStray(s); r != nil {
		return 0, r
	}
	switch {
	case s.has(idFor) && s.has(idUntil):
		return 0, reject(CodeTwoDelays, "headers delay-for and delay-until in one message: leave one of them out")
	case s.has(idUntil):
		v := s.value(rec.Headers, idUntil)
		var f fault
		if due, f = parseUntil(v); f != faultNone {
			return 0, rejectValue(f, HeaderUntil, v, "a time as 2030-01-31T08:00:00+01:00 or epoch milliseconds as 1896073200000")
		}
	default:
		delay := ceilMs(rules.Delay)
		if s.has(idFor) {
			v := s.value(rec.Headers, idFor)
			var f fault
			if delay, f = parseDelay(v); f != faultNone {
				return 0, rejectValue(f, HeaderFor, v, "milliseconds as 1500, or a duration as 90s, 1h30m, 49d18h or PT1H30M")
			}
		}
		if rec.TimestampMs > maxDueMs-delay {
			return 0, reject(CodeDueOutOfRange, "due would be after the year 9999: the record's timestamp is %d ms, its delay %d ms", rec.TimestampMs, delay)
		}
		due = rec.TimestampMs + delay
	}
	// Both are 0 or more, so that the difference does not overflow.
	if most := rules.MaxDelay.Milliseconds(); rules.MaxDelay > 0 && due-rec.TimestampMs > most {
		return 0, reject(CodeBeyondMaxDelay, "due is %d ms after the record's timestamp, max-delay of the ingress is %d ms: ask for less, or have the limit raised", due-rec.TimestampMs, most)
	}
	return due, nil
}

// rejectStray rejects a reserved header on a record that is no requeued one.
func rejectStray(s *headerSet) *bide.Rejection {
	if s.has(idErrorCode) {
		return nil // a dead letter sent again: they are void
	}
	for id := range headerCount {
		if headerTable[id].Kind == Reserved && s.has(id) {
			return reject(CodeMalformedHeader, "header %s is reserved for records that Bide produces: leave it out", headerTable[id].Name)
		}
	}
	return nil
}

// ceilMs rounds up, so that nothing is early. A negative delay, which no configuration gives, is none.
func ceilMs(d time.Duration) int64 {
	if d <= 0 {
		return 0
	}
	return int64((d-1)/time.Millisecond) + 1
}

// Judge implements [bide.Contract].
func (c *Contract) Judge(lane bide.Lane, m *bide.Message) *bide.Rejection {
	s, _ := findHeaders(m.Headers)
	if !s.has(idTo) {
		if c.ingresses[lane.Topic].Target == "" {
			return reject(CodeNoTarget, "no target: the record has no header delay-to, and ingress %s has no configured target; give one of them", lane.Topic)
		}
		return nil // NewContract has judged it
	}
	// The name is made a string that outlives the call for a rejection alone.
	v := s.value(m.Headers, idTo)
	if _, listed := c.allowed[string(v)]; listed {
		return nil
	}
	code := c.forbids(string(v))
	if code == "" && !c.allows(v) {
		code = CodeTargetNotAllowed
	}
	if code == "" {
		return nil
	}
	return rejectTarget(code, string(v))
}

// forbids returns why no producer may name a target, whatever is allowed; "" if nothing speaks against it.
func (c *Contract) forbids(name string) (code string) {
	if !isTopic(name) {
		return CodeTargetInvalid
	}
	if _, ingress := c.ingresses[name]; ingress {
		return CodeTargetIsIngress
	}
	if isInternal(name) {
		return CodeTargetInternal
	}
	return ""
}

// writes reports whether Bide may write a topic: a target that is allowed, an ingress, or the dead letters.
func (c *Contract) writes(topic string) bool {
	_, ingress := c.ingresses[topic]
	_, listed := c.allowed[topic]
	return ingress || listed || topic == c.deadLetter || c.forbids(topic) == "" && c.allows([]byte(topic))
}

func (c *Contract) allows(name []byte) bool {
	for _, p := range c.prefixes {
		if len(name) >= len(p) && string(name[:len(p)]) == p {
			return true
		}
	}
	return c.allowAll
}

func rejectTarget(code, name string) *bide.Rejection {
	found := quoteText(name)
	switch code {
	case CodeTargetInvalid:
		return reject(code, "target %s is no topic name: Kafka allows 1 to %d letters, digits, dots, underscores and hyphens", found, maxTopicBytes)
	case CodeTargetIsIngress:
		return reject(code, "target %s is an ingress: name the topic that its consumers read", found)
	case CodeTargetInternal:
		return reject(code, "target %s is an internal topic, which Bide never writes: name another", found)
	default:
		return reject(code, "target %s in header delay-to is not in the list of allowed targets: have it added there, or name another", found)
	}
}

// isInternal reports whether a topic is one that Kafka or its tools keep for themselves.
func isInternal(name string) bool { return strings.HasPrefix(name, "__") }

// Attempt returns how many deliveries of m were tried before: 0 for a message as its producer sent it.
func (c *Contract) Attempt(m *bide.Message) int {
	s, _ := findHeaders(m.Headers)
	if !s.requeued() {
		return 0
	}
	n, ok := parseDecimal(string(s.value(m.Headers, idAttempt)))
	if !ok || n < 1 {
		return 0
	}
	return int(min(n, math.MaxInt32))
}
