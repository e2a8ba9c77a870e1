package pebblelog

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/bide-mq/bide"
)

var update = flag.Bool("update", false, "write the golden files of the current format anew")

// golden compares named bytes with a file of lines "name hex". Stored data must stay readable: where this
// fails after a change, the change needs a new version beside the old one, not new golden files.
func golden(t *testing.T, file string, names []string, encoded map[string][]byte) {
	t.Helper()
	path := filepath.Join("testdata", file)
	if *update {
		var out bytes.Buffer
		for _, name := range names {
			fmt.Fprintf(&out, "%s %x\n", name, encoded[name])
		}
		if err := os.WriteFile(path, out.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines := 0
	for s := bufio.NewScanner(f); s.Scan(); lines++ {
		name, text, _ := strings.Cut(s.Text(), " ")
		want, err := hex.DecodeString(text)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(encoded[name], want) {
			t.Errorf("%s is\n%x, stored\n%x", name, encoded[name], want)
		}
	}
	if lines != len(names) {
		t.Errorf("%d lines, want %d", lines, len(names))
	}
}

type namedMessage struct {
	name string
	m    bide.Message
}

func goldenMessages() []namedMessage {
	m := func(ts int64, id string, key, value []byte, headers ...bide.Header) bide.Message {
		return bide.Message{
			Record: bide.Record{Offset: 7, TimestampMs: ts, Key: key, Value: value, Headers: headers}, DueMs: 9, At: 7, ID: id,
		}
	}
	carried := m(1_700_000_000_123, "", []byte("key"), []byte("value"))
	carried.At = 7000
	return []namedMessage{
		{"carried", carried},
		{"null", m(0, "", nil, nil)},
		{"empty", m(0, "", []byte{}, []byte{})},
		{"plain", m(1_700_000_000_123, "", []byte("key"), []byte("value"), bide.Header{Key: "delay-for", Value: []byte("90s")})},
		{"id", m(1_700_000_000_123, "order-42", []byte{0, 255}, nil)},
		{"headers", m(-1, "", nil, []byte("v"),
			bide.Header{Key: "a", Value: nil}, bide.Header{Key: "a", Value: []byte{}}, bide.Header{Key: "", Value: []byte{0}})},
		{"long", m(math.MaxInt64, strings.Repeat("i", 256), bytes.Repeat([]byte("k"), 127), bytes.Repeat([]byte("v"), 300))},
		{"earliest", m(math.MinInt64, "", nil, bytes.Repeat([]byte("v"), 128))},
	}
}

func TestMessagesAreStoredAsEver(t *testing.T) {
	var names []string
	encoded := map[string][]byte{}
	for _, c := range goldenMessages() {
		b := appendMessage(nil, &c.m)
		if len(b) != encodedLen(&c.m) {
			t.Errorf("%s: %d bytes, announced %d", c.name, len(b), encodedLen(&c.m))
		}
		names, encoded[c.name] = append(names, c.name), b
		var got bide.Message
		if _, err := decodeMessage(&got, c.m.Position(), b, nil); err != nil || !reflect.DeepEqual(got, c.m) {
			t.Errorf("%s: %+v, %v", c.name, got, err)
		}
	}
	golden(t, "message-v1.golden", names, encoded)
}

func goldenState() bide.LaneState {
	return bide.LaneState{
		From: 41, Known: true,
		Confirmed: bide.Commit{
			Next: 42, Cursor: bide.Position{DueMs: 1_700_000_000_123, Offset: 40}, Low: 12,
			Rules: []bide.RuleSpan{
				{From: 0, Rules: bide.Rules{Delay: 5 * time.Minute}},
				{From: 30, Rules: bide.Rules{Delay: time.Second, MaxDelay: 24 * time.Hour}},
			},
			Writer:  bide.Writer{Instance: "bide-0", Incarnation: 0x0123456789abcdef, Plan: 300},
			TopicID: [16]byte{1, 2, 3, 15: 16}, Lanes: 12,
		},
	}
}

func TestStatesMarksAndCountsAreStoredAsEver(t *testing.T) {
	names := []string{"state", "new", "least", "mark", "count", "negative"}
	states := map[string]bide.LaneState{
		"state": goldenState(), "new": {},
		"least": {From: math.MinInt64, Confirmed: bide.Commit{Next: math.MinInt64, Cursor: bide.NoPosition, Lanes: math.MinInt32, Writer: bide.Writer{Plan: math.MaxUint64}}},
	}
	encoded := map[string][]byte{
		"mark": appendMark(nil, mark{checkpoint: 42, top: 43}), "count": appendCount(nil, 4096), "negative": appendCount(nil, -3),
	}
	for name, s := range states {
		encoded[name] = appendState(nil, &s)
		if got, err := decodeState(encoded[name]); err != nil || !reflect.DeepEqual(got, s) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	golden(t, "state-v1.golden", names, encoded)
}

func TestKeysAreStoredAsEver(t *testing.T) {
	p := bide.Position{DueMs: 1_700_000_000_123, Offset: 258}
	names := []string{"lane", "message", "above", "above-none", "id", "count", "dictionary", "end", "last-end"}
	golden(t, "keys-v1.golden", names, map[string][]byte{
		"lane":       laneKey(nil, spaceState, 1),
		"message":    messageKey(nil, 1, p),
		"above":      keyAbove(nil, 1, bide.LastPosition(5)),
		"above-none": keyAbove(nil, 1, bide.NoPosition),
		"id":         idKey(nil, 1, "order-42", p),
		"count":      countKey(nil, 1, 77),
		"dictionary": dictionaryKey(nil, bide.Lane{Topic: "orders", Partition: 3}),
		"end":        laneEnd(nil, spaceMessage, 1),
		"last-end":   laneEnd(nil, spaceMessage, math.MaxUint32),
	})
}

// goldenStore is what testdata/store-v1 holds: messages in a table, in the write-ahead log and deleted.
func goldenStore(t *testing.T, l *Log) (a, b []bide.Message, state bide.LaneState) {
	t.Helper()
	n, m := openLane(t, l, ordersA), openLane(t, l, ordersB)
	var msgs []bide.Message
	for i := range int64(40) {
		msgs = append(msgs, withID(msg(1_700_000_000_000+i/3, 4090+i), []string{"", "x", "y"}[i%3]))
	}
	state = goldenState()
	state.Confirmed.Cursor = msgs[19].Position()
	state.From, state.Checkpoint = state.Confirmed.Next, 4130
	if *update {
		appendTo(t, n, bide.Durable, 4120, msgs[:30]...)
		appendTo(t, m, bide.Replayed, 5, msg(5, 4))
		if err := l.db.Flush(); err != nil {
			t.Fatal(err)
		}
		appendTo(t, n, bide.Replayed, 4130, msgs[30:]...)
		settle(t, n, state.Confirmed, msgs[:20]...)
	}
	return msgs[20:], []bide.Message{msg(5, 4)}, state
}

func TestAStoreOfVersion1CanBeOpened(t *testing.T) {
	path := filepath.Join("testdata", "store-v1")
	if *update {
		if err := os.RemoveAll(path); err != nil {
			t.Fatal(err)
		}
		l := openWith(t, path, Options{MemtableBytes: 64 << 10})
		goldenStore(t, l)
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	fs := vfs.NewMem()
	if ok, err := vfs.Clone(vfs.Default, fs, path, "data"); err != nil || !ok {
		t.Fatalf("copy: %t, %v", ok, err)
	}
	saved := *update
	*update = false
	defer func() { *update = saved }()
	for range 2 { // as this release found it, and as it left it
		l := openMem(t, fs)
		a, b, state := goldenStore(t, l)
		n := openLane(t, l, ordersA)
		sameMessages(t, all(t, n), a)
		sameMessages(t, all(t, openLane(t, l, ordersB)), b)
		checkCounts(t, n)
		if got := n.State(); !reflect.DeepEqual(got, state) {
			t.Errorf("state %+v, want %+v", got, state)
		}
		if got, err := n.Positions("x"); err != nil || len(got) != 6 {
			t.Errorf("positions %v, %v", got, err)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
