package kafka

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/bide-mq/bide"
)

var (
	soakSeed  = flag.Uint64("soak.seed", uint64(time.Now().UnixNano()), "seed of the random faults")
	soakPlans = flag.Int("soak.plans", 40, "plans of each lane under random faults")
)

// Requests that a transaction is made of, and what may become of one in how many of a thousand.
func randomFaults(w *wire, seed uint64, perMille int) {
	var mu sync.Mutex
	rng := rand.New(rand.NewPCG(seed, 0))
	rule := func() wireFate {
		mu.Lock()
		defer mu.Unlock()
		switch n := rng.IntN(1000); {
		case n < perMille:
			return cut
		case n < 2*perMille:
			return unheard
		default:
			return pass
		}
	}
	for _, key := range []kmsg.Key{
		kmsg.Produce, kmsg.Metadata, kmsg.FindCoordinator, kmsg.InitProducerID, kmsg.AddPartitionsToTxn,
		kmsg.AddOffsetsToTxn, kmsg.EndTxn, kmsg.TxnOffsetCommit, kmsg.OffsetFetch,
	} {
		w.set(key, rule)
	}
}

func TestRandomFaultsLoseAndDoubleNothing(t *testing.T) {
	onBrokers(t, func(t *testing.T, b *bed) {
		t.Logf("-soak.seed=%d", *soakSeed)
		w := new(wire)
		p := b.start("one", w.options)
		p.await(4)
		randomFaults(w, *soakSeed, 40)
		var mu sync.Mutex
		var want []string
		planFor := func(lane bide.Lane, before bide.Commit, value string) *bide.Plan {
			mu.Lock()
			defer mu.Unlock()
			if value == "" {
				return b.plan(p.Cluster, lane, before)
			}
			want = append(want, value+"a", value+"b")
			return b.plan(p.Cluster, lane, before, item(b.targets[0], before.Next, value+"a"), item(b.targets[1], before.Next, value+"b"))
		}
		var lanes sync.WaitGroup
		outcomes := make(map[string]int)
		for n := range int32(4) {
			lanes.Go(func() {
				var before bide.Commit
				for i := range *soakPlans {
					value := ""
					if i%4 != 3 {
						value = fmt.Sprintf("%d-%d", n, i)
					}
					plan := planFor(b.lane(n), before, value)
					for done := false; !done; {
						p.mu.Lock()
						m := p.membership // renewed where a broker was away for long
						p.mu.Unlock()
						r := p.Transact(t.Context(), m, []*bide.Plan{plan})[0]
						mu.Lock()
						outcomes[outcomeWord(r.Outcome)]++
						mu.Unlock()
						switch r.Outcome {
						case bide.Aborted:
							for _, f := range r.Failures {
								t.Logf("lane %d, plan %d: %s: %v", n, i, failureWord(f.Kind), f.Rejection)
							}
							time.Sleep(10 * time.Millisecond)
						case bide.Committed:
							done = true
						case bide.Taken:
							t.Errorf("lane %d, plan %d: taken: %v", n, i, r.Err)
							return
						}
					}
					before = plan.Commit
				}
			})
		}
		lanes.Wait()
		w.clear()
		t.Logf("outcomes: %v", outcomes)
		got := b.read(len(want), b.targets[0], b.targets[1])
		if slices.Sort(want); !slices.Equal(got, want) {
			t.Fatalf("read %d values, want %d: lost %q, beyond %q", len(got), len(want), missing(want, got), missing(got, want))
		}
	})
}

// missing returns what of a is not in b, each counted.
func missing(a, b []string) (out []string) {
	count := make(map[string]int)
	for _, v := range b {
		count[v]++
	}
	for _, v := range a {
		if count[v]--; count[v] < 0 {
			out = append(out, v)
		}
	}
	return out
}
