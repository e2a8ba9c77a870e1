//go:build unix

package kafkatest

import (
	"fmt"
	"os"
	"testing"
)

// Need skips the test, loudly, where [Missing] says that no broker can run here. With CI=true in the
// environment it fails the test instead.
func Need(t testing.TB) {
	t.Helper()
	err := Missing()
	switch {
	case err == nil:
	case os.Getenv("CI") == "true":
		t.Fatalf("no Apache Kafka for this test: %v", err)
	default:
		fmt.Fprintf(os.Stderr, "\n*** SKIPPED: %s ran against no Apache Kafka: %v\n*** apt-get install openjdk-17-jre-headless maven\n\n", t.Name(), err)
		t.Skipf("no Apache Kafka: %v", err)
	}
}
