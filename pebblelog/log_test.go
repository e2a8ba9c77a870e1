package pebblelog

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/bide-mq/bide"
)

func TestMessagesComeBackInOrderOfPositionAsTheyWere(t *testing.T) {
	l := openMem(t, vfs.NewMem())
	a, b := openLane(t, l, ordersA), openLane(t, l, ordersB)
	err := l.Append(context.Background(), []bide.Append{
		{Lane: a, Messages: []bide.Message{msg(3000, 10), msg(1000, 11), msg(3000, 12)}, Checkpoint: 13},
		{Lane: b, Messages: []bide.Message{msg(2000, 10)}, Checkpoint: 11},
	}, bide.Durable)
	if err != nil {
		t.Fatal(err)
	}
	sameMessages(t, all(t, a), []bide.Message{msg(1000, 11), msg(3000, 10), msg(3000, 12)})
	sameMessages(t, all(t, b), []bide.Message{msg(2000, 10)})
	if got := a.State().Checkpoint; got != 13 {
		t.Errorf("checkpoint %d", got)
	}
	checkCounts(t, a)
	checkCounts(t, b)
}

func TestNullEmptyDuplicateBinaryAndLargeFieldsRoundTrip(t *testing.T) {
	large := make([]byte, 5<<20)
	rand.NewChaCha8([32]byte{1}).Read(large)
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	at := func(offset int64, key, value []byte, headers ...bide.Header) bide.Message {
		return bide.Message{Record: bide.Record{Offset: offset, TimestampMs: -1, Key: key, Value: value, Headers: headers}, DueMs: 7, At: offset}
	}
	want := []bide.Message{
		at(0, nil, nil),
		at(1, []byte{}, []byte{}),
		at(2, nil, []byte{}, bide.Header{Key: "", Value: nil}, bide.Header{Key: "", Value: []byte{}}),
		at(3, every, every, bide.Header{Key: string(every), Value: every}),
		at(4, []byte("k"), large, bide.Header{Key: "x", Value: []byte("1")}, bide.Header{Key: "x", Value: []byte("1")}, bide.Header{Key: "x"}),
		withID(at(5, large[:1<<20], nil), string(every)),
	}
	fs := vfs.NewMem()
	l := openMem(t, fs)
	n := openLane(t, l, ordersA)
	appendTo(t, n, bide.Durable, 6, want...)
	sameMessages(t, all(t, n), want)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	n = openLane(t, openMem(t, fs), ordersA)
	sameMessages(t, all(t, n), want)
}

func TestAppendTwiceKeepsOne(t *testing.T) {
	l := openMem(t, vfs.NewMem())
	n := openLane(t, l, ordersA)
	appendTo(t, n, bide.Durable, 12, msg(1000, 10), msg(2000, 11))
	appendTo(t, n, bide.Replayed, 12, msg(1000, 10), msg(2000, 11))
	appendTo(t, n, bide.Replayed, 0, msg(5, 9), msg(5, 9)) // below the checkpoint, but new; twice in one
	checkCounts(t, n)
	if n.Waiting() != 3 || n.State().Checkpoint != 12 {
		t.Errorf("waiting %d, checkpoint %d", n.Waiting(), n.State().Checkpoint)
	}
	// Without a checkpoint that tells, messages are known all the same.
	appendTo(t, n, bide.Durable, 0, msg(9000, 50), msg(8000, 49))
	appendTo(t, n, bide.Durable, 0, msg(8000, 49), msg(9000, 50), msg(8000, 49))
	checkCounts(t, n)
	if n.Waiting() != 5 {
		t.Errorf("waiting %d", n.Waiting())
	}
}

func TestAppendTakesSeveralEntriesOfOneLane(t *testing.T) {
	l := openMem(t, vfs.NewMem())
	n := openLane(t, l, ordersA)
	later := msg(1000, 10)
	later.Value = []byte("later")
	err := l.Append(context.Background(), []bide.Append{
		{Lane: n, Messages: []bide.Message{msg(1000, 10)}, Checkpoint: 11},
		{Lane: n, Messages: []bide.Message{msg(500, 12), later}, Checkpoint: 13},
	}, bide.Durable)
	if err != nil {
		t.Fatal(err)
	}
	sameMessages(t, all(t, n), []bide.Message{msg(500, 12), later})
	checkCounts(t, n)
}

func TestScanKeepsItsBudgetAndReturnsAtLeastOne(t *testing.T) {
	l := openMem(t, vfs.NewMem())
	n := openLane(t, l, ordersA)
	var want []bide.Message
	for i := range int64(20) {
		want = append(want, msg(1000+i, i))
	}
	appendTo(t, n, bide.Durable, 20, want...)
	each := want[10].Bytes()
	for _, c := range []struct {
		after, upTo bide.Position
		budget      bide.Budget
		from, to    int
		more        bool
	}{
		{bide.NoPosition, bide.LastPosition(5000), bide.Budget{Messages: 20, Bytes: 1 << 20}, 0, 20, false},
		{bide.NoPosition, bide.LastPosition(5000), bide.Budget{Messages: 5, Bytes: 1 << 20}, 0, 5, true},
		{want[9].Position(), bide.LastPosition(5000), bide.Budget{Messages: 99, Bytes: 3 * each}, 10, 13, true},
		{want[9].Position(), bide.LastPosition(5000), bide.Budget{Messages: 99, Bytes: 3*each - 1}, 10, 12, true},
		{want[9].Position(), want[12].Position(), bide.Budget{Messages: 99, Bytes: 3 * each}, 10, 13, false},
		{want[9].Position(), want[12].Position(), bide.Budget{Messages: 3, Bytes: 1 << 20}, 10, 13, false},
		{want[9].Position(), bide.LastPosition(5000), bide.Budget{}, 10, 11, true},
		{want[19].Position(), bide.LastPosition(5000), bide.Budget{}, 0, 0, false},
		{bide.NoPosition, bide.LastPosition(999), bide.Budget{Messages: 9, Bytes: 9}, 0, 0, false},
		{bide.NoPosition, bide.NoPosition, bide.Budget{Messages: 9, Bytes: 9}, 0, 0, false},
	} {
		got, more, err := n.Scan(c.after, c.upTo, c.budget)
		if err != nil {
			t.Fatal(err)
		}
		if len(got) != c.to-c.from || more != c.more {
			t.Errorf("scan (%s, %s] %+v: %d messages, more %t", c.after, c.upTo, c.budget, len(got), more)
			continue
		}
		sameMessages(t, got, want[c.from:c.to])
	}
}

func TestNextIsTheFirstPositionAbove(t *testing.T) {
	l := openMem(t, vfs.NewMem())
	n := openLane(t, l, ordersA)
	if _, ok, err := n.Next(bide.NoPosition); ok || err != nil {
		t.Fatalf("an empty lane has a next, or %v", err)
	}
	appendTo(t, n, bide.Durable, 3, msg(1000, 0), msg(1000, 1), msg(2000, 2))
	for _, c := range []struct {
		after, want bide.Position
		ok          bool
	}{
		{bide.NoPosition, bide.Position{DueMs: 1000}, true},
		{bide.Position{DueMs: 1000}, bide.Position{DueMs: 1000, Offset: 1}, true},
		{bide.LastPosition(1000), bide.Position{DueMs: 2000, Offset: 2}, true},
		{bide.Position{DueMs: 2000, Offset: 2}, bide.Position{}, false},
	} {
		p, ok, err := n.Next(c.after)
		if p != c.want || ok != c.ok || err != nil {
			t.Errorf("after %s: %s, %t, %v", c.after, p, ok, err)
		}
	}
}

func TestDuesAreVisitedOnceInOrder(t *testing.T) {
	l := openMem(t, vfs.NewMem())
	n := openLane(t, l, ordersA)
	var msgs []bide.Message
	for i := range int64(100) {
		msgs = append(msgs, msg(1000+i/30*10, i)) // 1000, 1010, 1020 thirty times, 1030 ten times
	}
	msgs = append(msgs, msg(1<<63-1, 100), msg(0, 101))
	appendTo(t, n, bide.Durable, 102, msgs...)
	dues := func(from, to int64, most int) (got []int64) {
		err := n.Dues(from, to, func(due int64) bool { got = append(got, due); return len(got) < most })
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	for _, c := range []struct {
		from, to int64
		most     int
		want     []int64
	}{
		{-5, 1<<63 - 1, 99, []int64{0, 1000, 1010, 1020, 1030, 1<<63 - 1}},
		{1000, 1020, 99, []int64{1000, 1010, 1020}},
		{1001, 1029, 99, []int64{1010, 1020}},
		{1001, 1<<63 - 1, 1, []int64{1010}},
		{5, 4, 99, nil},
	} {
		if got := dues(c.from, c.to, c.most); !reflect.DeepEqual(got, c.want) {
			t.Errorf("dues %d to %d: %v, want %v", c.from, c.to, got, c.want)
		}
	}
}

func TestLowIsNeverAboveWhatIsThere(t *testing.T) {
	l := openMem(t, vfs.NewMem())
	n := openLane(t, l, ordersA)
	low := func(next int64, leaving ...bide.Message) int64 {
		t.Helper()
		got, err := n.Low(next, leaving)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	if got := low(77); got != 77 {
		t.Errorf("an empty lane's low is %d", got)
	}
	first, second, third := msg(1000, 100), msg(2000, 4096*3+5), msg(3000, 4096*3+6)
	appendTo(t, n, bide.Durable, 4096*4, first, second, third)
	for _, c := range []struct {
		next    int64
		leaving []bide.Message
		want    int64
	}{
		{4096 * 4, nil, 0},
		{4096 * 4, []bide.Message{first}, 4096 * 3},
		{4096 * 2, []bide.Message{first}, 4096 * 2},
		{4096 * 4, []bide.Message{first, second}, 4096 * 3},
		{4096 * 4, []bide.Message{first, second, third}, 4096 * 4},
		{4096*4 - 1, []bide.Message{first, second, third}, 4096*4 - 1},
	} {
		if got := low(c.next, c.leaving...); got != c.want {
			t.Errorf("next %d, %d leaving: low %d, want %d", c.next, len(c.leaving), got, c.want)
		}
	}
	settle(t, n, bide.Commit{Next: 4096 * 4, Cursor: first.Position()}, first)
	if got := low(4096 * 4); got != 4096*3 {
		t.Errorf("low %d", got)
	}
	// A message put back below brings the low back.
	appendTo(t, n, bide.Replayed, 0, first)
	if got := low(4096 * 4); got != 0 {
		t.Errorf("low %d above a message put back", got)
	}
}

func TestLowPassesAnyNumberOfEmptyBlocksInBoundedSteps(t *testing.T) {
	l := openMem(t, vfs.NewMem())
	n := openLane(t, l, ordersA)
	far := int64(4096 * (3*lowBlocks + 7))
	early, late := msg(1000, 0), msg(2000, far)
	appendTo(t, n, bide.Durable, far+1, early, late)
	settle(t, n, bide.Commit{Next: far + 1, Cursor: early.Position()}, early)
	last := int64(-1)
	for step := range 10 {
		got, err := n.Low(far+1, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got == far {
			if step < 3 {
				t.Errorf("%d blocks passed in %d steps", 3*lowBlocks+7, step)
			}
			return
		}
		if got <= last || got > far {
			t.Fatalf("low %d after %d", got, last)
		}
		last = got
	}
	t.Errorf("low stands at %d", last)
}

func TestHandlesOfALaneAreTheSame(t *testing.T) {
	l := openMem(t, vfs.NewMem())
	first := openLane(t, l, ordersA)
	if again := openLane(t, l, ordersA); again != first {
		t.Error("two handles")
	}
	odd := bide.Lane{Topic: "orders\x00", Partition: -1}
	if openLane(t, l, odd).number == openLane(t, l, ordersB).number {
		t.Error("two lanes with one number")
	}
}

func TestAClosedLogSaysSo(t *testing.T) {
	l := openMem(t, vfs.NewMem())
	n := openLane(t, l, ordersA)
	for range 2 {
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	_, err1 := l.Lane(ordersA)
	_, _, err2 := n.Scan(bide.NoPosition, bide.LastPosition(1), bide.Budget{})
	_, _, err3 := n.Next(bide.NoPosition)
	_, err4 := n.Low(1, nil)
	_, err5 := l.FreeBytes()
	_, err6 := n.Positions("x")
	for i, err := range []error{
		err1, err2, err3, err4, err5, err6,
		l.Append(context.Background(), nil, bide.Durable), n.Dues(0, 1, nil),
		n.Settle(bide.Commit{}, nil), n.Forget(bide.Position{}), n.Reset(bide.Commit{}),
	} {
		if !errors.Is(err, bide.ErrLogClosed) {
			t.Errorf("call %d: %v", i, err)
		}
	}
}

func TestAppendRefusesWhatItCannotKeep(t *testing.T) {
	l, other := openMem(t, vfs.NewMem()), openMem(t, vfs.NewMem())
	n := openLane(t, l, ordersA)
	for name, e := range map[string]bide.Append{
		"negative due":    {Lane: n, Messages: []bide.Message{msg(-1, 0)}},
		"negative offset": {Lane: n, Messages: []bide.Message{msg(0, -1)}},
		"last offset":     {Lane: n, Messages: []bide.Message{msg(0, 1<<63-1)}},
		"long id":         {Lane: n, Messages: []bide.Message{withID(msg(0, 0), string(bytes.Repeat([]byte("x"), maxIDLen+1)))}},
		"other log":       {Lane: openLane(t, other, ordersA)},
	} {
		if err := l.Append(context.Background(), []bide.Append{e}, bide.Durable); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := l.Append(ctx, []bide.Append{{Lane: n, Messages: []bide.Message{msg(0, 0)}}}, bide.Durable); !errors.Is(err, context.Canceled) {
		t.Errorf("a context that is done: %v", err)
	}
	if n.Waiting() != 0 || len(all(t, n)) != 0 {
		t.Error("something was kept")
	}
}
