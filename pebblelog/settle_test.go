package pebblelog

import (
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/bide-mq/bide"
)

func TestSettleDropsWhatIsAtOrBelowTheCursorAndKeepsTheCommit(t *testing.T) {
	for _, many := range []int{1, fewMessages, fewMessages + 1, 500} {
		t.Run(fmt.Sprint(many), func(t *testing.T) {
			fs := vfs.NewMem()
			l := openMem(t, fs)
			n := openLane(t, l, ordersA)
			var gone []bide.Message
			for i := range many {
				gone = append(gone, withID(msg(1000+int64(i), int64(i)), "same"))
			}
			stays := withID(msg(9000, int64(many)), "same")
			appendTo(t, n, bide.Durable, int64(many)+1, append(gone, stays)...)
			c := bide.Commit{
				Next: int64(many), Cursor: gone[many-1].Position(), Low: 0, TopicID: [16]byte{1, 2}, Lanes: 3,
				Writer: bide.Writer{Instance: "i", Incarnation: 1 << 63, Plan: 9},
				Rules:  []bide.RuleSpan{{From: 1, Rules: bide.Rules{Delay: time.Second, MaxDelay: time.Hour}}},
			}
			settle(t, n, c, gone...)
			check := func(n *Lane) {
				t.Helper()
				sameMessages(t, all(t, n), []bide.Message{stays})
				checkCounts(t, n)
				want := bide.LaneState{From: c.Next, Checkpoint: int64(many) + 1, Confirmed: c, Known: true}
				if got := n.State(); !reflect.DeepEqual(got, want) {
					t.Errorf("state %+v, want %+v", got, want)
				}
				if got, err := n.Positions("same"); err != nil || !reflect.DeepEqual(got, []bide.Position{stays.Position()}) {
					t.Errorf("positions %v, %v", got, err)
				}
			}
			check(n)
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
			check(openLane(t, openMem(t, fs), ordersA))
		})
	}
}

func TestSettleDropsMembersAboveTheCursorToo(t *testing.T) {
	l := openMem(t, vfs.NewMem())
	n := openLane(t, l, ordersA)
	appendTo(t, n, bide.Durable, 4, msg(1000, 0), msg(2000, 1), withID(msg(3000, 2), "cancelled"), msg(4000, 3))
	settle(t, n, bide.Commit{Next: 4, Cursor: bide.Position{DueMs: 1000}}, msg(1000, 0), withID(msg(3000, 2), "cancelled"))
	sameMessages(t, all(t, n), []bide.Message{msg(2000, 1), msg(4000, 3)})
	checkCounts(t, n)
	if got, err := n.Positions("cancelled"); len(got) != 0 || err != nil {
		t.Errorf("positions %v, %v", got, err)
	}
}

func TestWhatIsPutBackBelowTheCursorIsSeenAndForgotten(t *testing.T) {
	fs := vfs.NewMem()
	l := openMem(t, fs)
	n := openLane(t, l, ordersA)
	var gone []bide.Message
	for i := range int64(20) {
		gone = append(gone, msg(1000+i, i))
	}
	appendTo(t, n, bide.Durable, 20, gone...)
	c := bide.Commit{Next: 20, Cursor: gone[19].Position()}
	settle(t, n, c, gone...)
	appendTo(t, n, bide.Replayed, 20, gone[3:15]...)
	sameMessages(t, all(t, n), gone[3:15])
	checkCounts(t, n)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	n = openLane(t, openMem(t, fs), ordersA)
	sameMessages(t, all(t, n), gone[3:15])
	before := n.State()
	if err := n.Forget(c.Cursor); err != nil {
		t.Fatal(err)
	}
	if got := all(t, n); len(got) != 0 {
		t.Errorf("%d messages left", len(got))
	}
	checkCounts(t, n)
	if !reflect.DeepEqual(n.State(), before) {
		t.Errorf("state %+v, was %+v", n.State(), before)
	}
}

func TestResetEmptiesOneLaneAlone(t *testing.T) {
	fs := vfs.NewMem()
	l := openMem(t, fs)
	a, b := openLane(t, l, ordersA), openLane(t, l, ordersB)
	for _, n := range []*Lane{a, b} {
		appendTo(t, n, bide.Durable, 4096*9, withID(msg(1000, 0), "x"), msg(2000, 4096*8))
		settle(t, n, bide.Commit{Next: 1, Cursor: bide.NoPosition})
	}
	c := bide.Commit{Next: 9, Low: 5, Cursor: bide.Position{DueMs: 1}, TopicID: [16]byte{7}, Lanes: 2}
	if err := a.Reset(c); err != nil {
		t.Fatal(err)
	}
	check := func(a, b *Lane) {
		t.Helper()
		want := bide.LaneState{From: 5, Checkpoint: 5, Confirmed: bide.Commit{TopicID: c.TopicID}}
		if got := a.State(); !reflect.DeepEqual(got, want) {
			t.Errorf("state %+v, want %+v", got, want)
		}
		if got := all(t, a); len(got) != 0 {
			t.Errorf("%d messages left", len(got))
		}
		if got, err := a.Positions("x"); len(got) != 0 || err != nil {
			t.Errorf("positions %v, %v", got, err)
		}
		checkCounts(t, a)
		sameMessages(t, all(t, b), []bide.Message{withID(msg(1000, 0), "x"), msg(2000, 4096*8)})
		checkCounts(t, b)
	}
	check(a, b)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	l = openMem(t, fs)
	a, b = openLane(t, l, ordersA), openLane(t, l, ordersB)
	check(a, b)
	appendTo(t, a, bide.Durable, 6, msg(1000, 0))
	checkCounts(t, a)
}
