//go:build unix

package kafkatest

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"strings"
)

// ConsoleProduce writes one record a line to topic with Kafka's own console producer (the Java
// client). A line holds the headers, the key and the value, with tabs between:
//
//	delay-for:90s,delay-to:orders<TAB>key<TAB>value
//
// NULL stands for a null key, value or header value, and for no headers.
func (b *Broker) ConsoleProduce(ctx context.Context, topic string, lines ...string) error {
	class, property := "org.apache.kafka.tools.ConsoleProducer", "--reader-property"
	if b.old() {
		class, property = "kafka.tools.ConsoleProducer", "--property"
	}
	_, err := b.tool(ctx, strings.Join(lines, "\n")+"\n", class, "--bootstrap-server", b.Addr(), "--topic", topic,
		property, "parse.headers=true", property, "parse.key=true", property, "null.marker=NULL")
	return err
}

// ConsoleConsume reads n records of topic from its start with Kafka's own console consumer, read
// committed, and returns one line each: headers, key and value with tabs between, NULL for null.
// It gives up when nothing comes for a minute.
func (b *Broker) ConsoleConsume(ctx context.Context, topic string, n int) ([]string, error) {
	property := "--formatter-property"
	if b.old() {
		property = "--property"
	}
	out, err := b.tool(ctx, "", "org.apache.kafka.tools.consumer.ConsoleConsumer",
		"--bootstrap-server", b.Addr(), "--topic", topic, "--from-beginning", "--isolation-level", "read_committed",
		"--max-messages", strconv.Itoa(n), "--timeout-ms", "60000",
		property, "print.headers=true", property, "print.key=true", property, "null.literal=NULL")
	if err != nil {
		return nil, err
	}
	return strings.Split(strings.TrimSuffix(out, "\n"), "\n"), nil
}

// old reports whether the console producer is still the one written in Scala, with options of its own.
func (b *Broker) old() bool { return strings.HasPrefix(b.version, "3.") }

// tool runs one of Kafka's command-line tools and returns what it printed.
func (b *Broker) tool(ctx context.Context, stdin, class string, args ...string) (string, error) {
	cmd := b.java(ctx, append([]string{"-Xmx256m", class}, args...)...)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s: %w\n%s%s", class, err, stdout.String(), stderr.String())
	}
	return stdout.String(), nil
}
