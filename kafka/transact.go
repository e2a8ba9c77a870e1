package kafka

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/zap"

	"github.com/bide-mq/bide"
)

const (
	// transactTries is how often one call of Transact starts anew by itself: with the next id when one
	// is busy, with a new client when one was fenced.
	transactTries = idLimit + 2
	// decideGrace is how long a call whose context has ended may take to learn what became of a
	// transaction that it was ending.
	decideGrace = 3 * time.Second
	// endTimeout bounds one attempt to end a transaction.
	endTimeout = 5 * time.Second
)

// errAlong is why a plan was aborted that had nothing wrong itself.
var errAlong = errors.New("another plan of the transaction failed")

// Transact runs plans in one transaction; see [bide.Cluster].
//
// The commits are sent before the records. So a membership that is no longer valid, or an id whose last
// transaction has not ended, is noticed before anything is produced, and a lane's offsets are unstable
// for whoever takes it over from the start of the transaction to its end.
func (c *Cluster) Transact(ctx context.Context, m bide.Membership, plans []*bide.Plan) []bide.Result {
	if len(plans) == 0 {
		return nil
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(c.life, func() { cancel(errClosed) })()
	start := time.Now()
	var results []bide.Result
	switch err := checkMembership(m); {
	case c.isOut.Load():
		results = aborted(plans, fmt.Errorf("%w: %w", bide.ErrStaleMembership, c.errFencedInstance()))
	case err != nil:
		results = aborted(plans, err)
	case c.opt.Mode == AtLeastOnce:
		results = c.produceThenCommit(ctx, m, plans)
	case !produces(plans):
		results = c.commits.transact(ctx, m, plans)
	default:
		results = c.transactItems(ctx, m, plans)
	}
	c.metrics.transactionSeconds.Observe(time.Since(start).Seconds())
	c.metrics.transactions.WithLabelValues(outcomeWord(results[0].Outcome)).Inc()
	for _, r := range results {
		for _, f := range r.Failures {
			c.metrics.produceFailures.WithLabelValues(failureWord(f.Kind)).Inc()
		}
	}
	return results
}

// transactItems finds an id whose last transaction has ended, and runs the plans under it.
func (c *Cluster) transactItems(ctx context.Context, m bide.Membership, plans []*bide.Plan) []bide.Result {
	var err error
	for range transactTries {
		var slot *txnSlot
		if slot, err = c.ids.acquire(ctx); err != nil {
			return aborted(plans, err)
		}
		if !c.clear(ctx, slot.id) {
			slot = c.ids.swap(slot)
		}
		var client *kgo.Client
		var id producerIdent
		if client, id, err = c.ids.ready(ctx, slot); err == nil {
			var results []bide.Result
			if results, err = c.transactUnder(ctx, slot, client, id, m, plans); err == nil {
				return results
			}
		}
		switch {
		case ctx.Err() != nil:
			c.ids.recycle(slot)
			return aborted(plans, context.Cause(ctx))
		case errors.Is(err, kerr.ConcurrentTransactions):
			c.ids.setAside(slot, err)
		case isProducerLost(err):
			c.metrics.fenced.Inc()
			c.ids.recycle(slot)
		default:
			c.ids.recycle(slot)
			return aborted(plans, err)
		}
	}
	return aborted(plans, err)
}

// transactUnder runs the plans under one id. An error says that nothing was decided and nothing can have
// been committed: the id has to be fenced. With results the id is dealt with.
func (c *Cluster) transactUnder(ctx context.Context, slot *txnSlot, client *kgo.Client, id producerIdent, m bide.Membership, plans []*bide.Plan) ([]bide.Result, error) {
	if err := client.BeginTransaction(); err != nil {
		return nil, fmt.Errorf("begin a transaction of %s: %w", slot.id, err)
	}
	each, err := c.commitPatiently(ctx, id, m, plans)
	if err != nil && isStale(err) || err != nil && each != nil && !isProducerLost(err) && !errors.Is(err, kerr.ConcurrentTransactions) {
		c.ids.recycle(slot)
		return c.refused(plans, each, err), nil
	}
	if err != nil {
		return nil, err
	}
	run := c.produceItems(ctx, client, plans)
	if run.failed() {
		results := c.failures(ctx, plans, run)
		c.ids.recycle(slot)
		return results, nil
	}
	grace, cancel := c.graceful(ctx, decideGrace)
	defer cancel()
	end, stop := context.WithTimeout(grace, endTimeout)
	err = client.EndTransaction(end, kgo.TryCommit)
	stop()
	if err == nil {
		c.noteCommitted(grace, id, run.wrote(), plans)
		c.ids.release(slot)
		return committed(plans), nil
	}
	if errors.Is(err, kerr.OperationNotAttempted) {
		return nil, fmt.Errorf("end a transaction of %s: %w: %w", slot.id, kerr.TransactionAbortable, err)
	}
	c.ids.drop(slot)
	results, fenced := c.readBack(grace, slot.id, plans, run.wrote(), fmt.Errorf("end a transaction of %s: %w", slot.id, err))
	if fenced {
		c.ids.release(slot)
	} else {
		c.ids.setAside(slot, err)
	}
	return results, nil
}

// commitPatiently is txnCommit, repeated while the id's last transaction ends or a coordinator moves.
func (c *Cluster) commitPatiently(ctx context.Context, id producerIdent, m bide.Membership, plans []*bide.Plan) ([]error, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	start := time.Now()
	wait := backoff{least: minBusyWait, most: 50 * time.Millisecond}
	for {
		each, err := c.txnCommit(ctx, id, m, plans)
		switch {
		case errors.Is(err, kerr.ConcurrentTransactions) && time.Since(start) > idBusyLimit,
			err == nil, !errors.Is(err, kerr.ConcurrentTransactions) && !kerr.IsRetriable(err), isStale(err):
			return each, err
		}
		if !wait.rest(ctx) {
			return each, err
		}
	}
}

// refused tells each plan why its commit was refused.
func (c *Cluster) refused(plans []*bide.Plan, each []error, err error) []bide.Result {
	results := aborted(plans, err)
	for i := range results {
		if each != nil {
			results[i].Err = each[i]
		}
		switch e := results[i].Err; {
		case e == nil:
			results[i].Err = fmt.Errorf("%w: %w", errAlong, err)
		case errors.Is(e, kerr.FencedInstanceID):
			c.setFenced()
			results[i].Err = fmt.Errorf("%w: %w", bide.ErrStaleMembership, c.errFencedInstance())
		case isStale(e) && !errors.Is(e, bide.ErrStaleMembership):
			results[i].Err = fmt.Errorf("%w: %w", bide.ErrStaleMembership, e)
		}
	}
	return results
}

// readBack learns what became of a transaction whose end was not answered: once its id is initialised
// anew it is decided, and once the offsets are stable they tell. fenced says that the id is usable.
// written are the partitions that the transaction wrote.
func (c *Cluster) readBack(ctx context.Context, txnID string, plans []*bide.Plan, written map[topicPartition]int64, why error) (results []bide.Result, fenced bool) {
	c.metrics.unknownOutcomes.Inc()
	c.log.Warn("end of a transaction not answered; reading its outcome back",
		zap.String("transactional_id", txnID), zap.Error(why))
	results = make([]bide.Result, len(plans))
	known := make([]bool, len(plans))
	parts := slices.Collect(maps.Keys(written))
	wait := backoff{least: minBusyWait, most: 500 * time.Millisecond}
	var unrest unrest
	for {
		if !fenced {
			_, err := c.initKnowing(ctx, txnID, parts)
			fenced = err == nil
		}
		open := 0
		for i, p := range plans {
			if known[i] {
				continue
			}
			stored, err := c.fetchOffset(ctx, p.Lane, true)
			if err != nil {
				if open++; fenced && errors.Is(err, errUnstable) {
					unrest.tend(ctx, c, p.Lane)
				}
				continue
			}
			// The own commit proves itself; any other does only after the id was fenced, for until
			// then the end may still be under way.
			if o := verdict(p, stored); fenced || o == bide.Committed {
				known[i], results[i] = true, bide.Result{Outcome: o, Err: why}
				if o == bide.Committed {
					results[i].Err = nil
				}
				continue
			}
			open++
		}
		if open == 0 {
			return results, fenced
		}
		if !wait.rest(ctx) {
			for i := range plans {
				if !known[i] {
					results[i] = bide.Result{Outcome: bide.Taken, Err: fmt.Errorf("outcome not known: %w", why)}
				}
			}
			return results, fenced
		}
	}
}

// noteCommitted remembers what a committed transaction wrote, until its markers have been seen.
func (c *Cluster) noteCommitted(ctx context.Context, id producerIdent, written map[topicPartition]int64, plans []*bide.Plan) {
	two, _ := c.txnVersionTwo(ctx) // asked for when the transaction began
	offsets, err := c.offsetsPartition(ctx)
	if err != nil {
		offsets = topicPartition{topic: offsetsTopic, number: -1}
	}
	c.markers.committed(id.txnID, ending{producer: id.id, epoch: id.epoch, commit: true, bumps: two}, written, offsets, plans[0].Lane)
}

// produceThenCommit runs plans without a transaction.
func (c *Cluster) produceThenCommit(ctx context.Context, m bide.Membership, plans []*bide.Plan) []bide.Result {
	run := c.produceItems(ctx, c.loose, plans)
	if run.failed() {
		return c.failures(ctx, plans, run)
	}
	wait := backoff{least: minBusyWait, most: time.Second}
	for {
		each, err := c.plainCommit(ctx, m, plans)
		switch {
		case err == nil:
			return committed(plans)
		case isStale(err), !mendable(err), each != nil && !kerr.IsRetriable(err):
			return c.refused(plans, each, err)
		}
		// It may have been made. The same again does no harm, and nothing else may follow before an
		// answer has come.
		c.log.Warn("commit not answered; trying again", zap.Error(err))
		if !wait.rest(ctx) {
			return aborted(plans, context.Cause(ctx))
		}
	}
}

// graceful returns a context that outlives ctx by d, but not the cluster.
func (c *Cluster) graceful(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	late, cancel := context.WithCancel(context.WithoutCancel(ctx))
	atEnd := context.AfterFunc(ctx, func() {
		t := time.AfterFunc(d, cancel)
		context.AfterFunc(late, func() { t.Stop() })
	})
	atClose := context.AfterFunc(c.life, cancel)
	return late, func() {
		atEnd()
		atClose()
		cancel()
	}
}

// produces reports whether there is a record to produce.
func produces(plans []*bide.Plan) bool {
	for _, p := range plans {
		for i := range p.Items {
			if p.Items[i].Fate.Kind != bide.Leave {
				return true
			}
		}
	}
	return false
}

func countItems(plans []*bide.Plan) (n int) {
	for _, p := range plans {
		n += len(p.Items)
	}
	return n
}

func committed(plans []*bide.Plan) []bide.Result {
	results := make([]bide.Result, len(plans))
	for i := range results {
		results[i].Outcome = bide.Committed
	}
	return results
}

func aborted(plans []*bide.Plan, err error) []bide.Result {
	results := make([]bide.Result, len(plans))
	for i := range results {
		results[i] = bide.Result{Outcome: bide.Aborted, Err: err}
	}
	return results
}
