package bide

import (
	"slices"
)

// laneCore is the delivery protocol for one lane, as docs/DESIGN.md §3 has it: what is accepted,
// planned and settled, and in which order. It is pure: no I/O, no clock, no lock. The scheduler
// reads, stores, scans and transacts, and tells it what came of that.
//
// Invariants, with next, cursor and low those of committed:
//
//	an accepted message (offset < next) is settled iff offset < low or position ≤ cursor;
//	the log holds every unsettled message below read, once read has passed gate;
//	committed changes as a whole, by a plan that Kafka has taken.
type laneCore struct {
	// committed is the lane's commit in Kafka as last known.
	committed Commit
	// planned is the greatest cursor of any plan of this owner. A record that arrives at or below it
	// must not be stored behind it, where no scan would see it.
	planned Position
	// read is the offset up to which (not included) records were accepted and are durable.
	read int64
	// gate is the offset that reading must reach before anything is planned: the greater of next and
	// the log's checkpoint when the lane was loaded.
	gate int64
	// owed are late arrivals and rejected records: nothing of them is in the log, so they go into the
	// first plan whose next is past them.
	owed []Item
	// floor is the smallest position of a batch that is being stored; plans stay below it. storing says
	// that there is such a batch.
	floor   Position
	storing bool
	// plan is the one in flight, or to be run again. Only one at a time.
	plan *flight

	// seen is the offset that reading has passed, transaction markers included. Until it has passed end,
	// the lane's end when it was assigned, a copy that an earlier owner carried may still be unread:
	// nothing is carried, and low stands still.
	seen, end int64
	// held says that low may be behind the truth: it stood still in the last plan, or with an earlier owner.
	held bool
	// toCarry are messages that the next plan shall copy to the lane's end. copies are those of which a
	// copy is under way: low stands still until all are read back, and none is copied twice.
	toCarry []Message
	copies  map[Position]struct{}
}

// flight is a plan, with the messages of it that are in the log.
type flight struct {
	Plan
	members []Message
	// more says that the scan for the plan was cut: more is due.
	more bool
	// claim says that the plan only writes the owner's name under what is committed.
	claim bool
	tries int
	// trouble says that the last try failed for the cluster's sake, not for that of single items.
	trouble bool
}

// loadCore returns the state of a lane whose commit is c, read from offset from, with effects in
// the log up to checkpoint, and whose ingress ends at end.
func loadCore(c Commit, from, checkpoint, end int64) laneCore {
	return laneCore{
		committed: c, planned: c.Cursor, read: from, gate: max(c.Next, checkpoint),
		seen: from, end: end, held: c.Low < c.Next, copies: make(map[Position]struct{}),
	}
}

// ready reports whether reading has passed the gate: the log holds all that waits.
func (c *laneCore) ready() bool { return c.read >= c.gate }

// accepted is what a batch of records comes to.
type accepted struct {
	// store are the messages that wait; they go into the log.
	store []Message
	// owed are late arrivals and rejected records. They are owed only once the batch is stored: a plan
	// made before has a next that is not past them.
	owed []Item
	// copies are the positions of which a copy was read.
	copies []Position
	// next is the offset after the last record.
	next int64
	// replay says that all records were accepted before, by this owner or another.
	replay bool
	// late and rejected count the records that are owed instead.
	late, rejected int
}

// accept classifies records read from the lane. Until stored is called with the result, plans stay
// below the smallest position of what is to be stored. Records below read are skipped: they were
// accepted already.
func (c *laneCore) accept(records []Record, contract Contract) accepted {
	a := accepted{next: c.read, replay: true, store: make([]Message, 0, len(records))}
	for i := range records {
		rec := &records[i]
		if rec.Offset < c.read {
			continue
		}
		a.next = rec.Offset + 1
		live := rec.Offset >= c.committed.Next
		a.replay = a.replay && !live
		m, rejection := contract.Accept(*rec, RulesAt(c.committed.Rules, rec.Offset))
		copied := rejection == nil && m.At != m.Offset
		if copied {
			a.copies = append(a.copies, m.Position())
		}
		switch {
		case rejection != nil:
			if live {
				a.owed = append(a.owed, Item{Message: Message{Record: *rec, At: rec.Offset}, Fate: Fate{Kind: DeadLetter, Rejection: rejection}})
				a.rejected++
			}
		case live && m.Position().AtOrBelow(c.planned) && copied:
			// The message is delivered, or about to be: a copy is never late.
		case live && m.Position().AtOrBelow(c.planned):
			a.owed = append(a.owed, Item{Message: m})
			a.late++
		case !live && (rec.Offset < c.committed.Low || m.Position().AtOrBelow(c.committed.Cursor)):
			// Settled before: I1.
		default:
			a.store = append(a.store, m)
			if p := m.Position(); !c.storing || p.Compare(c.floor) < 0 {
				c.floor, c.storing = p, true
			}
		}
	}
	return a
}

// stored says that what accept returned is durable, or that there was nothing to store.
func (c *laneCore) stored(a accepted) {
	c.read = max(c.read, a.next)
	c.passed(a.next)
	c.owed = append(c.owed, a.owed...)
	c.storing = false
	for _, p := range a.copies {
		delete(c.copies, p)
	}
}

// passed says that reading has passed an offset.
func (c *laneCore) passed(offset int64) { c.seen = max(c.seen, offset) }

// settledDown reports whether no copy is unread: low may move, and messages may be carried.
func (c *laneCore) settledDown() bool { return c.seen >= c.end && len(c.copies) == 0 }

// lags reports whether a commit may move low, though nothing else has changed.
func (c *laneCore) lags() bool { return c.held && c.settledDown() }

// skip moves read to the ingress's first offset, where records below it are gone.
func (c *laneCore) skip(start int64) {
	c.read = max(c.read, start)
	c.passed(start)
}

// window returns the range of positions that a plan made now would take: (after, upTo]. ok is false
// where nothing may be planned.
func (c *laneCore) window(nowMs int64) (after, upTo Position, ok bool) {
	if c.plan != nil || !c.ready() || c.holdUntil(nowMs) > nowMs {
		return Position{}, Position{}, false
	}
	upTo = LastPosition(nowMs)
	if c.storing && c.floor.AtOrBelow(upTo) {
		upTo = Position{DueMs: c.floor.DueMs, Offset: c.floor.Offset - 1}
	}
	return c.planned, upTo, true
}

// holdUntil returns the moment, epoch ms, before which nothing may be planned, or nowMs. A late
// arrival is held until it is due: this owner's clock may be behind the one that moved the cursor
// past it. Nothing else is ripe then: all that is stored comes after the cursor.
func (c *laneCore) holdUntil(nowMs int64) int64 {
	until := nowMs
	for i := range c.owed {
		if c.owed[i].Fate.Kind == Deliver {
			until = max(until, c.owed[i].DueMs)
		}
	}
	return until
}

// uncommitted returns how many offsets were accepted since the last plan that was committed.
func (c *laneCore) uncommitted() int64 { return c.read - c.committed.Next }

// propose makes the plan for msgs, which are all that the log holds in the window, or its first part
// where more is true. The plan settles what is owed too. low is the lane's low once msgs and owed are
// settled. It returns nil where there would be nothing to commit. The plan stands until decided.
func (c *laneCore) propose(lane Lane, msgs []Message, more bool, low int64, w Writer) *flight {
	next := max(c.read, c.committed.Next)
	if len(msgs) == 0 && len(c.owed) == 0 && len(c.toCarry) == 0 && next == c.committed.Next && !c.lags() {
		return nil
	}
	commit := c.committed
	commit.Next, commit.Writer = next, w
	if c.held = !c.settledDown(); !c.held {
		commit.Low = max(c.committed.Low, min(low, next))
	}
	commit.Cursor = c.planned
	if len(msgs) > 0 {
		commit.Cursor = msgs[len(msgs)-1].Position()
	}
	commit.Rules = liveRules(c.committed.Rules, commit.Low)
	items := slices.Grow(c.owed, len(msgs))
	c.owed = nil
	// Late arrivals come first: they are at or below the cursor before.
	slices.SortStableFunc(items, func(a, b Item) int { return a.Position().Compare(b.Position()) })
	for i := range msgs {
		items = append(items, Item{Message: msgs[i]})
	}
	items = c.carry(items, commit.Cursor)
	c.plan = &flight{
		Plan:    Plan{Lane: lane, Previous: c.committed, Commit: commit, Items: items},
		members: msgs, more: more,
	}
	c.planned = commit.Cursor
	return c.plan
}

// carry adds the messages to be carried that this plan leaves waiting.
func (c *laneCore) carry(items []Item, cursor Position) []Item {
	for i := range c.toCarry {
		m := &c.toCarry[i]
		if p := m.Position(); !p.AtOrBelow(cursor) {
			items = append(items, Item{Message: *m, Fate: Fate{Kind: Carry}})
			c.copies[p] = struct{}{}
		}
	}
	c.toCarry = nil
	return items
}

// claim makes the plan that writes the owner's name under the lane's commit, with the rules that
// hold from now on.
func (c *laneCore) claim(lane Lane, claim Commit) *flight {
	c.plan = &flight{Plan: Plan{Lane: lane, Previous: c.committed, Commit: claim}, claim: true}
	return c.plan
}

// planWaits reports whether there is a plan that Kafka has not taken yet.
func (c *laneCore) planWaits() bool { return c.plan != nil }

// decided says that Kafka has taken the plan.
func (c *laneCore) decided() {
	c.committed = c.plan.Commit
	for i := range c.plan.Items {
		if item := &c.plan.Items[i]; item.Fate.Kind == Leave {
			delete(c.copies, item.Position()) // no copy of it is under way
		}
	}
	c.plan = nil
}

// liveRules drops the spans that ended at or below low: no rebuild reads records of theirs.
func liveRules(spans []RuleSpan, low int64) []RuleSpan {
	first := 0
	for i := range spans {
		if spans[i].From <= low {
			first = i
		}
	}
	return spans[first:]
}
