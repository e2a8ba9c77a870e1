//go:build synctests

package sim

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// wire is the network of one process: every frame takes a moment, and may meet with a fault. While it
// is frozen nothing passes, and what was sent before comes out when it thaws, as from the buffers of a
// kernel; once it is dead nothing passes any more.
type wire struct {
	under *kfake.VirtualNetwork
	seed  uint64

	mu     sync.Mutex
	dials  uint64
	thawed chan struct{} // closed unless frozen
	links  map[*link]struct{}
	dead   bool
	down   map[string]bool // addresses that do not answer
	fate   func(key int16, rng *rand.Rand) fate
}

// fate is what becomes of a request.
type fate struct {
	kind  fateKind
	delay time.Duration // before it is sent
	code  int16         // of answers that are forged
}

type fateKind uint8

const (
	pass    fateKind = iota
	cut              // the connection ends before the request is sent
	unheard          // the request is sent, and the connection ends in place of an answer
	forged           // the request is sent, and the answer is an error
)

var errDead = errors.New("the process is dead")

func newWire(under *kfake.VirtualNetwork, seed uint64) *wire {
	open := make(chan struct{})
	close(open)
	return &wire{under: under, seed: seed, thawed: open, links: make(map[*link]struct{}), down: make(map[string]bool)}
}

// freeze stops all traffic; thaw lets it go on.
func (w *wire) freeze() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.thawed = make(chan struct{})
}

func (w *wire) thaw() {
	w.mu.Lock()
	defer w.mu.Unlock()
	select {
	case <-w.thawed:
	default:
		close(w.thawed)
	}
}

// kill ends all connections. What was sent before and is under way arrives or is lost.
func (w *wire) kill(arrives bool) {
	w.mu.Lock()
	w.dead = true
	links := w.links
	w.links = nil
	w.mu.Unlock()
	w.thaw()
	for l := range links {
		if arrives {
			_ = l.near.Close()
		} else {
			l.close()
		}
	}
}

// setDown has an address not answer, and ends its connections, or has it answer again.
func (w *wire) setDown(addr string, down bool) {
	w.mu.Lock()
	w.down[addr] = down
	var links []*link
	for l := range w.links {
		if l.addr == addr && down {
			links = append(links, l)
		}
	}
	w.mu.Unlock()
	for _, l := range links {
		l.close()
	}
}

func (w *wire) setFate(f func(key int16, rng *rand.Rand) fate) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fate = f
}

// pause waits while the wire is frozen.
func (w *wire) pause(done <-chan struct{}) {
	w.mu.Lock()
	thawed := w.thawed
	w.mu.Unlock()
	select {
	case <-thawed:
	case <-done:
	}
}

func (w *wire) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	w.pause(ctx.Done())
	w.mu.Lock()
	dead, down := w.dead, w.down[addr]
	w.mu.Unlock()
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case dead:
		return nil, errDead
	case down:
		return nil, errors.New("connection refused")
	}
	far, err := w.under.DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	client, near := net.Pipe()
	l := &link{wire: w, addr: addr, near: near, far: far, done: make(chan struct{}), asked: make(map[uint32]asked)}
	if !w.add(l) {
		l.close()
		return nil, errDead
	}
	requests, answers := make(chan frame, 1024), make(chan frame, 1024)
	go l.readRequests(requests)
	go l.sendRequests(requests)
	go l.readAnswers(answers)
	go l.sendAnswers(answers)
	return client, nil
}

// add has a link belong to the wire; false says that the wire is dead.
func (w *wire) add(l *link) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.dead {
		return false
	}
	w.dials++
	l.rng = rand.New(rand.NewPCG(w.seed, w.dials))
	w.links[l] = struct{}{}
	return true
}

// link is one connection: near is the process's end, far the broker's.
type link struct {
	wire      *wire
	addr      string
	near, far net.Conn
	done      chan struct{}
	once      sync.Once

	mu    sync.Mutex
	rng   *rand.Rand
	asked map[uint32]asked // by correlation id
	deaf  bool
}

// asked is a request whose answer is awaited.
type asked struct {
	key, version int16
	code         int16 // forged
}

// frame is a message on its way.
type frame struct {
	bytes []byte
	at    time.Time // when it arrives
	fate  fate
}

func (l *link) close() {
	l.once.Do(func() {
		close(l.done)
		_ = l.near.Close()
		_ = l.far.Close()
		l.wire.mu.Lock()
		delete(l.wire.links, l)
		l.wire.mu.Unlock()
	})
}

func readFrame(r io.Reader) ([]byte, error) {
	b := make([]byte, 4)
	if _, err := io.ReadFull(r, b); err != nil {
		return nil, err
	}
	b = append(b, make([]byte, binary.BigEndian.Uint32(b))...)
	_, err := io.ReadFull(r, b[4:])
	return b, err
}

// latency is that of one way: mostly below a millisecond, now and then much more.
func (l *link) latency() time.Duration {
	d := time.Duration(100+l.rng.IntN(900)) * time.Microsecond
	if l.rng.IntN(200) == 0 {
		d += time.Duration(l.rng.IntN(40)) * time.Millisecond
	}
	return d
}

// readRequests takes what the process sends; when it closes the connection, what it sent before still
// goes out.
func (l *link) readRequests(up chan<- frame) {
	defer close(up)
	for {
		b, err := readFrame(l.near)
		if err != nil {
			return
		}
		key, version := int16(binary.BigEndian.Uint16(b[4:])), int16(binary.BigEndian.Uint16(b[6:]))
		l.wire.mu.Lock()
		decide := l.wire.fate
		l.wire.mu.Unlock()
		l.mu.Lock()
		f := frame{bytes: b, at: time.Now().Add(l.latency())}
		if decide != nil {
			f.fate = decide(key, l.rng)
			f.at = f.at.Add(f.fate.delay)
		}
		l.asked[binary.BigEndian.Uint32(b[8:])] = asked{key: key, version: version, code: f.fate.code}
		l.mu.Unlock()
		select {
		case up <- f:
		case <-l.done:
			return
		}
	}
}

func (l *link) sendRequests(up <-chan frame) {
	defer l.close()
	for f := range up {
		l.sleepUntil(f.at)
		switch f.fate.kind {
		case cut:
			return
		case unheard:
			l.mu.Lock()
			l.deaf = true
			l.mu.Unlock()
		default:
		}
		if _, err := l.far.Write(f.bytes); err != nil {
			return
		}
	}
	// The process closed its end. Let the broker act on the last request before its end is closed too.
	l.sleepUntil(time.Now().Add(time.Millisecond))
}

func (l *link) sleepUntil(at time.Time) {
	if d := time.Until(at); d > 0 {
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case <-t.C:
		case <-l.done:
		}
	}
	l.wire.pause(l.done)
}

func (l *link) readAnswers(down chan<- frame) {
	defer close(down)
	for {
		b, err := readFrame(l.far)
		if err != nil {
			return
		}
		l.mu.Lock()
		deaf := l.deaf
		f := frame{bytes: b, at: time.Now().Add(l.latency())}
		corr := binary.BigEndian.Uint32(b[4:])
		q := l.asked[corr]
		delete(l.asked, corr)
		l.mu.Unlock()
		if deaf {
			l.close()
			return
		}
		if q.code != 0 {
			f.bytes = forge(b, q)
		}
		select {
		case down <- f:
		case <-l.done:
			return
		}
	}
}

func (l *link) sendAnswers(down <-chan frame) {
	for f := range down {
		l.sleepUntil(f.at)
		if _, err := l.near.Write(f.bytes); err != nil {
			// The process does not listen any more; the broker must not wait for it.
			for range down {
			}
			return
		}
	}
	l.close()
}

// forge returns an answer of the same kind that says nothing but an error.
func forge(b []byte, q asked) []byte {
	req := kmsg.RequestForKey(q.key)
	req.SetVersion(q.version)
	resp := req.ResponseKind()
	switch r := resp.(type) {
	case *kmsg.EndTxnResponse:
		r.ErrorCode = q.code
	case *kmsg.InitProducerIDResponse:
		r.ErrorCode, r.ProducerID, r.ProducerEpoch = q.code, -1, -1
	case *kmsg.AddOffsetsToTxnResponse:
		r.ErrorCode = q.code
	case *kmsg.HeartbeatResponse:
		r.ErrorCode = q.code
	default:
		return b
	}
	out := append([]byte(nil), b[:8]...)
	if resp.IsFlexible() {
		out = append(out, 0)
	}
	out = resp.AppendTo(out)
	binary.BigEndian.PutUint32(out, uint32(len(out)-4))
	return out
}
