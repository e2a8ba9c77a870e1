//go:build unix

package e2e

import (
	"testing"
	"time"
)

// Ten thousand messages wait, spread over ten minutes: it is the wheel that keeps them.
//
//	go test ./test/e2e -run TestTheWheelHoldsWhatWaits -v
func TestTheWheelHoldsWhatWaits(t *testing.T) {
	t.Parallel()
	c := newCluster(t, fake)
	ts := c.makeTopics(t, topicSpec{})
	l, random := newLedger(t, c, ts), rng(t)
	p := c.settings(t, ts).startReady(t)
	l.send(t.Context(), batch{n: 10_000, delay: func(int) time.Duration {
		return time.Duration(random.Int64N(int64(10 * time.Minute)))
	}})
	l.awaitAccepted(p, time.Minute)
	for _, name := range []string{"bide_wheel_timers", "bide_wheel_overflow_wheels", "bide_wheel_cascades_total"} {
		p.await(20*time.Second, func() bool { v, ok := p.metric(name); return ok && v > 0 },
			func() string { return name + " above 0" })
		t.Logf("%s %.0f", name, p.needMetric(name))
	}
	p.lintMetrics()
	l.judge(l.verdictNow(func(e entry) bool { return e.dueMs < time.Now().Add(-5*time.Second).UnixMilli() }))
}
