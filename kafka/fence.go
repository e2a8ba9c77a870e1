package kafka

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/zap"
)

const (
	// A transactional id whose last transaction has not ended answers CONCURRENT_TRANSACTIONS. Its
	// markers take 5 to 20 ms to write: ask again after the first of these, at last after the second.
	minBusyWait = 5 * time.Millisecond
	maxBusyWait = 250 * time.Millisecond

	// callTimeout bounds one request with its retries by the client. A broker that is gone without a
	// word is given up after this long.
	callTimeout = 5 * time.Second
)

// producerIdent is what a transactional id stands for at present.
type producerIdent struct {
	txnID string
	id    int64
	epoch int16
}

// initProducer asks for a new epoch of a transactional id, which aborts what an older one left open.
// While an earlier transaction of the id ends, the error is [kerr.ConcurrentTransactions].
func (c *Cluster) initProducer(ctx context.Context, txnID string) (producerIdent, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	req := kmsg.NewPtrInitProducerIDRequest()
	req.TransactionalID = &txnID
	req.TransactionTimeoutMillis = int32(c.opt.TransactionTimeout.Milliseconds())
	resp, err := req.RequestWith(ctx, c.plain)
	if err == nil {
		err = kerr.ErrorForCode(resp.ErrorCode)
	}
	if err != nil {
		return producerIdent{}, fmt.Errorf("initialise transactional id %s: %w", txnID, err)
	}
	return producerIdent{txnID: txnID, id: resp.ProducerID, epoch: resp.ProducerEpoch}, nil
}

// fence repeats initKnowing until it succeeds: then every transaction begun under the id before is
// decided, whoever began it, and its markers are healed or remembered. Errors: ctx's, and those that no
// retry mends.
func (c *Cluster) fence(ctx context.Context, txnID string) (producerIdent, error) {
	wait := backoff{least: minBusyWait, most: maxBusyWait}
	for {
		id, err := c.initKnowing(ctx, txnID, nil)
		if err == nil || !mendable(err) {
			return id, err
		}
		if !wait.rest(ctx) {
			return id, fmt.Errorf("%w; last: %w", context.Cause(ctx), err)
		}
	}
}

// fenceAll fences several ids side by side.
func (c *Cluster) fenceAll(ctx context.Context, ids []string) error {
	errs := make([]error, len(ids))
	var wg sync.WaitGroup
	for i, id := range ids {
		wg.Go(func() { _, errs[i] = c.fence(ctx, id) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// fenceOwner ends what a dead owner of a lane left open. The ids come from the lane's last commit, so
// they are those of the process that wrote it; one that writes its first commit to the lane cannot be
// found this way, and its transaction time-out has to pass.
func (c *Cluster) fenceOwner(ctx context.Context, prefix string) error {
	c.metrics.takeovers.Inc()
	c.log.Info("fencing the last owner of a lane", zap.String("transactional_id_prefix", prefix))
	return c.takeIDs(ctx, txnIDs(prefix))
}

// mendable reports whether time may mend err. Authorisation and what the broker does not know are a
// human's.
func mendable(err error) bool {
	for _, fatal := range []error{
		kerr.TransactionalIDAuthorizationFailed, kerr.ClusterAuthorizationFailed, kerr.GroupAuthorizationFailed,
		kerr.TopicAuthorizationFailed, kerr.SaslAuthenticationFailed, kerr.UnsupportedVersion,
		kerr.InvalidTransactionTimeout, kerr.InvalidGroupID, kerr.InvalidRequest, kerr.InvalidSessionTimeout,
	} {
		if errors.Is(err, fatal) {
			return false
		}
	}
	return true
}

// backoff is the wait between attempts: it doubles from least to most.
type backoff struct {
	least, most time.Duration
	next        time.Duration
}

// rest waits; false says that ctx ended first.
func (b *backoff) rest(ctx context.Context) bool {
	b.next = min(max(b.next*2, b.least), b.most)
	return rest(ctx, b.next)
}
