package pebblelog

import (
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"github.com/bide-mq/bide"
)

// An arena's pieces begin small, so that a scan that finds one message costs little, and grow up to a size
// at which their number does not matter.
const (
	minPiece = 4 << 10
	maxPiece = 256 << 10
)

// arena is the memory of the messages of one scan: a few pieces in place of some allocations a message.
type arena struct {
	limit   int // the budget's bytes: no piece need be larger
	piece   []byte
	headers []bide.Header
	size    int
}

// message reads the message at which the iterator stands into m, which is empty; ok is false, and m still empty, if it takes
// more than room bytes, unless it must be taken.
func (a *arena) message(m *bide.Message, it *pebble.Iterator, room int, must bool) (ok bool, err error) {
	p, err := messagePosition(it.Key())
	if err != nil {
		return false, err
	}
	stored, err := it.ValueAndErr()
	if err != nil {
		return false, corrupt(err)
	}
	if !must {
		fits, err := fits(stored, p, room)
		if err != nil {
			return false, unreadable(p, err)
		}
		if !fits {
			return false, nil
		}
	}
	a.headers, err = decodeMessage(m, p, a.copy(stored), a.headers)
	if err != nil {
		return false, unreadable(p, err)
	}
	return true, nil
}

// fits reports whether a stored message takes at most room bytes. It looks closer only where the
// stored length leaves a doubt: headers take more in memory than stored.
func fits(stored []byte, p bide.Position, room int) (bool, error) {
	var m bide.Message
	r := reader{b: stored}
	headers, err := decodeHead(&r, &m, p)
	if err != nil {
		return false, err
	}
	m = bide.Message{}
	if m.Bytes()+len(stored)+40*headers <= room {
		return true, nil
	}
	if _, err := decodeMessage(&m, p, stored, nil); err != nil {
		return false, err
	}
	return m.Bytes() <= room, nil
}

// copy returns a copy of b in a piece.
func (a *arena) copy(b []byte) []byte {
	if len(b) > cap(a.piece)-len(a.piece) {
		a.size = min(max(2*a.size, minPiece), maxPiece)
		a.piece = make([]byte, 0, max(min(a.size, a.limit), len(b)))
	}
	from := len(a.piece)
	a.piece = append(a.piece, b...)
	return a.piece[from:len(a.piece):len(a.piece)]
}

func unreadable(p bide.Position, err error) error {
	return fmt.Errorf("%w: message %s: %w", bide.ErrLogCorrupt, p, err)
}
