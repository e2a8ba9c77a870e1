package kafka

import (
	"bytes"
	"fmt"
	"math"
	"math/big"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/bide-mq/bide"
)

// sentMs is the timestamp of the records of these tests: 2026-01-02T03:04:05.678Z.
const sentMs int64 = 1_767_323_045_678

func newTestContract(t testing.TB, o ContractOptions) *Contract {
	t.Helper()
	if o.Ingresses == nil {
		o.Ingresses = []Ingress{{Topic: "delay-ingress"}}
	}
	c, err := NewContract(o)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// headers makes headers of names and values in turn.
func headers(pairs ...string) (hs []bide.Header) {
	for i := 0; i < len(pairs); i += 2 {
		hs = append(hs, bide.Header{Key: pairs[i], Value: []byte(pairs[i+1])})
	}
	return hs
}

func sent(pairs ...string) bide.Record {
	return bide.Record{Offset: 7, TimestampMs: sentMs, Key: []byte("k"), Value: []byte("v"), Headers: headers(pairs...)}
}

func checkRejection(t *testing.T, r *bide.Rejection, code string) {
	t.Helper()
	if r == nil {
		t.Fatalf("accepted, expected %s", code)
	}
	if r.Code != code {
		t.Fatalf("code %s, expected %s (%s)", r.Code, code, r.Reason)
	}
	checkReason(t, r)
}

func checkReason(t *testing.T, r *bide.Rejection) {
	t.Helper()
	if !slices.ContainsFunc(ReasonCodes(), func(d CodeDoc) bool { return d.Code == r.Code }) {
		t.Errorf("code %q is not documented", r.Code)
	}
	if len(r.Reason) < 20 || len(r.Reason) > 512 || !utf8.ValidString(r.Reason) || strings.Contains(r.Reason, "%!") {
		t.Errorf("reason of %d bytes: %q", len(r.Reason), r.Reason)
	}
}

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

func TestReasonsSayWhatToDo(t *testing.T) {
	c := newTestContract(t, ContractOptions{})
	for _, tt := range []struct{ name, value, says string }{
		{HeaderFor, "\x00\x00\x05\xdc", "as text and not as the bytes of a number"},
		{HeaderFor, "abc", `delay-for is "abc"; expected milliseconds`},
		{HeaderFor, "", "delay-for is empty; expected milliseconds"},
		{HeaderFor, "-5s", `delay-for is "-5s", below zero`},
		{HeaderUntil, "1767323045", "looks like seconds"},
		{HeaderUntil, "1767323045678000", "looks like microseconds"},
		{HeaderUntil, "1600-01-01T00:00:00Z", "before 1970"},
		{HeaderUntil, "10000-01-01T00:00:00Z", "beyond the end of the year 9999"},
		{HeaderUntil, "2026-01-02T03:04:05", "without a zone"},
		{HeaderToPartition, "-1", "a partition from 0 to 2147483647"},
		{"Delay-For", "5s", "write delay-for, in lower case"},
		{"delay-fro", "5s", `"delay-fro" is unknown`},
	} {
		_, r := c.Accept(sent(tt.name, tt.value), bide.Rules{})
		if r == nil || !strings.Contains(r.Reason, tt.says) {
			t.Errorf("%s: %q gives %v, which does not say %q", tt.name, tt.value, r, tt.says)
		}
	}
	_, r := c.Accept(sent(HeaderFor, strings.Repeat("secret ", 9)), bide.Rules{})
	checkRejection(t, r, CodeMalformedHeader)
	if strings.Count(r.Reason, "secret") > 6 {
		t.Errorf("reason repeats the whole value: %s", r.Reason)
	}
}

func TestAcceptUsesTheRulesOnlyWithoutAHeader(t *testing.T) {
	c := newTestContract(t, ContractOptions{})
	rules := bide.Rules{Delay: 5 * time.Minute}
	for _, tt := range []struct {
		rec   bide.Record
		rules bide.Rules
		due   int64
	}{
		{sent(), bide.Rules{}, sentMs},
		{sent(), rules, sentMs + 300_000},
		{sent(), bide.Rules{Delay: 1}, sentMs + 1},
		{sent(HeaderFor, "0"), rules, sentMs},
		{sent(HeaderUntil, "2026-01-02T03:04:05.678Z"), rules, sentMs},
	} {
		if m, r := c.Accept(tt.rec, tt.rules); r != nil || m.DueMs != tt.due {
			t.Errorf("%v: due %d (%v), expected %d", tt.rec.Headers, m.DueMs, r, tt.due)
		}
	}
}

func TestMaxDelayIsComparedWithTheRecordsTimestamp(t *testing.T) {
	c := newTestContract(t, ContractOptions{})
	rules := bide.Rules{MaxDelay: 24 * time.Hour}
	for _, tt := range []struct {
		rec  bide.Record
		code string
	}{
		{sent(HeaderFor, "24h"), ""},
		{sent(HeaderFor, "86400001"), CodeBeyondMaxDelay},
		{sent(HeaderUntil, "2026-01-03T03:04:05.678Z"), ""},
		{sent(HeaderUntil, "2026-01-03T03:04:05.6781Z"), CodeBeyondMaxDelay},
		{sent(HeaderUntil, "9999-12-31T23:59:59.999Z"), CodeBeyondMaxDelay},
		{sent(HeaderUntil, "1970-01-01T00:00:00Z"), ""},
	} {
		_, r := c.Accept(tt.rec, rules)
		if tt.code != "" {
			checkRejection(t, r, tt.code)
		} else if r != nil {
			t.Errorf("%s: %v", tt.rec.Headers[0].Value, r)
		}
	}
}

func TestTimestampsOutOfRangeAreRejected(t *testing.T) {
	c := newTestContract(t, ContractOptions{})
	at := func(ms int64, pairs ...string) bide.Record {
		rec := sent(pairs...)
		rec.TimestampMs = ms
		return rec
	}
	for _, tt := range []struct {
		rec  bide.Record
		code string
	}{
		{at(-1), CodeBadTimestamp},
		{at(math.MinInt64, HeaderFor, "1s"), CodeBadTimestamp},
		{at(-1, HeaderUntil, "2030-01-01T00:00:00Z"), CodeBadTimestamp},
		{at(maxDueMs + 1), CodeDueOutOfRange},
		{at(math.MaxInt64), CodeDueOutOfRange},
		{at(math.MaxInt64, HeaderFor, "9223372036854775807"), CodeDueOutOfRange},
		{at(math.MaxInt64, HeaderFor, "1"), CodeDueOutOfRange},
		{at(maxDueMs, HeaderFor, "1"), CodeDueOutOfRange},
	} {
		_, r := c.Accept(tt.rec, bide.Rules{MaxDelay: time.Hour})
		checkRejection(t, r, tt.code)
	}
	if m, r := c.Accept(at(0, HeaderFor, "1s"), bide.Rules{}); r != nil || m.DueMs != 1000 {
		t.Errorf("timestamp 0: %d, %v", m.DueMs, r)
	}
	// A record stamped far ahead may still ask for a due that is in range.
	if m, r := c.Accept(at(math.MaxInt64, HeaderUntil, "2030-01-01T00:00:00Z"), bide.Rules{MaxDelay: time.Hour}); r != nil || m.DueMs != 1_893_456_000_000 {
		t.Errorf("timestamp ahead: %d, %v", m.DueMs, r)
	}
}

func TestTheLastHeaderOfANameWinsInAnyOrder(t *testing.T) {
	c := newTestContract(t, ContractOptions{})
	if m, r := c.Accept(sent(HeaderFor, "rubbish", HeaderFor, "1s"), bide.Rules{}); r != nil || m.DueMs != sentMs+1000 {
		t.Errorf("good after bad: %d, %v", m.DueMs, r)
	}
	_, r := c.Accept(sent(HeaderFor, "1s", HeaderFor, "rubbish"), bide.Rules{})
	checkRejection(t, r, CodeMalformedHeader)

	// D50: no order of headers makes a difference.
	hs := headers("a", "1", HeaderFor, "1s", HeaderTo, "orders", HeaderToPartition, "3")
	permute(hs, func(hs []bide.Header) {
		rec := sent()
		rec.Headers = hs
		m, r := c.Accept(rec, bide.Rules{})
		if r != nil || m.DueMs != sentMs+1000 {
			t.Fatalf("%v: %d, %v", hs, m.DueMs, r)
		}
		out := c.delivery(testLane, &bide.Item{Message: m}, m.DueMs)
		if out.Topic != "orders" || out.Partition != 3 || len(out.Headers) != 1 {
			t.Fatalf("%v: %+v", hs, out)
		}
	})
}

// permute calls visit with every order of hs.
func permute(hs []bide.Header, visit func([]bide.Header)) {
	var from func(int)
	from = func(i int) {
		if i == len(hs) {
			visit(hs)
			return
		}
		for j := i; j < len(hs); j++ {
			hs[i], hs[j] = hs[j], hs[i]
			from(i + 1)
			hs[i], hs[j] = hs[j], hs[i]
		}
	}
	from(0)
}

func TestTwoDelaysAreRejected(t *testing.T) {
	c := newTestContract(t, ContractOptions{})
	_, r := c.Accept(sent(HeaderFor, "1s", HeaderUntil, "2030-01-01T00:00:00Z"), bide.Rules{})
	checkRejection(t, r, CodeTwoDelays)
}

func TestUnknownHeadersOfTheNameSpaceAreRejected(t *testing.T) {
	c := newTestContract(t, ContractOptions{})
	for _, name := range []string{
		"delay-", "delay-fo", "delay-for ", "delay-level", "delay-id", "delay-every", "delay-carried", "delay-anchor",
		"Delay-For", "DELAY-UNTIL", "delay-To", "dElay-x", "delay-" + strings.Repeat("x", 10_000), "delay-\xff\x00",
	} {
		_, r := c.Accept(sent("a", "1", name, "1s"), bide.Rules{})
		checkRejection(t, r, CodeUnknownHeader)
	}
	for _, name := range []string{"", "d", "delay", "delay_for", "x-delay", "delays-for", "delayed", " delay-for", "\xff"} {
		if m, r := c.Accept(sent(name, "1s"), bide.Rules{}); r != nil || m.DueMs != sentMs {
			t.Errorf("%q, a producer's own header: %d, %v", name, m.DueMs, r)
		}
	}
}

func TestPartitionsAreNumbersFromZero(t *testing.T) {
	c := newTestContract(t, ContractOptions{})
	for value, good := range map[string]bool{
		"0": true, "7": true, "2147483647": true, "2147483648": false, "-1": false, "+1": false,
		"": false, "1.0": false, "a": false, " 1": false, "1e1": false, "\x00\x00\x00\x01": false,
	} {
		_, r := c.Accept(sent(HeaderToPartition, value), bide.Rules{})
		if good && r != nil {
			t.Errorf("%q: %v", value, r)
		}
		if !good {
			checkRejection(t, r, CodeMalformedHeader)
		}
	}
}

func TestANullHeaderIsRejectedWhereTextIsExpected(t *testing.T) {
	c := newTestContract(t, ContractOptions{})
	for _, name := range []string{HeaderFor, HeaderUntil, HeaderToPartition} {
		rec := sent()
		rec.Headers = []bide.Header{{Key: name}}
		_, r := c.Accept(rec, bide.Rules{})
		checkRejection(t, r, CodeMalformedHeader)
	}
}

func TestReservedHeadersComeOnlyTogether(t *testing.T) {
	c := newTestContract(t, ContractOptions{})
	whole := []string{
		HeaderAttempt, "2", HeaderUntil, "5", HeaderFirstDue, "4", HeaderOrigin, "delay-ingress/3/17",
		HeaderOriginTimestamp, "3", HeaderHop, "1",
	}
	m, r := c.Accept(sent(whole...), bide.Rules{MaxDelay: time.Millisecond})
	if r != nil || m.DueMs != 5 || c.Attempt(&m) != 2 {
		t.Fatalf("whole: due %d, attempt %d, %v", m.DueMs, c.Attempt(&m), r)
	}
	for i := 0; i < len(whole); i += 2 {
		if whole[i] == HeaderHop {
			continue
		}
		if whole[i] == HeaderAttempt {
			_, r := c.Accept(sent(whole[2:]...), bide.Rules{})
			checkRejection(t, r, CodeMalformedHeader)
			continue
		}
		_, r := c.Accept(sent(slices.Concat(whole[:i], whole[i+2:])...), bide.Rules{})
		checkRejection(t, r, CodeMalformedHeader)
	}
	for _, bad := range [][2]string{
		{HeaderAttempt, "0"},
		{HeaderAttempt, "-1"},
		{HeaderAttempt, "2147483648"},
		{HeaderAttempt, ""},
		{HeaderAttempt, "x"},
		{HeaderUntil, "-5"},
		{HeaderUntil, "2030-01-01T00:00:00Z"},
		{HeaderUntil, "253402300800000"},
		{HeaderUntil, "05"},
		{HeaderFirstDue, "-1"},
		{HeaderFirstDue, "9223372036854775808"},
		{HeaderOrigin, "delay-ingress/3"},
		{HeaderOrigin, "delay-ingress/3/x"},
		{HeaderOrigin, "delay-ingress/2147483648/1"},
		{HeaderOrigin, "bad topic/3/1"},
		{HeaderOrigin, ""},
		{HeaderOriginTimestamp, "-3"},
		{HeaderHop, "-1"},
		{HeaderHop, "x"},
	} {
		_, r := c.Accept(sent(append(slices.Clone(whole), bad[:]...)...), bide.Rules{})
		checkRejection(t, r, CodeMalformedHeader)
	}
	_, r = c.Accept(sent(append(slices.Clone(whole), HeaderFor, "1s")...), bide.Rules{})
	checkRejection(t, r, CodeTwoDelays)
	for _, alone := range []string{HeaderFirstDue, HeaderHop} {
		_, r := c.Accept(sent(alone, "1"), bide.Rules{})
		checkRejection(t, r, CodeMalformedHeader)
	}
}

func TestHeaderTableIsWhatTheParserKnows(t *testing.T) {
	table := HeaderTable()
	if len(table) != int(headerCount) {
		t.Fatalf("%d headers documented, %d known", len(table), headerCount)
	}
	for _, doc := range table {
		if doc.Name == "" || doc.Value == "" || doc.Meaning == "" || !isOurs(doc.Name) {
			t.Errorf("incomplete: %+v", doc)
		}
		if s, unknown := findHeaders(headers(doc.Name, "x")); unknown >= 0 || !s.has(headerIDs[doc.Name]) {
			t.Errorf("%s is documented and unknown", doc.Name)
		}
	}
	table[0].Name = "changed"
	if headerTable[0].Name != HeaderFor {
		t.Error("HeaderTable gives away its own memory")
	}
}

func TestReasonCodesAreDistinctWords(t *testing.T) {
	seen := map[string]bool{}
	for _, doc := range ReasonCodes() {
		if seen[doc.Code] || doc.Meaning == "" || strings.Trim(doc.Code, "abcdefghijklmnopqrstuvwxyz-") != "" {
			t.Errorf("%+v", doc)
		}
		seen[doc.Code] = true
	}
}

func TestAcceptingAndJudgingAllocateNothing(t *testing.T) {
	c := newTestContract(t, ContractOptions{Ingresses: []Ingress{{Topic: "delay-ingress", Target: "orders"}}, Allow: []string{"mail.*"}})
	for _, rec := range []bide.Record{
		sent("a", "1"),
		sent("a", "1", HeaderFor, "1h30m", HeaderTo, "orders"),
		sent(HeaderUntil, "2030-01-31T08:00:00.123456+01:00", HeaderTo, "mail.out", HeaderToPartition, "12"),
	} {
		if n := testing.AllocsPerRun(100, func() {
			m, r := c.Accept(rec, bide.Rules{})
			if r == nil {
				r = c.Judge(testLane, &m)
			}
			if r != nil {
				t.Fatal(r)
			}
		}); n > 0 {
			t.Errorf("%v: %v allocations", rec.Headers, n)
		}
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

func BenchmarkAccept(b *testing.B) {
	c := newTestContract(b, ContractOptions{})
	for _, bb := range []struct {
		name string
		rec  bide.Record
	}{
		{"none", sent("content-type", "application/json", "trace-id", "4bf92f3577b34da6")},
		{"for", sent("trace-id", "4bf92f3577b34da6", HeaderFor, "90s", HeaderTo, "orders")},
		{"until-ms", sent("trace-id", "4bf92f3577b34da6", HeaderUntil, "1896073200000", HeaderTo, "orders")},
		{"until-rfc3339", sent("trace-id", "4bf92f3577b34da6", HeaderUntil, "2030-01-31T08:00:00+01:00", HeaderTo, "orders")},
	} {
		b.Run(bb.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if m, r := c.Accept(bb.rec, bide.Rules{}); r != nil || m.DueMs == 0 {
					b.Fatal(r)
				}
			}
		})
	}
}
