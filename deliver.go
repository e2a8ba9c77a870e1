package bide

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"
)

// deliver starts transactions for lanes that have something to commit, until ctx is done, or until a
// stop has drained.
func (s *Scheduler) deliver(ctx context.Context) error {
	pulse := s.pulse("deliver")
	pace := time.NewTimer(0)
	defer pace.Stop()
	for {
		pulse.Rest()
		select {
		case <-ctx.Done():
			return nil
		case <-s.ripe.wake:
		case <-pace.C:
		}
		pulse.Work()
		if s.stopping.Load() {
			return s.drain(ctx)
		}
		wait, err := s.round(ctx)
		if err != nil {
			return err
		}
		if wait > 0 {
			pace.Reset(wait)
		}
	}
}

// round starts at most one transaction, with all lanes that are ripe and have one membership. wait,
// if not zero, is when to try again; otherwise a wake comes when there is something to do.
func (s *Scheduler) round(ctx context.Context) (wait time.Duration, err error) {
	if wait := s.limits.TransactionEvery - time.Since(s.started); wait > 0 {
		return wait, nil
	}
	select {
	case s.slots <- struct{}{}:
	default:
		return 0, nil // the end of a transaction wakes
	}
	t, err := s.gather(ctx, s.ripe.take())
	if err != nil || len(t.lanes) == 0 {
		<-s.slots
		return 0, err
	}
	s.started = time.Now()
	s.launch(t)
	return s.limits.TransactionEvery, nil
}

// transaction gathers the plans of lanes with one membership.
type transaction struct {
	ctx    context.Context
	abort  context.CancelFunc
	member Membership
	lanes  []*lane
	epochs []uint64
	plans  []*flight
	budget Budget
	alone  bool // no further lane may join
}

// gather makes a transaction of the plans that lanes have. After an error none of them is in it.
func (s *Scheduler) gather(ctx context.Context, lanes []*lane) (*transaction, error) {
	t := &transaction{budget: Budget{Messages: s.limits.PlanMessages, Bytes: s.limits.PlanBytes}}
	t.ctx, t.abort = context.WithCancel(ctx)
	for i, l := range lanes {
		// Each lane gets its share of what the lanes before it have left.
		if err := s.prepare(l, t, len(lanes)-i); err != nil {
			t.leave(t.lanes)
			return nil, err
		}
	}
	if len(t.lanes) == 0 {
		t.abort()
	}
	return t, nil
}

// leave lets lanes go that are in the transaction and will get no outcome, for the process ends: whoever
// waits for one would wait for ever.
func (t *transaction) leave(lanes []*lane) {
	t.abort()
	for _, l := range lanes {
		l.mu.Lock()
		if l.inFlight {
			l.inFlight, l.abort = false, nil
			close(l.decided)
		}
		l.mu.Unlock()
	}
}

// troubled reports whether the lane's plan has failed more than once: it then runs alone, for what is
// wrong may be its own, and a transaction fails as a whole. l.mu is held.
func (l *lane) troubled() bool { return l.core.plan != nil && l.core.plan.tries > 1 }

// prepare adds the lane's plan to the transaction, if it has one; a lane that is left out stays ripe
// where it must.
func (s *Scheduler) prepare(l *lane, t *transaction, sharers int) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ripe = false
	switch {
	case !l.state.reads() && (l.state != laneAssigned || l.core.plan == nil):
		return nil
	case l.inFlight:
		l.ripe = true // looked at again when the transaction has ended
		return nil
	case len(t.lanes) > 0 && (l.member != t.member || t.alone || l.troubled() || t.budget.Messages <= 0 || t.budget.Bytes <= 0):
		s.markLocked(l)
		return nil
	}
	if again := l.core.plan; again != nil {
		again.more = true // what had the lane looked at may come after a plan that was made before
	} else if err := s.plan(l, t.budget, sharers); err != nil {
		epoch := l.epoch
		l.mu.Unlock()
		err = s.logFault(l, epoch, err)
		l.mu.Lock()
		return err
	}
	if l.core.plan == nil || s.nowMs() < l.retryAt {
		return nil // a timer marks it when it may be run again
	}
	t.member, t.alone = l.member, l.troubled()
	t.lanes, t.epochs, t.plans = append(t.lanes, l), append(t.epochs, l.epoch), append(t.plans, l.core.plan)
	t.budget.Messages -= len(l.core.plan.Items)
	for i := range l.core.plan.Items {
		t.budget.Bytes -= l.core.plan.Items[i].Bytes()
	}
	l.inFlight, l.decided, l.abort = true, make(chan struct{}), t.abort
	return nil
}

// plan makes the lane's next plan where there is something to plan. l.mu is held: a batch must not
// be classified between the scan and the plan.
func (s *Scheduler) plan(l *lane, budget Budget, sharers int) error {
	nowMs := s.nowMs()
	after, upTo, ok := l.core.window(nowMs)
	if !ok {
		if until := l.core.holdUntil(nowMs); until > nowMs && l.core.ready() {
			s.look(l, until)
		}
		return nil
	}
	share := Budget{Messages: max(budget.Messages/sharers, 1), Bytes: max(budget.Bytes/sharers, 1)}
	msgs, more, err := l.log.Scan(after, upTo, share)
	if err != nil {
		return err
	}
	l.lagMs = 0
	if len(msgs) > 0 {
		l.lagMs = nowMs - msgs[0].DueMs
	} else if len(l.core.owed) == 0 && len(l.core.toCarry) == 0 && !s.commitDue(l, nowMs) {
		s.pauseLocked(l)
		return nil
	}
	low, err := l.log.Low(max(l.core.read, l.core.committed.Next), msgs)
	if err != nil {
		return err
	}
	f := l.core.propose(l.name, msgs, more, low, s.nextWriter())
	l.commitAt = 0
	s.pauseLocked(l)
	if f != nil {
		s.judge(l, f)
	}
	return nil
}

// commitDue reports whether offsets without deliveries have waited for their commit long enough. l.mu
// is held.
func (s *Scheduler) commitDue(l *lane, nowMs int64) bool {
	return l.core.uncommitted() >= s.limits.CommitOffsets || l.commitAt != 0 && l.commitAt <= nowMs || s.stopping.Load()
}

// judge turns messages whose target is not allowed into dead letters.
func (s *Scheduler) judge(l *lane, f *flight) {
	for i := range f.Items {
		item := &f.Items[i]
		if item.Fate.Kind != Deliver {
			continue
		}
		if r := s.contract.Judge(l.name, &item.Message); r != nil {
			item.Fate = Fate{Kind: DeadLetter, Rejection: r}
		}
	}
}

// launch runs a transaction in a task of its own.
func (s *Scheduler) launch(t *transaction) {
	plans := make([]*Plan, len(t.plans))
	for i := range t.plans {
		plans[i] = &t.plans[i].Plan
	}
	s.spawn("transaction", func() error {
		concluded := 0
		defer func() { t.leave(t.lanes[concluded:]) }() // after a panic
		results := s.cluster.Transact(t.ctx, t.member, plans)
		var err error
		for i, l := range t.lanes {
			err = errors.Join(err, s.conclude(l, t.epochs[i], t.plans[i], results[i]))
			concluded++
		}
		<-s.slots
		s.nudge()
		return err
	})
}

// conclude deals with the outcome of a lane's plan.
func (s *Scheduler) conclude(l *lane, epoch uint64, f *flight, r Result) error {
	s.metrics.plans.WithLabelValues(outcomeNames[r.Outcome]).Inc()
	l.mu.Lock()
	mine := l.epoch == epoch
	l.mu.Unlock()
	var err error
	if mine && r.Outcome == Committed && !f.claim {
		// The lane is in flight until the log has followed, so that the next scan and low are right.
		err = l.log.Settle(f.Commit, f.members)
	}
	if r.Outcome == Committed {
		s.account(l.name, f)
	}

	l.mu.Lock()
	defer l.mu.Unlock()
	defer close(l.decided)
	l.inFlight, l.abort = false, nil
	if l.epoch != epoch || err != nil {
		if l.ripe {
			s.ripe.push(l) // marked by its next assignment, while it was in this transaction
		}
		return err
	}
	switch r.Outcome {
	case Committed:
		l.core.decided()
		l.retryAt = 0
		if f.claim {
			s.beginReading(l)
		} else {
			l.restarts, l.blocked = 0, ""
		}
		s.pauseLocked(l)
		if f.more || l.ripe || f.claim || l.paused || len(l.core.owed) > 0 {
			l.ripe = false
			s.markLocked(l)
		}
	case Taken:
		l.mu.Unlock()
		s.reassign(l, epoch, errors.Join(errors.New("another owner has committed"), r.Err))
		l.mu.Lock()
	default:
		s.tryAgain(l, f, r)
	}
	return nil
}

// tryAgain changes what becomes of the items that stood in the way, and has the plan run again. l.mu
// is held.
func (s *Scheduler) tryAgain(l *lane, f *flight, r Result) {
	changed, trouble := false, f.trouble
	f.trouble = len(r.Failures) == 0
	for _, failure := range r.Failures {
		if trouble && failure.Kind == Unavailable {
			continue // it may have begun while the cluster was away: once more, and in its order
		}
		item := &f.Items[failure.Item]
		if item.Fate.Kind == DeadLetter && failure.Kind == Refused && l.blocked == "" {
			l.blocked = fmt.Sprintf("the dead letter of the message at offset %d is refused for good, and nothing is dropped: %s", item.Offset, failure.Rejection.Reason)
			s.logger.Error("lane blocked", zap.Stringer("lane", l.name), zap.String("reason", l.blocked))
		}
		if fate := s.fateAfter(item, failure); fate != item.Fate {
			item.Fate, changed = fate, true
		}
	}
	f.tries++
	wait := min(10*time.Millisecond<<min(f.tries, 7), time.Second)
	if changed {
		wait = 0
	}
	level := zap.WarnLevel
	if errors.Is(r.Err, context.Canceled) {
		level = zap.DebugLevel
	}
	s.logger.Log(level, "plan not committed, it will be run again", zap.Stringer("lane", l.name), zap.Int("tries", f.tries),
		zap.Int("failures", len(r.Failures)), zap.Duration("wait", wait), zap.Error(r.Err))
	l.reason = "last transaction failed"
	if r.Err != nil {
		l.reason = "last transaction failed: " + r.Err.Error()
	}
	l.retryAt = s.nowMs() + wait.Milliseconds()
	f.more = f.more || l.ripe
	l.ripe = false
	if wait == 0 {
		s.markLocked(l)
		return
	}
	s.look(l, l.retryAt)
}

// fateAfter returns what becomes of an item after a failure of its own.
func (s *Scheduler) fateAfter(item *Item, failure Failure) Fate {
	fate := item.Fate
	switch {
	case failure.Kind == Suspect:
		fate.Alone = true
	case fate.Kind == DeadLetter:
		// There is no other place for it: it is tried again until a human has mended the topic.
	case fate.Kind == Carry:
		fate = Fate{Kind: Leave}
	case fate.Kind == Requeue && failure.Kind == Refused:
		// The lane will never take it, with the headers that make it wait: the target may be away for long,
		// and what is behind must not wait with it.
		fate = Fate{Kind: DeadLetter, Rejection: unstorable(failure.Rejection)}
	case fate.Kind == Requeue:
		// The lane cannot be written either: the cluster is in trouble, not the target.
		fate = Fate{Alone: fate.Alone}
	case failure.Kind == Refused:
		fate = Fate{Kind: DeadLetter, Rejection: failure.Rejection, Alone: fate.Alone}
	default:
		attempt := s.contract.Attempt(&item.Message) + 1
		if attempt >= s.retry.MaxAttempts {
			return Fate{Kind: DeadLetter, Rejection: failure.Rejection}
		}
		fate = Fate{Kind: Requeue, UntilMs: s.nowMs() + s.retry.after(attempt).Milliseconds(), Attempt: attempt}
	}
	return fate
}

// unstorable is the rejection of a message whose target is away, and that its lane refuses to take again.
func unstorable(why *Rejection) *Rejection {
	return &Rejection{Code: why.Code, Reason: "its target could not be written, and it could not be put back into its lane to wait: " + why.Reason}
}

// drain ends what is in flight, commits what was accepted, and returns; within the limit, after which
// transactions are aborted.
func (s *Scheduler) drain(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.limits.Drain)
	defer cancel()
	lanes := s.allLanes()
	for _, l := range lanes {
		s.awaitDecided(ctx, l)
	}
	t, err := s.gather(ctx, lanes)
	if err != nil {
		return err
	}
	if len(t.lanes) > 0 {
		s.slots <- struct{}{}
		s.launch(t)
		for _, l := range t.lanes {
			s.awaitDecided(ctx, l)
		}
	}
	for _, l := range lanes {
		s.release(l)
	}
	return nil
}

// markLocked has the delivery loop look at the lane. l.mu is held.
func (s *Scheduler) markLocked(l *lane) {
	if l.ripe || l.epoch == 0 {
		return
	}
	l.ripe = true
	if !l.inFlight { // else when its transaction has ended
		s.ripe.push(l)
	}
}

// nudge has the delivery loop look at what is ripe.
func (s *Scheduler) nudge() { s.ripe.nudge() }

func (s *Scheduler) allLanes() []*lane {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.mu.byID)
}
