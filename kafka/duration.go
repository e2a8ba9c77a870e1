package kafka

import (
	"bytes"
	"time"
	"unicode/utf8"
)

const (
	// maxDueMs is the last due: 9999-12-31T23:59:59.999Z, the end of what RFC 3339 can write.
	maxDueMs int64 = 253_402_300_799_999

	// secondsBelow is where a number for delay-until is taken for seconds: 10^11 ms is March 1973, which
	// nobody asks for, and 10^11 s is the year 5138.
	secondsBelow int64 = 100_000_000_000

	// maxValueBytes bounds a duration or a time: the longest with every unit and nine decimals is shorter.
	maxValueBytes = 64

	// maxDecimals is nanoseconds. More could be rounded up only with arithmetic wider than int64.
	maxDecimals = 9
)

// fault says what is wrong with a header's value. It is not an error yet: the text is made only for a
// value that is rejected, so that reading one allocates nothing.
type fault uint8

const (
	faultNone fault = iota
	faultEmpty
	faultLong
	faultBinary
	faultMalformed
	faultNegative
	faultNoZone
	faultSeconds
	faultMicros
	faultEarly
	faultBeyond
)

// textFault finds what no text value may be.
func textFault(v []byte) fault {
	switch {
	case len(v) == 0:
		return faultEmpty
	case len(v) > maxValueBytes:
		return faultLong
	case !utf8.Valid(v):
		return faultBinary
	}
	for _, c := range v {
		if c < ' ' || c == 0x7f {
			return faultBinary
		}
	}
	return faultNone
}

// unit is a unit of time: whole milliseconds, or a part of one in nanoseconds. Units of a duration come
// in descending rank.
type unit struct {
	name   string
	rank   int
	ms, ns int64
}

// The units of 1d2h3m4s5ms6us7ns, so that what Go's Duration.String writes can be read, and those of
// ISO 8601 with a fixed length.
var (
	goUnits = []unit{
		{name: "d", rank: 0, ms: 86_400_000},
		{name: "h", rank: 1, ms: 3_600_000},
		{name: "m", rank: 2, ms: 60_000},
		{name: "s", rank: 3, ms: 1000},
		{name: "ms", rank: 4, ms: 1},
		{name: "us", rank: 5, ns: 1000},
		{name: "µs", rank: 5, ns: 1000}, // U+00B5, micro sign
		{name: "μs", rank: 5, ns: 1000}, // U+03BC, Greek mu
		{name: "ns", rank: 6, ns: 1},
	}
	isoDateUnits = []unit{{name: "D", rank: 0, ms: 86_400_000}}
	isoTimeUnits = []unit{
		{name: "H", rank: 1, ms: 3_600_000},
		{name: "M", rank: 2, ms: 60_000},
		{name: "S", rank: 3, ms: 1000},
	}
)

// amount adds up the parts of a duration. Nothing in it overflows: ms stays at or below maxDueMs once
// beyond is false, and ns below two milliseconds.
type amount struct {
	ms, ns int64
	// inexact says that something below a nanosecond was left out; beyond, that it is too much.
	inexact, beyond bool
}

// add adds n and fraction/10^decimals of u.
func (a *amount) add(n, fraction int64, decimals int, u unit) {
	scale := int64(1)
	for range decimals {
		scale *= 10
	}
	if u.ms == 0 {
		perMs := 1_000_000 / u.ns
		a.addMs(n / perMs)
		a.ns += n % perMs * u.ns
		a.inexact = a.inexact || fraction > 0
		return
	}
	if n > maxDueMs/u.ms {
		a.beyond = true
		return
	}
	a.addMs(n * u.ms)
	a.addMs(fraction * u.ms / scale) // < 10^9 × 8.64×10^7
	a.inexact = a.inexact || fraction*u.ms%scale > 0
}

func (a *amount) addMs(ms int64) {
	if ms > maxDueMs-a.ms {
		a.beyond = true
		return
	}
	a.ms += ms
}

// roundUp returns the whole milliseconds that are not less than the amount: never early.
func (a *amount) roundUp() (int64, fault) {
	const perMs = 1_000_000
	ns := a.ns
	if a.inexact {
		ns++
	}
	a.addMs((ns + perMs - 1) / perMs)
	if a.beyond {
		return 0, faultBeyond
	}
	return a.ms, faultNone
}

// parseDelay reads the value of delay-for in milliseconds: digits are milliseconds; units descend and
// come once each; a decimal point is allowed in the last part; less than a millisecond is rounded up.
func parseDelay(v []byte) (int64, fault) {
	if f := textFault(v); f != faultNone {
		return 0, f
	}
	v, negative := bytes.CutPrefix(v, []byte{'-'})
	var a amount
	var ok bool
	switch n, rest, overflow := cutDigits(v); {
	case len(v) == 0:
		return 0, faultMalformed
	case len(rest) == 0:
		a.beyond, ok = overflow, true
		a.addMs(n)
	case v[0] == 'P':
		ok = a.parseISO(v[1:], &negative)
	default:
		ok = a.parseUnits(v, goUnits, nil)
	}
	switch {
	case !ok:
		return 0, faultMalformed
	case negative:
		return 0, faultNegative
	}
	return a.roundUp()
}

// parseISO reads what follows the P of an ISO 8601 duration. Java writes a negative one with a sign in
// each part, which ends in negative.
func (a *amount) parseISO(v []byte, negative *bool) bool {
	date, clock, hasClock := bytes.Cut(v, []byte{'T'})
	if hasClock && (len(clock) == 0 || len(date) > 0 && bytes.ContainsAny(date, ".,")) || len(v) == 0 {
		return false
	}
	return (len(date) == 0 || a.parseUnits(date, isoDateUnits, negative)) &&
		(len(clock) == 0 || a.parseUnits(clock, isoTimeUnits, negative))
}

// parseUnits reads numbers with units of one list, at least one. negative is nil where a part may not
// have a sign of its own.
func (a *amount) parseUnits(v []byte, units []unit, negative *bool) bool {
	rank := -1
	for len(v) > 0 {
		if negative != nil && v[0] == '-' {
			*negative, v = true, v[1:]
		}
		n, rest, overflow := cutDigits(v)
		if len(rest) == len(v) {
			return false
		}
		fraction, decimals := int64(0), 0
		if len(rest) > 0 && (rest[0] == '.' || negative != nil && rest[0] == ',') {
			var after []byte
			fraction, after, _ = cutDigits(rest[1:])
			decimals = len(rest) - 1 - len(after)
			if decimals == 0 || decimals > maxDecimals {
				return false
			}
			rest = after
		}
		u, after := cutUnit(rest, units)
		if u == nil || u.rank <= rank || decimals > 0 && len(after) > 0 {
			return false
		}
		a.beyond = a.beyond || overflow
		a.add(n, fraction, decimals, *u)
		rank, v = u.rank, after
	}
	return true
}

// cutUnit returns the unit that v begins with, up to the next sign or digit, or nil.
func cutUnit(v []byte, units []unit) (u *unit, rest []byte) {
	end := 0
	for end < len(v) && v[end] != '-' && (v[end] < '0' || v[end] > '9') {
		end++
	}
	for i := range units {
		if units[i].name == string(v[:end]) {
			return &units[i], v[end:]
		}
	}
	return nil, v
}

// cutDigits reads the decimal digits that v begins with, none giving 0.
func cutDigits(v []byte) (n int64, rest []byte, overflow bool) {
	const most = 1<<63 - 1
	for len(v) > 0 && '0' <= v[0] && v[0] <= '9' {
		d := int64(v[0] - '0')
		if n > (most-d)/10 {
			n, overflow = 0, true
		} else {
			n = n*10 + d
		}
		v = v[1:]
	}
	return n, v, overflow
}

// parseUntil reads the value of delay-until in epoch milliseconds: digits, or RFC 3339 with a zone, of
// which less than a millisecond is rounded up. Seconds may be missing, as Java's OffsetDateTime leaves
// them out when they are zero.
func parseUntil(v []byte) (int64, fault) {
	if f := textFault(v); f != faultNone {
		return 0, f
	}
	unsigned, negative := bytes.CutPrefix(v, []byte{'-'})
	n, rest, overflow := cutDigits(unsigned)
	if len(rest) > 0 || len(unsigned) == 0 {
		return parseTime(v)
	}
	switch {
	case negative:
		return 0, faultEarly
	case overflow || n > maxDueMs:
		return 0, faultMicros
	case n < secondsBelow:
		return 0, faultSeconds
	}
	return n, faultNone
}

// parseTime reads 2006-01-02T15:04:05.999999999Z and what RFC 3339 allows beside it.
func parseTime(v []byte) (int64, fault) {
	t := clock{rest: v}
	year := t.number(4, 0, 9999)
	t.expect('-')
	month := t.number(2, 1, 12)
	t.expect('-')
	day := t.number(2, 1, 31)
	t.expect('T')
	hour := t.number(2, 0, 23)
	t.expect(':')
	minute := t.number(2, 0, 59)
	if t.bad {
		return 0, t.fault(v)
	}
	second, ms := 0, int64(0)
	if t.next() == ':' {
		t.expect(':')
		second = t.number(2, 0, 60)
		ms = t.fraction()
	}
	noZone := !t.bad && len(t.rest) == 0
	offset := t.zone()
	date := time.Date(year, time.Month(month), day, hour, minute, 0, 0, time.UTC)
	// time.Date takes a 30 February for a day in March. A leap second ends a UTC day and nothing else.
	if t.bad || date.Day() != day || second == 60 && (date.Unix()-offset)%86_400 != 86_340 {
		if noZone {
			return 0, faultNoZone
		}
		return 0, faultMalformed
	}
	due := (date.Unix()-offset+int64(second))*1000 + ms
	switch {
	case due < 0:
		return 0, faultEarly
	case due > maxDueMs:
		return 0, faultBeyond
	}
	return due, faultNone
}

// clock reads a time from left to right and remembers whether something was not as it must be.
type clock struct {
	rest []byte
	bad  bool
}

func (t *clock) next() byte {
	if len(t.rest) == 0 {
		return 0
	}
	return t.rest[0]
}

// expect reads c, a letter in either case.
func (t *clock) expect(c byte) {
	if b := t.next(); b != c && (c < 'A' || c > 'Z' || b != c|0x20) {
		t.bad = true
		return
	}
	t.rest = t.rest[1:]
}

// number reads exactly so many digits, of a number between least and most.
func (t *clock) number(digits, least, most int) int {
	if len(t.rest) < digits {
		t.bad = true
		return 0
	}
	n, after, _ := cutDigits(t.rest[:digits])
	if t.bad = t.bad || len(after) > 0 || n < int64(least) || n > int64(most); t.bad {
		return 0
	}
	t.rest = t.rest[digits:]
	return int(n)
}

// fraction reads the decimals of a second, if there are any, in milliseconds, rounded up.
func (t *clock) fraction() (ms int64) {
	if t.next() != '.' {
		return 0
	}
	digits := t.rest[1:]
	_, t.rest, _ = cutDigits(digits)
	digits = digits[:len(digits)-len(t.rest)]
	t.bad = t.bad || len(digits) == 0
	scale := int64(100)
	for i, c := range digits {
		switch {
		case i < 3:
			ms += int64(c-'0') * scale
			scale /= 10
		case c != '0':
			return ms + 1
		}
	}
	return ms
}

// zone reads the zone that ends a time, in seconds east of UTC.
func (t *clock) zone() int64 {
	sign := int64(1)
	switch t.next() {
	case '-':
		sign = -1
	case '+':
	default:
		t.expect('Z')
		t.bad = t.bad || len(t.rest) > 0
		return 0
	}
	t.expect(t.next())
	hour := t.number(2, 0, 23)
	t.expect(':')
	minute := t.number(2, 0, 59)
	t.bad = t.bad || len(t.rest) > 0
	return sign * int64(hour*3600+minute*60)
}

// fault says more about a time that could not be read: one with a year of more than four digits is
// beyond what can be due, which is another fault than a misspelt one.
func (t *clock) fault(v []byte) fault {
	v = bytes.TrimPrefix(v, []byte{'+'})
	if _, after, _ := cutDigits(v); len(v)-len(after) > 4 && len(after) > 6 && after[0] == '-' && after[3] == '-' {
		return faultBeyond
	}
	return faultMalformed
}
