package kafka

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"go.uber.org/zap"
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

func keys(set map[topicPartition]struct{}) []topicPartition {
	all := make([]topicPartition, 0, len(set))
	for p := range set {
		all = append(all, p)
	}
	return all
}
