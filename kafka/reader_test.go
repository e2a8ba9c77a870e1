package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/bide-mq/bide"
)

// poll returns the next batch of the lane, with its records as text.
func (b *bed) poll(c *Cluster, lane bide.Lane) (bide.Batch, []string) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), 20*time.Second)
	defer cancel()
	for {
		batches, err := c.Poll(ctx, 100)
		if err != nil {
			b.t.Fatal(err)
		}
		for _, batch := range batches {
			if batch.Lane == lane {
				var values []string
				for _, r := range batch.Records {
					values = append(values, string(r.Value))
				}
				return batch, values
			}
		}
	}
}

// quiet fails the test if anything is polled for a while.
func (b *bed) quiet(c *Cluster, d time.Duration) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), d)
	defer cancel()
	if batches, err := c.Poll(ctx, 100); len(batches) > 0 || !errors.Is(err, context.DeadlineExceeded) {
		b.t.Fatalf("polled %+v, %v", batches, err)
	}
}

func TestLaneIsReadFromItsStartInOrder(t *testing.T) {
	onBrokers(t, func(t *testing.T, b *bed) {
		c := b.cluster("one")
		b.produce(b.lane(0), "a", "b", "c")
		b.produce(b.lane(1), "other")
		c.Start(b.lane(0), 1, 5)
		batch, got := b.poll(c, b.lane(0))
		if !slices.Equal(got, []string{"b", "c"}) || batch.Epoch != 5 || batch.Records[0].Offset != 1 {
			t.Fatalf("polled %q of epoch %d", got, batch.Epoch)
		}
		if batch.Records[0].Key != nil || batch.Records[0].TimestampMs == 0 {
			t.Fatalf("%+v", batch.Records[0])
		}
		b.produce(b.lane(0), "d")
		if _, got := b.poll(c, b.lane(0)); !slices.Equal(got, []string{"d"}) {
			t.Fatalf("polled %q", got)
		}
		b.quiet(c, 700*time.Millisecond)
	})
}

func TestStartAgainGivesNothingOfTheOldEpoch(t *testing.T) {
	onBrokers(t, func(t *testing.T, b *bed) {
		c := b.cluster("one")
		for i := range 50 {
			b.produce(b.lane(0), fmt.Sprint(i))
		}
		for epoch := range uint64(20) {
			from := int64(epoch) * 2
			c.Start(b.lane(0), from, epoch)
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			batches, err := c.Poll(ctx, 3)
			cancel()
			if err != nil {
				t.Fatal(err)
			}
			next := from
			for _, batch := range batches {
				if batch.Epoch != epoch {
					t.Fatalf("epoch %d, want %d", batch.Epoch, epoch)
				}
				for _, r := range batch.Records {
					if r.Offset != next || string(r.Value) != fmt.Sprint(next) {
						t.Fatalf("epoch %d: offset %d (%s), want %d", epoch, r.Offset, r.Value, next)
					}
					next++
				}
			}
		}
		c.Stop(b.lane(0))
		b.quiet(c, 700*time.Millisecond)
	})
}

func TestChangeDuringAPollHoldsForIt(t *testing.T) {
	onBrokers(t, func(t *testing.T, b *bed) {
		c := b.cluster("one")
		b.produce(b.lane(0), "a", "b")
		polled := make(chan []bide.Batch, 1)
		go func() {
			batches, _ := c.Poll(t.Context(), 100)
			polled <- batches
		}()
		c.Start(b.lane(0), 0, 1)
		c.Start(b.lane(0), 1, 2)
		got := <-polled
		if len(got) != 1 || got[0].Epoch != 2 || got[0].Records[0].Offset != 1 {
			t.Fatalf("polled %+v", got)
		}
	})
}

func TestPausedLaneKeepsItsPlace(t *testing.T) {
	onBrokers(t, func(t *testing.T, b *bed) {
		c := b.cluster("one")
		b.produce(b.lane(0), "a")
		c.Start(b.lane(0), 0, 1)
		if _, got := b.poll(c, b.lane(0)); !slices.Equal(got, []string{"a"}) {
			t.Fatalf("polled %q", got)
		}
		c.Pause(b.lane(0))
		b.produce(b.lane(0), "b", "c")
		b.quiet(c, 1200*time.Millisecond)
		c.Resume(b.lane(0))
		batch, got := b.poll(c, b.lane(0))
		if !slices.Equal(got, []string{"b", "c"}) || batch.Epoch != 1 {
			t.Fatalf("polled %q of epoch %d", got, batch.Epoch)
		}
		// A paused lane that is started anew is not paused.
		c.Pause(b.lane(0))
		c.Start(b.lane(0), 2, 2)
		if batch, got := b.poll(c, b.lane(0)); !slices.Equal(got, []string{"c"}) || batch.Epoch != 2 {
			t.Fatalf("polled %q of epoch %d", got, batch.Epoch)
		}
	})
}

func TestReadingBelowTheLogStartTellsAndGoesOnThere(t *testing.T) {
	onBrokers(t, func(t *testing.T, b *bed) {
		c := b.cluster("one")
		b.produce(b.lane(0), "a", "b", "c", "d")
		offsets := kadm.Offsets{}
		offsets.AddOffset(b.ingress, 0, 2, -1)
		if _, err := b.admin.DeleteRecords(t.Context(), offsets); err != nil {
			t.Fatal(err)
		}
		c.Start(b.lane(0), 0, 3)
		batch, _ := b.poll(c, b.lane(0))
		if !batch.OutOfRange || batch.Start != 2 || batch.Epoch != 3 || len(batch.Records) > 0 {
			t.Fatalf("polled %+v", batch)
		}
		if _, got := b.poll(c, b.lane(0)); !slices.Equal(got, []string{"c", "d"}) {
			t.Fatalf("polled %q", got)
		}
	})
}

func TestReadingBeyondTheEndTellsAndStops(t *testing.T) {
	onBrokers(t, func(t *testing.T, b *bed) {
		c := b.cluster("one")
		b.produce(b.lane(0), "a")
		c.Start(b.lane(0), 7, 3)
		batch, _ := b.poll(c, b.lane(0))
		if !errors.Is(batch.Err, ErrTruncated) || len(batch.Records) > 0 {
			t.Fatalf("polled %+v", batch)
		}
		b.produce(b.lane(0), "b", "c", "d", "e", "f", "g", "h", "i")
		b.quiet(c, 1500*time.Millisecond)
		c.Start(b.lane(0), 1, 4)
		if batch, _ := b.poll(c, b.lane(0)); batch.Err != nil || batch.Records[0].Offset != 1 {
			t.Fatalf("polled %+v", batch)
		}
	})
}

func TestRecreatedTopicIsNotReadOn(t *testing.T) {
	onBrokers(t, func(t *testing.T, b *bed) {
		c := b.cluster("one")
		b.produce(b.lane(0), "a")
		if _, err := c.Facts(t.Context(), b.lane(0)); err != nil {
			t.Fatal(err)
		}
		c.Start(b.lane(0), 0, 1)
		b.poll(c, b.lane(0))
		if _, err := b.admin.DeleteTopics(t.Context(), b.ingress); err != nil {
			t.Fatal(err)
		}
		for {
			if r, err := b.admin.CreateTopic(t.Context(), 4, 1, nil, b.ingress); err == nil && r.Err == nil {
				break
			}
			time.Sleep(50 * time.Millisecond)
		}
		b.client.PurgeTopicsFromClient(b.ingress)
		b.produce(b.lane(0), "x", "y")
		for {
			batch, got := b.poll(c, b.lane(0))
			if len(got) > 0 {
				t.Fatalf("polled %q", got)
			}
			if errors.Is(batch.Err, ErrRecreated) {
				break
			}
		}
	})
}

func TestUncommittedRecordsAreNotRead(t *testing.T) {
	onBrokers(t, func(t *testing.T, b *bed) {
		c := b.cluster("one")
		client, err := kgo.NewClient(kgo.SeedBrokers(b.addr), kgo.TransactionalID(b.name+"-producer"), kgo.RecordPartitioner(kgo.ManualPartitioner()))
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		write := func(v string, end kgo.TransactionEndTry) {
			if err := client.BeginTransaction(); err != nil {
				t.Fatal(err)
			}
			if err := client.ProduceSync(t.Context(), &kgo.Record{Topic: b.ingress, Value: []byte(v)}).FirstErr(); err != nil {
				t.Fatal(err)
			}
			if err := client.EndTransaction(t.Context(), end); err != nil {
				t.Fatal(err)
			}
		}
		c.Start(b.lane(0), 0, 1)
		write("aborted", kgo.TryAbort)
		write("committed", kgo.TryCommit)
		// The markers are at offsets 1 and 3; reading passes them too.
		var all []string
		for seen := int64(0); seen < 4; {
			batch, got := b.poll(c, b.lane(0))
			if batch.Seen <= seen {
				t.Fatalf("seen %d after %d", batch.Seen, seen)
			}
			seen = batch.Seen
			all = append(all, got...)
		}
		if !slices.Equal(all, []string{"committed"}) {
			t.Fatalf("polled %q", all)
		}
		records, err := c.ReadAt(t.Context(), b.lane(0), 0, 10)
		if err != nil || len(records) != 1 || records[0].Offset != 2 {
			t.Fatalf("%+v, %v", records, err)
		}
		if records, err := c.ReadAt(t.Context(), b.lane(0), 4, 10); err != nil || len(records) != 0 {
			t.Fatalf("%+v, %v", records, err)
		}
	})
}

func TestTrimmedRecordsAreGone(t *testing.T) {
	onBrokers(t, func(t *testing.T, b *bed) {
		c := b.cluster("one")
		b.produce(b.lane(0), "a", "b", "c", "d")
		if err := c.Trim(t.Context(), b.lane(0), 3); err != nil {
			t.Fatal(err)
		}
		if f, err := c.Facts(t.Context(), b.lane(0)); err != nil || f.Start != 3 || f.End != 4 {
			t.Fatalf("%+v, %v", f, err)
		}
		if _, err := c.ReadAt(t.Context(), b.lane(0), 0, 10); err == nil {
			t.Fatal("no error below the log start")
		}
		for range 3 {
			records, err := c.ReadAt(t.Context(), b.lane(0), 3, 10)
			if err != nil || len(records) != 1 || string(records[0].Value) != "d" {
				t.Fatalf("%+v, %v", records, err)
			}
		}
	})
}
