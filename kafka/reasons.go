package kafka

import (
	"fmt"
	"strconv"

	"github.com/bide-mq/bide"
)

// Codes of rejections: the word in delay-error-code, in logs and in the metric of dead letters.
const (
	CodeMalformedHeader = "malformed-header"
	CodeUnknownHeader   = "unknown-header"
	CodeTwoDelays       = "two-delays"
	CodeNegativeDelay   = "negative-delay"
	CodeDueOutOfRange   = "due-out-of-range"
	CodeBeyondMaxDelay  = "beyond-max-delay"
	CodeBadTimestamp    = "bad-timestamp"

	CodeNoTarget         = "no-target"
	CodeTargetInvalid    = "target-invalid"
	CodeTargetIsIngress  = "target-is-ingress"
	CodeTargetInternal   = "target-internal"
	CodeTargetNotAllowed = "target-not-allowed"

	CodeTargetUnknown      = "target-unknown"
	CodePartitionUnknown   = "partition-unknown"
	CodeTargetUnauthorized = "target-unauthorized"
	CodeTooLarge           = "too-large"
	CodeTargetRefused      = "target-refused"
	CodeTargetUnavailable  = "target-unavailable"
)

// CodeDoc says what a rejection's code means.
type CodeDoc struct {
	Code    string
	Meaning string
}

// ReasonCodes returns every code of a rejection with its meaning, in the order of documentation.
func ReasonCodes() []CodeDoc {
	return []CodeDoc{
		{CodeMalformedHeader, "a control header's value cannot be read, or a reserved header is incomplete"},
		{CodeUnknownHeader, "a header begins with delay- but is none that Bide knows; a misspelt one must not mean \"now\""},
		{CodeTwoDelays, "delay-for and delay-until in one message"},
		{CodeNegativeDelay, "delay-for is below zero"},
		{CodeDueOutOfRange, "due is before 1970 or after the year 9999, or delay-until is seconds or microseconds"},
		{CodeBeyondMaxDelay, "due is further from the record's timestamp than max-delay of the ingress allows"},
		{CodeBadTimestamp, "the record's timestamp is before 1970"},
		{CodeNoTarget, "neither delay-to nor a target of the ingress"},
		{CodeTargetInvalid, "delay-to is no topic name that Kafka allows"},
		{CodeTargetIsIngress, "the target is an ingress itself"},
		{CodeTargetInternal, "the target is an internal topic: its name begins with two underscores"},
		{CodeTargetNotAllowed, "the target is not in the list of allowed targets"},
		{CodeTargetUnknown, "the target does not exist"},
		{CodePartitionUnknown, "the target has no partition delay-to-partition"},
		{CodeTargetUnauthorized, "Bide may not write the target"},
		{CodeTooLarge, "the message is larger than its target takes"},
		{CodeTargetRefused, "the target refused the message for another reason"},
		{CodeTargetUnavailable, "the target could not be written, however often it was tried"},
	}
}

// quotedBytes bounds what a reason or an error repeats of a value that is at fault: enough to recognise
// a time with a zone, too little to carry a payload into logs.
const quotedBytes = 40

// quoteText quotes s in ASCII, cut to quotedBytes.
func quoteText(s string) string {
	if len(s) > quotedBytes {
		return strconv.QuoteToASCII(s[:quotedBytes]) + "…"
	}
	return strconv.QuoteToASCII(s)
}

func reject(code, format string, args ...any) *bide.Rejection {
	return &bide.Rejection{Code: code, Reason: fmt.Sprintf(format, args...)}
}

// rejectValue is the rejection for a header whose value has a fault; expected says what it should be.
func rejectValue(f fault, header string, value []byte, expected string) *bide.Rejection {
	found := quoteText(string(value))
	switch f {
	case faultEmpty:
		return reject(CodeMalformedHeader, "header %s is empty; expected %s", header, expected)
	case faultLong:
		return reject(CodeMalformedHeader, "header %s has %d bytes, at most %d can be meant; expected %s", header, len(value), maxValueBytes, expected)
	case faultBinary:
		return reject(CodeMalformedHeader, "header %s is %d bytes that are no text (%s); expected %s, as text and not as the bytes of a number", header, len(value), found, expected)
	case faultNegative:
		return reject(CodeNegativeDelay, "header %s is %s, below zero; expected %s", header, found, expected)
	case faultNoZone:
		return reject(CodeMalformedHeader, "header %s is %s, a time without a zone; append Z or an offset such as +02:00", header, found)
	case faultSeconds:
		return reject(CodeDueOutOfRange, "header %s is %s, which would be before March 1973: it looks like seconds; expected %s", header, found, expected)
	case faultMicros:
		return reject(CodeDueOutOfRange, "header %s is %s, which would be after the year 9999: it looks like microseconds or nanoseconds; expected %s", header, found, expected)
	case faultEarly:
		return reject(CodeDueOutOfRange, "header %s is %s, before 1970; expected %s", header, found, expected)
	case faultBeyond:
		return reject(CodeDueOutOfRange, "header %s is %s, beyond the end of the year 9999; expected %s", header, found, expected)
	default:
		return reject(CodeMalformedHeader, "header %s is %s; expected %s", header, found, expected)
	}
}
