package pebblelog

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/bide-mq/bide"
)

// twin is what a lane of the log has to be, in maps.
type twin struct {
	msgs  map[bide.Position]bide.Message
	state bide.LaneState
	next  int64 // the offset of the next new message
}

func (w *twin) clone() *twin {
	c := *w
	c.msgs = maps.Clone(w.msgs)
	return &c
}

func (w *twin) sorted() []bide.Message {
	return slices.SortedFunc(maps.Values(w.msgs), func(a, b bide.Message) int { return a.Position().Compare(b.Position()) })
}

// world is a log and its twin under random calls.
type world struct {
	t     testing.TB
	rng   *rand.Rand
	opts  Options
	log   *Log
	lanes []*Lane
	twins []*twin
	// durable says that everything done so far is on disk.
	durable bool
}

func newWorld(t testing.TB, rng *rand.Rand, o Options) *world {
	w := &world{t: t, rng: rng, opts: o}
	for range 2 {
		w.twins = append(w.twins, &twin{msgs: map[bide.Position]bide.Message{}})
	}
	w.open()
	return w
}

func (w *world) open() {
	w.t.Helper()
	l, err := Open("data", w.opts)
	if err != nil {
		w.t.Fatal(err)
	}
	w.log = l
	w.lanes = []*Lane{openLane(w.t, l, ordersA), openLane(w.t, l, ordersB)}
}

func (w *world) close() {
	w.t.Helper()
	if err := w.log.Close(); err != nil {
		w.t.Fatal(err)
	}
}

// step does one random thing and says what.
func (w *world) step() string {
	w.t.Helper()
	i := w.rng.IntN(len(w.lanes))
	switch p := w.rng.IntN(100); {
	case p < 55:
		return w.append()
	case p < 85:
		return w.settle(i)
	case p < 90:
		return w.forget(i)
	case p < 91:
		return w.reset(i)
	default:
		w.look(i)
		return "look"
	}
}

func (w *world) append() string {
	d := bide.Durability(w.rng.IntN(2))
	var entries []bide.Append
	wrote := false
	for i := range w.lanes {
		if w.rng.IntN(3) == 0 {
			continue
		}
		n := w.twins[i]
		var msgs []bide.Message
		for range w.rng.IntN(40) {
			msgs = append(msgs, w.message(n))
		}
		checkpoint := n.next - int64(w.rng.IntN(3))
		entries = append(entries, bide.Append{Lane: w.lanes[i], Messages: msgs, Checkpoint: checkpoint})
		for _, m := range msgs {
			if old, ok := n.msgs[m.Position()]; !ok || old.At <= m.At {
				n.msgs[m.Position()] = m
			}
		}
		wrote = wrote || len(msgs) > 0 || checkpoint > n.state.Checkpoint
		n.state.Checkpoint = max(n.state.Checkpoint, checkpoint)
	}
	if err := w.log.Append(context.Background(), entries, d); err != nil {
		w.t.Fatal(err)
	}
	if wrote {
		w.durable = d == bide.Durable
	}
	return "append"
}

// message returns a new message, or one that was there before, be it still there or not.
func (w *world) message(n *twin) bide.Message {
	offset := n.next
	if w.rng.IntN(4) == 0 && n.next > 0 {
		offset = w.rng.Int64N(n.next)
	} else {
		n.next++
		if w.rng.IntN(20) == 0 {
			n.next += w.rng.Int64N(3 << blockBits)
		}
	}
	// All of a message follows from its offset, as it does in Kafka.
	own := rand.New(rand.NewPCG(uint64(offset), 1))
	m := bide.Message{Record: bide.Record{Offset: offset, TimestampMs: own.Int64N(1000)}, DueMs: own.Int64N(300), At: offset}
	if own.IntN(2) == 0 {
		m.Key = fmt.Appendf(nil, "%d", offset)
	}
	m.Value = make([]byte, own.IntN(400))
	for i := range m.Value {
		m.Value[i] = byte(own.Uint32())
	}
	for range own.IntN(3) {
		m.Headers = append(m.Headers, bide.Header{Key: "h", Value: []byte{byte(own.Uint32())}})
	}
	if own.IntN(3) == 0 {
		m.ID = fmt.Sprint(own.IntN(9))
	}
	if offset < n.next-1 && w.rng.IntN(3) == 0 { // a copy of it was carried to the lane's end
		m.At = n.next
		n.next++
	}
	return m
}

func (w *world) settle(i int) string {
	n := w.twins[i]
	cursor := bide.Position{DueMs: w.rng.Int64N(60), Offset: w.rng.Int64N(n.next + 1)}
	if w.rng.IntN(5) == 0 {
		cursor.DueMs += 240
	}
	members, _, err := w.lanes[i].Scan(bide.NoPosition, cursor, bide.Budget{Messages: 1 << 30, Bytes: 1 << 40})
	if err != nil {
		w.t.Fatal(err)
	}
	var want []bide.Message
	for _, m := range n.sorted() {
		if m.Position().AtOrBelow(cursor) {
			want = append(want, m)
		}
	}
	sameMessages(w.t, members, want)
	for _, m := range n.msgs {
		if w.rng.IntN(30) == 0 && !m.Position().AtOrBelow(cursor) {
			members = append(members, m)
		}
	}
	low := w.low(i, members)
	c := bide.Commit{
		Next: n.next, Cursor: cursor, Low: low, Lanes: 2,
		Writer: bide.Writer{Instance: "model", Plan: w.rng.Uint64()},
	}
	settle(w.t, w.lanes[i], c, members...)
	for _, m := range members {
		delete(n.msgs, m.Position())
	}
	n.state.From, n.state.Confirmed, n.state.Known = c.Next, c, true
	w.durable = false
	return "settle"
}

// low checks the low against what stays.
func (w *world) low(i int, leaving []bide.Message) int64 {
	n := w.twins[i]
	gone := map[bide.Position]bool{}
	for j := range leaving {
		gone[leaving[j].Position()] = true
	}
	truth := n.next
	for p, m := range n.msgs {
		if !gone[p] {
			truth = min(truth, m.At)
		}
	}
	low, err := w.lanes[i].Low(n.next, leaving)
	if err != nil {
		w.t.Fatal(err)
	}
	if low > truth || low < min(n.next, blockStart(block(truth))) {
		w.t.Fatalf("low %d where the truth is %d", low, truth)
	}
	return low
}

func (w *world) forget(i int) string {
	n := w.twins[i]
	cursor := bide.Position{DueMs: w.rng.Int64N(40) - 1, Offset: w.rng.Int64N(n.next + 1)}
	if err := w.lanes[i].Forget(cursor); err != nil {
		w.t.Fatal(err)
	}
	for p := range n.msgs {
		if p.AtOrBelow(cursor) {
			delete(n.msgs, p)
		}
	}
	w.durable = false
	return "forget"
}

func (w *world) reset(i int) string {
	n := w.twins[i]
	c := bide.Commit{Low: w.rng.Int64N(n.next + 1), TopicID: [16]byte{byte(w.rng.Uint32())}}
	if err := w.lanes[i].Reset(c); err != nil {
		w.t.Fatal(err)
	}
	n.msgs = map[bide.Position]bide.Message{}
	n.state = bide.LaneState{From: c.Low, Checkpoint: c.Low, Confirmed: bide.Commit{TopicID: c.TopicID}}
	w.durable = true
	return "reset"
}

// look compares one random reading.
func (w *world) look(i int) {
	w.t.Helper()
	n, sorted := w.lanes[i], w.twins[i].sorted()
	after := bide.Position{DueMs: w.rng.Int64N(300), Offset: w.rng.Int64N(w.twins[i].next + 1)}
	upTo := bide.LastPosition(after.DueMs + w.rng.Int64N(100))
	budget := bide.Budget{Messages: w.rng.IntN(50), Bytes: w.rng.IntN(20_000)}
	var want []bide.Message
	more, bytes := false, 0
	for _, m := range sorted {
		p := m.Position()
		if p.AtOrBelow(after) || !p.AtOrBelow(upTo) {
			continue
		}
		if bytes += m.Bytes(); len(want) > 0 && (len(want) == budget.Messages || bytes > budget.Bytes) {
			more = true
			break
		}
		want = append(want, m)
		if budget.Messages == 0 {
			budget.Messages = 1
		}
	}
	got, gotMore, err := n.Scan(after, upTo, budget)
	if err != nil || gotMore != more {
		w.t.Fatalf("scan: more %t, want %t, %v", gotMore, more, err)
	}
	sameMessages(w.t, got, want)

	at, _ := slices.BinarySearchFunc(sorted, after, func(m bide.Message, p bide.Position) int {
		if m.Position().AtOrBelow(p) {
			return -1
		}
		return 1
	})
	p, ok, err := n.Next(after)
	if err != nil || ok != (at < len(sorted)) || ok && p != sorted[at].Position() {
		w.t.Fatalf("next after %s: %s, %t, %v", after, p, ok, err)
	}
	w.lookAtDuesAndIDs(i, sorted)
}

func (w *world) lookAtDuesAndIDs(i int, sorted []bide.Message) {
	w.t.Helper()
	from := w.rng.Int64N(300)
	to := from + w.rng.Int64N(100)
	id := fmt.Sprint(w.rng.IntN(9))
	var dues, gotDues []int64
	var positions []bide.Position
	for _, m := range sorted {
		if m.DueMs >= from && m.DueMs <= to && (len(dues) == 0 || dues[len(dues)-1] != m.DueMs) {
			dues = append(dues, m.DueMs)
		}
		if m.ID == id {
			positions = append(positions, m.Position())
		}
	}
	err := w.lanes[i].Dues(from, to, func(d int64) bool { gotDues = append(gotDues, d); return true })
	if err != nil || !slices.Equal(gotDues, dues) {
		w.t.Fatalf("dues %v, want %v, %v", gotDues, dues, err)
	}
	got, err := w.lanes[i].Positions(id)
	if err != nil || !slices.Equal(got, positions) {
		w.t.Fatalf("positions of %s: %v, want %v, %v", id, got, positions, err)
	}
}

// check compares everything.
func (w *world) check() {
	w.t.Helper()
	for i, n := range w.lanes {
		sameMessages(w.t, all(w.t, n), w.twins[i].sorted())
		checkCounts(w.t, n)
		if got := n.State(); !reflect.DeepEqual(got, w.twins[i].state) {
			w.t.Fatalf("state %+v, want %+v", got, w.twins[i].state)
		}
	}
}

func TestTheLogDoesWhatItsTwinDoes(t *testing.T) {
	seed := newSeed(t)
	for round := range 4 {
		w := newWorld(t, rand.New(rand.NewPCG(seed, uint64(round))), Options{FS: vfs.NewMem(), MemtableBytes: 64 << 10})
		for i := range 400 {
			w.step()
			if i%50 == 49 {
				w.check()
				w.close()
				w.open()
				w.check()
			}
		}
		w.close()
	}
}

// TestACrashLeavesABeginningOfWhatWasDone stops the machine at random moments: the store must then be as it was after
// one of the calls, in whole, and not before the last one that promised to be on disk.
func TestACrashLeavesABeginningOfWhatWasDone(t *testing.T) {
	seed := newSeed(t)
	lost, kept := 0, 0
	for round := range 12 {
		rng := rand.New(rand.NewPCG(seed, uint64(round)))
		fs := vfs.NewCrashableMem()
		w := newWorld(t, rng, Options{FS: fs, MemtableBytes: 64 << 10})
		past := [][]*twin{{w.twins[0].clone(), w.twins[1].clone()}}
		durable := 0
		for range 120 {
			w.step()
			past = append(past, []*twin{w.twins[0].clone(), w.twins[1].clone()})
			if w.durable {
				durable = len(past) - 1
			}
			if rng.IntN(12) == 0 {
				at := crash(t, w, fs, past, durable)
				lost, kept = lost+len(past)-1-at, kept+at-durable
			}
		}
		w.close()
	}
	t.Logf("%d calls lost, %d not synced and kept", lost, kept)
	if lost == 0 || kept == 0 {
		t.Error("the crashes showed nothing")
	}
}

// crash opens what a crash now might leave, and returns which moment of the past it is.
func crash(t *testing.T, w *world, fs *vfs.MemFS, past [][]*twin, durable int) int {
	t.Helper()
	percent := []int{0, 20, 50, 80, 100}[w.rng.IntN(5)]
	after := &world{t: t, rng: w.rng, opts: Options{FS: fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: w.rng})}}
	after.open()
	defer after.close()
	found := make([][]bide.Message, len(after.lanes))
	for i, n := range after.lanes {
		found[i] = all(t, n)
		checkCounts(t, n)
	}
	for at := len(past) - 1; at >= durable; at-- {
		same := true
		for i, n := range after.lanes {
			same = same && reflect.DeepEqual(n.State(), past[at][i].state) && reflect.DeepEqual(found[i], past[at][i].sorted())
		}
		if same {
			return at
		}
	}
	t.Fatalf("with %d%% of what was not synced, the store is like none of the %d moments since the last sync", percent, len(past)-durable)
	return 0
}
