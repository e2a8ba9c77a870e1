//go:build unix

package kafkatest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
)

// Join starts a second broker, node 2, in the cluster of b, with its data in dir. Internal topics that
// exist already stay on b alone; other topics may land on either. Stop it before b.
func (b *Broker) Join(ctx context.Context, dir string) (*Broker, error) {
	port, err := FreePort()
	if err != nil {
		return nil, err
	}
	meta, err := os.ReadFile(b.path("data/meta.properties"))
	if err != nil {
		return nil, err
	}
	_, rest, _ := strings.Cut(string(meta), "cluster.id=")
	cluster, _, _ := strings.Cut(rest, "\n")
	first, err := os.ReadFile(b.path("server.properties"))
	if err := errors.Join(err, os.MkdirAll(dir, 0o755)); err != nil {
		return nil, err
	}
	j := &Broker{version: b.version, jars: b.jars, dir: dir, port: port}
	// Of two lines with one name the later one wins.
	properties := string(first) + strings.Join([]string{
		"process.roles=broker",
		"node.id=2",
		"listeners=PLAINTEXT://" + j.Addr(),
		"advertised.listeners=PLAINTEXT://" + j.Addr(),
		"log.dirs=" + j.path("data"),
	}, "\n") + "\n"
	if err := os.WriteFile(j.path("server.properties"), []byte(properties), 0o644); err != nil {
		return nil, err
	}
	format := j.java(ctx, "-Xmx128m", "kafka.tools.StorageTool", "format", "-t", strings.TrimSpace(cluster), "-c", j.path("server.properties"))
	if out, err := format.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("format the data of a second broker: %w\n%s", err, out)
	}
	return j, j.Restart(ctx)
}
