package pebblelog

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/bide-mq/bide"
)

func TestALaneWithCorruptDataIsClearedByReset(t *testing.T) {
	mem := vfs.NewMem()
	l := openMem(t, mem)
	n := openLane(t, l, ordersA)
	rng := rand.NewChaCha8([32]byte{1})
	for i := range int64(10) {
		var msgs []bide.Message
		for j := range int64(100) {
			m := msg(1000+j, 100*i+j)
			m.Value = make([]byte, 1000)
			_, _ = rng.Read(m.Value)
			msgs = append(msgs, m)
		}
		appendTo(t, n, bide.Durable, 100*(i+1), msgs...)
	}
	if err := errors.Join(l.db.Flush(), l.Close()); err != nil {
		t.Fatal(err)
	}
	if damage(t, mem, ".sst") == 0 {
		t.Fatal("nothing was damaged")
	}
	l = openMem(t, mem)
	n = openLane(t, l, ordersA)
	_, _, err := n.Scan(bide.NoPosition, bide.LastPosition(1<<40), bide.Budget{Messages: 1 << 20, Bytes: 1 << 30})
	wantError(t, err, bide.ErrLogCorrupt, "orders/0")
	if err := n.Reset(bide.Commit{}); err != nil {
		t.Fatal(err)
	}
	appendTo(t, n, bide.Durable, 2, msg(1000, 0), msg(2000, 1))
	if err := l.db.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := l.db.Compact(context.Background(), []byte{0}, []byte{255}, false); err != nil {
		t.Errorf("compact: %v", err)
	}
	sameMessages(t, all(t, n), []bide.Message{msg(1000, 0), msg(2000, 1)})
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	n = openLane(t, openMem(t, mem), ordersA)
	sameMessages(t, all(t, n), []bide.Message{msg(1000, 0), msg(2000, 1)})
	checkCounts(t, n)
}
