package bide

import "slices"

// Status is a snapshot of what a [Scheduler] does.
type Status struct {
	// Joined says that the group has answered since the start, and since lanes were last lost.
	Joined bool
	// DiskFull says that reading is paused for lack of disk space.
	DiskFull bool
	// Lanes are those assigned to this process, in order.
	Lanes []LaneStatus
}

// LaneStatus is a snapshot of a lane.
type LaneStatus struct {
	Lane Lane
	// State is assigned, catching-up, rebuilding, delivering or stopped.
	State string
	// Loaded says that the lane's standing is known: without it Next, Low, Read, Gate and Cursor say nothing.
	Loaded bool
	// Next, Cursor and Low are those of the last commit; Read is the offset accepted up to, Gate the one
	// that reading must reach before the lane delivers.
	Next, Low, Read, Gate int64
	Cursor                Position
	// Waiting is how many messages are in the log: of a lane that is not loaded, as this process left it, some
	// of which another may have delivered since.
	Waiting int64
	// OverdueMs is how late the oldest waiting message is, 0 where none is due, or where the lane is neither
	// loaded nor stopped.
	OverdueMs int64
	// Reason says what is wrong, in a sentence; empty where nothing is.
	Reason string
}

// Delivers reports whether the lane delivers what is due.
func (l LaneStatus) Delivers() bool { return l.State == laneDelivering.String() }

// Ready reports whether the process is part of the group and every lane it owns delivers; owning none
// is ready too.
func (s Status) Ready() bool {
	return s.Joined && !slices.ContainsFunc(s.Lanes, func(l LaneStatus) bool { return !l.Delivers() })
}

// Status returns what the scheduler does now. Cost: one seek in the log a lane.
func (s *Scheduler) Status() Status {
	st := Status{Joined: s.joined.Load(), DiskFull: s.diskFull.Load()}
	for _, l := range s.allLanes() {
		if ls, ok := s.laneStatus(l); ok {
			st.Lanes = append(st.Lanes, ls)
		}
	}
	slices.SortFunc(st.Lanes, func(a, b LaneStatus) int { return a.Lane.Compare(b.Lane) })
	return st
}

func (s *Scheduler) laneStatus(l *lane) (LaneStatus, bool) {
	l.mu.Lock()
	if l.epoch == 0 {
		l.mu.Unlock()
		return LaneStatus{}, false
	}
	st := LaneStatus{
		Lane: l.name, State: l.state.String(), Reason: l.reason, Loaded: l.state.reads(),
		Next: l.core.committed.Next, Low: l.core.committed.Low, Cursor: l.core.committed.Cursor,
		Read: l.core.read, Gate: l.core.gate,
	}
	if l.blocked != "" {
		st.State, st.Reason = laneStopped.String(), l.blocked
	}
	log, stopped := l.log, l.state == laneStopped
	l.mu.Unlock()
	if log == nil {
		return st, true
	}
	st.Waiting = log.Waiting()
	settled := st.Cursor
	if stopped {
		settled = log.State().Confirmed.Cursor
	}
	if st.Loaded || stopped {
		if p, ok, err := log.Next(settled); err == nil && ok {
			st.OverdueMs = max(0, s.nowMs()-p.DueMs)
		}
	}
	return st, true
}
