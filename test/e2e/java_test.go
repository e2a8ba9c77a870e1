//go:build unix

package e2e

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bide-mq/bide/test/e2e/kafkatest"
)

// go test ./test/e2e -run TestJavaClientsStandAtBothEnds -v
func TestJavaClientsStandAtBothEnds(t *testing.T) {
	t.Parallel()
	for _, version := range kafkatest.Versions {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, version)
			ts := c.makeTopics(t, topicSpec{lanes: 1, targets: 1})
			c.settings(t, ts).startReady(t)
			began := time.Now()
			err := c.broker.ConsoleProduce(t.Context(), ts.ingress,
				"delay-for:3s,delay-to:"+ts.target+",colour:red,colour:blue\tk1\tthree seconds",
				"delay-for:PT1S,delay-to:"+ts.target+"\tk2\tone second",
				"delay-to:"+ts.target+"\tNULL\tnow, no key",
				"delay-for:2000,delay-to:"+ts.target+"\tk4\tNULL",
			)
			if err != nil {
				t.Fatal(err)
			}
			got, err := c.broker.ConsoleConsume(t.Context(), ts.target, 4)
			if err != nil {
				t.Fatal(err)
			}
			if took := time.Since(began); took < 3*time.Second {
				t.Errorf("all four came after %s, the last is due after 3 s", took)
			}
			var plain []string
			for _, line := range got {
				headers, rest, _ := strings.Cut(line, "\t")
				own := slices.DeleteFunc(strings.Split(headers, ","), func(h string) bool { return strings.HasPrefix(h, "delay-") })
				if len(own) > 0 {
					rest = strings.Join(own, ",") + " " + rest
				}
				plain = append(plain, rest)
			}
			want := []string{"NULL\tnow, no key", "k2\tone second", "k4\tNULL", "colour:red,colour:blue k1\tthree seconds"}
			if !slices.Equal(plain, want) {
				t.Errorf("the console consumer printed %q, want %q; with headers: %q", plain, want, got)
			}
		})
	}
}
