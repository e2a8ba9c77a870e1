package pebblelog

import (
	"bytes"
	"reflect"
	"testing"

	"github.com/bide-mq/bide"
)

// FuzzDecodeMessage has any bytes as a stored message: an error or a message, and a message is the same once
// stored again.
func FuzzDecodeMessage(f *testing.F) {
	for _, c := range goldenMessages() {
		f.Add(appendMessage(nil, &c.m))
	}
	f.Add([]byte{})
	f.Add([]byte{2})
	f.Add([]byte{1, 0, 255, 255, 255, 255, 15, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		var m, again bide.Message
		if _, err := decodeMessage(&m, bide.Position{}, b, nil); err != nil {
			return
		}
		if _, err := decodeMessage(&again, bide.Position{}, appendMessage(nil, &m), nil); err != nil || !reflect.DeepEqual(m, again) {
			t.Fatalf("%x: %+v and %+v, %v", b, m, again, err)
		}
	})
}

// FuzzMessage has any message: it comes back as it was.
func FuzzMessage(f *testing.F) {
	f.Add(int64(5), "id", []byte("key"), false, []byte("value"), false, "name", []byte("header"), uint8(2))
	f.Add(int64(-1), "", []byte{}, true, []byte{}, true, "", []byte{}, uint8(5))
	f.Fuzz(func(t *testing.T, ts int64, id string, key []byte, nullKey bool, value []byte, nullValue bool, name string, header []byte, headers uint8) {
		m := bide.Message{Record: bide.Record{TimestampMs: ts, Key: nonNil(key), Value: nonNil(value)}, ID: id}
		if nullKey {
			m.Key = nil
		}
		if nullValue {
			m.Value = nil
		}
		for i := range headers {
			h := bide.Header{Key: name, Value: nonNil(header)}
			if i%3 == 1 {
				h.Value = nil
			}
			m.Headers = append(m.Headers, h)
		}
		b := appendMessage(nil, &m)
		if len(b) != encodedLen(&m) {
			t.Fatalf("%d bytes, announced %d", len(b), encodedLen(&m))
		}
		var got bide.Message
		if _, err := decodeMessage(&got, bide.Position{}, b, nil); err != nil || !reflect.DeepEqual(got, m) {
			t.Fatalf("%+v, want %+v, %v", got, m, err)
		}
		for n := range b { // a part of it is never one
			if _, err := decodeMessage(&got, bide.Position{}, b[:n], nil); err == nil {
				t.Fatalf("%d of %d bytes are a message", n, len(b))
			}
			if n > 300 {
				break
			}
		}
	})
}

func nonNil(b []byte) []byte { return append([]byte{}, b...) }

// FuzzDecodeState has any bytes as a lane's state, mark and count.
func FuzzDecodeState(f *testing.F) {
	s := goldenState()
	f.Add(appendState(nil, &s))
	f.Add(appendState(nil, &bide.LaneState{}))
	f.Add(appendMark(nil, mark{checkpoint: 1, top: 2}))
	f.Add(appendCount(nil, -7))
	f.Fuzz(func(t *testing.T, b []byte) {
		if s, err := decodeState(b); err == nil {
			again, err := decodeState(appendState(nil, &s))
			if err != nil || !reflect.DeepEqual(s, again) {
				t.Fatalf("%x: %+v and %+v, %v", b, s, again, err)
			}
		}
		if m, err := decodeMark(b); err == nil {
			if again, err := decodeMark(appendMark(nil, m)); err != nil || again != m {
				t.Fatalf("%x: %+v and %+v, %v", b, m, again, err)
			}
		}
		if n, err := decodeCount(b); err == nil {
			if again, err := decodeCount(appendCount(nil, n)); err != nil || again != n {
				t.Fatalf("%x: %d and %d, %v", b, n, again, err)
			}
		}
	})
}

// FuzzKeys has any two positions: their keys are in the order of the positions, and what is above a position has a
// key at or above keyAbove.
func FuzzKeys(f *testing.F) {
	f.Add(int64(0), int64(0), int64(0), int64(1), uint32(1))
	f.Add(int64(1<<63-1), int64(1<<63-2), int64(5), int64(1<<63-1), uint32(1<<32-1))
	f.Fuzz(func(t *testing.T, due1, off1, due2, off2 int64, lane uint32) {
		if min(due1, off1, due2, off2) < 0 {
			return
		}
		p, q := bide.Position{DueMs: due1, Offset: off1}, bide.Position{DueMs: due2, Offset: off2}
		a, b := messageKey(nil, lane, p), messageKey(nil, lane, q)
		if bytes.Compare(a, b) != p.Compare(q) {
			t.Fatalf("%s and %s are in another order than %x and %x", p, q, a, b)
		}
		if position(a) != p {
			t.Fatalf("%s comes back as %s", p, position(a))
		}
		if above := bytes.Compare(b, keyAbove(nil, lane, p)) >= 0; above != (q.Compare(p) > 0) {
			t.Fatalf("%s above %s: %t", q, p, above)
		}
		if !bytes.HasPrefix(a, laneKey(nil, spaceMessage, lane)) || bytes.Compare(a, laneEnd(nil, spaceMessage, lane)) >= 0 {
			t.Fatalf("%x is not among its lane's keys", a)
		}
	})
}
