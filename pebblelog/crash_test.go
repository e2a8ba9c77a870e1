package pebblelog

import (
	"context"
	"errors"
	"reflect"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/bide-mq/bide"
)

// faults lets writing operations fail: the one with the number at, or all from there on.
type faults struct {
	at       int64
	stays    bool
	n        atomic.Int64
	injected atomic.Bool
}

func (f *faults) fail(op errorfs.Op) error {
	if op.Kind.ReadOrWrite() != errorfs.OpIsWrite || op.Kind == errorfs.OpFileClose {
		return nil
	}
	n := f.n.Add(1) - 1
	if n == f.at || f.stays && n > f.at {
		f.injected.Store(true)
		return errorfs.ErrInjected
	}
	return nil
}

// TestAFailedWriteIsAnErrorOrDoesNotMatter lets every write and sync of a small life of a log fail in turn: what an
// append said is stored must be there, and what it refused is there in whole or not at all.
func TestAFailedWriteIsAnErrorOrDoesNotMatter(t *testing.T) {
	for _, stays := range []bool{false, true} {
		refused, runs := 0, 0
		for at := int64(0); ; at++ {
			f := &faults{at: at, stays: stays}
			failed := liveWithFaults(t, f)
			if !f.injected.Load() {
				break
			}
			runs++
			if failed {
				refused++
			}
		}
		t.Logf("%d writes failed (for good: %t), %d of them were told", runs, stays, refused)
		if runs < 50 || refused == 0 {
			t.Errorf("too few writes: %d, told %d", runs, refused)
		}
	}
}

// liveWithFaults opens a log, uses it until something fails, and checks what is left. It reports whether
// something did.
func liveWithFaults(t *testing.T, f *faults) bool {
	t.Helper()
	disk := vfs.NewCrashableMem()
	var acked, tried []bide.Message
	l, err := Open("data", Options{FS: errorfs.Wrap(disk, errorfs.InjectorFunc(f.fail)), MemtableBytes: 32 << 10, retryAfter: 1})
	if err == nil {
		acked, tried, err = appendUntilError(l)
	}
	failed := err != nil
	if l != nil && l.Err() == nil {
		// A fault may strike during Close too; it changes nothing of what was promised.
		_ = l.Close()
	}
	after := openLane(t, openMem(t, disk.CrashClone(vfs.CrashCloneCfg{})), ordersA)
	checkCounts(t, after)
	got := all(t, after)
	if !reflect.DeepEqual(got, acked) && !reflect.DeepEqual(got, tried) {
		t.Fatalf("write %d failed (for good: %t): %d messages are there, %d were acknowledged, %d tried",
			f.at, f.stays, len(got), len(acked), len(tried))
	}
	return failed
}

// appendUntilError returns the messages that were acknowledged, and those if the append that failed is there.
func appendUntilError(l *Log) (acked, tried []bide.Message, err error) {
	lane, err := l.Lane(ordersA)
	if err != nil {
		return nil, nil, err
	}
	for i := range int64(12) {
		var msgs []bide.Message
		for j := range int64(20) {
			m := msg(1000+i, 20*i+j)
			m.Value = make([]byte, 300) // some appends a memtable
			msgs = append(msgs, m)
		}
		tried = append(acked[:len(acked):len(acked)], msgs...)
		if err = l.Append(context.Background(), []bide.Append{{Lane: lane, Messages: msgs, Checkpoint: 20 * (i + 1)}}, bide.Durable); err != nil {
			return acked, tried, err
		}
		acked = tried
	}
	return acked, acked, nil
}

func TestAFailedSyncEndsTheLogAndHoldsNobodyUp(t *testing.T) {
	disk := vfs.NewCrashableMem()
	var broken atomic.Bool
	l, err := Open("data", Options{FS: errorfs.Wrap(disk, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if broken.Load() && op.Kind.ReadOrWrite() == errorfs.OpIsWrite {
			return errorfs.ErrInjected
		}
		return nil
	}))})
	if err != nil {
		t.Fatal(err)
	}
	var done sync.WaitGroup
	var lanes []*Lane
	for p := range int32(8) {
		lanes = append(lanes, openLane(t, l, bide.Lane{Topic: "orders", Partition: p}))
	}
	for _, n := range lanes {
		done.Go(func() {
			for i := int64(0); ; i++ {
				entries := []bide.Append{{Lane: n, Messages: []bide.Message{msg(i, i)}, Checkpoint: i + 1}}
				err := l.Append(context.Background(), entries, bide.Durability(i%2))
				if i == 50 {
					broken.Store(true)
				}
				if err != nil {
					if !errors.Is(err, ErrFailed) || !errors.Is(err, errorfs.ErrInjected) {
						t.Errorf("append: %v", err)
					}
					return
				}
			}
		})
	}
	done.Wait()
	<-l.Failed()
	if err := l.Err(); !errors.Is(err, ErrFailed) {
		t.Errorf("err: %v", err)
	}
	n := lanes[0]
	if err := n.Settle(bide.Commit{}, nil); !errors.Is(err, ErrFailed) {
		t.Errorf("settle: %v", err)
	}
	if _, _, err := n.Scan(bide.NoPosition, bide.LastPosition(9), bide.Budget{}); !errors.Is(err, ErrFailed) {
		t.Errorf("scan: %v", err)
	}
	if err := l.Close(); !errors.Is(err, ErrFailed) {
		t.Errorf("close: %v", err)
	}
}

func TestReadErrorsAreReturnedAndEndNothing(t *testing.T) {
	disk := vfs.NewMem()
	var broken atomic.Bool
	l := openMem(t, errorfs.Wrap(disk, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if broken.Load() && op.Kind == errorfs.OpFileReadAt {
			return errorfs.ErrInjected
		}
		return nil
	})))
	n := openLane(t, l, ordersA)
	appendTo(t, n, bide.Durable, 2, msg(1000, 0), msg(2000, 1))
	if err := l.db.Flush(); err != nil {
		t.Fatal(err)
	}
	broken.Store(true)
	_, _, err := n.Scan(bide.NoPosition, bide.LastPosition(5000), bide.Budget{Messages: 9, Bytes: 1 << 20})
	if !errors.Is(err, errorfs.ErrInjected) || errors.Is(err, bide.ErrLogCorrupt) {
		t.Errorf("scan: %v", err)
	}
	err = l.Append(context.Background(), []bide.Append{{Lane: n, Messages: []bide.Message{msg(1000, 0)}}}, bide.Durable)
	if !errors.Is(err, errorfs.ErrInjected) {
		t.Errorf("append that has to look: %v", err)
	}
	broken.Store(false)
	checkCounts(t, n)
	if err := l.Err(); err != nil {
		t.Error(err)
	}
}

// TestAppendsSettlementsAndScansRunSideBySide has several appenders and one settler to a lane; counts must be exact in the end.
func TestAppendsSettlementsAndScansRunSideBySide(t *testing.T) {
	l := openWith(t, "data", Options{FS: vfs.NewMem(), MemtableBytes: 128 << 10})
	lanes := []*Lane{openLane(t, l, ordersA), openLane(t, l, ordersB)}
	const each, rounds = 10, 100
	var appending, settling sync.WaitGroup
	var appended atomic.Bool
	for i := range int64(2) {
		appending.Go(func() {
			for r := range int64(rounds) {
				var entries []bide.Append
				for _, n := range lanes {
					var msgs []bide.Message
					for j := range int64(each) {
						msgs = append(msgs, msg(r, (r*2+i)*each+j))
					}
					entries = append(entries, bide.Append{Lane: n, Messages: msgs})
				}
				for d := range bide.Durability(2) { // each batch twice
					if err := l.Append(context.Background(), entries, d); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	left := make([]int64, len(lanes))
	for i, n := range lanes {
		settling.Go(func() {
			for last := false; !last; {
				last = appended.Load()
				msgs, _, err := n.Scan(bide.NoPosition, bide.LastPosition(rounds), bide.Budget{Messages: 25, Bytes: 1 << 20})
				if err != nil {
					t.Error(err)
				}
				// Above the cursor, so that an append of the same message a moment later is one of a new message.
				if err := n.Settle(bide.Commit{Cursor: bide.NoPosition}, msgs); err != nil {
					t.Error(err)
				}
				if _, err := n.Low(1<<40, nil); err != nil {
					t.Error(err)
				}
				if n.Waiting() < 0 {
					t.Error("fewer than none wait")
				}
			}
			left[i] = n.Waiting()
		})
	}
	appending.Wait()
	appended.Store(true)
	settling.Wait()
	for i, n := range lanes {
		checkCounts(t, n)
		t.Logf("lane %s: %d left", n.name, left[i])
	}
}
