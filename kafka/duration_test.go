package kafka

import (
	"bytes"
	"fmt"
	"math"
	"math/big"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/bide-mq/bide"
)

func TestAcceptAddsTheDelayToTheRecordsTimestamp(t *testing.T) {
	const day = 86_400_000
	for _, tt := range []struct {
		value   string
		delayMs int64
		code    string
	}{
		{"0", 0, ""},
		{"1", 1, ""},
		{"1500", 1500, ""},
		{"0090", 90, ""},
		{"90", 90, ""}, // seconds-looking, and still milliseconds: the unit is documented
		{"0s", 0, ""},
		{"1ms", 1, ""},
		{"1s", 1000, ""},
		{"40s", 40_000, ""},
		{"90s", 90_000, ""},
		{"1.5s", 1500, ""},
		{"1.0005s", 1001, ""}, // never early
		{"0.000000001s", 1, ""},
		{"0.000000000s", 0, ""},
		{"1h30m", 5_400_000, ""},
		{"1h30m0s", 5_400_000, ""},
		{"49d18h", 49*day + 18*3_600_000, ""},
		{"1.5d", day + day/2, ""},
		{"0.123456789d", 10_666_667, ""},
		{"1d2h3m4s5ms6us7ns", day + 2*3_600_000 + 3*60_000 + 4*1000 + 6, ""},
		{"1m0.000000001s", 60_001, ""},
		{"1500us", 2, ""},
		{"1500µs", 2, ""},
		{"1500μs", 2, ""},
		{"999999ns", 1, ""},
		{"1000000.5ns", 2, ""},
		{"9223372036854775807ns", 9_223_372_036_855, ""},
		{"PT1H30M", 5_400_000, ""},
		{"PT0S", 0, ""},
		{"PT1.5S", 1500, ""},
		{"PT1,5S", 1500, ""},
		{"PT0.0001S", 1, ""},
		{"P2DT3H", 2*day + 3*3_600_000, ""},
		{"P365D", 365 * day, ""},
		{"P1.5D", day + day/2, ""},
		{"PT1194H", 1194 * 3_600_000, ""},
		{"4294967296", 1 << 32, ""}, // D03: 49.7 days
		{"2147483648", 1 << 31, ""}, // D10
		{"31536000000", 365 * day, ""},
		{"365d", 365 * day, ""},
		{"2592000s", 2_592_000_000, ""}, // D02
		{"60000d", 60_000 * day, ""},    // the year 2190
		{"251634977754321", maxDueMs - sentMs, ""},
		{"251634977754322", 0, CodeDueOutOfRange},
		{"9223372036854775807", 0, CodeDueOutOfRange}, // D01
		{"9223372036854775808", 0, CodeDueOutOfRange},
		{"18446744073709551616", 0, CodeDueOutOfRange},
		{"9223372036854775807s", 0, CodeDueOutOfRange},
		{"9223372036854775807d", 0, CodeDueOutOfRange},
		{"99999999999999999999999ns", 0, CodeDueOutOfRange},
		{"3000000d", 0, CodeDueOutOfRange},
		{"P3000000D", 0, CodeDueOutOfRange},
		{"2932896d24h24h", 0, CodeMalformedHeader},
		{"-1", 0, CodeNegativeDelay},
		{"-0", 0, CodeNegativeDelay},
		{"-9223372036854775808", 0, CodeNegativeDelay},
		{"-1s", 0, CodeNegativeDelay},
		{"-PT1S", 0, CodeNegativeDelay},
		{"PT-6H", 0, CodeNegativeDelay},
		{"PT-1H-30M", 0, CodeNegativeDelay},
		{"P-1D", 0, CodeNegativeDelay},
		{"", 0, CodeMalformedHeader},
		{"-", 0, CodeMalformedHeader},
		{"--5", 0, CodeMalformedHeader},
		{"abc", 0, CodeMalformedHeader},
		{"-abc", 0, CodeMalformedHeader},
		{"s", 0, CodeMalformedHeader},
		{".5s", 0, CodeMalformedHeader},
		{"5.s", 0, CodeMalformedHeader},
		{"1.5", 0, CodeMalformedHeader}, // of what?
		{"1.5h30m", 0, CodeMalformedHeader},
		{"1.0000000001s", 0, CodeMalformedHeader},
		{"1..5s", 0, CodeMalformedHeader},
		{"1,5s", 0, CodeMalformedHeader},
		{"30m1h", 0, CodeMalformedHeader},
		{"1m1m", 0, CodeMalformedHeader},
		{"1h-5m", 0, CodeMalformedHeader},
		{"1us1µs", 0, CodeMalformedHeader},
		{"1H", 0, CodeMalformedHeader},
		{"1M", 0, CodeMalformedHeader},
		{"1 s", 0, CodeMalformedHeader},
		{"1h 30m", 0, CodeMalformedHeader},
		{" 1500", 0, CodeMalformedHeader},
		{"1500 ", 0, CodeMalformedHeader},
		{"1500\n", 0, CodeMalformedHeader},
		{"+5", 0, CodeMalformedHeader},
		{"+5s", 0, CodeMalformedHeader},
		{"1e3", 0, CodeMalformedHeader},
		{"0x10", 0, CodeMalformedHeader},
		{"1_000", 0, CodeMalformedHeader},
		{"1,000", 0, CodeMalformedHeader},
		{"NaN", 0, CodeMalformedHeader},
		{"Infinity", 0, CodeMalformedHeader},
		{"null", 0, CodeMalformedHeader},
		{"true", 0, CodeMalformedHeader},
		{"\"1500\"", 0, CodeMalformedHeader},
		{"١٥٠٠", 0, CodeMalformedHeader}, // Arabic-Indic digits
		{"１５００", 0, CodeMalformedHeader}, // full-width digits
		{"1w", 0, CodeMalformedHeader},
		{"1y", 0, CodeMalformedHeader},
		{"1mo", 0, CodeMalformedHeader},
		{"1sec", 0, CodeMalformedHeader},
		{"P", 0, CodeMalformedHeader},
		{"PT", 0, CodeMalformedHeader},
		{"P1DT", 0, CodeMalformedHeader},
		{"P1H", 0, CodeMalformedHeader},
		{"PT1D", 0, CodeMalformedHeader},
		{"P1M", 0, CodeMalformedHeader},
		{"P1Y", 0, CodeMalformedHeader},
		{"P1W", 0, CodeMalformedHeader},
		{"PT30M1H", 0, CodeMalformedHeader},
		{"PT1.5H30M", 0, CodeMalformedHeader},
		{"P1.5DT1H", 0, CodeMalformedHeader},
		{"PT1HT1M", 0, CodeMalformedHeader},
		{"pt1h", 0, CodeMalformedHeader},
		{"P1", 0, CodeMalformedHeader},
		{"2026-01-02T03:04:05Z", 0, CodeMalformedHeader},
		{"\x00\x00\x00\x00\x00\x00\x05\xdc", 0, CodeMalformedHeader}, // D09: a Java long
		{"\x00\x00\x05\xdc", 0, CodeMalformedHeader},
		{"\xdc\x05\x00\x00\x00\x00\x00\x00", 0, CodeMalformedHeader},
		{strings.Repeat("9", 65), 0, CodeMalformedHeader},
		{strings.Repeat("0", 64), 0, ""},
		{strings.Repeat("1h", 1<<20), 0, CodeMalformedHeader},
	} {
		name := tt.value
		if len(name) > 30 {
			name = fmt.Sprintf("%s… of %d bytes", name[:20], len(name))
		}
		t.Run(name, func(t *testing.T) {
			c := newTestContract(t, ContractOptions{})
			m, r := c.Accept(sent(HeaderFor, tt.value), bide.Rules{Delay: time.Hour})
			if tt.code != "" {
				checkRejection(t, r, tt.code)
				return
			}
			if r != nil {
				t.Fatal(r)
			}
			if got := m.DueMs - sentMs; got != tt.delayMs {
				t.Errorf("due after %d ms, expected %d", got, tt.delayMs)
			}
		})
	}
}

func TestAcceptTakesDueFromDelayUntil(t *testing.T) {
	for _, tt := range []struct {
		value string
		dueMs int64
		code  string
	}{
		{"1767323045678", sentMs, ""},
		{"1767323045677", sentMs - 1, ""}, // past: due is what was asked, which is now
		{"100000000000", 100_000_000_000, ""},
		{"99999999999", 0, CodeDueOutOfRange},
		{"1767323045", 0, CodeDueOutOfRange}, // seconds
		{"0", 0, CodeDueOutOfRange},
		{"1", 0, CodeDueOutOfRange},
		{"-1", 0, CodeDueOutOfRange},
		{"-1767323045678", 0, CodeDueOutOfRange},
		{"253402300799999", maxDueMs, ""},
		{"253402300800000", 0, CodeDueOutOfRange},
		{"1767323045678000", 0, CodeDueOutOfRange}, // microseconds
		{"9223372036854775807", 0, CodeDueOutOfRange},
		{"9223372036854775808", 0, CodeDueOutOfRange},
		{"18446744073709551616", 0, CodeDueOutOfRange},
		{"2026-01-02T03:04:05.678Z", sentMs, ""},
		{"2026-01-02t03:04:05.678z", sentMs, ""},
		{"2026-01-02T03:04:05.6780000000000Z", sentMs, ""},
		{"2026-01-02T03:04:05.6770000000001Z", sentMs, ""}, // never early
		{"2026-01-02T03:04:05.999999999Z", sentMs + 322, ""},
		{"2026-01-02T03:04:05.6Z", sentMs - 78, ""},
		{"2026-01-02T03:04:05Z", sentMs - 678, ""},
		{"2026-01-02T03:04Z", sentMs - 5678, ""}, // Java's OffsetDateTime on a full minute
		{"2026-01-02T05:34:05.678+02:30", sentMs, ""},
		{"2026-01-01T19:04:05.678-08:00", sentMs, ""},
		{"2026-01-02T03:04:05.678-00:00", sentMs, ""},
		{"2016-12-31T23:59:60Z", 1_483_228_800_000, ""}, // a leap second
		{"2017-01-01T00:59:60+01:00", 1_483_228_800_000, ""},
		{"2016-12-31T22:59:60Z", 0, CodeMalformedHeader},
		{"2024-02-29T00:00:00Z", 1_709_164_800_000, ""},
		{"2023-02-29T00:00:00Z", 0, CodeMalformedHeader},
		{"2200-01-01T00:00:00Z", 7_258_118_400_000, ""},
		{"1970-01-01T00:00:00Z", 0, ""},
		{"1970-01-01T00:30:00+01:00", 0, CodeDueOutOfRange},
		{"1969-12-31T23:59:59.9995Z", 0, ""}, // rounds up to 1970
		{"1969-12-31T23:59:59.999Z", 0, CodeDueOutOfRange},
		{"1600-01-01T00:00:00Z", 0, CodeDueOutOfRange}, // D06
		{"0000-01-01T00:00:00Z", 0, CodeDueOutOfRange},
		{"9999-12-31T23:59:59.999Z", maxDueMs, ""},
		{"9999-12-31T23:59:59.9991Z", 0, CodeDueOutOfRange},
		{"9999-12-31T23:59:59-00:01", 0, CodeDueOutOfRange},
		{"10000-01-01T00:00:00Z", 0, CodeDueOutOfRange},
		{"+10000-01-01T00:00:00Z", 0, CodeDueOutOfRange},
		{"+292278994-08-17T07:12:55.807Z", 0, CodeDueOutOfRange}, // Java's Instant of 2^63−1 ms
		{"-0001-01-01T00:00:00Z", 0, CodeMalformedHeader},
		{"2026-01-02T03:04:05", 0, CodeMalformedHeader},
		{"2026-01-02T03:04:05.678", 0, CodeMalformedHeader},
		{"2026-01-02T03:04", 0, CodeMalformedHeader},
		{"2026-01-02", 0, CodeMalformedHeader},
		{"2026-01-02 03:04:05Z", 0, CodeMalformedHeader},
		{"2026-01-02T3:04:05Z", 0, CodeMalformedHeader},
		{"2026-01-02T03:04:05,678Z", 0, CodeMalformedHeader},
		{"2026-01-02T03:04:05.Z", 0, CodeMalformedHeader},
		{"2026-01-02T03:04.5Z", 0, CodeMalformedHeader},
		{"2026-01-02T24:00:00Z", 0, CodeMalformedHeader},
		{"2026-01-02T03:60:00Z", 0, CodeMalformedHeader},
		{"2026-01-02T03:04:61Z", 0, CodeMalformedHeader},
		{"2026-13-02T03:04:05Z", 0, CodeMalformedHeader},
		{"2026-00-02T03:04:05Z", 0, CodeMalformedHeader},
		{"2026-01-00T03:04:05Z", 0, CodeMalformedHeader},
		{"2026-04-31T03:04:05Z", 0, CodeMalformedHeader},
		{"2026-01-02T03:04:05ZZ", 0, CodeMalformedHeader},
		{"2026-01-02T03:04:05Z ", 0, CodeMalformedHeader},
		{" 2026-01-02T03:04:05Z", 0, CodeMalformedHeader},
		{"2026-01-02T03:04:05+0100", 0, CodeMalformedHeader},
		{"2026-01-02T03:04:05+01", 0, CodeMalformedHeader},
		{"2026-01-02T03:04:05+24:00", 0, CodeMalformedHeader},
		{"2026-01-02T03:04:05+01:60", 0, CodeMalformedHeader},
		{"2026-01-02T03:04:05+01:00[Europe/Paris]", 0, CodeMalformedHeader},
		{"20260102T030405Z", 0, CodeMalformedHeader},
		{"Fri, 02 Jan 2026 03:04:05 GMT", 0, CodeMalformedHeader},
		{"٢٠٢٦-01-02T03:04:05Z", 0, CodeMalformedHeader},
		{"+1767323045678", 0, CodeMalformedHeader},
		{"1767323045678ms", 0, CodeMalformedHeader},
		{"1767323045678.5", 0, CodeMalformedHeader},
		{"1.767e12", 0, CodeMalformedHeader},
		{" 1767323045678", 0, CodeMalformedHeader},
		{"1767323045678\x00", 0, CodeMalformedHeader},
		{"90s", 0, CodeMalformedHeader},
		{"now", 0, CodeMalformedHeader},
		{"", 0, CodeMalformedHeader},
		{"-", 0, CodeMalformedHeader},
		{"\x00\x00\x01\x9b\x7c\x0a\x11\x22", 0, CodeMalformedHeader},
	} {
		t.Run(tt.value, func(t *testing.T) {
			c := newTestContract(t, ContractOptions{})
			m, r := c.Accept(sent(HeaderUntil, tt.value), bide.Rules{Delay: time.Hour})
			if tt.code != "" {
				checkRejection(t, r, tt.code)
				return
			}
			if r != nil {
				t.Fatal(r)
			}
			if m.DueMs != tt.dueMs {
				t.Errorf("due %d, expected %d", m.DueMs, tt.dueMs)
			}
		})
	}
}

func TestADurationOfGoIsReadAsItIsWritten(t *testing.T) {
	for _, d := range []time.Duration{0, 1, 999, 1000, 1500, time.Millisecond - 1, time.Millisecond, time.Second, 90 * time.Minute, 123456789 * time.Microsecond, math.MaxInt64} {
		checkGoDuration(t, d)
	}
}

func checkGoDuration(t *testing.T, d time.Duration) {
	t.Helper()
	if ms, f := parseDelay([]byte(d.String())); f != faultNone || ms != ceilMs(d) {
		t.Errorf("%v: %d ms (fault %d), expected %d", d, ms, f, ceilMs(d))
	}
}

// FuzzAccept holds the parser against arithmetic of any size and against package time.
func FuzzAccept(f *testing.F) {
	for _, s := range []string{"1500", "49d18h", "PT1H30M", "P2DT3H", "-1s", "1.0005s", "9223372036854775807", "99999999999999999999ns", "2030-01-31T08:00:00+01:00", "2016-12-31T23:59:60Z", "1767323045678", "\x00\x00\x05\xdc"} {
		f.Add([]byte(s), []byte(s), uint8(1), sentMs, int64(0), int64(0))
		f.Add([]byte(s), []byte(s), uint8(2), sentMs, int64(time.Hour), int64(time.Hour))
		f.Add([]byte(s), []byte(s), uint8(7), int64(math.MaxInt64), int64(0), int64(1))
	}
	c := newTestContract(f, ContractOptions{})
	f.Fuzz(func(t *testing.T, delay, until []byte, which uint8, tsMs, ruleDelay, ruleMax int64) {
		rec := bide.Record{TimestampMs: tsMs}
		if which&1 != 0 {
			rec.Headers = append(rec.Headers, bide.Header{Key: HeaderFor, Value: delay})
		}
		if which&2 != 0 {
			rec.Headers = append(rec.Headers, bide.Header{Key: HeaderUntil, Value: until})
		}
		if which&4 != 0 {
			rec.Headers = append(rec.Headers, bide.Header{Key: string(delay), Value: until})
		}
		rules := bide.Rules{Delay: time.Duration(max(0, ruleDelay)), MaxDelay: time.Duration(max(0, ruleMax))}
		m, r := c.Accept(rec, rules)
		again, rAgain := c.Accept(rec, rules)
		if !reflect.DeepEqual(m, again) || !reflect.DeepEqual(r, rAgain) {
			t.Fatal("two answers to one question")
		}
		if r != nil {
			checkReason(t, r)
			return
		}
		if m.DueMs < 0 || m.DueMs > maxDueMs {
			t.Fatalf("due %d", m.DueMs)
		}
		if rules.MaxDelay > 0 && m.DueMs-tsMs > rules.MaxDelay.Milliseconds() {
			t.Fatalf("due %d with timestamp %d is beyond %v", m.DueMs, tsMs, rules.MaxDelay)
		}
		switch which & 7 {
		case 0:
			if m.DueMs != tsMs+ceilMs(rules.Delay) {
				t.Fatalf("due %d", m.DueMs)
			}
		case 1:
			checkDelayTwin(t, delay, m.DueMs-tsMs)
		case 2:
			checkUntilTwin(t, until, m.DueMs)
		}
	})
}

// checkDelayTwin holds an accepted delay against other readers of the same text, where they have one.
func checkDelayTwin(t *testing.T, text []byte, gotMs int64) {
	t.Helper()
	if n, ok := new(big.Int).SetString(string(text), 10); ok && (!n.IsInt64() || n.Int64() != gotMs) {
		t.Fatalf("%q read as %d ms", text, gotMs)
	}
	if d, err := time.ParseDuration(string(text)); err == nil && ceilMs(d) != gotMs && !bytes.Equal(text, []byte("0")) {
		t.Fatalf("%q read as %d ms, by package time as %v", text, gotMs, d)
	}
}

func checkUntilTwin(t *testing.T, text []byte, gotMs int64) {
	t.Helper()
	if n, ok := new(big.Int).SetString(string(text), 10); ok && (!n.IsInt64() || n.Int64() != gotMs) {
		t.Fatalf("%q read as %d", text, gotMs)
	}
	if at, err := time.Parse(time.RFC3339Nano, string(bytes.ToUpper(text))); err == nil {
		ms := at.UnixMilli()
		if at.Nanosecond()%1_000_000 > 0 {
			ms++
		}
		// Package time drops what is below a nanosecond.
		if gotMs != ms && gotMs != ms+1 {
			t.Fatalf("%q read as %d, by package time as %d", text, gotMs, ms)
		}
	}
}
