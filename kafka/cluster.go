package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"
	"go.uber.org/zap"

	"github.com/bide-mq/bide"
)

// Mode says how often a message may be delivered.
type Mode uint8

const (
	// ExactlyOnce produces records and commits in transactions.
	ExactlyOnce Mode = iota
	// AtLeastOnce produces records, then commits: a crash between them delivers again.
	AtLeastOnce
)

// GroupProtocol is how the members of a group share the lanes.
type GroupProtocol string

const (
	// ClassicProtocol lets the group's leader assign lanes, cooperatively; every broker knows it.
	ClassicProtocol GroupProtocol = "classic"
	// ConsumerProtocol lets the coordinator assign them (KIP-848, Kafka 4.0). The broker decides the
	// session time-out.
	ConsumerProtocol GroupProtocol = "consumer"
)

// Limits of [Options].
const (
	// maxTransactionTimeout bounds how long a dead process's transaction may keep its successor, and
	// readers of its targets, waiting.
	maxTransactionTimeout = 15 * time.Second
	// defaultMaxMessageBytes is Kafka's own default of max.message.bytes; franz-go's is a little less.
	defaultMaxMessageBytes = 1_048_588
	maxMaxMessageBytes     = 64 << 20
)

// Options configure a [Cluster]. Zero values mean the defaults named.
type Options struct {
	Connection Connection
	// Group is the consumer group, Instance the static member id (group.instance.id) of this process:
	// whoever starts with the same one takes over from it.
	Group, Instance string
	// Topics are the ingress topics.
	Topics []string
	// Contract turns messages into records for their targets.
	Contract *Contract

	Mode          Mode
	GroupProtocol GroupProtocol // ClassicProtocol
	// SessionTimeout is how long the group keeps the lanes of a member that is not heard from; 12 s.
	SessionTimeout time.Duration
	// TransactionTimeout is how long the cluster keeps a transaction open whose process is gone; 10 s,
	// at most 15 s.
	TransactionTimeout time.Duration
	// DeliveryTimeout is how long a target may take to accept a record before it counts as unavailable;
	// 5 s, and less than TransactionTimeout.
	DeliveryTimeout time.Duration
	// Transactions is how many transactional ids are used in turn; 4, at most 8.
	Transactions int
	// MaxMessageBytes is the largest record produced, as max.message.bytes counts; 1,048,588.
	MaxMessageBytes int
	// Compression of produced batches: none, gzip, snappy, lz4 or zstd; lz4.
	Compression string
	// FetchBytes bounds what is fetched from ingress topics and not polled yet; 32 MiB.
	FetchBytes int

	Logger  *zap.Logger
	Metrics *Metrics
}

// Cluster is Kafka as the scheduler needs it. It has one client that is a member of the group and
// fetches nothing, one that reads the lanes that it is told to, one for each transactional id, and one
// for everything else.
type Cluster struct {
	opt     Options
	log     *zap.Logger
	metrics *Metrics
	base    []kgo.Opt
	codec   kgo.CompressionCodec
	prefix  string // of the own transactional ids

	plain   *kgo.Client // every request that belongs to no other client
	capped  *kgo.Client // the same with the versions of transaction requests before transaction.version 2
	version txnVersion

	reader  *laneReader
	side    sideReader
	topics  sync.Map // name of an ingress → its id when facts of it were last asked
	asked   sync.Map // lane → the id of its ingress when facts of the lane were last asked
	ids     *idPool
	commits commitProducer
	markers markKeeper
	// offsetsCount is how many partitions the topic of committed offsets has, once that was asked.
	offsetsCount atomic.Int32
	offsetsAsk   atomic.Int64 // not before then, epoch nanoseconds: Bide may not see it
	loose        *kgo.Client  // produces in at-least-once mode
	bare         bareLetters

	life  context.Context // ends with Close
	end   context.CancelFunc
	tasks sync.WaitGroup
	out   chan struct{} // closed once another process has the instance id
	isOut atomic.Bool
}

var _ bide.Cluster = (*Cluster)(nil)

// NewCluster returns a cluster that connects when it is first used. Close ends it. An error joins all
// faults of the options.
func NewCluster(opt Options) (*Cluster, error) {
	opt.GroupProtocol = cmp.Or(opt.GroupProtocol, ClassicProtocol)
	opt.SessionTimeout = cmp.Or(opt.SessionTimeout, 12*time.Second)
	opt.TransactionTimeout = cmp.Or(opt.TransactionTimeout, 10*time.Second)
	opt.DeliveryTimeout = cmp.Or(opt.DeliveryTimeout, min(5*time.Second, opt.TransactionTimeout/2))
	opt.Transactions = cmp.Or(opt.Transactions, 4)
	opt.MaxMessageBytes = cmp.Or(opt.MaxMessageBytes, defaultMaxMessageBytes)
	opt.FetchBytes = cmp.Or(opt.FetchBytes, 32<<20)
	if opt.Logger == nil {
		opt.Logger = zap.NewNop()
	}
	if opt.Metrics == nil {
		opt.Metrics = NewMetrics(nil)
	}
	codec, err := compressionCodec(opt.Compression)
	if err := errors.Join(err, opt.check()); err != nil {
		return nil, err
	}
	base, err := opt.Connection.Options(opt.Logger)
	if err != nil {
		return nil, err
	}
	c := &Cluster{
		opt: opt, log: opt.Logger, metrics: opt.Metrics, base: base, codec: codec,
		prefix: txnPrefix(opt.Group, opt.Instance),
		out:    make(chan struct{}),
	}
	c.life, c.end = context.WithCancel(context.Background())
	c.markers.init()
	if err := c.open(); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

func (o *Options) check() error {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if o.Group == "" {
		fault("group: empty")
	}
	if o.Instance == "" {
		fault("instance: empty")
	}
	for _, r := range o.Instance {
		if (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '.' && r != '_' && r != '-' {
			fault("instance: %q has characters other than letters, digits, '.', '_' and '-'", o.Instance)
			break
		}
	}
	if len(o.Topics) == 0 {
		fault("topics: no ingress topic")
	}
	if o.Contract == nil {
		fault("contract: missing")
	}
	if o.GroupProtocol != ClassicProtocol && o.GroupProtocol != ConsumerProtocol {
		fault("group protocol: %q is neither classic nor consumer", o.GroupProtocol)
	}
	if o.TransactionTimeout > maxTransactionTimeout || o.TransactionTimeout < time.Second {
		fault("transaction timeout: %v is not from 1s to %v", o.TransactionTimeout, maxTransactionTimeout)
	}
	if o.DeliveryTimeout >= o.TransactionTimeout || o.DeliveryTimeout <= 0 {
		fault("delivery timeout: %v is not between 0 and the transaction timeout of %v", o.DeliveryTimeout, o.TransactionTimeout)
	}
	if o.Transactions < 1 || o.Transactions > idLimit {
		fault("transactions: %d is not from 1 to %d", o.Transactions, idLimit)
	}
	if o.MaxMessageBytes < 1024 || o.MaxMessageBytes > maxMaxMessageBytes {
		fault("max message bytes: %d is not from 1024 to %d", o.MaxMessageBytes, maxMaxMessageBytes)
	}
	return errors.Join(faults...)
}

func compressionCodec(name string) (kgo.CompressionCodec, error) {
	switch name {
	case "", "lz4":
		return kgo.Lz4Compression(), nil
	case "none":
		return kgo.NoCompression(), nil
	case "gzip":
		return kgo.GzipCompression(), nil
	case "snappy":
		return kgo.SnappyCompression(), nil
	case "zstd":
		return kgo.ZstdCompression(), nil
	default:
		return kgo.CompressionCodec{}, fmt.Errorf("compression: %q is none of none, gzip, snappy, lz4 and zstd", name)
	}
}

// open makes the clients that live as long as the cluster.
func (c *Cluster) open() (err error) {
	if c.plain, err = c.client(); err != nil {
		return err
	}
	old := kversion.Stable()
	old.SetMaxKeyVersion(kmsg.TxnOffsetCommit.Int16(), 4)
	old.SetMaxKeyVersion(kmsg.EndTxn.Int16(), 4)
	if c.capped, err = c.client(kgo.MaxVersions(old)); err != nil {
		return err
	}
	if c.reader, err = newLaneReader(c); err != nil {
		return err
	}
	if c.opt.Mode == AtLeastOnce {
		c.loose, err = c.client(c.producing(kgo.AllowIdempotentProduceCancellation())...)
		return err
	}
	c.ids = newIDPool(c, c.opt.Transactions)
	c.commits.cluster = c
	c.commits.id = commitTxnID(c.prefix)
	c.commits.turn = make(chan struct{}, 1)
	c.spawn(c.keepMarkers)
	return nil
}

// client returns a new client with the connection's options and opts.
func (c *Cluster) client(opts ...kgo.Opt) (*kgo.Client, error) {
	all := make([]kgo.Opt, 0, len(c.base)+len(opts)+1)
	all = append(all, c.base...)
	all = append(all, kgo.DisableClientMetrics())
	return kgo.NewClient(append(all, opts...)...)
}

// Close ends all use: calls that still run return soon, with errors. A static member does not leave the
// group, so a restart keeps its lanes.
func (c *Cluster) Close() {
	c.end()
	if c.ids != nil {
		c.ids.close()
	}
	for _, cl := range []*kgo.Client{c.loose, c.capped, c.plain} {
		if cl != nil {
			cl.Close()
		}
	}
	if c.reader != nil {
		c.reader.client.Close()
	}
	c.side.turn.Lock()
	if c.side.client != nil {
		c.side.client.Close()
	}
	c.side.turn.Unlock()
	c.tasks.Wait()
}

// spawn runs f until it returns; Close waits for it.
func (c *Cluster) spawn(f func()) { c.tasks.Go(f) }

// setFenced notes that another process has the instance id: nothing more is sent under its ids.
func (c *Cluster) setFenced() {
	if !c.isOut.Swap(true) {
		close(c.out)
	}
}

// errFencedInstance is what a fenced instance is told.
func (c *Cluster) errFencedInstance() error {
	return fmt.Errorf("%w: another process joined group %s as instance %q; give every process an instance id of its own and see that the older one is gone",
		bide.ErrFenced, c.opt.Group, c.opt.Instance)
}

// txnVersion remembers whether the cluster runs transactions by KIP-890 part 2.
type txnVersion struct {
	mu    sync.Mutex
	two   bool
	asked time.Time
}

// txnVersionTwo asks for the cluster's transaction.version now and then: an upgrade raises it while
// clients are connected. From 2 on, the broker adds partitions and groups to transactions by itself,
// and the answer to EndTxn carries a new epoch.
func (c *Cluster) txnVersionTwo(ctx context.Context) (bool, error) {
	const ask = 5 * time.Minute
	v := &c.version
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.asked.IsZero() && time.Since(v.asked) < ask {
		return v.two, nil
	}
	req := kmsg.NewPtrApiVersionsRequest()
	req.ClientSoftwareName, req.ClientSoftwareVersion = "bide", softwareVersion()
	resp, err := req.RequestWith(ctx, c.plain)
	if err == nil {
		err = kerr.ErrorForCode(resp.ErrorCode)
	}
	if err != nil {
		return false, fmt.Errorf("ask for the cluster's features: %w", err)
	}
	v.two = false
	for _, f := range resp.FinalizedFeatures {
		if f.Name == "transaction.version" && f.MaxVersionLevel >= 2 {
			v.two = true
		}
	}
	v.asked = time.Now()
	return v.two, nil
}

// rest waits for d; false says that ctx ended first.
func rest(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}
