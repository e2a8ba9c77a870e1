// Package watchdog sees to it that the loops of a process make progress, and that none ends unnoticed.
//
// A loop holds a [Pulse]: it calls Work when it starts a step and Rest when it waits for something to
// happen. A [Dog] looks at all pulses some times in each limit:
//
//	 Work                    limit/2                     limit
//	──┼─────────────────────────┼──────────────────────────┼──► time at one step
//	  │ healthy                 │ Check fails: unlive      │ Run returns a HangError, all goroutines
//	                                                         are in the log; the process is to end
//
// A loop that hangs cannot be stopped from outside, so the only cure is the end of the process; what
// is durable makes that safe. A [Group] runs loops and turns a panic into an error that names the loop.
package watchdog

import (
	"bytes"
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
)

const (
	// looksPerLimit is how often the dog looks within one limit: a hang is seen at most a twentieth late.
	looksPerLimit = 20
	// dumpBytes bounds the dump of all goroutines; a process of this kind has some hundred of them.
	dumpBytes = 1 << 20
)

// DefaultLimit is how long a step may take: longer than any bounded call to a broker or a disk.
const DefaultLimit = 30 * time.Second

// HangError says that a loop worked at one step for longer than the limit.
type HangError struct {
	Loop string
	// Stuck is how long the dog has seen the loop at that step.
	Stuck time.Duration
	// Limit is how long a step may take.
	Limit time.Duration
}

// Error names the loop and the two durations.
func (e *HangError) Error() string {
	return fmt.Sprintf("loop %s hangs: at one step for %s, the limit is %s", e.Loop, e.Stuck, e.Limit)
}

// Pulse is how one loop shows that it makes progress. One goroutine calls Work and Rest; both cost an
// atomic store.
type Pulse struct {
	loop string
	// step counts the calls of Work and Rest; its lowest bit is set while the loop works.
	step atomic.Uint64
	hook hook
}

// Work says that the loop starts a step. Work after Work is a new step.
func (p *Pulse) Work() {
	p.step.Store((p.step.Load() + 2) | 1)
	p.fault()
}

// Rest says that the loop waits for something to happen; it may wait for ever.
func (p *Pulse) Rest() { p.step.Store((p.step.Load() + 2) &^ 1) }

// watch is what the dog has seen of a pulse.
type watch struct {
	pulse *Pulse
	step  uint64
	stuck time.Duration
}

// Dog watches pulses. Safe for concurrent use.
type Dog struct {
	limit time.Duration
	log   *zap.Logger

	mu struct {
		sync.Mutex
		watches []*watch
		// looked is when the dog last looked, zero before Run and after it.
		looked time.Time
	}
}

// New returns a dog that gives a step limit; 0 means [DefaultLimit].
func New(limit time.Duration, log *zap.Logger) *Dog {
	if limit <= 0 {
		limit = DefaultLimit
	}
	return &Dog{limit: limit, log: log}
}

// Pulse returns a pulse for the named loop, at rest. A second pulse of the same name takes the place
// of the first, as that of a loop that was started again; loops that run side by side need names of
// their own.
func (d *Dog) Pulse(loop string) *Pulse {
	p := &Pulse{loop: loop}
	p.arm()
	w := &watch{pulse: p}

	d.mu.Lock()
	defer d.mu.Unlock()
	i := slices.IndexFunc(d.mu.watches, func(o *watch) bool { return o.pulse.loop == loop })
	if i >= 0 {
		d.mu.watches[i] = w
	} else {
		d.mu.watches = append(d.mu.watches, w)
	}
	return p
}

// Run looks at all pulses until ctx is done, then returns nil. Where a loop works at one step for
// longer than the limit it writes the stacks of all goroutines to the log and returns a [HangError].
func (d *Dog) Run(ctx context.Context) error {
	every := d.limit / looksPerLimit
	tick := time.NewTicker(every)
	defer tick.Stop()
	_ = d.look(0) // begins the count: nothing can be stuck yet
	defer func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.mu.looked = time.Time{}
	}()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if hang := d.look(every); hang != nil {
			d.log.Error("loop hangs", zap.String("loop", hang.Loop), zap.Duration("stuck", hang.Stuck),
				zap.Duration("limit", hang.Limit))
			d.dump()
			return hang
		}
	}
}

// look adds to each pulse that has not moved since the last look, and returns the worst that is
// beyond the limit.
//
// Only what the dog was awake for counts, at most two looks' worth at a time: after a process was
// stopped and continued, or a virtual machine suspended, all loops were at one step for long and none
// of them hangs.
func (d *Dog) look(every time.Duration) *HangError {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	passed := min(now.Sub(d.mu.looked), 2*every)
	d.mu.looked = now
	var worst *watch
	for _, w := range d.mu.watches {
		step := w.pulse.step.Load()
		if step != w.step || step&1 == 0 {
			w.step, w.stuck = step, 0
			continue
		}
		w.stuck += passed
		if worst == nil || w.stuck > worst.stuck {
			worst = w
		}
	}
	if worst == nil || worst.stuck <= d.limit {
		return nil
	}
	return &HangError{Loop: worst.pulse.loop, Stuck: worst.stuck, Limit: d.limit}
}

// Check returns nil while all loops make progress, and an error that names the loop once one has
// worked at a step for half the limit, or where the dog itself does not look.
func (d *Dog) Check() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mu.looked.IsZero() {
		return fmt.Errorf("the watchdog does not run")
	}
	if blind := time.Since(d.mu.looked); blind > d.limit/2 {
		return fmt.Errorf("the watchdog has not looked for %s", blind.Round(time.Millisecond))
	}
	for _, w := range d.mu.watches {
		if w.stuck >= d.limit/2 && w.pulse.step.Load() == w.step {
			return &HangError{Loop: w.pulse.loop, Stuck: w.stuck, Limit: d.limit}
		}
	}
	return nil
}

// dump writes the stack of every goroutine to the log, one entry each: log collectors cut long lines.
func (d *Dog) dump() {
	buf := make([]byte, dumpBytes)
	buf = buf[:runtime.Stack(buf, true)]
	for stack := range bytes.SplitSeq(buf, []byte("\n\n")) {
		d.log.Error("goroutine", zap.ByteString("stack", bytes.TrimSpace(stack)))
	}
}
