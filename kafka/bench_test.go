package kafka

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bide-mq/bide"
)

// BenchmarkTransact times transactions of 100 records with a commit, one every 5 ms at most, on the first
// broker of BIDE_TEST_BROKERS.
func BenchmarkTransact(b *testing.B) {
	addr, _, _ := strings.Cut(os.Getenv("BIDE_TEST_BROKERS"), ",")
	if addr == "" {
		b.Skip("BIDE_TEST_BROKERS names no broker")
	}
	bed := newBed(b, addr)
	p := bed.start("one")
	m := p.await(4)
	items := make([]bide.Item, 100)
	for i := range items {
		items[i] = item(bed.targets[0], 0, strings.Repeat("x", 200))
	}
	var before bide.Commit
	var took []time.Duration
	for b.Loop() {
		start := time.Now()
		plan := bed.plan(p.Cluster, bed.lane(0), before, items...)
		started := time.Now()
		bed.wants(p.Transact(b.Context(), m, []*bide.Plan{plan}), bide.Committed)
		took = append(took, time.Since(started))
		before = plan.Commit
		time.Sleep(5*time.Millisecond - time.Since(start))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
}
