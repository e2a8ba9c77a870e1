package kafka

import (
	"math"
	"strconv"
	"strings"

	"github.com/bide-mq/bide"
)

// Names of the headers that producers set, and of those that Bide adds.
const (
	HeaderFor         = "delay-for"
	HeaderUntil       = "delay-until"
	HeaderTo          = "delay-to"
	HeaderToPartition = "delay-to-partition"
	HeaderToKey       = "delay-to-key"

	HeaderOrigin          = "delay-origin"
	HeaderDue             = "delay-due"
	HeaderOriginTimestamp = "delay-origin-timestamp"
	HeaderError           = "delay-error"
	HeaderErrorCode       = "delay-error-code"

	HeaderAttempt  = "delay-attempt"
	HeaderFirstDue = "delay-first-due"
	HeaderHop      = "delay-hop"
	HeaderCarried  = "delay-carried"
)

// HeaderKind says who writes a header.
type HeaderKind uint8

const (
	// Control headers are set by producers, and removed on delivery.
	Control HeaderKind = iota
	// Added headers are set by Bide on what it delivers or dead-letters. On an ingress they are accepted
	// and mean nothing, so that a delivered message can be delayed again as it is.
	Added
	// Reserved headers are set by Bide on records that it produces to an ingress. Who may write an ingress
	// can forge them, and is trusted not to.
	Reserved
)

// HeaderDoc describes one header of the contract.
type HeaderDoc struct {
	Name    string
	Kind    HeaderKind
	Value   string
	Meaning string
}

// HeaderTable returns the headers of the contract, in the order of documentation. Any other name that
// begins with delay-, in upper or lower case, is rejected.
func HeaderTable() []HeaderDoc { return append([]HeaderDoc(nil), headerTable[:]...) }

type headerID uint8

const (
	idFor headerID = iota
	idUntil
	idTo
	idToPartition
	idToKey
	idOrigin
	idDue
	idOriginTimestamp
	idError
	idErrorCode
	idAttempt
	idFirstDue
	idHop
	idCarried
	headerCount
)

var headerTable = [headerCount]HeaderDoc{
	idFor: {
		HeaderFor, Control, "`1500` (ms), `90s`, `1h30m`, `49d18h`, `PT1H30M`, `P2DT3H`",
		"due = record timestamp + this, 0 or more, less than a millisecond rounded up; units d h m s ms us ns in descending order, ISO 8601 without weeks, months and years",
	},
	idUntil: {
		HeaderUntil, Control, "`2030-01-31T08:00:00+01:00`, `1896073200000`",
		"due: RFC 3339 with a zone, less than a millisecond rounded up, or epoch ms (below 10¹¹ it would be seconds: rejected); a past time means now, before 1970 is rejected; not together with `delay-for`",
	},
	idTo: {
		HeaderTo, Control, "topic",
		"target; required unless the ingress topic has a configured target",
	},
	idToPartition: {
		HeaderToPartition, Control, "0 … 2147483647",
		"partition of the target; without it the key decides as in the Java client",
	},
	idToKey: {
		HeaderToKey, Control, "bytes",
		"key of the delivered record instead of the record's own; null and empty are different",
	},
	idOrigin: {
		HeaderOrigin, Added, "`topic/partition/offset`",
		"the record of the ingress that was delivered or dead-lettered",
	},
	idDue: {
		HeaderDue, Added, "epoch ms",
		"when the message was due, as its producer asked",
	},
	idOriginTimestamp: {
		HeaderOriginTimestamp, Added, "epoch ms",
		"timestamp of the ingress record",
	},
	idError: {
		HeaderError, Added, "a sentence",
		"why the message was dead-lettered",
	},
	idErrorCode: {
		HeaderErrorCode, Added, "a word",
		"the same for programs",
	},
	idAttempt: {
		HeaderAttempt, Reserved, "1 … 2147483647",
		"deliveries tried so far, of a message that waits for the next one; comes with `delay-until`, `delay-first-due`, `delay-origin` and `delay-origin-timestamp`",
	},
	idFirstDue: {
		HeaderFirstDue, Reserved, "epoch ms",
		"when such a message was due at first",
	},
	idHop: {
		HeaderHop, Reserved, "0 … 2147483647",
		"kept as it is for later releases; comes with `delay-attempt`",
	},
	idCarried: {
		HeaderCarried, Reserved, "an ingress offset",
		"the record is a copy of the message that the lane's record at that offset is, and that still waits; comes with `delay-until` and `delay-origin-timestamp`",
	},
}

var headerIDs = func() map[string]headerID {
	ids := make(map[string]headerID, headerCount)
	for i := range headerTable {
		ids[headerTable[i].Name] = headerID(i)
	}
	return ids
}()

const headerPrefix = "delay-"

// isOurs reports whether a header name is of the contract's name space. The case of letters does not
// count: a misspelt Delay-For has to be rejected, not taken for the producer's own and delivered now.
func isOurs(name string) bool {
	return len(name) >= len(headerPrefix) && name[0]|0x20 == 'd' && strings.EqualFold(name[:len(headerPrefix)], headerPrefix)
}

// headerSet says where in a record's headers each one of the contract stands: 1 + the index of the
// last of that name, 0 for none.
type headerSet struct {
	at [headerCount]int
}

func (s *headerSet) has(id headerID) bool { return s.at[id] > 0 }

// value returns the value of a header that is there.
func (s *headerSet) value(hs []bide.Header, id headerID) []byte { return hs[s.at[id]-1].Value }

// requeued reports whether Bide produced the record itself, for another attempt. A dead letter that was
// sent to an ingress again still has the headers of its last attempt, but begins anew: they are void.
func (s *headerSet) requeued() bool { return s.has(idAttempt) && !s.has(idErrorCode) }

// carried reports whether the record is a copy of a message that Bide carried forward.
func (s *headerSet) carried() bool { return s.has(idCarried) && !s.has(idErrorCode) }

// findHeaders finds the headers of the contract; unknown is the index of the first whose name is
// of their name space and not one of them, or -1.
func findHeaders(hs []bide.Header) (s headerSet, unknown int) {
	unknown = -1
	for i := range hs {
		name := hs[i].Key
		if !isOurs(name) {
			continue
		}
		if id, ok := headerIDs[name]; ok {
			s.at[id] = i + 1
		} else if unknown < 0 {
			unknown = i
		}
	}
	return s, unknown
}

// rejectUnknown is the rejection for a header that the contract does not have.
func rejectUnknown(name string) *bide.Rejection {
	if lower := strings.ToLower(name); lower != name {
		if _, ok := headerIDs[lower]; ok {
			return reject(CodeUnknownHeader, "header %s is unknown: write %s, in lower case", quoteText(name), lower)
		}
	}
	return reject(CodeUnknownHeader, "header %s is unknown: names that begin with delay- are Bide's; correct it, or give a header of your own another name", quoteText(name))
}

// requeue is what a record carries that Bide produced to its lane again.
type requeue struct {
	attempt           int32
	untilMs           int64
	firstDueMs        int64
	originTimestampMs int64
}

// carry is what a copy of a waiting message carries.
type carry struct {
	offset            int64
	untilMs           int64
	originTimestampMs int64
}

// readCarry reads the headers of a copy that was read at offset at.
func readCarry(hs []bide.Header, s *headerSet, at int64) (c carry, r *bide.Rejection) {
	for _, id := range [...]headerID{idUntil, idOriginTimestamp} {
		if !s.has(id) {
			return c, reject(CodeMalformedHeader, "header delay-carried without %s: only Bide sets it, and always both; leave it out", headerTable[id].Name)
		}
	}
	number := func(id headerID, most int64) int64 {
		v := s.value(hs, id)
		n, ok := parseDecimal(string(v))
		if (!ok || n < 0 || n > most) && r == nil {
			r = rejectReserved(id, v)
		}
		return n
	}
	c.offset = number(idCarried, at-1)
	c.untilMs = number(idUntil, maxDueMs)
	c.originTimestampMs = number(idOriginTimestamp, math.MaxInt64)
	return c, r
}

// readRequeue reads the headers of a requeued record.
func readRequeue(hs []bide.Header, s *headerSet) (q requeue, r *bide.Rejection) {
	if s.has(idFor) {
		return q, reject(CodeTwoDelays, "header delay-for stands beside delay-attempt, which Bide sets together with delay-until; leave delay-attempt out")
	}
	for _, id := range [...]headerID{idUntil, idFirstDue, idOrigin, idOriginTimestamp} {
		if !s.has(id) {
			return q, reject(CodeMalformedHeader, "header delay-attempt without %s: only Bide sets it, and always both; leave it out", headerTable[id].Name)
		}
	}
	number := func(id headerID, least, most int64) int64 {
		v := s.value(hs, id)
		n, ok := parseDecimal(string(v))
		if (!ok || n < least || n > most) && r == nil {
			r = rejectReserved(id, v)
		}
		return n
	}
	q.attempt = int32(number(idAttempt, 1, math.MaxInt32))
	q.untilMs = number(idUntil, 0, maxDueMs)
	q.firstDueMs = number(idFirstDue, 0, maxDueMs)
	q.originTimestampMs = number(idOriginTimestamp, 0, math.MaxInt64)
	if s.has(idHop) {
		number(idHop, 0, math.MaxInt32)
	}
	if v := s.value(hs, idOrigin); r == nil && !isOrigin(string(v)) {
		r = rejectReserved(idOrigin, v)
	}
	return q, r
}

func rejectReserved(id headerID, v []byte) *bide.Rejection {
	return reject(CodeMalformedHeader, "header %s is %s beside a reserved header; expected %s as only Bide writes it; leave delay-attempt and delay-carried out",
		headerTable[id].Name, quoteText(string(v)), strings.ReplaceAll(headerTable[id].Value, "`", ""))
}

// isOrigin reports whether s is topic/partition/offset.
func isOrigin(s string) bool {
	topic, rest, _ := strings.Cut(s, "/")
	partition, offset, _ := strings.Cut(rest, "/")
	p, ok := parseDecimal(partition)
	_, alsoOK := parseDecimal(offset)
	return isTopic(topic) && ok && p <= math.MaxInt32 && alsoOK
}

// isTopic reports whether Kafka allows name for a topic.
func isTopic(name string) bool {
	if name == "" || len(name) > maxTopicBytes || name == "." || name == ".." {
		return false
	}
	for i := range len(name) {
		if !isPlain(name[i]) {
			return false
		}
	}
	return true
}

// maxTopicBytes is Kafka's limit for a topic name: with a partition's number it has to be a file name.
const maxTopicBytes = 249

// parsePartition reads the value of delay-to-partition.
func parsePartition(v []byte) (int32, fault) {
	if f := textFault(v); f != faultNone {
		return 0, f
	}
	n, err := strconv.ParseInt(string(v), 10, 32)
	if err != nil || n < 0 || v[0] == '+' || v[0] == '-' {
		return 0, faultMalformed
	}
	return int32(n), faultNone
}
