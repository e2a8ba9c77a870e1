package kafka

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/bide-mq/bide"
)

// commitProducer runs transactions that have commits alone. franz-go ends none without a record, so they
// are made of plain requests under an id of their own, one after the other.
type commitProducer struct {
	cluster *Cluster
	id      string
	turn    chan struct{} // capacity 1: held by the transaction that runs
	ident   producerIdent // zero when the id has to be initialised
	stale   atomic.Bool   // the id has another epoch than ident
}

func (p *commitProducer) transact(ctx context.Context, m bide.Membership, plans []*bide.Plan) []bide.Result {
	c := p.cluster
	select {
	case p.turn <- struct{}{}:
		defer func() { <-p.turn }()
	case <-ctx.Done():
		return aborted(plans, context.Cause(ctx))
	}
	var err error
	for range transactTries {
		var results []bide.Result
		if results, err = p.try(ctx, m, plans); err == nil {
			return results
		}
		p.abort()
		if ctx.Err() != nil || !isProducerLost(err) && !errors.Is(err, kerr.ConcurrentTransactions) {
			break
		}
		c.metrics.fenced.Inc()
	}
	return aborted(plans, err)
}

// abort ends what was begun under the id. Where that takes too long, the next transaction does it.
func (p *commitProducer) abort() {
	ctx, cancel := context.WithTimeout(p.cluster.life, idFenceLimit)
	defer cancel()
	p.ident, _ = p.cluster.fence(ctx, p.id)
}

// try runs one transaction. An error says that nothing can have been committed, provided that the id is
// initialised before it is used again.
func (p *commitProducer) try(ctx context.Context, m bide.Membership, plans []*bide.Plan) ([]bide.Result, error) {
	c := p.cluster
	if !c.clear(ctx, p.id) {
		return nil, fmt.Errorf("transactional id %s: %w", p.id, errUnmarked)
	}
	if p.stale.Swap(false) {
		p.ident = producerIdent{}
	}
	if p.ident == (producerIdent{}) {
		ident, err := c.fence(ctx, p.id)
		if err != nil {
			return nil, err
		}
		p.ident = ident
	}
	each, err := c.commitPatiently(ctx, p.ident, m, plans)
	if err != nil {
		if isStale(err) || each != nil && !isProducerLost(err) && !errors.Is(err, kerr.ConcurrentTransactions) {
			p.abort()
			return c.refused(plans, each, err), nil
		}
		return nil, err
	}
	grace, cancel := c.graceful(ctx, decideGrace)
	defer cancel()
	was := p.ident
	if err := p.end(grace); err != nil {
		p.ident = producerIdent{}
		results, _ := c.readBack(grace, p.id, plans, nil, err)
		return results, nil
	}
	c.noteCommitted(grace, was, nil, plans)
	return committed(plans), nil
}

// end commits. From transaction.version 2 on the answer has the next epoch.
func (p *commitProducer) end(ctx context.Context) error {
	c := p.cluster
	two, err := c.txnVersionTwo(ctx)
	if err != nil {
		return err
	}
	client := c.plain
	if !two {
		client = c.capped
	}
	ctx, cancel := context.WithTimeout(ctx, endTimeout)
	defer cancel()
	wait := backoff{least: minBusyWait, most: maxBusyWait}
	for {
		req := kmsg.NewPtrEndTxnRequest()
		req.TransactionalID, req.ProducerID, req.ProducerEpoch, req.Commit = p.id, p.ident.id, p.ident.epoch, true
		resp, err := req.RequestWith(ctx, client)
		if err == nil {
			err = kerr.ErrorForCode(resp.ErrorCode)
		}
		switch {
		case err == nil:
			if resp.Version >= 5 && resp.ProducerID >= 0 {
				p.ident.id, p.ident.epoch = resp.ProducerID, resp.ProducerEpoch
			}
			return nil
		case !errors.Is(err, kerr.ConcurrentTransactions) || !wait.rest(ctx):
			return fmt.Errorf("end a transaction of %s: %w", p.id, err)
		}
	}
}
