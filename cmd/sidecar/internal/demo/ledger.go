package demo

import (
	"fmt"
	"slices"
	"sync"
	"time"
)

// Summary is what became of the messages.
type Summary struct {
	// Sent is how many a broker has acknowledged, Delivered how many of them arrived.
	Sent      int `json:"sent"`
	Delivered int `json:"delivered"`
	// Lost is how many did not arrive while they were waited for.
	Lost int `json:"lost"`
	// Early is how many were written to the target, or arrived, before they were due.
	Early int `json:"early"`
	// Duplicates is how many arrivals were not the first of their message.
	Duplicates int `json:"duplicates"`
	// LateMs is how long after due the messages arrived, in milliseconds.
	LateMs Lateness `json:"late_ms"`
	// DeadLetter is the reason of a dead letter, empty where there was none.
	DeadLetter string `json:"-"`
}

// Lateness is a distribution of lateness in milliseconds.
type Lateness struct {
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
}

// Fault returns what is wrong with the outcome, nil where nothing is.
func (s Summary) Fault() error {
	if s.Lost+s.Early+s.Duplicates == 0 {
		return nil
	}
	why := ""
	if s.DeadLetter != "" {
		why = "; a dead letter says: " + s.DeadLetter
	}
	return fmt.Errorf("of %d messages %d were lost, %d came early, %d came again%s", s.Sent, s.Lost, s.Early, s.Duplicates, why)
}

// Progress is how far a run is.
type Progress struct {
	Sent, Delivered int
	// MaxLateMs is the greatest lateness so far, in milliseconds.
	MaxLateMs float64
}

// entry is what is known of one message.
type entry struct {
	acked    bool
	arrivals int
	early    bool
}

// ledger has an entry for each message. Safe for concurrent use.
type ledger struct {
	// changed has capacity 1: something arrived.
	changed chan struct{}

	mu struct {
		sync.Mutex
		entries     []entry
		acked, seen int
		lastDueMs   int64
		lastArrival time.Time
		late        []time.Duration // of first arrivals, in no order
		latest      time.Duration
		refused     error
		strange     error
		dead        string
	}
}

func newLedger(messages int) *ledger {
	l := &ledger{changed: make(chan struct{}, 1)}
	l.mu.entries = make([]entry, messages)
	l.mu.late = make([]time.Duration, 0, messages)
	return l
}

// sent notes what the broker said of a message. It may come after the message's arrival.
func (l *ledger) sent(id int, dueMs int64, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		if l.mu.refused == nil {
			l.mu.refused = fmt.Errorf("send message %d: %w", id, err)
		}
		return
	}
	l.mu.entries[id].acked = true
	l.mu.acked++
	l.mu.lastDueMs = max(l.mu.lastDueMs, dueMs)
}

// refused returns the first error of sending: whether the message is in the ingress is not known then,
// so there is nothing to compare with.
func (l *ledger) refused() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.refused
}

// arrived notes that a message was read from the target at now; written is its timestamp there.
func (l *ledger) arrived(id int, dueMs int64, now, written time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if id < 0 || id >= len(l.mu.entries) {
		l.mu.strange = fmt.Errorf("message %d arrived, which was never sent", id)
		return
	}
	e := &l.mu.entries[id]
	e.arrivals++
	due := time.UnixMilli(dueMs)
	if now.Before(due) || written.Before(due) {
		e.early = true
	}
	l.mu.lastArrival = now
	if e.arrivals == 1 {
		l.mu.seen++
		late := max(0, now.Sub(due))
		l.mu.late = append(l.mu.late, late)
		l.mu.latest = max(l.mu.latest, late)
	}
	select {
	case l.changed <- struct{}{}:
	default:
	}
}

// stranger notes a record that is none of the run.
func (l *ledger) stranger(topic string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.strange = fmt.Errorf("topic %s has a record that was never sent", topic)
}

// deadLetter notes the reason of a dead letter.
func (l *ledger) deadLetter(reason string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.dead = reason
}

// waitUntil returns until when to wait for more, and whether everything that was sent has arrived.
func (l *ledger) waitUntil(patience time.Duration) (until time.Time, complete bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	until = time.UnixMilli(l.mu.lastDueMs)
	if l.mu.lastArrival.After(until) {
		until = l.mu.lastArrival
	}
	return until.Add(patience), l.mu.seen >= l.mu.acked
}

func (l *ledger) progress() Progress {
	l.mu.Lock()
	defer l.mu.Unlock()
	return Progress{Sent: l.mu.acked, Delivered: l.mu.seen, MaxLateMs: milliseconds(l.mu.latest)}
}

// summary returns what became of all messages that were sent, or an error where the target had what
// was never sent.
func (l *ledger) summary() (Summary, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.strange != nil {
		return Summary{}, l.mu.strange
	}
	s := Summary{DeadLetter: l.mu.dead}
	for _, e := range l.mu.entries {
		if !e.acked {
			continue
		}
		s.Sent++
		if e.arrivals == 0 {
			s.Lost++
			continue
		}
		s.Delivered++
		s.Duplicates += e.arrivals - 1
		if e.early {
			s.Early++
		}
	}
	late := slices.Sorted(slices.Values(l.mu.late))
	s.LateMs = Lateness{P50: percentile(late, 50), P99: percentile(late, 99), Max: percentile(late, 100)}
	return s, nil
}

// percentile returns the least value, in milliseconds, that p percent of sorted do not exceed; 0 for
// none.
func percentile(sorted []time.Duration, p int) float64 {
	if len(sorted) == 0 {
		return 0
	}
	rank := (len(sorted)*p + 99) / 100
	return milliseconds(sorted[max(rank, 1)-1])
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
