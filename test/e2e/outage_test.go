//go:build unix

package e2e

import (
	"net/http"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/bide-mq/bide/test/e2e/kafkatest"
)

// The broker is away while messages fall due; when it is back delivery resumes by itself, overdue
// messages first, in the order of their dues.
//
//	go test ./test/e2e -run TestBrokerOutageLosesNothing -e2e.long -v
func TestBrokerOutageLosesNothing(t *testing.T) {
	t.Parallel()
	oldest := kafkatest.Versions[len(kafkatest.Versions)-1]
	outages := []struct {
		name, version string
		signal        syscall.Signal
		length        time.Duration
		long          bool
	}{
		{"stopped", newest, syscall.SIGTERM, scale(8*time.Second, 30*time.Second), false},
		{"killed", newest, syscall.SIGKILL, 8 * time.Second, true},
		{"oldest", oldest, syscall.SIGTERM, 8 * time.Second, true},
	}
	for _, o := range outages {
		t.Run(o.name, func(t *testing.T) {
			t.Parallel()
			if o.long {
				needLong(t)
			}
			brokerOutage(t, ownBroker(t, o.version), o.signal, o.length)
		})
	}
}

func brokerOutage(t *testing.T, c *cluster, sig syscall.Signal, length time.Duration) {
	t.Helper()
	ts := c.makeTopics(t, topicSpec{lanes: 1, targets: 1})
	l, random := newLedger(t, c, ts), rng(t)
	p := c.settings(t, ts).startReady(t)
	soon, span := time.Now().Add(2*time.Second), length+4*time.Second
	l.send(t.Context(), batch{n: 4000, due: func(int) time.Time {
		return soon.Add(time.Duration(random.Int64N(int64(span))))
	}})
	l.awaitAccepted(p, 10*time.Second)
	time.Sleep(time.Until(soon.Add(time.Second)))

	if err := c.broker.Stop(sig); err != nil {
		t.Fatal(err)
	}
	_, before := l.counts()
	down := time.Now()
	code, body := p.get("/readyz")
	for code == http.StatusOK && time.Since(down) < length {
		time.Sleep(20 * time.Millisecond)
		code, body = p.get("/readyz")
	}
	t.Logf("%d delivered; the broker is away, after %s /readyz answers %d %s", before, time.Since(down).Round(time.Millisecond), code, body)
	if code != http.StatusServiceUnavailable {
		t.Error("/readyz does not answer 503 while the broker is away")
	}
	time.Sleep(time.Until(down.Add(length)))
	for _, path := range []string{"/livez", "/readyz/local"} {
		if code, body := p.get(path); code != http.StatusOK {
			t.Errorf("%s while the broker is away: %d %s, want 200", path, code, body)
		}
	}
	if err := c.broker.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	back := time.Now()
	first := l.firstAfter(back, 30*time.Second)
	t.Logf("delivery resumed %s after the broker answered", first.Sub(back).Round(time.Millisecond))
	l.mustBeExact()
	p.awaitReady(10 * time.Second)

	l.mu.Lock()
	defer l.mu.Unlock()
	if !slices.IsSorted(l.mu.dues) {
		t.Error("messages of one lane came in another order than that of their dues")
	}
}

// The broker restarts in an orderly way, again and again, in the midst of deliveries. A broker that
// stops right after it has said "committed" may never write the commit's markers (KAFKA-20734): then
// the coordinator calls the transaction complete, and the group's offsets and the target stand still
// until somebody mends it.
//
//	go test ./test/e2e -run TestBrokerRestartsStallNoLane -e2e.long -v
func TestBrokerRestartsStallNoLane(t *testing.T) {
	needLong(t)
	t.Parallel()
	c := ownBroker(t, newest)
	ts := c.makeTopics(t, topicSpec{lanes: 1, targets: 1})
	l, random := newLedger(t, c, ts), rng(t)
	p := c.settings(t, ts).startReady(t)
	for restart := range 5 {
		soon := time.Now().Add(time.Second)
		l.send(t.Context(), batch{n: 4000, due: func(int) time.Time { return soon.Add(time.Duration(random.Int64N(int64(6 * time.Second)))) }})
		l.awaitAccepted(p, 30*time.Second)
		time.Sleep(time.Until(soon.Add(time.Second)))
		if err := c.broker.Stop(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if err := c.broker.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		back := time.Now()
		t.Logf("restart %d: delivery resumed %s after the broker answered", restart, l.firstAfter(back, 60*time.Second).Sub(back).Round(time.Millisecond))
		l.awaitAll()
	}
	l.mustBeExact()
}
