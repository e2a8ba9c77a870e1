package bide

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"
)

// laneState is where a lane stands in its life with this owner.
type laneState uint8

const (
	laneElsewhere  laneState = iota // not this owner's
	laneAssigned                    // its commit is being fetched and claimed
	laneCatchingUp                  // what came since the log was last right is read from the ingress
	laneRebuilding                  // all that waits is read from the ingress, into an empty log
	laneDelivering                  // what is due is delivered
	laneStopped                     // a human must act; see reason
)

var laneStateNames = [...]string{"elsewhere", "assigned", "catching-up", "rebuilding", "delivering", "stopped"}

func (s laneState) String() string { return laneStateNames[s] }

// reads reports whether the lane's ingress is read.
func (s laneState) reads() bool {
	return s == laneCatchingUp || s == laneRebuilding || s == laneDelivering
}

// lane is a lane as this process knows it, assigned or not. It lives as long as the scheduler, for
// its log does.
type lane struct {
	id   uint32
	name Lane

	// storing is held from accepting a batch until it is in the log, and while a takeover changes the
	// lane's log: an append of an earlier assignment never lands behind a reset.
	storing sync.Mutex

	mu       sync.Mutex
	log      LaneLog
	core     laneCore
	epoch    uint64 // of the assignment, 0 while elsewhere
	member   Membership
	state    laneState
	reason   string
	near     horizon
	ripe     bool          // the delivery loop shall look at it
	inFlight bool          // core.plan is in a transaction
	decided  chan struct{} // closed when that transaction's outcome was dealt with
	abort    context.CancelFunc
	cancel   context.CancelFunc // ends the takeover
	paused   bool
	lagMs    int64 // how late the first message of the last plan was
	retryAt  int64 // epoch ms before which an aborted plan rests
	commitAt int64 // epoch ms of the next commit without deliveries; 0: none asked for
	trimmed  int64 // offset below which records were deleted
	// carriedTo is the offset below which no record holds a message that is to be carried.
	carriedTo int64
	// blocked says why nothing of the lane can be committed until a human acts: its dead letter is refused.
	// The lane goes on trying, and mends itself once it can.
	blocked  string
	restarts int   // how often it started anew since its last plan was taken
	carrying bool  // a round of carrying is under way; more may follow
	reset    bool  // the log cannot be read: rebuild it
	kept     bool  // the log was kept by the last takeover
	toldAt   int64 // epoch ms when progress was last logged
}

// Assigned implements [Owner].
func (s *Scheduler) Assigned(m Membership, added []Lane) {
	s.joined.Store(true)
	for _, l := range s.allLanes() {
		l.mu.Lock()
		if l.epoch != 0 {
			l.member = m
			l.retryAt = 0
			s.markLocked(l)
		}
		l.mu.Unlock()
	}
	for _, name := range added {
		s.assign(s.lane(name), m)
	}
	s.logger.Debug("assigned", zap.Int("added", len(added)), zap.String("member", m.Member), zap.Int32("generation", m.Generation))
}

// Revoked implements [Owner].
func (s *Scheduler) Revoked(ctx context.Context, lanes []Lane) {
	waits := make([]*lane, 0, len(lanes))
	for _, name := range lanes {
		l := s.lane(name)
		s.release(l)
		waits = append(waits, l)
	}
	for _, l := range waits {
		s.awaitDecided(ctx, l)
	}
	s.logger.Debug("revoked", zap.Int("lanes", len(lanes)))
}

// Lost implements [Owner].
func (s *Scheduler) Lost(lanes []Lane) {
	s.joined.Store(false) // until the group answers again
	for _, name := range lanes {
		s.release(s.lane(name))
	}
	s.logger.Debug("lost lanes", zap.Int("lanes", len(lanes)))
}

// lane returns the lane of that name, made on first use.
func (s *Scheduler) lane(name Lane) *lane {
	s.mu.Lock()
	defer s.mu.Unlock()
	l, ok := s.mu.lanes[name]
	if !ok {
		l = &lane{id: uint32(len(s.mu.byID)), name: name}
		s.mu.lanes[name] = l
		s.mu.byID = append(s.mu.byID, l)
	}
	return l
}

// nextEpoch returns a number for an assignment, greater than all before.
func (s *Scheduler) nextEpoch() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.epochs++
	return s.mu.epochs
}

// assign begins a lane's life with this owner.
func (s *Scheduler) assign(l *lane, m Membership) {
	s.release(l)
	epoch := s.nextEpoch()
	ctx, cancel := context.WithCancel(s.work)
	l.mu.Lock()
	l.epoch, l.member, l.state, l.reason = epoch, m, laneAssigned, ""
	l.cancel = cancel
	l.mu.Unlock()
	s.spawn("takeover", func() error { defer cancel(); return s.takeover(ctx, l, epoch) })
}

// reassign starts a lane anew that is still this owner's, but whose state in memory is not to be
// trusted any more.
func (s *Scheduler) reassign(l *lane, epoch uint64, why error) {
	l.mu.Lock()
	if l.epoch != epoch {
		l.mu.Unlock()
		return
	}
	m := l.member
	l.restarts++
	l.mu.Unlock()
	s.metrics.laneRestarts.Inc()
	s.logger.Warn("lane starts anew", zap.Stringer("lane", l.name), zap.Error(why))
	s.assign(l, m)
}

// release ends a lane's life with this owner. A transaction in flight goes on; its outcome is
// ignored.
func (s *Scheduler) release(l *lane) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.epoch == 0 {
		return
	}
	l.cancel()
	s.cluster.Stop(l.name)
	l.epoch, l.state, l.reason = 0, laneElsewhere, ""
	l.core, l.near = laneCore{}, horizon{}
	l.trimmed, l.carriedTo, l.carrying, l.blocked = 0, 0, false, ""
	l.ripe, l.paused, l.lagMs, l.retryAt, l.commitAt = false, false, 0, 0, 0
}

// awaitDecided waits until the lane is in no transaction; where ctx ends first, it has the
// transaction aborted and waits on, for an undecided one must not outlive the assignment.
func (s *Scheduler) awaitDecided(ctx context.Context, l *lane) {
	l.mu.Lock()
	if !l.inFlight {
		l.mu.Unlock()
		return
	}
	decided, abort := l.decided, l.abort
	l.mu.Unlock()
	select {
	case <-decided:
	case <-ctx.Done():
		abort()
		<-decided
	}
}

// takeover brings an assigned lane to where it reads and delivers. It returns an error only where
// the process cannot go on.
func (s *Scheduler) takeover(ctx context.Context, l *lane, epoch uint64) error {
	s.awaitDecided(ctx, l)
	l.mu.Lock()
	restarts := l.restarts
	l.mu.Unlock()
	if restarts > 1 && !pause(ctx, restarts) { // what made it start anew may do so again
		return nil
	}
	for try := 0; ; try++ {
		err := s.load(ctx, l, epoch)
		switch {
		case err == nil || ctx.Err() != nil:
			return nil
		case errors.As(err, new(*stopError)):
			s.stopLane(l, epoch, err)
			return nil
		case errors.Is(err, ErrLogClosed):
			return err
		case errors.Is(err, ErrLogCorrupt):
			l.distrust()
		}
		s.logger.Warn("lane not taken over yet", zap.Stringer("lane", l.name), zap.Error(err))
		s.explain(l, epoch, err.Error())
		if !pause(ctx, try) {
			return nil
		}
	}
}

// pause rests after a try of a takeover, the longer the more there were, up to 5 s; false says that ctx is
// done.
func pause(ctx context.Context, tries int) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(min(100*time.Millisecond<<min(tries, 6), 5*time.Second)):
		return true
	}
}

// stopError says that a lane cannot go on before a human acts. Its reason does not name the lane.
type stopError struct{ reason string }

func (e *stopError) Error() string { return e.reason }

func stopf(format string, args ...any) error { return &stopError{reason: fmt.Sprintf(format, args...)} }

// stopLane leaves the lane assigned and idle, with the reason in status, log and metrics. Other lanes
// go on.
func (s *Scheduler) stopLane(l *lane, epoch uint64, why error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.epoch != epoch {
		return
	}
	s.cluster.Stop(l.name)
	l.state, l.reason = laneStopped, why.Error()
	s.logger.Error("lane stopped", zap.Stringer("lane", l.name), zap.Error(why))
}

func (s *Scheduler) explain(l *lane, epoch uint64, reason string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.epoch == epoch {
		l.reason = reason
	}
}

// load fetches what Kafka and the log know of the lane, decides where to read from, and has the lane
// claimed. Reading begins once the claim stands: records are read by its rules.
func (s *Scheduler) load(ctx context.Context, l *lane, epoch uint64) error {
	log, err := s.log.Lane(l.name)
	if err != nil {
		return fmt.Errorf("open the log of %s: %w", l.name, err)
	}
	l.mu.Lock()
	l.log = log // of a lane that stops before it is loaded, status tells what waits
	l.mu.Unlock()
	// In this order: the ingress cannot end before a commit that was made by then.
	stored := s.committed(ctx, l.name)
	facts, err := s.cluster.Facts(ctx, l.name)
	if err != nil {
		return fmt.Errorf("ask for partition %s: %w", l.name, err)
	}
	commit, err := s.standing(l.name, stored, facts, log.State(), log.Waiting())
	if err != nil {
		return err
	}

	l.storing.Lock()
	defer l.storing.Unlock()
	if stored.abandoned(commit) {
		if err := log.Reset(commit); err != nil {
			return fmt.Errorf("empty the log of %s: %w", l.name, err)
		}
	}
	l.mu.Lock()
	reset := l.reset
	l.mu.Unlock()
	if _, _, err := log.Next(NoPosition); err != nil && !reset {
		return fmt.Errorf("read the log of %s: %w", l.name, err) // its state was not to be trusted
	}
	from, checkpoint, kept, err := s.prepareLog(l.name, log, commit, facts, reset)
	if err != nil {
		return err
	}

	l.mu.Lock()
	defer l.mu.Unlock()
	if l.epoch != epoch {
		return nil
	}
	l.reset, l.kept, l.reason = false, kept, ""
	l.core = loadCore(commit, from, checkpoint, facts.End)
	l.core.claim(l.name, s.claimed(l.name, commit, facts, max(commit.Next, checkpoint)))
	s.logger.Info("lane assigned", zap.Stringer("lane", l.name),
		zap.Int64("next", commit.Next), zap.Int64("low", commit.Low), zap.Stringer("cursor", commit.Cursor),
		zap.Int64("from", from), zap.Int64("checkpoint", checkpoint), zap.Int64("end", facts.End),
		zap.Bool("kept", kept), zap.Int64("waiting", log.Waiting()))
	s.markLocked(l)
	return nil
}

// beginReading starts the reading of a lane whose claim stands. l.mu is held.
func (s *Scheduler) beginReading(l *lane) {
	l.state = laneRebuilding
	if l.kept {
		l.state = laneCatchingUp
	}
	l.toldAt = s.nowMs()
	s.cluster.Start(l.name, l.core.read, l.epoch)
	s.beginDelivering(l)
}

// prepareLog keeps what the log holds of the lane where that can be trusted, and empties it
// otherwise. It returns the offset to read from, the offset up to which effects are in the log, and
// whether the log was kept.
func (s *Scheduler) prepareLog(name Lane, log LaneLog, c Commit, facts LaneFacts, reset bool) (from, checkpoint int64, kept bool, err error) {
	local := log.State()
	// Where nothing was settled yet, what is there is part of a rebuild that did not end: it would have to
	// be read again in any case, and into an empty log that is faster.
	whole := !reset && local.Confirmed.TopicID == c.TopicID && local.From >= c.Low
	usable := local.Known && local.Checkpoint <= facts.End && !rulesChanged(c.Rules, local)
	onlyCopy := facts.Start > c.Low && log.Waiting() > 0
	kept = whole && (usable || onlyCopy)
	if kept && !usable {
		s.logger.Error("the log has effects that do not fit the ingress, but is the only copy of what the ingress has deleted: it is kept, and a few messages may be delivered twice",
			zap.Stringer("lane", name), zap.Int64("from", local.From), zap.Int64("checkpoint", local.Checkpoint), zap.Int64("start", facts.Start), zap.Int64("end", facts.End))
	}
	if kept {
		if err := log.Forget(c.Cursor); err != nil {
			return 0, 0, false, fmt.Errorf("drop what is settled from the log of %s: %w", name, err)
		}
		from, checkpoint = local.From, min(local.Checkpoint, facts.End)
	} else {
		if reset && facts.Start > c.Low {
			return 0, 0, false, stopf("its log cannot be read, and its ingress begins at offset %d, so that the messages from offset %d on cannot be read again: restore the data directory, or delete it to go on without them", facts.Start, c.Low)
		}
		if err := log.Reset(c); err != nil {
			return 0, 0, false, fmt.Errorf("empty the log of %s: %w", name, err)
		}
		from, checkpoint = c.Low, c.Low
	}
	if missing := facts.Start - max(from, checkpoint); missing > 0 {
		s.metrics.missing.Add(float64(missing))
		s.logger.Error("ingress records are gone that were to be read again; what of them still waited is lost: give the ingress a longer retention.ms",
			zap.Stringer("lane", name), zap.Int64("from", max(from, checkpoint)), zap.Int64("start", facts.Start))
	}
	return max(from, facts.Start), checkpoint, kept, nil
}

// rulesChanged reports whether the log may have effects of records that are to be read by other rules
// now: rules hold from the first offset that the owner who brought them had not accepted.
func rulesChanged(spans []RuleSpan, local LaneState) bool {
	for _, span := range spans {
		if span.From >= local.From && span.From < local.Checkpoint {
			return true
		}
	}
	return false
}

// claimed returns the commit that takes possession of the lane: the same triple, under the own name,
// with today's rules from offset on.
func (s *Scheduler) claimed(name Lane, c Commit, facts LaneFacts, offset int64) Commit {
	c.Writer = s.nextWriter()
	c.Lanes = facts.Lanes
	if rules := s.contract.Rules(name.Topic); RulesAt(c.Rules, offset) != rules || len(c.Rules) == 0 {
		c.Rules = append(append([]RuleSpan(nil), c.Rules...), RuleSpan{From: offset, Rules: rules})
	}
	c.Rules = liveRules(c.Rules, c.Low)
	return c
}

func (s *Scheduler) nextWriter() Writer {
	w := s.writer
	w.Plan = s.plans.Add(1)
	return w
}

// beginDelivering turns a lane whose log holds all that waits to delivering. l.mu is held.
func (s *Scheduler) beginDelivering(l *lane) {
	if l.state != laneCatchingUp && l.state != laneRebuilding || !l.core.ready() {
		return
	}
	l.state = laneDelivering
	s.logger.Info("lane delivering", zap.Stringer("lane", l.name), zap.Int64("read", l.core.read), zap.Int64("waiting", l.log.Waiting()))
	s.loadHorizon(l)
	s.commitLater(l)
	s.markLocked(l)
}
