package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/zap"

	"github.com/bide-mq/bide"
)

// rebalanceTimeout is how long the group waits for a member that gives lanes away, hence how long the
// lanes' last transactions may take.
const rebalanceTimeout = 60 * time.Second

// leaveGrace is how long a member that ends may take to say so: a static one does so only in the middle
// of a rebalance, or by KIP-848.
const leaveGrace = 2 * time.Second

// groupMember is the membership of one Join: it hands what the group says to the owner.
type groupMember struct {
	cluster *Cluster
	owner   bide.Owner
	ctx     context.Context
	stop    context.CancelCauseFunc

	mu struct { // held while the owner is told something
		sync.Mutex
		told bide.Membership // what the owner was told last
	}

	faults struct { // what was logged of faults that mend themselves
		sync.Mutex
		word  string
		told  time.Time
		since int // faults since then, this one included
	}
}

// errLeft ends a membership that was left on purpose.
var errLeft = errors.New("left the group")

// Join is a member of the group until ctx is done; see [bide.Cluster].
func (c *Cluster) Join(ctx context.Context, owner bide.Owner) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(errLeft)
	unwatch := context.AfterFunc(c.life, func() { stop(errClosed) })
	defer unwatch()
	g := &groupMember{cluster: c, owner: owner, ctx: ctx, stop: stop}
	c.spawn(func() {
		select {
		case <-c.out:
			stop(c.errFencedInstance())
		case <-ctx.Done():
		}
	})
	if c.opt.Mode == ExactlyOnce {
		if err := c.fenceSelf(ctx); err != nil {
			return g.verdict(err)
		}
	}
	// The client outlives ctx by a little, to tell the group what has to be told.
	life, kill := c.graceful(ctx, leaveGrace)
	defer kill()
	client, err := c.client(append(g.options(), kgo.WithContext(life))...)
	if err != nil {
		return err
	}
	defer client.Close()
	client.PauseFetchTopics(c.opt.Topics...)
	if c.opt.GroupProtocol == ConsumerProtocol {
		c.spawn(func() { g.followEpoch(client) })
	}
	for ctx.Err() == nil {
		fetches := client.PollFetches(ctx)
		fetches.EachError(func(topic string, _ int32, err error) { g.note(topic, err) })
	}
	return g.verdict(context.Cause(ctx))
}

// fenceSelf ends what an earlier process with this instance id left open.
func (c *Cluster) fenceSelf(ctx context.Context) error {
	if err := c.takeIDs(ctx, txnIDs(c.prefix)); err != nil {
		if errors.Is(err, kerr.TransactionalIDAuthorizationFailed) {
			return c.errNoIDs()
		}
		return fmt.Errorf("initialise the own transactional ids: %w", err)
	}
	return nil
}

// errNoIDs names the right that is missing, and one id for nine: they are all refused alike.
func (c *Cluster) errNoIDs() error {
	return fmt.Errorf("rights Write and Describe on the transactional id prefix %q are missing, as for %s: %w",
		groupPrefix(c.opt.Group), txnID(c.prefix, 0), kerr.TransactionalIDAuthorizationFailed)
}

func (g *groupMember) options() []kgo.Opt {
	o := &g.cluster.opt
	opts := []kgo.Opt{
		kgo.ConsumerGroup(o.Group),
		kgo.ConsumeTopics(o.Topics...),
		kgo.InstanceID(o.Instance),
		kgo.SessionTimeout(o.SessionTimeout),
		kgo.HeartbeatInterval(max(o.SessionTimeout/4, 100*time.Millisecond)),
		kgo.RebalanceTimeout(rebalanceTimeout),
		kgo.Balancers(kgo.CooperativeStickyBalancer()),
		kgo.DisableAutoCommit(),
		kgo.FetchMaxWait(fetchMaxWait),
		kgo.WithHooks(groupHook{g}),
		kgo.OnPartitionsAssigned(func(_ context.Context, cl *kgo.Client, added map[string][]int32) {
			g.assigned(cl, lanesOf(added))
		}),
		kgo.OnPartitionsRevoked(func(_ context.Context, _ *kgo.Client, gone map[string][]int32) {
			g.revoked(lanesOf(gone))
		}),
		kgo.OnPartitionsLost(func(_ context.Context, _ *kgo.Client, gone map[string][]int32) {
			g.lost(lanesOf(gone))
		}),
	}
	if o.GroupProtocol == ConsumerProtocol {
		opts = append(opts, kgo.ServerSideBalancer())
	}
	return opts
}

// assigned tells the owner what it got, and, where that is nothing, what its membership is now.
func (g *groupMember) assigned(cl *kgo.Client, added []bide.Lane) {
	g.mu.Lock()
	defer g.mu.Unlock()
	member, generation := cl.GroupMetadata()
	g.mu.told = bide.Membership{Member: member, Generation: generation}
	g.cluster.log.Info("lanes assigned", zap.Stringers("added", added),
		zap.String("member", member), zap.Int32("generation", generation))
	g.owner.Assigned(g.mu.told, added)
}

func (g *groupMember) revoked(gone []bide.Lane) {
	if len(gone) == 0 {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.cluster.log.Info("lanes revoked", zap.Stringers("lanes", gone))
	ctx, cancel := context.WithTimeout(g.ctx, rebalanceTimeout)
	defer cancel()
	g.owner.Revoked(ctx, gone)
}

func (g *groupMember) lost(gone []bide.Lane) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.cluster.log.Warn("lanes lost", zap.Stringers("lanes", gone))
	g.owner.Lost(gone)
}

// followEpoch renews the membership when the coordinator raised the member's epoch and changed no lane,
// which calls nothing back. The coordinator raises it only once the member gave away what it had to,
// so it holds for all lanes that the owner has.
func (g *groupMember) followEpoch(cl *kgo.Client) {
	for rest(g.ctx, time.Second) {
		g.mu.Lock()
		member, epoch := cl.GroupMetadata()
		if g.mu.told.Member == member && member != "" && epoch > g.mu.told.Generation {
			g.mu.told.Generation = epoch
			g.owner.Assigned(g.mu.told, nil)
		}
		g.mu.Unlock()
	}
}

// note deals with a fault that the group's client reports: those that a human must mend end the
// membership, all others the client retries by itself, for ever.
func (g *groupMember) note(topic string, err error) {
	switch {
	case err == nil, errors.Is(err, context.Canceled), errors.Is(err, kgo.ErrClientClosed):
		return
	case errors.Is(err, kerr.FencedInstanceID):
		g.cluster.setFenced()
		g.stop(g.cluster.errFencedInstance())
	case !mendable(err):
		g.stop(err)
	default:
		g.tell(topic, err)
	}
}

// tell logs a fault that the client mends by itself: a new one at once, the same again with how often it
// came, now and then. In an outage each comes several times a second.
func (g *groupMember) tell(topic string, err error) {
	g.faults.Lock()
	defer g.faults.Unlock()
	word := kafkaWord(err)
	g.faults.since++
	if word == g.faults.word && time.Since(g.faults.told) < tellAgain {
		return
	}
	fields := []zap.Field{zap.Error(err), zap.Int("times", g.faults.since)}
	if topic != "" {
		fields = append(fields, zap.String("topic", topic))
	}
	g.faults.word, g.faults.told, g.faults.since = word, time.Now(), 0
	g.cluster.log.Warn("group fault; trying again", fields...)
}

// verdict turns the cause of a membership's end into what Join returns.
func (g *groupMember) verdict(err error) error {
	o := &g.cluster.opt
	if g.cluster.isOut.Load() {
		return g.cluster.errFencedInstance()
	}
	switch {
	case errors.Is(err, errClosed):
		return errClosed
	case errors.Is(err, kerr.GroupAuthorizationFailed):
		return fmt.Errorf("join group %s: %w: Bide needs Read on the group", o.Group, err)
	case errors.Is(err, kerr.TopicAuthorizationFailed):
		return fmt.Errorf("join group %s: %w: Bide needs Read on its ingress topics %s", o.Group, err, strings.Join(o.Topics, ", "))
	case errors.Is(err, kerr.TransactionalIDAuthorizationFailed):
		// One id instead of nine: they are all refused alike.
		return g.cluster.errNoIDs()
	case !mendable(err):
		return fmt.Errorf("join group %s: %w", o.Group, err)
	case g.ctx.Err() != nil:
		return nil
	default:
		return err
	}
}

// groupHook hears of faults that end a session of the group.
type groupHook struct{ *groupMember }

var _ kgo.HookGroupManageError = groupHook{}

// OnGroupManageError is called by the client.
func (h groupHook) OnGroupManageError(err error) { h.note("", err) }

// lanesOf returns partitions as lanes, in order.
func lanesOf(partitions map[string][]int32) []bide.Lane {
	var lanes []bide.Lane
	for topic, ps := range partitions {
		for _, p := range ps {
			lanes = append(lanes, bide.Lane{Topic: topic, Partition: p})
		}
	}
	slices.SortFunc(lanes, bide.Lane.Compare)
	return lanes
}
