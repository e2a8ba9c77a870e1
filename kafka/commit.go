package kafka

import (
	"encoding/base64"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/bide-mq/bide"
)

// A lane's commit is the group's committed offset (next) and, as its metadata, one line of text:
//
//	bide/1 c=<due>/<offset> l=<low> w=<instance>:<incarnation>:<plan> x=<prefix> t=<topic id> n=<lanes> r=<from>:<delay>:<max>,…
//
//	c  the cursor: epoch milliseconds and ingress offset; "-" before anything was settled by position
//	l  low, an ingress offset
//	w  the writer: instance id, incarnation as 16 hex digits, plan as a decimal number
//	x  prefix of the writer's transactional ids, for a successor that has to fence them; may be empty
//	t  the ingress topic's id, as Kafka's tools print it (base64 of 16 bytes, 22 characters)
//	n  how many partitions the ingress topic had
//	r  settings that decide due: offset from which they hold, delay and max-delay in milliseconds; "-" for none
//
// In an instance id and a prefix each byte but letters, digits, '.', '_' and '-' is written as %XX.
// There is exactly one text for a commit, and anything else is refused, an unknown key too: a reader
// that skipped what it does not know would act on half of what was agreed. What a later release adds
// therefore takes a new version, which this one refuses with [bide.ErrCommitVersion].
const (
	commitMagic   = "bide/"
	commitVersion = 1

	// maxCommitBytes is a quarter of what brokers take by default (offset.metadata.max.bytes=4096), so
	// that a group with many lanes does not fill the offsets topic and an operator may lower that limit.
	maxCommitBytes = 1024
)

// ErrCommitTooLarge says that a commit does not fit into 1 KB of metadata, as happens when the delay or
// max-delay of an ingress was changed many times while messages from before wait.
var ErrCommitTooLarge = errors.New("commit metadata too large")

var (
	topicIDText = base64.RawURLEncoding.Strict()
	commitKeys  = [...]string{"c=", "l=", "w=", "x=", "t=", "n=", "r="}
)

// encodeCommit returns the metadata of c, whose writer's transactional ids begin with txPrefix. Errors:
// [ErrCommitTooLarge], or a commit that decodeCommit would refuse.
func encodeCommit(c bide.Commit, txPrefix string) (string, error) {
	if err := checkCommit(c); err != nil {
		return "", fmt.Errorf("encode commit: %w", err)
	}
	b := make([]byte, 0, 256)
	b = append(b, commitMagic...)
	b = strconv.AppendInt(b, commitVersion, 10)
	b = append(b, " c="...)
	if c.Cursor == bide.NoPosition {
		b = append(b, '-')
	} else {
		b = strconv.AppendInt(b, c.Cursor.DueMs, 10)
		b = append(b, '/')
		b = strconv.AppendInt(b, c.Cursor.Offset, 10)
	}
	b = append(b, " l="...)
	b = strconv.AppendInt(b, c.Low, 10)
	b = append(b, " w="...)
	b = appendEscaped(b, c.Writer.Instance)
	b = fmt.Appendf(b, ":%016x:%d x=", c.Writer.Incarnation, c.Writer.Plan)
	b = appendEscaped(b, txPrefix)
	b = append(b, " t="...)
	b = topicIDText.AppendEncode(b, c.TopicID[:])
	b = append(b, " n="...)
	b = strconv.AppendInt(b, int64(c.Lanes), 10)
	before := len(b)
	b = appendRules(append(b, " r="...), c.Rules)
	if len(b) > maxCommitBytes {
		return "", fmt.Errorf("%w: %d bytes of at most %d, %d of them for %d settings of delay and max-delay that waiting messages were accepted under: undo the last change of them, or make it when older messages are settled",
			ErrCommitTooLarge, len(b), maxCommitBytes, len(b)-before, len(c.Rules))
	}
	return string(b), nil
}

// decodeCommit returns the commit that a committed offset and its metadata stand for, and the prefix of
// its writer's transactional ids. Errors: [bide.ErrForeignCommit] where the text is empty, not Bide's or
// damaged, [bide.ErrCommitVersion].
func decodeCommit(next int64, meta string) (c bide.Commit, txPrefix string, err error) {
	rest, ours := strings.CutPrefix(meta, commitMagic)
	version, rest, _ := strings.Cut(rest, " ")
	n, digits := parseDecimal(version)
	switch {
	case meta == "":
		return bide.Commit{}, "", fmt.Errorf("%w: offset %d was committed without metadata", bide.ErrForeignCommit, next)
	case !ours || !digits:
		return bide.Commit{}, "", fmt.Errorf("%w: found %s", bide.ErrForeignCommit, quoteText(meta))
	case n != commitVersion:
		return bide.Commit{}, "", fmt.Errorf("%w: found version %d, this release reads %d", bide.ErrCommitVersion, n, commitVersion)
	}
	fields := strings.Split(rest, " ")
	if len(fields) != len(commitKeys) {
		return bide.Commit{}, "", damaged(meta, fmt.Errorf("%d fields instead of %d", len(fields), len(commitKeys)))
	}
	for i, key := range commitKeys {
		value, ok := strings.CutPrefix(fields[i], key)
		if !ok {
			return bide.Commit{}, "", damaged(meta, fmt.Errorf("%s instead of %s", quoteText(fields[i]), key))
		}
		fields[i] = value
	}
	c.Next = next
	if txPrefix, err = decodeFields(&c, fields); err == nil {
		err = checkCommit(c)
	}
	if err != nil {
		return bide.Commit{}, "", damaged(meta, err)
	}
	// One text for a commit: numbers with a sign or leading zeros, or bytes escaped without need, are
	// found here and need no rule of their own above.
	if again, err := encodeCommit(c, txPrefix); err != nil || again != meta {
		return bide.Commit{}, "", damaged(meta, errors.New("not as this release writes it"))
	}
	return c, txPrefix, nil
}

func damaged(meta string, why error) error {
	return fmt.Errorf("%w, or damaged: %w in %s", bide.ErrForeignCommit, why, quoteText(meta))
}

// decodeFields reads the values of commitKeys into c.
func decodeFields(c *bide.Commit, fields []string) (txPrefix string, err error) {
	c.Cursor = bide.NoPosition
	if fields[0] != "-" {
		due, offset, _ := strings.Cut(fields[0], "/")
		c.Cursor.DueMs, err = parseField("cursor", due, err)
		c.Cursor.Offset, err = parseField("cursor", offset, err)
	}
	c.Low, err = parseField("low", fields[1], err)
	lanes, err := parseField("lane count", fields[5], err)
	if err != nil {
		return "", err
	}
	if lanes > math.MaxInt32 {
		return "", fmt.Errorf("lane count %d", lanes)
	}
	c.Lanes = int32(lanes)

	writer := strings.Split(fields[2], ":")
	if len(writer) != 3 {
		return "", fmt.Errorf("writer %s", quoteText(fields[2]))
	}
	if c.Writer.Instance, err = unescape(writer[0]); err != nil {
		return "", err
	}
	if c.Writer.Incarnation, err = strconv.ParseUint(writer[1], 16, 64); err != nil {
		return "", fmt.Errorf("incarnation %s", quoteText(writer[1]))
	}
	if c.Writer.Plan, err = strconv.ParseUint(writer[2], 10, 64); err != nil {
		return "", fmt.Errorf("plan %s", quoteText(writer[2]))
	}
	if len(fields[4]) != topicIDText.EncodedLen(len(c.TopicID)) {
		return "", fmt.Errorf("topic id %s", quoteText(fields[4]))
	}
	if _, err := topicIDText.Decode(c.TopicID[:], []byte(fields[4])); err != nil {
		return "", fmt.Errorf("topic id %s", quoteText(fields[4]))
	}
	if c.Rules, err = parseRules(fields[6]); err != nil {
		return "", err
	}
	return unescape(fields[3])
}

// checkCommit returns why no lane can have the commit c. It holds for what is written as for what is read.
func checkCommit(c bide.Commit) error {
	switch {
	case c.Next < 0:
		return fmt.Errorf("next is %d", c.Next)
	case c.Low < 0 || c.Low > c.Next:
		return fmt.Errorf("low is %d with next at %d", c.Low, c.Next)
	case c.Cursor != bide.NoPosition && (c.Cursor.DueMs < 0 || c.Cursor.DueMs > maxDueMs || c.Cursor.Offset < 0 || c.Cursor.Offset >= c.Next):
		return fmt.Errorf("cursor is %v with next at %d", c.Cursor, c.Next)
	case c.Writer.Instance == "":
		return errors.New("no instance id")
	case c.Lanes < 1:
		return fmt.Errorf("lane count is %d", c.Lanes)
	}
	last := int64(-1)
	for _, span := range c.Rules {
		switch {
		case span.From <= last:
			return fmt.Errorf("settings from offset %d follow those from %d", span.From, last)
		case span.Rules.Delay < 0 || span.Rules.Delay%time.Millisecond != 0:
			return fmt.Errorf("a delay of %v", span.Rules.Delay)
		case span.Rules.MaxDelay < 0 || span.Rules.MaxDelay%time.Millisecond != 0:
			return fmt.Errorf("a max-delay of %v", span.Rules.MaxDelay)
		}
		last = span.From
	}
	return nil
}

func appendRules(b []byte, spans []bide.RuleSpan) []byte {
	if len(spans) == 0 {
		return append(b, '-')
	}
	for i, span := range spans {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, span.From, 10)
		b = append(b, ':')
		b = strconv.AppendInt(b, span.Rules.Delay.Milliseconds(), 10)
		b = append(b, ':')
		b = strconv.AppendInt(b, span.Rules.MaxDelay.Milliseconds(), 10)
	}
	return b
}

func parseRules(s string) ([]bide.RuleSpan, error) {
	if s == "-" {
		return nil, nil
	}
	const mostMs = int64(math.MaxInt64 / time.Millisecond)
	var spans []bide.RuleSpan
	for text := range strings.SplitSeq(s, ",") {
		parts := strings.Split(text, ":")
		if len(parts) != 3 {
			return nil, fmt.Errorf("settings %s", quoteText(text))
		}
		from, err := parseField("settings", parts[0], nil)
		delay, err := parseField("settings", parts[1], err)
		maxDelay, err := parseField("settings", parts[2], err)
		if err != nil || delay > mostMs || maxDelay > mostMs {
			return nil, fmt.Errorf("settings %s", quoteText(text))
		}
		spans = append(spans, bide.RuleSpan{From: from, Rules: bide.Rules{
			Delay:    time.Duration(delay) * time.Millisecond,
			MaxDelay: time.Duration(maxDelay) * time.Millisecond,
		}})
	}
	return spans, nil
}

// parseField reads a decimal number, unless there is an error already.
func parseField(what, s string, err error) (int64, error) {
	if err != nil {
		return 0, err
	}
	n, ok := parseDecimal(s)
	if !ok {
		return 0, fmt.Errorf("%s %s", what, quoteText(s))
	}
	return n, nil
}

// parseDecimal reads a number of 0 or more as Bide writes it: digits, no sign, no leading zero.
func parseDecimal(s string) (n int64, ok bool) {
	n, err := strconv.ParseInt(s, 10, 64)
	return n, err == nil && s[0] != '+' && s[0] != '-' && (s[0] != '0' || len(s) == 1)
}

// isPlain reports whether a byte of an instance id stands for itself in metadata.
func isPlain(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '.' || c == '_' || c == '-'
}

func appendEscaped(b []byte, s string) []byte {
	const digits = "0123456789ABCDEF"
	for i := range len(s) {
		if c := s[i]; isPlain(c) {
			b = append(b, c)
		} else {
			b = append(b, '%', digits[c>>4], digits[c&15])
		}
	}
	return b
}

func unescape(s string) (string, error) {
	if !strings.Contains(s, "%") {
		return s, nil
	}
	b := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if s[i] != '%' {
			b = append(b, s[i])
			continue
		}
		if i+2 >= len(s) {
			return "", fmt.Errorf("escape in %s", quoteText(s))
		}
		c, err := strconv.ParseUint(s[i+1:i+3], 16, 8)
		if err != nil {
			return "", fmt.Errorf("escape in %s", quoteText(s))
		}
		b = append(b, byte(c))
		i += 2
	}
	return string(b), nil
}
