package bide

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.uber.org/zap"
)

// youngIngress is how old a record may be for its lane to count as never read: an empty group's
// offsets expire after seven days, so a lane without a commit whose first record is younger than a
// day cannot have lost one.
const youngIngress = 24 * time.Hour

// storedCommit is what Kafka answers when asked for a lane's commit.
type storedCommit struct {
	Commit
	found bool
	err   error
}

func (s *Scheduler) committed(ctx context.Context, name Lane) (c storedCommit) {
	c.Commit, c.found, c.err = s.cluster.Committed(ctx, name)
	return c
}

// abandoned reports whether c, where the lane goes on, has nothing to do with what its log holds: the
// operator has said that it shall be forgotten.
func (s *storedCommit) abandoned(c Commit) bool {
	return errors.Is(s.err, ErrForeignCommit) || s.found && c.Next < s.Next
}

// standing returns the commit that the lane stands at: Kafka's, or what docs/DESIGN.md §3.5 says
// where Kafka has none, or one that cannot be.
func (s *Scheduler) standing(name Lane, stored storedCommit, facts LaneFacts, local LaneState, waiting int64) (Commit, error) {
	c, err := stored.Commit, stored.err
	switch {
	case errors.Is(err, ErrForeignCommit):
		if !s.policy.ClearForeign {
			return Commit{}, stopf("the group's committed offset %d was not written by Bide (%s): set on-foreign-commit to clear to start there and forget what waits, up to %d messages in the log of this instance, or restore the commit",
				c.Next, unnamed(name, err), waiting)
		}
		s.logger.Warn("starting at a committed offset that Bide did not write", zap.Stringer("lane", name), zap.Int64("offset", c.Next),
			zap.Int64("discarded", waiting), zap.Int64("discardedFrom", local.Confirmed.Low))
		next := min(max(c.Next, facts.Start), facts.End)
		return fresh(next, facts), nil
	case errors.Is(err, ErrCommitVersion):
		return Commit{}, stopf("%s: run the release that wrote it, or a newer one", unnamed(name, err))
	case err != nil:
		return Commit{}, fmt.Errorf("fetch the commit of %s: %w", name, err)
	case !stored.found:
		return s.uncommitted(name, facts, local, waiting)
	}
	if local.Known && local.Confirmed.TopicID == c.TopicID && local.Confirmed.Next > c.Next {
		s.logger.Error("Kafka's commit is older than one it confirmed; going on from the one confirmed",
			zap.Stringer("lane", name), zap.Int64("committed", c.Next), zap.Int64("confirmed", local.Confirmed.Next))
		writer := c.Writer
		c = local.Confirmed
		c.Writer = writer // the claim's read-back compares with what Kafka has
	}
	if c.TopicID == facts.TopicID && facts.End >= c.Next {
		return c, nil
	}
	return s.replaced(name, c, facts, waiting)
}

// unnamed returns the text of err without the lane's name at its start: whoever shows it names the lane.
func unnamed(name Lane, err error) string {
	return strings.TrimPrefix(err.Error(), "lane "+name.String()+": ")
}

// uncommitted says where a lane without a commit begins.
func (s *Scheduler) uncommitted(name Lane, facts LaneFacts, local LaneState, waiting int64) (Commit, error) {
	if local.Known && local.Confirmed.TopicID == facts.TopicID && facts.End >= local.Confirmed.Next {
		s.logger.Warn("the lane's commit is gone from Kafka; going on from the one in the log",
			zap.Stringer("lane", name), zap.Int64("next", local.Confirmed.Next))
		return local.Confirmed, nil
	}
	if c := local.Confirmed; local.Known && (waiting > 0 || c.Low < c.Next) {
		// Kafka drops a group's commits together with the topic: what waits in the log is the only copy.
		start, err := s.replaced(name, c, facts, waiting)
		start.Writer = Writer{} // Kafka has no commit for the claim's read-back to compare with
		return start, err
	}
	beyond := facts.KnownLanes > 0 && name.Partition >= facts.KnownLanes
	empty := facts.Start == facts.End
	young := !facts.First.IsZero() && s.wall().Sub(facts.First) < youngIngress
	if beyond || empty || young || s.policy.StartEarliest {
		return fresh(facts.Start, facts), nil
	}
	return Commit{}, stopf("its ingress has records from %s on but the group has no commit for it, which may have expired, so that it cannot be told which were delivered: set start to earliest to deliver all of them, or commit an offset and set on-foreign-commit to clear",
		facts.First.UTC().Format(time.RFC3339))
}

// replaced says how a lane goes on whose ingress is not the one that its commit is about, or ends
// below it.
func (s *Scheduler) replaced(name Lane, c Commit, facts LaneFacts, waiting int64) (Commit, error) {
	what := "was deleted and created again"
	if c.TopicID == facts.TopicID {
		what = fmt.Sprintf("ends at offset %d, before the committed offset %d", facts.End, c.Next)
	}
	if (waiting > 0 || c.Low < c.Next) && !s.policy.DiscardRecreated {
		return Commit{}, stopf("its ingress %s, and up to %d messages may still wait (%d in the log of this instance, the only copy): set on-recreated to discard to drop them and start anew",
			what, c.Next-c.Low, waiting)
	}
	s.logger.Warn("starting a lane anew, for its ingress "+what, zap.Stringer("lane", name), zap.Int64("discarded", waiting))
	start := fresh(facts.Start, facts)
	start.Writer = c.Writer // the claim's read-back compares with what Kafka has
	return start, nil
}

// fresh is the commit of a lane in which nothing was accepted yet.
func fresh(next int64, facts LaneFacts) Commit {
	return Commit{Next: next, Low: next, Cursor: NoPosition, TopicID: facts.TopicID, Lanes: facts.Lanes}
}
