package main

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// connect returns a client of the broker that consumes topic; it creates it, as the tools that the text
// names do.
func connect(t *testing.T, addr, topic string) *kgo.Client {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.AllowAutoTopicCreation(), kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.MetadataMinAge(100*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client
}

func send(t *testing.T, client *kgo.Client, value, delay, target string) {
	t.Helper()
	err := client.ProduceSync(t.Context(), &kgo.Record{
		Topic: "delay-ingress", Value: []byte(value),
		Headers: []kgo.RecordHeader{{Key: "delay-for", Value: []byte(delay)}, {Key: "delay-to", Value: []byte(target)}},
	}).FirstErr()
	if err != nil {
		t.Fatal(err)
	}
}

// receive returns the value of the next record.
func receive(t *testing.T, client *kgo.Client) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for ctx.Err() == nil {
		// A poll can come back with no records: where there were markers of transactions alone.
		for _, rec := range client.PollRecords(ctx, 1).Records() {
			return string(rec.Value)
		}
	}
	t.Fatal("nothing arrived")
	return ""
}

func TestDevDeliversToATopicThatNobodyMadeAndKeepsWhatWaitsAcrossAStop(t *testing.T) {
	dir := t.TempDir()
	args := []string{"dev", "--port", "0", "--data-dir", dir, "--http-addr", "127.0.0.1:0"}
	p := start(t, nil, args...)
	addr := "127.0.0.1:" + p.await(&p.stdout, `broker    localhost:(\d+)`)
	producer := connect(t, addr, "elsewhere")
	send(t, producer, "hello", "50ms", "orders")
	const wait = 3 * time.Second
	began := time.Now()
	send(t, producer, "later", fmt.Sprint(wait), "orders")
	if got := receive(t, connect(t, addr, "orders")); got != "hello" {
		t.Errorf("received %q, want hello", got)
	}
	producer.Close()
	p.stop()
	if code := p.end(); code != 0 {
		t.Fatalf("exit code %d\n%s", code, p.stderr.String())
	}

	p = start(t, nil, args...)
	addr = "127.0.0.1:" + p.await(&p.stdout, `broker    localhost:(\d+)`)
	consumer := connect(t, addr, "orders")
	if got := receive(t, consumer); got != "hello" {
		t.Errorf("received %q, want hello again", got)
	}
	if got := receive(t, consumer); got != "later" {
		t.Errorf("received %q, want later", got)
	}
	if took := time.Since(began); took < wait-time.Millisecond {
		t.Errorf("arrived after %s, due after %s", took, wait)
	}
}
