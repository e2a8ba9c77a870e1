//go:build unix

package e2e

import (
	"testing"
	"time"
)

// What a restart may cost, with room for a machine that is busy with other things: the claims are 2 s
// and 128 MiB.
const (
	restartLimit = 4 * time.Second
	memoryLimit  = 160 << 20
)

// A million messages wait. The program starts again in a moment, by an orderly stop and by a kill,
// needs little memory, and while nothing is due it sleeps.
//
//	go test ./test/e2e -run TestMillionsOfWaitingMessagesCostLittle -e2e.long -v
func TestMillionsOfWaitingMessagesCostLittle(t *testing.T) {
	c := newCluster(t, scale(fake, newest))
	ts := c.makeTopics(t, topicSpec{lanes: 4})
	l, random := newLedger(t, c, ts), rng(t)
	s := c.settings(t, ts)
	p := s.startReady(t)

	n, began := scale(20_000, 1_000_000), time.Now()
	l.send(t.Context(), batch{n: n, size: 256, delay: func(int) time.Duration {
		return time.Hour + time.Duration(random.Int64N(int64(30*24*time.Hour)))
	}})
	t.Logf("%d messages of 256 B sent in %s", n, time.Since(began).Round(time.Millisecond))
	l.awaitAccepted(p, 5*time.Minute)
	t.Logf("accepted after %s", time.Since(began).Round(time.Millisecond))
	reportMemory(t, p, "after accepting them")

	for _, how := range []string{"SIGTERM", "SIGKILL"} {
		soon := time.Now().Add(500 * time.Millisecond)
		l.send(t.Context(), batch{n: 500, size: 256, due: func(i int) time.Time {
			return soon.Add(time.Duration(i) * 20 * time.Millisecond)
		}})
		l.awaitAccepted(p, time.Minute)
		if how == "SIGTERM" {
			t.Logf("stopped in %s", p.stop().Round(time.Millisecond))
		} else {
			p.kill()
		}
		p = s.start(t)
		first := l.firstAfter(p.began, 30*time.Second)
		t.Logf("delivers %s after the start that followed %s", first.Sub(p.began).Round(time.Millisecond), how)
		if took := first.Sub(p.began); took > restartLimit {
			t.Errorf("the first delivery came %s after start, want at most %s", took, restartLimit)
		}
	}
	time.Sleep(time.Until(l.lastSoon().Add(time.Second)))
	v := l.verdictNow(func(e entry) bool { return e.dueMs < time.Now().UnixMilli()-500 })
	l.judge(v)
	if v.duplicates != 0 {
		t.Errorf("duplicates: %s", v)
	}
	if resident := reportMemory(t, p, "after a restart"); *long && resident > memoryLimit {
		t.Errorf("%d MiB resident, want at most %d", resident>>20, memoryLimit>>20)
	}
	checkIdle(t, p)
}

// checkIdle looks at a program in which nothing falls due for an hour.
func checkIdle(t *testing.T, p *sidecar) {
	t.Helper()
	span := scale(3*time.Second, 20*time.Second)
	wheel, switches, cpu := p.needMetric("bide_wheel_wakeups_total"), p.wakeups(), p.cpu()
	time.Sleep(span)
	seconds := span.Seconds()
	woken := p.needMetric("bide_wheel_wakeups_total") - wheel
	t.Logf("idle for %s: the wheel woke %.0f times, threads %.0f times a second, %.1f ms of processor time a second",
		span, woken, float64(p.wakeups()-switches)/seconds, float64((p.cpu()-cpu).Milliseconds())/seconds)
	if woken >= seconds {
		t.Errorf("the wheel woke %.0f times in %s with nothing due", woken, span)
	}
}

func reportMemory(t *testing.T, p *sidecar, when string) (resident int64) {
	t.Helper()
	now, peak, ok := p.rss()
	if !ok {
		t.Logf("this system does not tell resident memory")
		return 0
	}
	t.Logf("%s: %.1f MiB resident, %.1f MiB at most", when, float64(now)/(1<<20), float64(peak)/(1<<20))
	return now
}

// firstAfter waits for a message that comes after begin and returns when it came.
func (l *ledger) firstAfter(begin time.Time, limit time.Duration) time.Time {
	l.t.Helper()
	for time.Since(begin) < limit {
		l.mu.Lock()
		if l.mu.firstSeen.Before(begin) {
			l.mu.firstSeen = time.Time{} // receive sets it again
		}
		first := l.mu.firstSeen
		l.mu.Unlock()
		if first.After(begin) {
			return first
		}
		time.Sleep(time.Millisecond)
	}
	l.t.Fatalf("nothing was delivered within %s", limit)
	return time.Time{}
}

// lastSoon returns the last due within the next minute.
func (l *ledger) lastSoon() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	horizon, last := time.Now().Add(time.Minute).UnixMilli(), int64(0)
	for i := range l.mu.sent {
		if due := l.mu.sent[i].dueMs; due < horizon {
			last = max(last, due)
		}
	}
	return time.UnixMilli(last)
}
