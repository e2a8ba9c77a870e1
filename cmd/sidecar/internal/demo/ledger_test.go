package demo

import (
	"errors"
	"testing"
	"time"
)

const due = 1_700_000_000_000

// at returns the moment that many milliseconds after due.
func at(ms float64) time.Time {
	return time.UnixMilli(due).Add(time.Duration(ms * float64(time.Millisecond)))
}

// newSent returns a ledger of n messages that were all acknowledged.
func newSent(n int) *ledger {
	l := newLedger(n)
	for id := range n {
		l.sent(id, due, nil)
	}
	return l
}

func summaryOf(t *testing.T, l *ledger) Summary {
	t.Helper()
	s, err := l.summary()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestEveryArrivalOnTimeIsNoFault(t *testing.T) {
	l := newSent(3)
	for id, late := range []float64{1, 2.5, 0} {
		l.arrived(id, due, at(late), at(0))
	}
	s := summaryOf(t, l)
	want := Summary{Sent: 3, Delivered: 3, LateMs: Lateness{P50: 1, P99: 2.5, Max: 2.5}}
	if s != want || s.Fault() != nil {
		t.Errorf("%+v, fault %v, want %+v", s, s.Fault(), want)
	}
}

func TestWhatDoesNotArriveIsLost(t *testing.T) {
	l := newSent(3)
	l.arrived(1, due, at(1), at(1))
	l.deadLetter("no target")
	s := summaryOf(t, l)
	if s.Lost != 2 || s.Delivered != 1 || s.Fault() == nil || s.DeadLetter != "no target" {
		t.Errorf("%+v, fault %v", s, s.Fault())
	}
}

func TestEarlyIsToldByTimestampAndByArrival(t *testing.T) {
	for name, arrival := range map[string]struct{ now, written float64 }{
		"written before due": {5, -1},
		"read before due":    {-0.1, 0},
	} {
		l := newSent(1)
		l.arrived(0, due, at(arrival.now), at(arrival.written))
		if s := summaryOf(t, l); s.Early != 1 || s.Fault() == nil {
			t.Errorf("%s: %+v", name, s)
		}
	}
}

func TestEveryFurtherArrivalIsADuplicate(t *testing.T) {
	l := newSent(2)
	for range 3 {
		l.arrived(0, due, at(1), at(1))
	}
	l.arrived(1, due, at(1), at(1))
	if s := summaryOf(t, l); s.Duplicates != 2 || s.Delivered != 2 || s.Fault() == nil {
		t.Errorf("%+v", s)
	}
}

func TestAnArrivalBeforeItsAcknowledgementCounts(t *testing.T) {
	l := newLedger(1)
	l.arrived(0, due, at(1), at(1))
	l.sent(0, due, nil)
	if s := summaryOf(t, l); s.Sent != 1 || s.Delivered != 1 || s.Fault() != nil {
		t.Errorf("%+v", s)
	}
}

func TestWhatWasNeverSentIsAnError(t *testing.T) {
	l := newSent(1)
	l.arrived(7, due, at(1), at(1))
	if _, err := l.summary(); err == nil {
		t.Error("a message that was never sent is no error")
	}
	l = newSent(1)
	l.stranger("orders")
	if _, err := l.summary(); err == nil {
		t.Error("a record of somebody else is no error")
	}
}

func TestARefusedMessageEndsTheRun(t *testing.T) {
	l := newLedger(2)
	broken := errors.New("broken")
	l.sent(0, due, nil)
	if err := l.refused(); err != nil {
		t.Error(err)
	}
	l.sent(1, due, broken)
	if err := l.refused(); !errors.Is(err, broken) {
		t.Errorf("%v, want %v", err, broken)
	}
}

func TestPatienceCountsFromTheLastDueAndTheLastArrival(t *testing.T) {
	l := newSent(2)
	if until, complete := l.waitUntil(time.Second); complete || !until.Equal(at(1000)) {
		t.Errorf("until %v, complete %t", until, complete)
	}
	l.arrived(0, due, at(400), at(400))
	if until, complete := l.waitUntil(time.Second); complete || !until.Equal(at(1400)) {
		t.Errorf("until %v, complete %t", until, complete)
	}
	l.arrived(1, due, at(500), at(500))
	if _, complete := l.waitUntil(time.Second); !complete {
		t.Error("not complete with all there")
	}
}

func TestPercentileIsTheNearestRank(t *testing.T) {
	var sorted []time.Duration
	for ms := range 200 {
		sorted = append(sorted, time.Duration(ms+1)*time.Millisecond)
	}
	for p, want := range map[int]float64{50: 100, 99: 198, 100: 200} {
		if got := percentile(sorted, p); got != want {
			t.Errorf("p%d: %v, want %v", p, got, want)
		}
	}
	if percentile(nil, 99) != 0 || percentile(sorted[:1], 50) != 1 {
		t.Error("none, or one")
	}
}
