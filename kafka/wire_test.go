package kafka

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"sync"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// wire is the network of one process, with faults by kind of request.
type wire struct {
	mu    sync.Mutex
	rules map[int16]wireRule
}

// wireRule says what becomes of a request.
type wireRule func() wireFate

type wireFate uint8

const (
	pass    wireFate = iota
	cut              // the connection ends before the request is sent
	unheard          // the request is sent; the connection ends when the answer comes
)

var errCut = errors.New("cut by the test")

func (w *wire) options(o *Options) { o.Connection.Dialer = w.dial }

// set makes a rule for requests of a kind; nil ends it.
func (w *wire) set(key kmsg.Key, rule wireRule) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.rules == nil {
		w.rules = make(map[int16]wireRule)
	}
	w.rules[key.Int16()] = rule
}

// clear ends all rules.
func (w *wire) clear() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.rules = nil
}

func always(f wireFate) wireRule { return func() wireFate { return f } }

func (w *wire) fate(key int16) wireFate {
	w.mu.Lock()
	rule := w.rules[key]
	w.mu.Unlock()
	if rule == nil {
		return pass
	}
	return rule()
}

func (w *wire) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	c, err := (&net.Dialer{}).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return &wireConn{Conn: c, wire: w}, nil
}

type wireConn struct {
	net.Conn
	wire *wire
	mu   sync.Mutex
	deaf bool
}

func (c *wireConn) Write(b []byte) (int, error) {
	if len(b) >= 6 {
		switch c.wire.fate(int16(binary.BigEndian.Uint16(b[4:]))) {
		case cut:
			_ = c.Close()
			return 0, errCut
		case unheard:
			c.mu.Lock()
			c.deaf = true
			c.mu.Unlock()
		}
	}
	return c.Conn.Write(b)
}

func (c *wireConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.deaf && n > 0 {
		_ = c.Close()
		return 0, errCut
	}
	return n, err
}
