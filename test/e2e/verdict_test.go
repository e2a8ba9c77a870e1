//go:build unix

package e2e

import (
	"fmt"
	"slices"
	"time"
)

// counts returns how many messages the brokers took and how many different ones came back.
func (l *ledger) counts() (acked, seen int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.acked, l.mu.seen
}

// awaitAccepted waits until the sidecar has accepted all that was sent: until the commits of the
// group reach the ends of the lanes. The ingress must have no producer but send.
func (l *ledger) awaitAccepted(p *sidecar, limit time.Duration) {
	l.t.Helper()
	acked, _ := l.counts()
	var sum int64
	p.await(limit, func() bool {
		var err error
		sum, err = l.cluster.committed(l.t.Context(), l.topics)
		return err == nil && sum >= int64(acked)
	}, func() string { return fmt.Sprintf("commit of %d messages, only of %d", acked, sum) })
}

// awaitAll waits until every message has come, or until none has come for a quarter of a minute after
// the last of them was due.
func (l *ledger) awaitAll() {
	l.t.Helper()
	const patience = 15 * time.Second
	deadline, before := time.Now().Add(patience), -1
	for {
		acked, seen := l.counts()
		if seen >= acked {
			return
		}
		if seen != before {
			before, deadline = seen, time.Now().Add(patience)
		}
		if due := l.lastDue().Add(patience); deadline.Before(due) {
			deadline = due
		}
		if time.Now().After(deadline) {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func (l *ledger) lastDue() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	var last int64
	for i := range l.mu.sent {
		if !l.mu.sent[i].seen {
			last = max(last, l.mu.sent[i].dueMs)
		}
	}
	return time.UnixMilli(last)
}

// verdict is what became of a test's messages.
type verdict struct {
	sent, delivered, lost, early, duplicates, disorders int
	dead, strange                                       []string
	p50, p99, max                                       time.Duration
}

func (v verdict) String() string {
	ms := func(d time.Duration) string { return fmt.Sprintf("%.1f ms", float64(d)/1e6) }
	return fmt.Sprintf("sent %d, delivered %d, lost %d, early %d, duplicates %d, out of order %d; late p50 %s, p99 %s, max %s",
		v.sent, v.delivered, v.lost, v.early, v.duplicates, v.disorders, ms(v.p50), ms(v.p99), ms(v.max))
}

// verdict waits for what was sent, gives duplicates a second to show, and judges.
func (l *ledger) verdict() verdict {
	l.t.Helper()
	l.awaitAll()
	time.Sleep(time.Second)
	return l.verdictNow(func(entry) bool { return true })
}

// verdictNow judges now; lost are only messages that are expected.
func (l *ledger) verdictNow(expected func(entry) bool) verdict {
	l.mu.Lock()
	defer l.mu.Unlock()
	v := verdict{
		sent: l.mu.acked, delivered: l.mu.seen, early: l.mu.early, duplicates: l.mu.duplicates, disorders: l.mu.disorders,
		dead: slices.Clone(l.mu.dead), strange: slices.Clone(l.mu.strange),
	}
	for _, e := range l.mu.sent {
		if e.acked && !e.seen && expected(e) {
			v.lost++
		}
	}
	if late := slices.Sorted(slices.Values(l.mu.late)); len(late) > 0 {
		v.p50, v.p99, v.max = late[len(late)/2], late[len(late)*99/100], late[len(late)-1]
	}
	return v
}

// mustBeExact fails the test unless each message came once, not early, and in order.
func (l *ledger) mustBeExact() {
	l.t.Helper()
	v := l.verdict()
	l.judge(v)
	if v.duplicates != 0 || v.disorders != 0 {
		l.t.Errorf("duplicates and disorder: %s", v)
	}
}

// mustBeThere fails the test unless each message came at least once, and not early.
func (l *ledger) mustBeThere() {
	l.t.Helper()
	l.judge(l.verdict())
}

func (l *ledger) judge(v verdict) {
	l.t.Helper()
	l.t.Log(v)
	if v.sent == 0 {
		l.t.Error("nothing was sent")
	}
	if v.lost != 0 || v.early != 0 {
		l.t.Errorf("lost or early: %s", v)
	}
	if n := len(v.dead); n > 0 {
		l.t.Errorf("%d unexpected dead letters, the first: %s", n, v.dead[0])
	}
	if n := len(v.strange); n > 0 {
		l.t.Errorf("%d strange records, the first: %s", n, v.strange[0])
	}
}
