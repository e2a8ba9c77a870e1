//go:build synctests

package sim

import (
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// kinds are the requests that Bide sends.
var kinds = []kmsg.Key{
	kmsg.Produce, kmsg.Fetch, kmsg.ListOffsets, kmsg.Metadata, kmsg.OffsetCommit, kmsg.OffsetFetch, kmsg.FindCoordinator,
	kmsg.JoinGroup, kmsg.Heartbeat, kmsg.SyncGroup, kmsg.ApiVersions, kmsg.InitProducerID, kmsg.AddPartitionsToTxn,
	kmsg.AddOffsetsToTxn, kmsg.EndTxn, kmsg.TxnOffsetCommit, kmsg.DeleteRecords,
}

// weather is what befalls requests on the wire, of all processes.
type weather struct {
	mu   sync.Mutex
	rate map[int16]map[fateKind]float64 // probability, by kind of request
	slow map[int16]float64
	code map[int16]int16
}

func (w *weather) fate(key int16, rng *rand.Rand) (f fate) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for kind := cut; kind <= forged; kind++ {
		if p := w.rate[key][kind]; p > 0 && rng.Float64() < p {
			f.kind = kind
			if kind == forged {
				f.code = w.code[key]
			}
			break
		}
	}
	if p := w.slow[key]; p > 0 && rng.Float64() < p {
		f.delay = time.Duration(rng.IntN(8000)) * time.Millisecond
	}
	return f
}

// change draws new weather.
func (w *weather) change(rng *rand.Rand) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.rate, w.slow, w.code = make(map[int16]map[fateKind]float64), make(map[int16]float64), make(map[int16]int16)
	var told []string
	n := 1 + rng.IntN(3)
	if rng.IntN(6) == 0 {
		n = len(kinds)
	}
	for _, i := range rng.Perm(len(kinds))[:n] {
		key, p := kinds[i].Int16(), []float64{.02, .1, .3, .7}[rng.IntN(4)]
		told = append(told, kinds[i].Name())
		w.rate[key] = make(map[fateKind]float64)
		switch rng.IntN(4) {
		case 0:
			w.rate[key][cut] = p
		case 1:
			w.rate[key][unheard] = p
		case 2:
			w.slow[key] = p
		default:
			w.rate[key][forged] = p
			w.code[key] = forgedCodes[rng.IntN(len(forgedCodes))].Code
		}
	}
	return told
}

// clear ends all faults on the wire.
func (w *weather) clear() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.rate, w.slow, w.code = nil, nil, nil
}

// forgedCodes are answers to what was in truth done.
var forgedCodes = []*kerr.Error{
	kerr.RequestTimedOut, kerr.CoordinatorNotAvailable, kerr.NotCoordinator, kerr.CoordinatorLoadInProgress, kerr.ConcurrentTransactions, kerr.UnknownServerError,
}

// refusals are what a broker may answer instead of doing what it is asked.
var refusals = map[kmsg.Key][]*kerr.Error{
	kmsg.Produce: {
		kerr.NotLeaderForPartition, kerr.NotEnoughReplicas, kerr.NotEnoughReplicasAfterAppend, kerr.RequestTimedOut, kerr.KafkaStorageError,
		kerr.UnknownTopicOrPartition, kerr.ConcurrentTransactions, kerr.InvalidProducerEpoch, kerr.OutOfOrderSequenceNumber, kerr.InvalidTxnState,
	},
	kmsg.Fetch: {
		kerr.NotLeaderForPartition, kerr.UnknownLeaderEpoch, kerr.FencedLeaderEpoch, kerr.OffsetNotAvailable, kerr.KafkaStorageError,
		kerr.OffsetOutOfRange, kerr.UnknownTopicOrPartition,
	},
	kmsg.ListOffsets:     {kerr.NotLeaderForPartition, kerr.LeaderNotAvailable, kerr.UnknownLeaderEpoch},
	kmsg.Metadata:        {kerr.LeaderNotAvailable, kerr.UnknownTopicOrPartition},
	kmsg.OffsetCommit:    {kerr.CoordinatorNotAvailable, kerr.NotCoordinator, kerr.CoordinatorLoadInProgress, kerr.RequestTimedOut, kerr.RebalanceInProgress},
	kmsg.OffsetFetch:     {kerr.CoordinatorNotAvailable, kerr.NotCoordinator, kerr.CoordinatorLoadInProgress, kerr.UnstableOffsetCommit},
	kmsg.FindCoordinator: {kerr.CoordinatorNotAvailable},
	kmsg.JoinGroup:       {kerr.CoordinatorNotAvailable, kerr.NotCoordinator, kerr.CoordinatorLoadInProgress, kerr.RebalanceInProgress},
	kmsg.SyncGroup:       {kerr.CoordinatorNotAvailable, kerr.NotCoordinator, kerr.RebalanceInProgress},
	kmsg.Heartbeat:       {kerr.CoordinatorNotAvailable, kerr.NotCoordinator, kerr.RebalanceInProgress, kerr.UnknownMemberID, kerr.IllegalGeneration},
	kmsg.InitProducerID:  {kerr.CoordinatorNotAvailable, kerr.NotCoordinator, kerr.CoordinatorLoadInProgress, kerr.ConcurrentTransactions, kerr.RequestTimedOut},
	kmsg.AddPartitionsToTxn: {
		kerr.CoordinatorNotAvailable, kerr.NotCoordinator, kerr.ConcurrentTransactions, kerr.InvalidTxnState,
	},
	kmsg.DeleteRecords:   {kerr.NotLeaderForPartition, kerr.RequestTimedOut},
	kmsg.AddOffsetsToTxn: {kerr.CoordinatorNotAvailable, kerr.NotCoordinator, kerr.ConcurrentTransactions},
	kmsg.EndTxn: {
		kerr.CoordinatorNotAvailable, kerr.NotCoordinator, kerr.CoordinatorLoadInProgress, kerr.ConcurrentTransactions, kerr.RequestTimedOut,
		kerr.InvalidTxnState, kerr.ProducerFenced, kerr.InvalidProducerEpoch,
	},
	kmsg.TxnOffsetCommit: {
		kerr.CoordinatorNotAvailable, kerr.NotCoordinator, kerr.CoordinatorLoadInProgress, kerr.RequestTimedOut, kerr.ConcurrentTransactions,
		kerr.RebalanceInProgress, kerr.IllegalGeneration, kerr.UnknownMemberID, kerr.ProducerFenced, kerr.InvalidTxnState, kerr.UnstableOffsetCommit,
	},
}

// refuse has the cluster refuse some of the next requests of a kind.
func (w *world) refuse() {
	for {
		key := kinds[w.rng.IntN(len(kinds))]
		codes := refusals[key]
		if len(codes) == 0 {
			continue
		}
		code, n := codes[w.rng.IntN(len(codes))], 1+w.rng.IntN(6)
		f := kfake.Fault{Keys: []kmsg.Key{key}, Err: code, Count: n, When: sentByBide}
		if key == kmsg.Metadata && code == kerr.UnknownTopicOrPartition {
			f.Topic = targets[0]
		}
		h := w.fake.Fault(f)
		w.handles = append(w.handles, h)
		w.logf("the next %d %s are answered %s", n, key.Name(), code.Message)
		w.later(time.Duration(1+w.rng.IntN(10))*time.Second, h.Remove)
		return
	}
}

// sentByBide tells Bide's requests from the producer's, where it matters.
func sentByBide(req kmsg.Request) bool {
	ours := func(id string) bool { return strings.HasPrefix(id, "bide-") }
	switch r := req.(type) {
	case *kmsg.FetchRequest:
		return r.MaxWaitMillis != int32(tailWait.Milliseconds())
	case *kmsg.ProduceRequest:
		return r.TransactionID != nil && ours(*r.TransactionID)
	case *kmsg.InitProducerIDRequest:
		return r.TransactionalID != nil && ours(*r.TransactionalID)
	case *kmsg.AddPartitionsToTxnRequest:
		return ours(r.TransactionalID) || len(r.Transactions) > 0 && ours(r.Transactions[0].TransactionalID)
	case *kmsg.EndTxnRequest:
		return ours(r.TransactionalID)
	case *kmsg.FindCoordinatorRequest:
		for _, key := range append(r.CoordinatorKeys, r.CoordinatorKey) {
			if key == "producer" {
				return false
			}
		}
	}
	return true
}
