//go:build synctests

package sim

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kversion"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/bide-mq/bide"
	"github.com/bide-mq/bide/kafka"
)

const (
	group   = "g"
	ingress = "ingress"
	dead    = "dead"
)

var targets = []string{"a", "b"}

// settings of a run, drawn from its seed.
type settings struct {
	mode               kafka.Mode
	brokers, lanes     int
	instances          int
	txnVersion         int // transaction.version of the cluster: 0 or 2
	memtable           int64
	transactionTimeout time.Duration
	limits             bide.Limits
	producePauseMs     int
	chaos              time.Duration
	skew               bool // wall clocks are set
	upkeep             bide.Upkeep
}

func drawSettings(rng *rand.Rand) settings {
	one := func(n ...int) int { return n[rng.IntN(len(n))] }
	s := settings{
		brokers: one(1, 2, 3), lanes: one(1, 2, 3, 4), instances: one(1, 2, 2, 3, 3), txnVersion: one(0, 2, 2),
		memtable: int64(one(32<<10, 256<<10)), transactionTimeout: time.Duration(one(6, 10)) * time.Second,
		limits: bide.Limits{
			PollRecords: one(3, 50, 5000), PlanMessages: one(4, 100, 5000), PlanBytes: one(4<<10, 4<<20), Transactions: one(1, 2, 4),
			CommitEvery: time.Duration(one(50, 300, 1000)) * time.Millisecond, CommitOffsets: int64(one(5, 50_000)),
			UpkeepEvery: time.Duration(one(300, 2000)) * time.Millisecond, DeadOffsets: int64(one(1, 10, 100)),
		},
		producePauseMs: one(200, 600, 1500), chaos: time.Duration(one(20, 40, 60)) * time.Second, skew: one(0, 0, 1) == 1,
	}
	if one(0, 1) == 1 {
		s.upkeep = bide.Upkeep{Trim: one(0, 1, 1) == 1, Carry: one(0, 1, 1) == 1, Retention: time.Duration(one(0, 2, 10, 3600)) * time.Second}
	}
	if one(0, 0, 0, 0, 1) == 1 {
		s.mode = kafka.AtLeastOnce
	}
	return s
}

// instance is a place where a process runs: a name, a disk, a clock.
type instance struct {
	id    string
	disk  *vfs.MemFS
	ahead *atomic.Int64
	proc  *process // the last one started; nil before
	next  bool     // a start is planned
}

// world is one run.
type world struct {
	t         *testing.T
	set       settings
	rng       *rand.Rand // of the script
	net       *kfake.VirtualNetwork
	fake      *kfake.Cluster
	contract  *kafka.Contract
	weather   *weather
	down      map[string]bool
	instances map[string]*instance
	procs     []*process
	starts    int
	made      int // messages, the producer's own
	plans     atomic.Int64
	maxAhead  time.Duration
	agenda    []task
	handles   []*kfake.FaultHandle
	counts    map[string]int // of events
	began     time.Time
	settled   time.Duration // how long it took

	logger *zap.Logger
	log    *zap.Logger // the script's

	mu       sync.Mutex
	lines    bytes.Buffer
	faults   []string // what the run has shown to be wrong
	attempts map[string][]*attempt

	tail tail
}

func newWorld(t *testing.T, seed uint64) *world {
	rng := rand.New(rand.NewPCG(seed, 1))
	w := &world{
		t: t, set: drawSettings(rng), rng: rng, net: &kfake.VirtualNetwork{}, down: make(map[string]bool),
		instances: make(map[string]*instance), attempts: make(map[string][]*attempt), counts: make(map[string]int), began: time.Now(),
	}
	w.weather = &weather{}
	w.tail = tail{records: make(map[int32][]*kgo.Record), at: make(map[int32]int64)}
	w.openLog()
	w.logf("seed %d: %+v", seed, w.set)
	opts := []kfake.Opt{
		kfake.NumBrokers(w.set.brokers), kfake.Ports(ports[:w.set.brokers]...), kfake.ListenFn(w.net.Listen), kfake.ClusterID("sim"),
		kfake.SeedTopics(int32(w.set.lanes), ingress), kfake.SeedTopics(2, append(slices.Clone(targets), dead)...),
		kfake.BrokerConfigs(map[string]string{"group.initial.rebalance.delay.ms": "0"}),
	}
	if w.set.txnVersion == 0 {
		opts = append(opts, kfake.MaxVersions(kversion.V3_9_0()))
	}
	fake, err := kfake.NewCluster(opts...)
	if err != nil {
		t.Fatal(err)
	}
	w.fake = fake
	w.contract, err = kafka.NewContract(kafka.ContractOptions{
		Ingresses: []kafka.Ingress{{Topic: ingress}}, DeadLetterTopic: dead, Annotate: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	for i := range w.set.instances {
		id := fmt.Sprintf("i%d", i)
		w.instances[id] = &instance{id: id, disk: vfs.NewCrashableMem(), ahead: new(atomic.Int64)}
	}
	return w
}

var ports = []int{9001, 9002, 9003}

func (w *world) addrs() (addrs []string) {
	for _, port := range ports[:w.set.brokers] {
		addrs = append(addrs, fmt.Sprintf("127.0.0.1:%d", port))
	}
	return addrs
}

// client is one whose network has no faults.
func (w *world) client(opts ...kgo.Opt) (*kgo.Client, error) {
	return kgo.NewClient(append([]kgo.Opt{
		kgo.SeedBrokers(w.addrs()...), kgo.Dialer(w.net.DialContext), kgo.MetadataMinAge(50 * time.Millisecond),
		kgo.UnknownTopicRetries(-1), kgo.AlwaysRetryEOF(),
	}, opts...)...)
}

// tailWait marks the fetches that are not Bide's.
const tailWait = 700 * time.Millisecond

// followIngress reads the ingress until ctx is done, when the channel is closed.
func (w *world) followIngress(ctx context.Context) <-chan struct{} {
	client, err := w.client(kgo.ConsumeTopics(ingress), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchMaxWait(tailWait))
	if err != nil {
		w.t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.tail.follow(ctx, client)
	}()
	return done
}

// openLog has everything that is told written to memory, with virtual time.
func (w *world) openLog() {
	enc := zap.NewDevelopmentEncoderConfig()
	enc.EncodeTime = func(t time.Time, e zapcore.PrimitiveArrayEncoder) {
		e.AppendString(fmt.Sprintf("%9.3f", t.Sub(w.began).Seconds()))
	}
	enc.CallerKey = ""
	level := zapcore.InfoLevel
	if *flagLog {
		level = zapcore.DebugLevel
	}
	core := zapcore.NewCore(zapcore.NewConsoleEncoder(enc), zapcore.AddSync(logWriter{w}), level)
	w.logger = zap.New(core, zap.Hooks(w.watchLog))
	w.log = w.logger.Named("sim")
}

type logWriter struct{ w *world }

func (l logWriter) Write(b []byte) (int, error) {
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	return l.w.lines.Write(b)
}

func (w *world) logf(format string, args ...any) { w.log.Info(fmt.Sprintf(format, args...)) }

func (w *world) fail(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	w.mu.Lock()
	w.faults = append(w.faults, fmt.Sprintf("%9.3f %s", time.Since(w.began).Seconds(), text))
	w.mu.Unlock()
	w.log.Warn("FAULT: " + text)
}

// rewound is logged where a commit that was given up arrived after later ones. Without transactions that may
// happen, and messages are then delivered again.
const rewound = "Kafka's commit is older than one it confirmed; going on from the one confirmed"

// watchLog takes what is logged as an error, which says that a human must act, for a fault: nothing that
// happens here is one that time does not mend.
func (w *world) watchLog(e zapcore.Entry) error {
	fromClient := strings.HasSuffix(e.LoggerName, ".kgo") // has levels of its own
	if e.Level >= zapcore.ErrorLevel && !fromClient && (w.set.mode == kafka.ExactlyOnce || e.Message != rewound) {
		w.fail("logged by %s: %s", e.LoggerName, e.Message)
	}
	return nil
}

// admin returns a client for the checker's questions; close it.
func (w *world) admin() *kadm.Client {
	client, err := w.client()
	if err != nil {
		panic(err)
	}
	return kadm.NewClient(client)
}

// task is something to be done later.
type task struct {
	at time.Time
	do func()
}

func (w *world) later(d time.Duration, do func()) {
	w.agenda = append(w.agenda, task{time.Now().Add(d), do})
}

// advance sleeps until a moment, and does what is planned before it in its time.
func (w *world) advance(ctx context.Context, until time.Time) {
	for ctx.Err() == nil {
		slices.SortStableFunc(w.agenda, func(a, b task) int { return a.at.Compare(b.at) })
		if len(w.agenda) == 0 || w.agenda[0].at.After(until) {
			time.Sleep(time.Until(until))
			return
		}
		t := w.agenda[0]
		w.agenda = w.agenda[1:]
		time.Sleep(time.Until(t.at))
		t.do()
	}
}
