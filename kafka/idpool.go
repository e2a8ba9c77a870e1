package kafka

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/zap"
)

const (
	// idBusyLimit is how long a transactional id may answer CONCURRENT_TRANSACTIONS before the next one
	// is used: ten times what a broker at rest takes to write the markers of the last transaction.
	idBusyLimit = 200 * time.Millisecond
	// idFenceLimit is how long a transaction that failed holds its lanes while its id is fenced; from
	// then on that goes on beside, and the id is set aside.
	idFenceLimit = 2 * time.Second
)

// txnSlot is one transactional id of the pool and, once it was used, its client.
type txnSlot struct {
	id     string
	use    sync.Mutex // held by whoever begins or ends something under the id
	client *kgo.Client
}

// idPool gives out transactional ids in turn: an id that just ended a transaction is busy for some 20 ms
// more, and by the time it comes round again it is not. An id that stays busy (its markers cannot be
// written while a target has no leader) is set aside, and a spare one takes its place.
type idPool struct {
	cluster *Cluster
	free    chan *txnSlot // the ids in turn; as large as the number of ids
	width   int           // how many are in turn

	mu struct {
		sync.Mutex
		turning int        // in turn: free or in use
		spare   []*txnSlot // not in turn, usable
		all     []*txnSlot
	}
}

func newIDPool(c *Cluster, width int) *idPool {
	p := &idPool{cluster: c, free: make(chan *txnSlot, idLimit), width: width}
	for i := range idLimit {
		s := &txnSlot{id: txnID(c.prefix, i)}
		p.mu.all = append(p.mu.all, s)
		if i < width {
			p.free <- s
		} else {
			p.mu.spare = append(p.mu.spare, s)
		}
	}
	p.mu.turning = width
	return p
}

// acquire waits for the next id in turn, and holds it.
func (p *idPool) acquire(ctx context.Context) (*txnSlot, error) {
	for {
		select {
		case s := <-p.free:
			if s.use.TryLock() {
				return s, nil
			}
			p.free <- s // a marker of its last transaction is looked for
			if !rest(ctx, minBusyWait) {
				return nil, context.Cause(ctx)
			}
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-p.cluster.life.Done():
			return nil, errClosed
		}
	}
}

// swap gives a spare id that misses no marker for one in turn that does. Without one, or where the spare
// is looked at just now, it returns s.
func (p *idPool) swap(s *txnSlot) *txnSlot {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, other := range p.mu.spare {
		if len(p.cluster.markers.of(other.id, 0)) == 0 && other.use.TryLock() {
			p.mu.spare[i] = s
			s.use.Unlock()
			return other
		}
	}
	return s
}

// slot returns the slot of an id, nil for an id that is none of the pool's.
func (p *idPool) slot(id string) *txnSlot {
	for _, s := range p.mu.all { // never changed
		if s.id == id {
			return s
		}
	}
	return nil
}

var errClosed = errors.New("cluster closed")

// release puts an id whose transaction ended back in turn.
func (p *idPool) release(s *txnSlot) {
	s.use.Unlock()
	p.free <- s
}

// recycle makes an id usable again whose transaction failed: its client is dropped, and the id fenced,
// which aborts the transaction. It returns when that is done or takes too long. A cancelled call does it
// all the same: what it left open would keep readers waiting.
func (p *idPool) recycle(s *txnSlot) {
	p.drop(s)
	ctx, cancel := context.WithTimeout(p.cluster.life, idFenceLimit)
	defer cancel()
	if _, err := p.cluster.fence(ctx, s.id); err != nil {
		p.setAside(s, err)
		return
	}
	p.release(s)
}

// setAside takes an id out of turn until it can be initialised, with a spare one instead of it.
func (p *idPool) setAside(s *txnSlot, why error) {
	c := p.cluster
	if c.life.Err() != nil {
		return
	}
	c.metrics.idsAside.Inc()
	p.mu.Lock()
	p.mu.turning--
	p.fillLocked()
	p.mu.Unlock()
	c.log.Warn("transactional id set aside until its last transaction has ended",
		zap.String("transactional_id", s.id), zap.Error(why))
	c.spawn(func() {
		defer c.metrics.idsAside.Dec()
		p.drop(s)
		for {
			_, err := c.fence(c.life, s.id)
			if err == nil {
				break
			}
			if !rest(c.life, time.Second) {
				return
			}
		}
		c.log.Info("transactional id usable again", zap.String("transactional_id", s.id))
		s.use.Unlock()
		p.mu.Lock()
		p.mu.spare = append(p.mu.spare, s)
		p.fillLocked()
		p.mu.Unlock()
	})
}

// fillLocked brings spare ids into turn until enough are.
func (p *idPool) fillLocked() {
	for p.mu.turning < p.width && len(p.mu.spare) > 0 {
		s := p.mu.spare[0]
		p.mu.spare = p.mu.spare[1:]
		p.mu.turning++
		p.free <- s
	}
}

// drop closes the client of an id, in its own time: closing waits for answers under way.
func (p *idPool) drop(s *txnSlot) {
	p.mu.Lock()
	client := s.client
	s.client = nil
	p.mu.Unlock()
	if client != nil {
		p.cluster.spawn(client.Close)
	}
}

// ready returns the client of an id, made anew if need be, once it has a producer id.
func (p *idPool) ready(ctx context.Context, s *txnSlot) (*kgo.Client, producerIdent, error) {
	c := p.cluster
	p.mu.Lock()
	client := s.client
	p.mu.Unlock()
	if client == nil {
		made, err := c.client(c.producing(
			kgo.TransactionalID(s.id),
			kgo.TransactionTimeout(c.opt.TransactionTimeout),
		)...)
		if err != nil {
			return nil, producerIdent{}, err
		}
		client = made
		p.mu.Lock()
		s.client = client
		p.mu.Unlock()
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	id, epoch, err := client.ProducerID(ctx)
	if err != nil {
		return nil, producerIdent{}, fmt.Errorf("initialise transactional id %s: %w", s.id, err)
	}
	return client, producerIdent{txnID: s.id, id: id, epoch: epoch}, nil
}

// close closes all clients. Ids in use fail.
func (p *idPool) close() {
	for _, s := range p.mu.all {
		p.drop(s)
	}
}
