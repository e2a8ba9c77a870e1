package pebblelog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
)

// errShort says that stored bytes end before what they announce.
var errShort = errors.New("bytes end early")

// uvarintLen returns how many bytes binary.AppendUvarint takes for v.
func uvarintLen(v uint64) int { return (bits.Len64(v|1) + 6) / 7 }

// varintLen returns how many bytes binary.AppendVarint takes for v.
func varintLen(v int64) int { return uvarintLen(uint64(v)<<1 ^ uint64(v>>63)) }

// appendNullable appends length+1 and the bytes, 0 alone where b is nil: null and empty differ.
func appendNullable(dst, b []byte) []byte {
	if b == nil {
		return append(dst, 0)
	}
	return append(binary.AppendUvarint(dst, uint64(len(b))+1), b...)
}

// nullableLen returns how many bytes appendNullable takes.
func nullableLen(b []byte) int {
	if b == nil {
		return 1
	}
	return uvarintLen(uint64(len(b))+1) + len(b)
}

// reader takes stored bytes apart. After the first fault everything it returns is zero, and err says
// what it was, so that a decoder asks once at its end.
type reader struct {
	b   []byte
	err error
}

func (r *reader) fail(err error) {
	if r.err == nil {
		r.err = err
	}
	r.b = nil
}

func (r *reader) byte() byte {
	if len(r.b) == 0 {
		r.fail(errShort)
		return 0
	}
	c := r.b[0]
	r.b = r.b[1:]
	return c
}

func (r *reader) uvarint() uint64 {
	if len(r.b) > 0 && r.b[0] < 0x80 { // the common case, small enough to be inlined by hand
		v := uint64(r.b[0])
		r.b = r.b[1:]
		return v
	}
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.fail(errShort)
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *reader) varint() int64 {
	u := r.uvarint()
	return int64(u>>1) ^ -int64(u&1)
}

// bytes returns the next n bytes, never nil unless there are too few. They are the reader's own.
func (r *reader) bytes(n uint64) []byte {
	if n > uint64(len(r.b)) {
		r.fail(errShort)
		return nil
	}
	b := r.b[:n:n]
	r.b = r.b[n:]
	return b
}

// nullable is the reverse of appendNullable.
func (r *reader) nullable() []byte {
	n := r.uvarint()
	if n == 0 {
		return nil
	}
	return r.bytes(n - 1)
}

// end returns the fault met, or one where bytes are left over.
func (r *reader) end() error {
	if r.err == nil && len(r.b) > 0 {
		return fmt.Errorf("%d bytes too many", len(r.b))
	}
	return r.err
}
