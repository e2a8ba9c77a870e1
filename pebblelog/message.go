package pebblelog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"unsafe"

	"github.com/bide-mq/bide"
)

// messageVersion is the first byte of a stored message. Its due and offset are in the key; the rest is
//
//	┌───┬───────────┬────┬─────────┬────────┬────┬────────┬─────┬─── headers times ────────────┬────────┬───────┐
//	│ 1 │ timestamp │ at │ headers │ length │ id │ length │ key │ length │ name │ length │ value │ length │ value │
//	└───┴───────────┴────┴─────────┴────────┴────┴────────┴─────┴──────────────────────────────┴────────┴───────┘
//
// All numbers are varints, the timestamp a signed one; at is how far At is beyond the offset. The lengths of key and values are one more than they say,
// and 0 is null; those of id and names are as they say, and an empty id is none.
const messageVersion = 1

// minHeaderLen is what a header takes at least: it bounds what a wrong count can ask for.
const minHeaderLen = 2

// maxHeaderPiece is how many headers of several messages may share a piece of memory: 20 KiB.
const maxHeaderPiece = 512

// encodedLen returns how many bytes appendMessage takes.
func encodedLen(m *bide.Message) int {
	n := 1 + varintLen(m.TimestampMs) + uvarintLen(uint64(heldAt(m)-m.Offset)) + uvarintLen(uint64(len(m.Headers))) +
		uvarintLen(uint64(len(m.ID))) + len(m.ID) + nullableLen(m.Key) + nullableLen(m.Value)
	for i := range m.Headers {
		h := &m.Headers[i]
		n += uvarintLen(uint64(len(h.Key))) + len(h.Key) + nullableLen(h.Value)
	}
	return n
}

// appendMessage appends the stored form of m.
func appendMessage(dst []byte, m *bide.Message) []byte {
	dst = append(dst, messageVersion)
	dst = binary.AppendVarint(dst, m.TimestampMs)
	dst = binary.AppendUvarint(dst, uint64(heldAt(m)-m.Offset))
	dst = binary.AppendUvarint(dst, uint64(len(m.Headers)))
	dst = binary.AppendUvarint(dst, uint64(len(m.ID)))
	dst = append(dst, m.ID...)
	dst = appendNullable(dst, m.Key)
	for i := range m.Headers {
		h := &m.Headers[i]
		dst = binary.AppendUvarint(dst, uint64(len(h.Key)))
		dst = append(dst, h.Key...)
		dst = appendNullable(dst, h.Value)
	}
	return appendNullable(dst, m.Value)
}

// decodeMessage reads the stored form of the message at p into m. Message and stored bytes share
// memory: b must not change afterwards. Headers are put behind those in headers, or into new memory, which is
// returned to be handed in with the next message.
func decodeMessage(m *bide.Message, p bide.Position, b []byte, headers []bide.Header) ([]bide.Header, error) {
	r := reader{b: b}
	n, err := decodeHead(&r, m, p)
	if err != nil {
		return headers, err
	}
	m.Key = r.nullable()
	if cap(headers)-len(headers) < n {
		headers = make([]bide.Header, 0, max(n, min(2*cap(headers), maxHeaderPiece)))
	}
	from := len(headers)
	for range n {
		name := text(r.bytes(r.uvarint()))
		headers = append(headers, bide.Header{Key: name, Value: r.nullable()})
	}
	if n > 0 {
		m.Headers = headers[from:len(headers):len(headers)]
	}
	m.Value = r.nullable()
	return headers, r.end()
}

// heldAt returns the offset of the record that holds m. A message that was never carried may leave At
// at zero.
func heldAt(m *bide.Message) int64 { return max(m.At, m.Offset) }

// decodeHead reads what stands before the key of the message at p, and returns the number of headers. It
// alone says which message it is, without a look at key, headers and value.
func decodeHead(r *reader, m *bide.Message, p bide.Position) (headers int, err error) {
	if v := r.byte(); r.err == nil && v != messageVersion {
		return 0, fmt.Errorf("message version %d, this release reads %d", v, messageVersion)
	}
	m.TimestampMs = r.varint()
	beyond := r.uvarint()
	if r.err == nil && beyond > uint64(math.MaxInt64-p.Offset) {
		return 0, errors.New("held beyond the last offset")
	}
	m.DueMs, m.Offset, m.At = p.DueMs, p.Offset, p.Offset+int64(beyond)
	n := r.uvarint()
	m.ID = text(r.bytes(r.uvarint()))
	if r.err != nil {
		return 0, r.err
	}
	if n > uint64(len(r.b))/minHeaderLen {
		return 0, errors.New("more headers than bytes")
	}
	return int(n), nil
}

// text returns b as a string without a copy: b is never written again.
func text(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }
