// Package demo sends messages with random delays through Bide and says what became of each of them, as
// a read-committed consumer of the target sees it.
//
//	producer ──► ingress ──► Bide ──► target ──► consumer
//	    │ id, due                          id, time │
//	    └─────────────► ledger ◄────────────────────┘
//
// The ledger knows nothing of Bide: it holds the due of every message that a broker has acknowledged, and
// every arrival. What has not arrived when patience ends is lost.
package demo

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sync/errgroup"
)

// Load is what is sent.
type Load struct {
	Messages int
	// Rate is how many are sent a second; 0 means 500.
	Rate int
	// MaxDelay is the longest delay; each message has a random one up to it.
	MaxDelay time.Duration
	// Patience is how long after the last due, and after the last arrival, missing messages are waited
	// for; 0 means 30 s.
	Patience        time.Duration
	Ingress, Target string
	// DeadLetter is the dead-letter topic: what arrives there tells why a message is lost.
	DeadLetter string
}

const (
	defaultRate     = 500
	defaultPatience = 30 * time.Second
	// ackTimeout bounds how long a broker may take to acknowledge a message.
	ackTimeout = 30 * time.Second
	// drainTimeout bounds the last reading of the target, which is a matter of milliseconds.
	drainTimeout = 15 * time.Second
	// fetchWait is how long a fetch waits on the broker for records. It delays nothing that is there.
	fetchWait = 500 * time.Millisecond
)

// payload is the value of a message. Run tells this run's messages from others.
type payload struct {
	Run   string `json:"run"`
	ID    int    `json:"id"`
	DueMs int64  `json:"due_ms"`
}

// Run is one demonstration. Close it when it is done.
type Run struct {
	load     Load
	name     string
	ledger   *ledger
	producer *kgo.Client
	consumer *kgo.Client
	// read is up to where partitions of the target were read. One goroutine at a time consumes.
	read map[int32]int64
}

// New returns a run whose clients connect with opts. The topics exist already.
func New(load Load, opts []kgo.Opt) (*Run, error) {
	load.Rate = cmp.Or(load.Rate, defaultRate)
	load.Patience = cmp.Or(load.Patience, defaultPatience)
	r := &Run{load: load, name: strconv.FormatUint(rand.Uint64(), 36), ledger: newLedger(load.Messages), read: make(map[int32]int64)}
	var err error
	r.producer, err = kgo.NewClient(append(opts[:len(opts):len(opts)],
		kgo.ProducerLinger(0), kgo.RecordDeliveryTimeout(ackTimeout), kgo.DisableClientMetrics())...)
	if err != nil {
		return nil, err
	}
	topics := []string{load.Target}
	if load.DeadLetter != "" {
		topics = append(topics, load.DeadLetter)
	}
	r.consumer, err = kgo.NewClient(append(opts[:len(opts):len(opts)],
		kgo.ConsumeTopics(topics...), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.FetchMaxWait(fetchWait), kgo.KeepControlRecords(), kgo.DisableClientMetrics())...)
	if err != nil {
		r.producer.Close()
		return nil, err
	}
	return r, nil
}

// Close ends the run's clients.
func (r *Run) Close() {
	r.producer.Close()
	r.consumer.Close()
}

// Progress returns how far the run is.
func (r *Run) Progress() Progress { return r.ledger.progress() }

// Measure sends the load and waits until all of it has arrived or patience has ended. stop then ends
// Bide, so that nothing more can arrive, and the target is read to its end. An error means that the run
// itself failed, and there is nothing to sum up.
func (r *Run) Measure(ctx context.Context, stop func() error) (Summary, error) {
	group, work := errgroup.WithContext(ctx)
	reading, stopReading := context.WithCancel(work)
	defer stopReading()
	group.Go(func() error { return r.consume(reading) })
	group.Go(func() error {
		defer stopReading()
		if err := r.produce(work); err != nil {
			return err
		}
		return r.await(work)
	})
	if err := group.Wait(); err != nil {
		return Summary{}, err
	}
	if err := stop(); err != nil {
		return Summary{}, err
	}
	if err := r.drain(ctx); err != nil {
		return Summary{}, fmt.Errorf("read topic %s to its end: %w", r.load.Target, err)
	}
	return r.ledger.summary()
}

// produce sends the load at its rate and waits for every acknowledgement.
func (r *Run) produce(ctx context.Context) error {
	began := time.Now()
	for id := range r.load.Messages {
		wait := time.Until(began.Add(time.Duration(id) * time.Second / time.Duration(r.load.Rate)))
		if wait > 0 {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(wait):
			}
		}
		due := time.Now().Add(rand.N(r.load.MaxDelay + 1)).UnixMilli()
		value, err := json.Marshal(payload{Run: r.name, ID: id, DueMs: due})
		if err != nil {
			return err
		}
		r.producer.Produce(ctx, &kgo.Record{
			Topic: r.load.Ingress,
			Key:   []byte(strconv.Itoa(id)),
			Value: value,
			Headers: []kgo.RecordHeader{
				{Key: "delay-until", Value: []byte(strconv.FormatInt(due, 10))},
				{Key: "delay-to", Value: []byte(r.load.Target)},
			},
		}, func(_ *kgo.Record, err error) { r.ledger.sent(id, due, err) })
	}
	if err := r.producer.Flush(ctx); err != nil {
		return err
	}
	return r.ledger.refused()
}

// await returns when all messages have arrived, or patience has ended.
func (r *Run) await(ctx context.Context) error {
	for {
		until, complete := r.ledger.waitUntil(r.load.Patience)
		if complete || !time.Now().Before(until) {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-r.ledger.changed:
		case <-time.After(time.Until(until)):
		}
	}
}

// consume notes every arrival until ctx is done.
func (r *Run) consume(ctx context.Context) error {
	for ctx.Err() == nil {
		fetches := r.consumer.PollFetches(ctx)
		r.note(fetches, time.Now())
	}
	return nil
}

// note writes fetched records into the ledger. Errors of fetches are not noted: the client goes on by
// itself, and what it cannot read is missing in the end.
func (r *Run) note(fetches kgo.Fetches, now time.Time) {
	fetches.EachRecord(func(rec *kgo.Record) {
		if rec.Topic == r.load.Target {
			r.read[rec.Partition] = rec.Offset + 1
		}
		if rec.Attrs.IsControl() {
			return
		}
		var p payload
		if err := json.Unmarshal(rec.Value, &p); err != nil || p.Run != r.name {
			r.ledger.stranger(rec.Topic)
			return
		}
		if rec.Topic == r.load.DeadLetter {
			r.ledger.deadLetter(headerOf(rec, "delay-error"))
			return
		}
		r.ledger.arrived(p.ID, p.DueMs, now, rec.Timestamp)
	})
}

// drain reads the target up to the end that it has now, to see what came twice at last. Markers of
// transactions count: they are what the end of a partition is made of.
func (r *Run) drain(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, drainTimeout)
	defer cancel()
	ends, err := kadm.NewClient(r.producer).ListCommittedOffsets(ctx, r.load.Target)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return err
	}
	behind := func() bool {
		for _, end := range ends[r.load.Target] {
			if r.read[end.Partition] < end.Offset {
				return true
			}
		}
		return false
	}
	for behind() {
		fetches := r.consumer.PollFetches(ctx)
		r.note(fetches, time.Now())
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	return nil
}

func headerOf(rec *kgo.Record, key string) string {
	for _, h := range rec.Headers {
		if h.Key == key {
			return string(h.Value)
		}
	}
	return ""
}
