package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/zap"

	"github.com/bide-mq/bide"
)

const (
	// unstableLimit is how long a lane's offsets may be unstable before the ids of the last owner are
	// fenced: markers of a transaction that has ended come within some tens of milliseconds.
	unstableLimit = 200 * time.Millisecond
	// fenceAgain is how long until they are fenced again, should it not have helped.
	fenceAgain = 10 * time.Second
	// unstableLong is how long they may be so before that is logged, and all ids of the group are looked at.
	unstableLong = 2 * time.Second
	// settleAgain is how often lost markers are looked for meanwhile.
	settleAgain = time.Second
	// tellAgain is how often a fault that lasts is logged.
	tellAgain = 10 * time.Second
)

// storedOffset is a partition's committed offset as the coordinator has it; offset is −1 where there
// is none.
type storedOffset struct {
	offset int64
	meta   string
}

// errUnstable says that a transaction that committed offsets of the lane has not ended.
var errUnstable = errors.New("offsets are part of an open transaction")

// fetchOffsets asks for committed offsets of partitions of one topic. With stable, a partition that an
// open transaction has offsets of makes it fail with errUnstable.
//
// From version 10 on the request names topics by id. The client would look the id up, but where it cannot
// it asks for the zero one, of which not every broker says that it is unknown: a lane would seem to have
// no commit.
func (c *Cluster) fetchOffsets(ctx context.Context, topic string, partitions []int32, stable bool) (map[int32]storedOffset, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if id, ok := c.topics.Load(topic); ok {
		stored, err := c.fetchOffsetsOf(ctx, topic, id.([16]byte), partitions, stable)
		if !errors.Is(err, kerr.UnknownTopicID) {
			return stored, err
		}
	}
	id, _, err := c.describe(ctx, topic)
	if err != nil {
		return nil, fmt.Errorf("fetch committed offsets of %s: %w", topic, err)
	}
	return c.fetchOffsetsOf(ctx, topic, id, partitions, stable)
}

// fetchOffsetsOf is fetchOffsets for a topic whose id is known.
func (c *Cluster) fetchOffsetsOf(ctx context.Context, topic string, id [16]byte, partitions []int32, stable bool) (map[int32]storedOffset, error) {
	req := kmsg.NewPtrOffsetFetchRequest()
	req.RequireStable = stable
	group := kmsg.NewOffsetFetchRequestGroup()
	group.Group = c.opt.Group
	asked := kmsg.NewOffsetFetchRequestGroupTopic()
	asked.Topic, asked.TopicID, asked.Partitions = topic, id, partitions
	group.Topics = append(group.Topics, asked)
	req.Groups = append(req.Groups, group)
	resp, err := req.RequestWith(ctx, c.plain)
	if err != nil {
		return nil, fmt.Errorf("fetch committed offsets of %s: %w", topic, err)
	}
	stored := make(map[int32]storedOffset, len(partitions))
	for _, g := range resp.Groups {
		switch err := kerr.ErrorForCode(g.ErrorCode); {
		case errors.Is(err, kerr.GroupIDNotFound): // no member and no offset yet
			for _, p := range partitions {
				stored[p] = storedOffset{offset: -1}
			}
			return stored, nil
		case err != nil:
			return nil, fmt.Errorf("fetch committed offsets of %s: %w", topic, err)
		}
		for _, t := range g.Topics {
			for _, p := range t.Partitions {
				switch err := kerr.ErrorForCode(p.ErrorCode); {
				case errors.Is(err, kerr.UnstableOffsetCommit):
					return nil, errUnstable
				case err != nil:
					return nil, fmt.Errorf("fetch committed offset of %s/%d: %w", topic, p.Partition, err)
				}
				s := storedOffset{offset: p.Offset}
				if p.Metadata != nil {
					s.meta = *p.Metadata
				}
				stored[p.Partition] = s
			}
		}
	}
	for _, p := range partitions {
		if _, ok := stored[p]; !ok {
			return nil, fmt.Errorf("fetch committed offset of %s/%d: missing in the answer", topic, p)
		}
	}
	return stored, nil
}

// fetchOffset is fetchOffsets for one lane.
func (c *Cluster) fetchOffset(ctx context.Context, lane bide.Lane, stable bool) (storedOffset, error) {
	all, err := c.fetchOffsets(ctx, lane.Topic, []int32{lane.Partition}, stable)
	return all[lane.Partition], err
}

// Committed returns the lane's commit; see [bide.Cluster].
func (c *Cluster) Committed(ctx context.Context, lane bide.Lane) (bide.Commit, bool, error) {
	wait := backoff{least: minBusyWait, most: time.Second}
	var unrest unrest
	var told time.Time
	for {
		stored, err := c.fetchOffset(ctx, lane, true)
		switch {
		case err == nil && stored.offset < 0:
			return bide.Commit{}, false, nil
		case err == nil:
			commit, _, err := decodeCommit(stored.offset, stored.meta)
			if err != nil {
				return bide.Commit{Next: stored.offset}, true, fmt.Errorf("lane %s: %w", lane, err)
			}
			return commit, true, nil
		case errors.Is(err, errUnstable):
			wait.most = 20 * time.Millisecond
			unrest.tend(ctx, c, lane)
		default:
			wait.most = time.Second
			if ctx.Err() == nil && time.Since(told) > tellAgain {
				told = time.Now()
				c.log.Warn("cannot read a lane's commit; trying again", zap.Stringer("lane", lane), zap.Error(err))
			}
		}
		if !wait.rest(ctx) {
			return bide.Commit{}, false, context.Cause(ctx)
		}
	}
}

// lastPrefix returns the prefix of transactional ids that the commit below an open transaction names, if
// it is one of the group's.
func (c *Cluster) lastPrefix(ctx context.Context, lane bide.Lane) string {
	stored, err := c.fetchOffset(ctx, lane, false)
	if err != nil || stored.offset < 0 {
		return ""
	}
	_, prefix, err := decodeCommit(stored.offset, stored.meta)
	if err != nil || !ownsPrefix(c.opt.Group, prefix) {
		return ""
	}
	return prefix
}

// unrest is how long a lane's offsets have been unstable, and what was done about it.
type unrest struct {
	since, settled, fenced, told time.Time
	why                          error
}

// tend is called each time that the offsets were found unstable.
func (u *unrest) tend(ctx context.Context, c *Cluster, lane bide.Lane) {
	if u.since.IsZero() {
		u.since = time.Now()
	}
	age := time.Since(u.since)
	if age > unstableLimit && time.Since(u.settled) > settleAgain {
		fence := time.Since(u.fenced) > fenceAgain
		if fence {
			u.fenced = time.Now()
		}
		u.why = c.settle(ctx, lane, age > unstableLong, fence)
		u.settled = time.Now()
	}
	if age > unstableLong && time.Since(u.told) > tellAgain && ctx.Err() == nil {
		u.told = time.Now()
		c.log.Warn("a lane's offsets stay part of an open transaction; waiting",
			zap.Stringer("lane", lane), zap.Duration("since", age), zap.Error(cmp.Or(u.why, errNotOver)))
	}
}

// encoded is a plan's commit as it is sent.
func (c *Cluster) encoded(p *bide.Plan) (string, error) {
	if p.Commit.TopicID == ([16]byte{}) {
		// Newer requests name topics by id alone, and a commit for the zero one goes nowhere.
		return "", fmt.Errorf("lane %s: the commit names no topic id", p.Lane)
	}
	meta, err := encodeCommit(p.Commit, c.prefix)
	if err != nil {
		return "", fmt.Errorf("lane %s: %w", p.Lane, err)
	}
	return meta, nil
}

// txnCommit adds the plans' commits to a transaction of id; it begins the transaction if it is not yet
// begun. Below transaction.version 2 the group has to be added to it first. The error is that of the
// first plan with one; all errors of plans are in the slice.
func (c *Cluster) txnCommit(ctx context.Context, id producerIdent, m bide.Membership, plans []*bide.Plan) ([]error, error) {
	two, err := c.txnVersionTwo(ctx)
	if err != nil {
		return nil, err
	}
	client := c.plain
	if !two {
		client = c.capped
		add := kmsg.NewPtrAddOffsetsToTxnRequest()
		add.TransactionalID, add.ProducerID, add.ProducerEpoch, add.Group = id.txnID, id.id, id.epoch, c.opt.Group
		resp, err := add.RequestWith(ctx, client)
		if err == nil {
			err = kerr.ErrorForCode(resp.ErrorCode)
		}
		if err != nil {
			return nil, fmt.Errorf("add the group to a transaction of %s: %w", id.txnID, err)
		}
	}
	req, err := c.txnCommitRequest(id, m, plans)
	if err != nil {
		return nil, err
	}
	resp, err := req.RequestWith(ctx, client)
	if err != nil {
		return nil, fmt.Errorf("commit offsets in a transaction of %s: %w", id.txnID, err)
	}
	answers := make(map[answerKey]int16, len(plans))
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			answers[answerKey{t.Topic, t.TopicID, p.Partition}] = p.ErrorCode
		}
	}
	return planErrors(plans, resp.Version >= 6, answers)
}

// answerKey names a partition in an answer, by topic id from the version on that carries ids.
type answerKey struct {
	topic     string
	id        [16]byte
	partition int32
}

// planErrors sorts the error codes of an answer to the plans.
func planErrors(plans []*bide.Plan, byID bool, answers map[answerKey]int16) ([]error, error) {
	errs := make([]error, len(plans))
	var first error
	for i, p := range plans {
		key := answerKey{partition: p.Lane.Partition}
		if byID {
			key.id = p.Commit.TopicID
		} else {
			key.topic = p.Lane.Topic
		}
		code, ok := answers[key]
		switch {
		case !ok:
			errs[i] = fmt.Errorf("commit of lane %s: missing in the answer", p.Lane)
		case code != 0:
			errs[i] = fmt.Errorf("commit of lane %s: %w", p.Lane, kerr.ErrorForCode(code))
		}
		if first == nil {
			first = errs[i]
		}
	}
	return errs, first
}

func (c *Cluster) txnCommitRequest(id producerIdent, m bide.Membership, plans []*bide.Plan) (*kmsg.TxnOffsetCommitRequest, error) {
	if err := checkMembership(m); err != nil {
		return nil, err
	}
	req := kmsg.NewPtrTxnOffsetCommitRequest()
	req.TransactionalID, req.ProducerID, req.ProducerEpoch = id.txnID, id.id, id.epoch
	req.Group, req.MemberID, req.Generation, req.InstanceID = c.opt.Group, m.Member, m.Generation, &c.opt.Instance
	topics := make(map[string]int, 1)
	for _, p := range plans {
		meta, err := c.encoded(p)
		if err != nil {
			return nil, err
		}
		i, ok := topics[p.Lane.Topic]
		if !ok {
			i = len(req.Topics)
			topics[p.Lane.Topic] = i
			t := kmsg.NewTxnOffsetCommitRequestTopic()
			t.Topic, t.TopicID = p.Lane.Topic, p.Commit.TopicID
			req.Topics = append(req.Topics, t)
		}
		part := kmsg.NewTxnOffsetCommitRequestTopicPartition()
		part.Partition, part.Offset, part.Metadata = p.Lane.Partition, p.Commit.Next, &meta
		req.Topics[i].Partitions = append(req.Topics[i].Partitions, part)
	}
	return req, nil
}

// plainCommit commits without a transaction, as at-least-once mode does.
func (c *Cluster) plainCommit(ctx context.Context, m bide.Membership, plans []*bide.Plan) ([]error, error) {
	if err := checkMembership(m); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	req := kmsg.NewPtrOffsetCommitRequest()
	req.Group, req.MemberID, req.Generation, req.InstanceID = c.opt.Group, m.Member, m.Generation, &c.opt.Instance
	topics := make(map[string]int, 1)
	for _, p := range plans {
		meta, err := c.encoded(p)
		if err != nil {
			return nil, err
		}
		i, ok := topics[p.Lane.Topic]
		if !ok {
			i = len(req.Topics)
			topics[p.Lane.Topic] = i
			t := kmsg.NewOffsetCommitRequestTopic()
			t.Topic, t.TopicID = p.Lane.Topic, p.Commit.TopicID
			req.Topics = append(req.Topics, t)
		}
		part := kmsg.NewOffsetCommitRequestTopicPartition()
		part.Partition, part.Offset, part.Metadata = p.Lane.Partition, p.Commit.Next, &meta
		req.Topics[i].Partitions = append(req.Topics[i].Partitions, part)
	}
	resp, err := req.RequestWith(ctx, c.plain)
	if err != nil {
		return nil, fmt.Errorf("commit offsets: %w", err)
	}
	answers := make(map[answerKey]int16, len(plans))
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			answers[answerKey{t.Topic, t.TopicID, p.Partition}] = p.ErrorCode
		}
	}
	return planErrors(plans, resp.Version >= 10, answers)
}

// checkMembership refuses what a coordinator would take without looking: a commit with no member and
// no generation is an administrator's, and fences nobody.
func checkMembership(m bide.Membership) error {
	if m.Member == "" || m.Generation < 0 {
		return fmt.Errorf("%w: member %q, generation %d", bide.ErrStaleMembership, m.Member, m.Generation)
	}
	return nil
}

// isStale reports whether the coordinator refused a commit for its membership.
func isStale(err error) bool {
	for _, stale := range []error{
		bide.ErrStaleMembership, kerr.IllegalGeneration, kerr.StaleMemberEpoch, kerr.FencedMemberEpoch,
		kerr.UnknownMemberID, kerr.FencedInstanceID, kerr.RebalanceInProgress, kerr.GroupIDNotFound,
	} {
		if errors.Is(err, stale) {
			return true
		}
	}
	return false
}

// isProducerLost reports whether a transactional id has another producer now, or forgot this one.
func isProducerLost(err error) bool {
	for _, lost := range []error{
		kerr.ProducerFenced, kerr.InvalidProducerEpoch, kerr.InvalidProducerIDMapping, kerr.UnknownProducerID,
		kerr.InvalidTxnState, kerr.TransactionAbortable,
	} {
		if errors.Is(err, lost) {
			return true
		}
	}
	return false
}

// verdict compares what is stored for a plan's lane with the plan.
func verdict(p *bide.Plan, s storedOffset) bide.Outcome {
	if s.offset < 0 {
		if p.Previous.Writer == (bide.Writer{}) {
			return bide.Aborted
		}
		return bide.Taken
	}
	c, _, err := decodeCommit(s.offset, s.meta)
	switch {
	case err != nil && p.Previous.Writer == (bide.Writer{}) && s.offset == p.Previous.Next:
		return bide.Aborted // a foreign commit that a policy lets Bide replace
	case err != nil:
		return bide.Taken
	case c.Writer == p.Commit.Writer:
		return bide.Committed
	case c.Writer == p.Previous.Writer && c.Next == p.Previous.Next && c.Cursor == p.Previous.Cursor && c.Low == p.Previous.Low:
		return bide.Aborted
	default:
		return bide.Taken
	}
}
