package kafka

import (
	"math"
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
	if strings.Contains(r.Reason, "%!") { // an argument of Sprintf that is missing or too many
		t.Errorf("reason %q", r.Reason)
	}
	checkReason(t, r)
}

func checkReason(t *testing.T, r *bide.Rejection) {
	t.Helper()
	if !slices.ContainsFunc(ReasonCodes(), func(d CodeDoc) bool { return d.Code == r.Code }) {
		t.Errorf("code %q is not documented", r.Code)
	}
	if len(r.Reason) < 20 || len(r.Reason) > 512 || !utf8.ValidString(r.Reason) {
		t.Errorf("reason of %d bytes: %q", len(r.Reason), r.Reason)
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
		"delay-", "delay-fo", "delay-for ", "delay-level", "delay-id", "delay-every", "delay-carry", "delay-anchor",
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
