package bide

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"
)

// fakeContract reads due from the header "due", epoch ms; a record without one is due at its
// timestamp, "bad" is rejected. A target "nowhere" is judged.
type fakeContract struct{ rules Rules }

func (fakeContract) Accept(rec Record, rules Rules) (Message, *Rejection) {
	m := Message{Record: rec, At: rec.Offset, DueMs: rec.TimestampMs + rules.Delay.Milliseconds()}
	for _, h := range rec.Headers {
		n, err := strconv.ParseInt(string(h.Value), 10, 64)
		if err != nil {
			return Message{}, &Rejection{Code: "malformed-header", Reason: h.Key + " is not a number"}
		}
		if h.Key == "carried" {
			m.Offset = n
		} else {
			m.DueMs = n
		}
	}
	return m, nil
}

func (fakeContract) Judge(_ Lane, m *Message) *Rejection {
	if string(m.Key) == "nowhere" {
		return &Rejection{Code: "no-target", Reason: "there is no target"}
	}
	return nil
}
func (fakeContract) Attempt(*Message) int { return 0 }
func (c fakeContract) Rules(string) Rules { return c.rules }

// delivery is an item that a read-committed consumer sees, and when.
type delivery struct {
	lane Lane
	item Item
	at   time.Time
}

// fakeKafka is the part of Kafka that outlives processes: records, commits, and what was produced.
type fakeKafka struct {
	mu         sync.Mutex
	records    map[Lane][]Record
	starts     map[Lane]int64
	commits    map[Lane]Commit
	owner      map[Lane]*process // who may commit
	generation int32
	seen       []delivery
	topicID    [16]byte
	foreign    map[Lane]bool // commits that were not made by Bide
	news       chan struct{}
	// fate, if set, decides what becomes of a transaction: whether it is applied, and what is reported.
	fate func(plans []*Plan) (apply bool, report Result)
}

func newFakeKafka(lanes ...Lane) *fakeKafka {
	k := &fakeKafka{
		records: map[Lane][]Record{}, starts: map[Lane]int64{}, commits: map[Lane]Commit{}, owner: map[Lane]*process{},
		foreign: map[Lane]bool{}, topicID: [16]byte{1}, news: make(chan struct{}),
	}
	for _, l := range lanes {
		k.records[l] = nil
	}
	return k
}

// produce appends a record to a lane and returns its offset.
func (k *fakeKafka) produce(l Lane, key string, headers ...Header) int64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.append(l, Record{TimestampMs: time.Now().UnixMilli(), Key: []byte(key), Headers: headers})
}

func (k *fakeKafka) append(l Lane, r Record) int64 {
	r.Offset = int64(len(k.records[l]))
	k.records[l] = append(k.records[l], r)
	close(k.news)
	k.news = make(chan struct{})
	return r.Offset
}

// held returns how many records the lane's ingress has.
func (k *fakeKafka) held(l Lane) int64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return int64(len(k.records[l])) - k.starts[l]
}

// recreate deletes the topic and makes it again. Kafka drops the group's commits with it, if nobody
// commits meanwhile.
func (k *fakeKafka) recreate(l Lane, dropCommit bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if dropCommit {
		delete(k.commits, l)
	}
	k.topicID[0]++
	k.records[l], k.starts[l] = nil, 0
}

// reset sets the lane's committed offset as an operator does.
func (k *fakeKafka) reset(l Lane, to int64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.commits[l], k.foreign[l] = Commit{Next: to}, true
}

// expire deletes what is older than the retention.
func (k *fakeKafka) expire(retention time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for l, records := range k.records {
		for k.starts[l] < int64(len(records)) && time.Since(time.UnixMilli(records[k.starts[l]].TimestampMs)) > retention {
			k.starts[l]++
		}
	}
}

func dueAt(t time.Time) Header {
	return Header{Key: "due", Value: strconv.AppendInt(nil, t.UnixMilli(), 10)}
}

func (k *fakeKafka) deliveries() []delivery {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.seen)
}

func (k *fakeKafka) commit(l Lane) Commit {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.commits[l]
}

var errKilled = errors.New("killed")

// process is one process's view of Kafka: a [Cluster] that can be killed.
type process struct {
	k        *fakeKafka
	alive    context.Context
	kill     context.CancelFunc
	member   Membership
	mu       sync.Mutex
	reading  map[Lane]*fakeReader
	moved    chan struct{}
	assigned chan []Lane
}

type fakeReader struct {
	next   int64
	epoch  uint64
	paused bool
	// topicID is that of the topic that is read.
	topicID [16]byte
}

var _ Cluster = (*process)(nil)

func (k *fakeKafka) process() *process {
	p := &process{k: k, reading: map[Lane]*fakeReader{}, moved: make(chan struct{}, 1), assigned: make(chan []Lane, 1)}
	p.alive, p.kill = context.WithCancel(context.Background())
	return p
}

// Join gives the process all lanes at once, and fences whoever had them.
func (p *process) Join(ctx context.Context, owner Owner) error {
	p.k.mu.Lock()
	p.k.generation++
	p.member = Membership{Member: "m", Generation: p.k.generation}
	lanes := slices.SortedFunc(maps.Keys(p.k.records), Lane.Compare)
	for _, l := range lanes {
		p.k.owner[l] = p
	}
	p.k.mu.Unlock()
	owner.Assigned(p.member, lanes)
	select {
	case <-ctx.Done():
		return nil
	case <-p.alive.Done():
		return errKilled
	}
}

func (p *process) Facts(_ context.Context, l Lane) (LaneFacts, error) {
	if p.alive.Err() != nil {
		return LaneFacts{}, errKilled
	}
	p.k.mu.Lock()
	defer p.k.mu.Unlock()
	f := LaneFacts{TopicID: p.k.topicID, Lanes: int32(len(p.k.records)), Start: p.k.starts[l], End: int64(len(p.k.records[l]))}
	if f.Start < f.End {
		f.First = time.UnixMilli(p.k.records[l][f.Start].TimestampMs)
	}
	return f, nil
}

func (p *process) Committed(_ context.Context, l Lane) (Commit, bool, error) {
	if p.alive.Err() != nil {
		return Commit{}, false, errKilled
	}
	p.k.mu.Lock()
	defer p.k.mu.Unlock()
	c, ok := p.k.commits[l]
	if p.k.foreign[l] {
		return c, true, ErrForeignCommit
	}
	return c, ok, nil
}

func (p *process) with(l Lane, change func(r *fakeReader)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r, ok := p.reading[l]
	if !ok {
		r = &fakeReader{}
		p.reading[l] = r
	}
	change(r)
	select {
	case p.moved <- struct{}{}:
	default:
	}
}

func (p *process) Start(l Lane, from int64, epoch uint64) {
	p.k.mu.Lock()
	id := p.k.topicID
	p.k.mu.Unlock()
	p.with(l, func(r *fakeReader) { *r = fakeReader{next: from, epoch: epoch, topicID: id} })
}
func (p *process) Stop(l Lane)   { p.with(l, func(*fakeReader) { delete(p.reading, l) }) }
func (p *process) Pause(l Lane)  { p.with(l, func(r *fakeReader) { r.paused = true }) }
func (p *process) Resume(l Lane) { p.with(l, func(r *fakeReader) { r.paused = false }) }

func (p *process) Poll(ctx context.Context, maxRecords int) ([]Batch, error) {
	for {
		if p.alive.Err() != nil {
			return nil, errKilled
		}
		p.k.mu.Lock()
		news := p.k.news
		p.mu.Lock()
		var out []Batch
		for l, r := range p.reading {
			records := p.k.records[l]
			if r.topicID != p.k.topicID {
				if r.topicID = p.k.topicID; r.next > 0 {
					out = append(out, Batch{Lane: l, Epoch: r.epoch, Err: ErrIngressReplaced})
					r.paused = true
					continue
				}
			}
			if start := p.k.starts[l]; r.next < start {
				out = append(out, Batch{Lane: l, Epoch: r.epoch, OutOfRange: true, Start: start})
				r.next = start
			}
			if r.paused || r.next >= int64(len(records)) {
				continue
			}
			batch := records[r.next:min(int(r.next)+maxRecords, len(records))]
			r.next += int64(len(batch))
			out = append(out, Batch{Lane: l, Epoch: r.epoch, Records: slices.Clone(batch)})
		}
		p.mu.Unlock()
		p.k.mu.Unlock()
		if len(out) > 0 {
			return out, nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-p.alive.Done():
		case <-news:
		case <-p.moved:
		}
	}
}

func (p *process) ReadAt(_ context.Context, l Lane, from int64, maxRecords int) ([]Record, error) {
	p.k.mu.Lock()
	defer p.k.mu.Unlock()
	from = max(from, p.k.starts[l])
	records := p.k.records[l]
	return slices.Clone(records[min(from, int64(len(records))):min(from+int64(maxRecords), int64(len(records)))]), nil
}

func (p *process) Trim(_ context.Context, l Lane, below int64) error {
	p.k.mu.Lock()
	defer p.k.mu.Unlock()
	if p.alive.Err() != nil {
		return errKilled
	}
	if below > p.k.commits[l].Low {
		panic("trimmed above the committed low")
	}
	p.k.starts[l] = max(p.k.starts[l], below)
	return nil
}

func (p *process) Transact(ctx context.Context, m Membership, plans []*Plan) []Result {
	select {
	case <-time.After(2 * time.Millisecond):
	case <-ctx.Done():
	case <-p.alive.Done():
	}
	p.k.mu.Lock()
	defer p.k.mu.Unlock()
	apply, report := true, Result{Outcome: Committed}
	if p.k.fate != nil {
		apply, report = p.k.fate(plans)
	}
	if p.alive.Err() != nil || ctx.Err() != nil {
		apply, report = false, Result{Outcome: Aborted, Err: errKilled}
	}
	for _, plan := range plans {
		if p.k.owner[plan.Lane] != p || m.Generation != p.k.generation {
			apply, report = false, Result{Outcome: Aborted, Err: ErrStaleMembership}
		}
	}
	results := make([]Result, len(plans))
	for i, plan := range plans {
		results[i] = report
		if apply {
			p.k.apply(plan)
		}
	}
	return results
}

// apply makes a plan visible: its records and its commit.
func (k *fakeKafka) apply(plan *Plan) {
	k.commits[plan.Lane] = plan.Commit
	delete(k.foreign, plan.Lane)
	for _, item := range plan.Items {
		if item.Fate.Kind == Requeue {
			r := item.Record
			r.Headers = []Header{dueAt(time.UnixMilli(item.Fate.UntilMs))}
			k.append(plan.Lane, r)
			continue
		}
		if item.Fate.Kind == Leave {
			continue
		}
		if item.Fate.Kind == Carry {
			r := item.Record
			r.TimestampMs = time.Now().UnixMilli()
			r.Headers = []Header{dueAt(time.UnixMilli(item.DueMs)), {Key: "carried", Value: strconv.AppendInt(nil, item.Offset, 10)}}
			k.append(plan.Lane, r)
			continue
		}
		k.seen = append(k.seen, delivery{plan.Lane, item, time.Now()})
	}
}

// fakeLog is the naive twin of a durable log: sorted slices. crash forgets what was not synced.
type fakeLog struct {
	mu     sync.Mutex
	lanes  map[Lane]*fakeLane
	synced map[Lane]fakeLane
	fault  error
	free   uint64
}

type fakeLane struct {
	log   *fakeLog
	state LaneState
	msgs  []Message
}

func newFakeLog() *fakeLog {
	return &fakeLog{lanes: map[Lane]*fakeLane{}, synced: map[Lane]fakeLane{}, free: 1 << 40}
}

func (g *fakeLog) crash() *fakeLog {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.fault = ErrLogClosed
	after := newFakeLog()
	for name, l := range g.synced {
		after.lanes[name] = &fakeLane{log: after, state: l.state, msgs: slices.Clone(l.msgs)}
	}
	return after
}

func (g *fakeLog) Lane(name Lane) (LaneLog, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	l, ok := g.lanes[name]
	if !ok {
		l = &fakeLane{log: g}
		g.lanes[name] = l
	}
	return l, g.fault
}

func (g *fakeLog) Append(_ context.Context, entries []Append, d Durability) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.fault != nil {
		return g.fault
	}
	for _, e := range entries {
		l := e.Lane.(*fakeLane)
		for _, m := range e.Messages {
			i, found := slices.BinarySearchFunc(l.msgs, m.Position(), func(a Message, p Position) int { return a.Position().Compare(p) })
			if !found {
				l.msgs = slices.Insert(l.msgs, i, m)
			} else if l.msgs[i].At < m.At {
				l.msgs[i] = m
			}
		}
		l.state.Checkpoint = max(l.state.Checkpoint, e.Checkpoint)
	}
	if d == Durable {
		for name, l := range g.lanes {
			g.synced[name] = fakeLane{state: l.state, msgs: slices.Clone(l.msgs)}
		}
	}
	return nil
}
func (g *fakeLog) FreeBytes() (uint64, error) { return g.free, nil }
func (g *fakeLog) Close() error               { return nil }

func (l *fakeLane) State() LaneState { l.log.mu.Lock(); defer l.log.mu.Unlock(); return l.state }
func (l *fakeLane) Waiting() int64 {
	l.log.mu.Lock()
	defer l.log.mu.Unlock()
	return int64(len(l.msgs))
}

func (l *fakeLane) Scan(after, upTo Position, b Budget) (out []Message, more bool, err error) {
	l.log.mu.Lock()
	defer l.log.mu.Unlock()
	for _, m := range l.msgs {
		if m.Position().AtOrBelow(after) || !m.Position().AtOrBelow(upTo) {
			continue
		}
		if len(out) >= b.Messages {
			return out, true, l.log.fault
		}
		out = append(out, m)
	}
	return out, false, l.log.fault
}

func (l *fakeLane) Next(after Position) (Position, bool, error) {
	msgs, _, err := l.Scan(after, LastPosition(1<<62), Budget{Messages: 1})
	if err != nil || len(msgs) == 0 {
		return Position{}, false, err
	}
	return msgs[0].Position(), true, nil
}

func (l *fakeLane) Dues(fromMs, toMs int64, visit func(int64) bool) error {
	msgs, _, err := l.Scan(LastPosition(fromMs-1), LastPosition(toMs), Budget{Messages: 1 << 30})
	last := int64(-1)
	for _, m := range msgs {
		if m.DueMs != last && !visit(m.DueMs) {
			break
		}
		last = m.DueMs
	}
	return err
}

func (l *fakeLane) Where(p Position) (int64, bool, error) {
	l.log.mu.Lock()
	defer l.log.mu.Unlock()
	i, ok := slices.BinarySearchFunc(l.msgs, p, func(a Message, p Position) int { return a.Position().Compare(p) })
	if !ok {
		return 0, false, l.log.fault
	}
	return l.msgs[i].At, true, l.log.fault
}

func (l *fakeLane) Low(next int64, leaving []Message) (int64, error) {
	l.log.mu.Lock()
	defer l.log.mu.Unlock()
	for _, m := range l.msgs {
		if !slices.ContainsFunc(leaving, func(x Message) bool { return x.Position() == m.Position() }) {
			next = min(next, m.At)
		}
	}
	return next, l.log.fault
}

func (l *fakeLane) Settle(c Commit, _ []Message) error {
	l.log.mu.Lock()
	l.state.Confirmed, l.state.Known, l.state.From = c, true, c.Next
	l.log.mu.Unlock()
	return l.Forget(c.Cursor)
}

func (l *fakeLane) Forget(cursor Position) error {
	l.log.mu.Lock()
	defer l.log.mu.Unlock()
	l.msgs = slices.DeleteFunc(l.msgs, func(m Message) bool { return m.Position().AtOrBelow(cursor) })
	return l.log.fault
}

func (l *fakeLane) Reset(c Commit) error {
	l.log.mu.Lock()
	defer l.log.mu.Unlock()
	l.msgs = nil
	l.state = LaneState{From: c.Low, Checkpoint: c.Low, Confirmed: Commit{TopicID: c.TopicID}}
	return l.log.fault
}
