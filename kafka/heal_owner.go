package kafka

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"go.uber.org/zap"

	"github.com/bide-mq/bide"
)

// blindLimit is how long reading may stand still where Bide cannot see why, before the last transaction is
// ended once more.
const blindLimit = 3 * time.Second

// takeIDs heals and fences ids whose last user is gone, in this order: fencing has the coordinator forget
// how their transactions ended.
func (c *Cluster) takeIDs(ctx context.Context, ids []string) error {
	wait := backoff{least: minBusyWait, most: time.Second}
	for {
		err := c.healEverywhere(ctx, ids)
		if err == nil {
			return c.fenceAll(ctx, ids)
		}
		if !mendable(err) || !wait.rest(ctx) {
			return err
		}
	}
}

// healEverywhere looks for lost markers of ids in the group's offsets and in every topic that Bide may
// write. Before a process uses ids, or takes them from a dead one, nobody knows where they wrote. An
// error says that the coordinators of the ids could not be asked.
func (c *Cluster) healEverywhere(ctx context.Context, ids []string) error {
	ctx, cancel := context.WithTimeout(ctx, 2*callTimeout)
	defer cancel()
	ended := make([]string, 0, len(ids))
	for _, id := range ids {
		s, err := c.describeTxn(ctx, id)
		switch {
		case err != nil:
			return err
		case s.ending(): // whether its markers are lost shows once it has ended
			return fmt.Errorf("transactional id %s: %w", id, kerr.ConcurrentTransactions)
		case s.complete():
			if err := c.remember(ctx, id, s); err != nil {
				return err
			}
			ended = append(ended, id)
		}
	}
	if len(ended) == 0 {
		return nil
	}
	parts, err := c.writable(ctx)
	if err != nil {
		c.log.Warn("cannot list topics to look for lost transaction markers", zap.Error(err))
	}
	if offsets, err := c.offsetsPartition(ctx); err == nil {
		parts = append(parts, offsets)
	}
	_, errs := c.openTxns(ctx, parts)
	hidden := 0
	var unasked []topicPartition
	asked := parts[:0]
	for _, p := range parts {
		if err := errs[p]; err == nil {
			asked = append(asked, p)
		} else if !isDenied(err) {
			unasked = append(unasked, p)
		} else {
			hidden++
		}
	}
	if hidden > 0 {
		c.log.Info("partitions not searched for lost transaction markers; that needs Read on their topics", zap.Int("partitions", hidden))
	}
	for _, id := range ended {
		if end, ok := c.markers.end(id); ok {
			c.markers.ended(id, end, unasked)
		}
	}
	if err := c.heal(ctx, ended, asked, c.hold); err != nil && ctx.Err() == nil {
		c.log.Warn("not all partitions could be searched for lost transaction markers; going on beside", zap.Error(err))
	}
	return nil
}

// writable returns the partitions of all topics that Bide may write.
func (c *Cluster) writable(ctx context.Context) ([]topicPartition, error) {
	topics, err := c.allTopics(ctx)
	var parts []topicPartition
	for topic, n := range topics {
		if !c.opt.Contract.writes(topic) {
			continue
		}
		for i := range n {
			parts = append(parts, topicPartition{topic, i})
		}
	}
	return parts, err
}

// settle ends what keeps a lane's offsets unstable: it heals markers that were lost, of the own ids and
// of those that the lane's last commit names, then fences the ids of another owner. long says that this
// has been tried for a while: then all ids of the group are looked at. owner says that it is time to
// fence. It returns what stands in the way.
func (c *Cluster) settle(ctx context.Context, lane bide.Lane, long, owner bool) error {
	ctx, cancel := context.WithTimeout(ctx, fenceAgain)
	defer cancel()
	var ids []string
	if c.ids != nil {
		ids = txnIDs(c.prefix)
	}
	prefix := c.lastPrefix(ctx, lane)
	foreign := prefix != "" && (c.ids == nil || prefix != c.prefix)
	if foreign {
		ids = append(ids, txnIDs(prefix)...)
	}
	if long {
		listed, err := c.listTxnIDs(ctx)
		if err != nil {
			c.log.Debug("cannot list transactional ids", zap.Error(err))
		}
		ids = union(ids, listed)
	}
	offsets, err := c.offsetsPartition(ctx)
	if err == nil {
		var errs map[topicPartition]error
		if _, errs = c.openTxns(ctx, []topicPartition{offsets}); errs[offsets] != nil {
			err = errs[offsets]
		} else {
			err = c.heal(ctx, ids, []topicPartition{offsets}, c.hold)
		}
	}
	if isDenied(err) {
		var named []string
		if c.ids != nil {
			named = txnIDs(c.prefix)
		}
		if foreign {
			named = append(named, txnIDs(prefix)...)
		}
		err = c.settleBlind(ctx, named)
	}
	if foreign && owner {
		return errors.Join(err, c.fenceOwner(ctx, prefix))
	}
	return err
}

// settleBlind ends the last transaction of ids once more in the group's offsets, where Bide may not ask
// which of them is open: every transaction of an id commits offsets, so it can only be the last.
func (c *Cluster) settleBlind(ctx context.Context, ids []string) error {
	var faults []error
	for _, id := range ids {
		faults = append(faults, c.endOnceMore(ctx, id, topicPartition{topic: offsetsTopic, number: -1}, c.hold))
	}
	return errors.Join(faults...)
}

// healBlind deals with a mark in a partition that Bide may not ask what it has open. Where reading stands
// still for long, the transaction is ended once more, which does no harm if it was not its fault.
func (c *Cluster) healBlind(ctx context.Context, txnID string, p topicPartition, m mark, hold holdFunc) error {
	if p.topic == offsetsTopic && m.lane.Topic != "" {
		if _, err := c.fetchOffset(ctx, m.lane, true); err == nil {
			c.markers.seen(txnID, p, m)
			return nil
		}
	}
	if time.Since(m.at) < blindLimit {
		return fmt.Errorf("%s: %w", p, errUnmarked)
	}
	if err := c.endOnceMore(ctx, txnID, p, hold); err != nil {
		return err
	}
	c.markers.seen(txnID, p, m)
	return nil
}

// endOnceMore ends the last transaction of an id once more in a partition.
func (c *Cluster) endOnceMore(ctx context.Context, txnID string, p topicPartition, hold holdFunc) error {
	release, ok := hold(txnID)
	if !ok {
		return fmt.Errorf("%s: %w", txnID, errIDInUse)
	}
	defer release()
	s, err := c.describeTxn(ctx, txnID)
	if err != nil {
		return err
	}
	if s.complete() {
		if err := c.remember(ctx, txnID, s); err != nil {
			return err
		}
	}
	end, known := c.markers.end(txnID)
	switch {
	case s.underway():
		return fmt.Errorf("%s: %w", txnID, errNotOver)
	case s.state == "" || !known || end.producer != s.producer:
		return nil
	}
	c.renewed(txnID)
	return c.endAgain(ctx, txnID, s.producer, []topicPartition{p}, end.commit)
}

func union(a, b []string) []string {
	in := make(map[string]struct{}, len(a))
	for _, s := range a {
		in[s] = struct{}{}
	}
	for _, s := range b {
		if _, ok := in[s]; !ok {
			a = append(a, s)
		}
	}
	return a
}
