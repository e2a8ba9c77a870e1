package kafka

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"go.uber.org/zap"

	"github.com/bide-mq/bide"
)

// Kafka 4.4.0 can lose a transaction's marker (KAFKA-20734): a partition whose last leader goes away
// between the produce and the marker never gets it, and the coordinator calls the transaction complete.
// From then on read-committed readers of the partition, or stable fetches of the group's offsets, see
// nothing new; and a later transaction of the same id that aborts there makes the committed records
// aborted ones. An orderly restart of a single broker is enough.
//
// So who is about to use an id, and a keeper once a second, compare what partitions have open with how
// the transaction ended. How it ended is known from the coordinator, until the id is initialised anew;
// from then on this process remembers it. Where nobody knows, nothing is guessed: an operator decides.

// blindLimit is how long reading may stand still where Bide cannot see why, before the last transaction is
// ended once more.
const blindLimit = 3 * time.Second

var (
	errUnmarked  = errors.New("a transaction's marker is missing")
	errIDInUse   = errors.New("the transactional id is in use")
	errNotOver   = errors.New("the transaction has not ended")
	errNoneKnows = errors.New("nobody knows any more how the transaction ended")
)

// heal writes the markers that transactions of the ids lost, in parts and wherever the ids have marks to
// be seen. It returns why some partition of these may still miss one.
func (c *Cluster) heal(ctx context.Context, ids []string, parts []topicPartition, hold holdFunc) error {
	marks := make(map[string]map[topicPartition]mark, len(ids))
	asked := make(map[topicPartition]struct{}, len(parts))
	for _, p := range parts {
		asked[p] = struct{}{}
	}
	for _, id := range ids {
		marks[id] = c.markers.of(id, 0)
		for p := range marks[id] {
			asked[p] = struct{}{}
		}
	}
	hidden := topicPartition{topic: offsetsTopic, number: -1} // Bide may not see where it is
	_, blind := asked[hidden]
	delete(asked, hidden)
	open, errs := c.openTxns(ctx, keys(asked))
	if blind {
		errs[hidden] = kerr.TopicAuthorizationFailed
	}
	var suspects []topicPartition
	for p := range open {
		if len(open[p]) > 0 {
			suspects = append(suspects, p)
		}
	}
	c.markers.mended(open)
	c.metrics.unmarked.Set(float64(c.markers.missing()))
	for id, of := range marks {
		for p, m := range of {
			if txns, ok := open[p]; ok && !holdsOpen(txns, m) {
				c.markers.seen(id, p, m)
			}
			if errors.Is(errs[p], kerr.UnknownTopicOrPartition) {
				c.markers.seen(id, p, m) // deleted
				delete(errs, p)
			}
		}
	}
	var faults []error
	for p, err := range errs {
		if !isDenied(err) {
			faults = append(faults, fmt.Errorf("ask %s for open transactions: %w", p, err))
			continue
		}
		for id, of := range marks {
			if m, ok := of[p]; ok {
				faults = append(faults, c.healBlind(ctx, id, p, m, hold))
			}
		}
	}
	for _, id := range ids {
		if len(suspects) == 0 {
			break
		}
		if err := c.healID(ctx, id, suspects, open, hold); err != nil {
			faults = append(faults, err)
		}
	}
	return errors.Join(faults...)
}

// holdsOpen reports whether one of the open transactions is a mark's.
func holdsOpen(txns []openTxn, m mark) bool {
	for _, o := range txns {
		if o.producer == m.producer && (m.offset < 0 || o.start <= m.offset) {
			return true
		}
	}
	return false
}

// healID heals partitions that have something open, of one id. What is open is asked before and after the
// coordinator: only what did not change meanwhile, while the coordinator called the transaction ended,
// is lost.
func (c *Cluster) healID(ctx context.Context, txnID string, parts []topicPartition, before map[topicPartition][]openTxn, hold holdFunc) error {
	release, free := hold(txnID)
	if free {
		defer release()
	}
	state, err := c.describeTxn(ctx, txnID)
	if err != nil {
		return err
	}
	end, known := c.markers.end(txnID)
	var suspects []topicPartition
	for _, p := range parts {
		for _, o := range before[p] {
			if state.state != "" && o.producer == state.producer || known && o.producer == end.producer {
				suspects = append(suspects, p)
				break
			}
		}
	}
	if len(suspects) == 0 {
		return nil
	}
	two, err := c.txnVersionTwo(ctx)
	if err != nil {
		return err
	}
	marks := c.markers.of(txnID, 0)
	now, errs := c.openTxns(ctx, suspects)
	var faults []error
	for _, p := range suspects {
		if err := errs[p]; err != nil {
			faults = append(faults, fmt.Errorf("ask %s for open transactions: %w", p, err))
			continue
		}
		for _, o := range now[p] {
			if !same(o, before[p]) || o.producer != state.producer && (!known || o.producer != end.producer) {
				continue
			}
			was, err := howEnded(o, state, end, known, two)
			if m, ok := marks[p]; ok && err != nil && m.covers(o) && !state.underwayAt(o) {
				was, err = m.ending, nil
			}
			if err == nil && !free {
				err = errIDInUse
			}
			if err == nil {
				err = c.mend(ctx, txnID, p, o, was, state)
			}
			c.report(txnID, p, o, err)
			if err != nil {
				faults = append(faults, fmt.Errorf("%s, producer id %d from offset %d on: %w", p, o.producer, o.start, err))
			}
		}
	}
	return errors.Join(faults...)
}

// underwayAt reports whether an open transaction is the one that the coordinator has open or is ending.
func (s txnState) underwayAt(o openTxn) bool {
	if s.producer != o.producer || !s.underway() {
		return false
	}
	return o.epoch == s.epoch || s.ending() && o.epoch+1 == s.epoch
}

// same reports whether an open transaction was open before.
func same(o openTxn, before []openTxn) bool {
	for _, b := range before {
		if b.producer == o.producer && b.epoch == o.epoch && b.start == o.start {
			return true
		}
	}
	return false
}

// howEnded says how an open transaction of an id ended. Errors: errNotOver, errNoneKnows.
func howEnded(o openTxn, s txnState, end ending, known, two bool) (ending, error) {
	if s.underwayAt(o) {
		return ending{}, errNotOver
	}
	if s.complete() && s.producer == o.producer {
		was := ending{producer: o.producer, epoch: o.epoch, commit: s.state == "CompleteCommit"}
		switch {
		case two && o.epoch+1 == s.epoch:
			was.bumps = true
			return was, nil
		case o.epoch == s.epoch:
			return was, nil
		}
	}
	if known && end.producer == o.producer && end.epoch == o.epoch {
		return end, nil
	}
	return ending{}, errNoneKnows
}

// mend ends an open transaction as it ended.
func (c *Cluster) mend(ctx context.Context, txnID string, p topicPartition, o openTxn, was ending, s txnState) error {
	err := c.writeMarker(ctx, p, o, was)
	if err == nil || !errors.Is(err, kerr.ClusterAuthorizationFailed) && !errors.Is(err, kerr.InvalidProducerEpoch) &&
		!errors.Is(err, kerr.TransactionCoordinatorFenced) {
		return err
	}
	if s.underway() {
		return fmt.Errorf("%w; %w", err, errNotOver)
	}
	if s.complete() {
		c.markers.ended(txnID, was, nil)
	}
	c.renewed(txnID)
	if again := c.endAgain(ctx, txnID, o.producer, []topicPartition{p}, was.commit); again != nil {
		return fmt.Errorf("%w; %w", err, again)
	}
	return nil
}

// report counts and tells of a lost marker, once when it is found, once when it is healed, and now and
// then while it is not.
func (c *Cluster) report(txnID string, p topicPartition, o openTxn, err error) {
	if errors.Is(err, errNotOver) && !errors.Is(err, kerr.ClusterAuthorizationFailed) {
		return
	}
	key, k := lostKey{p, o.producer}, &c.markers
	k.mu.Lock()
	l := k.mu.lost[key]
	if l == nil {
		l = &lostMark{txnID: txnID, seen: time.Now()}
		k.mu.lost[key] = l
		c.metrics.lostMarkers.WithLabelValues(p.kind()).Inc()
	}
	tell := err == nil || time.Since(l.told) > tellAgain && !errors.Is(err, errIDInUse)
	if tell {
		l.told = time.Now()
	}
	after := time.Since(l.seen)
	if err == nil {
		delete(k.mu.lost, key)
	}
	c.metrics.unmarked.Set(float64(len(k.mu.lost)))
	k.mu.Unlock()
	if !tell {
		return
	}
	fields := []zap.Field{
		zap.String("transactional_id", txnID), zap.Stringer("partition", p),
		zap.Int64("producer_id", o.producer), zap.Int64("from_offset", o.start), zap.Duration("after", after),
	}
	if err == nil {
		c.log.Warn("a transaction's marker was lost by the cluster (KAFKA-20734); written again", fields...)
		return
	}
	tool := "kafka-transactions.sh --bootstrap-server " + strings.Join(c.opt.Connection.Brokers, ",")
	fields = append(fields, zap.Error(err),
		zap.String("look", fmt.Sprintf("%s describe-producers --topic %s --partition %d", tool, p.topic, p.number)))
	if errors.Is(err, errNoneKnows) {
		// An abort ends it; whether records that were promised go with it nobody can tell any more.
		fields = append(fields, zap.String("end", fmt.Sprintf("%s abort --topic %s --partition %d --start-offset %d", tool, p.topic, p.number, o.start)))
	}
	c.log.Error("a transaction's marker was lost by the cluster (KAFKA-20734) and cannot be written; readers of committed records stand still there", fields...)
}

// initKnowing is initProducer for an id that may have lost markers: what the coordinator knows is
// remembered, and what can be healed is healed, before the coordinator forgets. parts are partitions that
// the id may have written, beside those that have marks. The caller has the id to itself, or means to
// take it from whoever has it.
func (c *Cluster) initKnowing(ctx context.Context, txnID string, parts []topicPartition) (producerIdent, error) {
	state, err := c.describeTxn(ctx, txnID)
	switch {
	case err != nil:
		return producerIdent{}, err
	case state.ending():
		return producerIdent{}, fmt.Errorf("initialise transactional id %s: %w", txnID, kerr.ConcurrentTransactions)
	}
	if state.complete() {
		if err := c.remember(ctx, txnID, state); err != nil {
			return producerIdent{}, err
		}
	}
	if state.complete() || len(c.markers.of(txnID, 0)) > 0 {
		look, cancel := context.WithTimeout(ctx, markerCheckTimeout)
		if offsets, err := c.offsetsPartition(look); err == nil {
			parts = append(parts[:len(parts):len(parts)], offsets)
		}
		err := c.heal(look, []string{txnID}, parts, held)
		cancel()
		if err != nil && !isDenied(err) && ctx.Err() == nil {
			c.log.Debug("markers not all seen; they are looked for again", zap.String("transactional_id", txnID), zap.Error(err))
		}
	}
	return c.initProducer(ctx, txnID)
}

// remember keeps what the coordinator knows of a transaction that ended.
func (c *Cluster) remember(ctx context.Context, txnID string, s txnState) error {
	two, err := c.txnVersionTwo(ctx)
	if err != nil {
		return err
	}
	end := ending{producer: s.producer, epoch: s.epoch, commit: s.state == "CompleteCommit"}
	if two {
		end.epoch, end.bumps = s.epoch-1, true
	}
	c.markers.ended(txnID, end, nil)
	return nil
}

// isDenied reports whether some right is missing.
func isDenied(err error) bool {
	return errors.Is(err, kerr.TopicAuthorizationFailed) || errors.Is(err, kerr.ClusterAuthorizationFailed)
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
		if err != nil {
			return err
		}
		if s.complete() {
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

func keys(set map[topicPartition]struct{}) []topicPartition {
	all := make([]topicPartition, 0, len(set))
	for p := range set {
		all = append(all, p)
	}
	return all
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
