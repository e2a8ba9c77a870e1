//go:build unix

package e2e

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/bide-mq/bide/test/e2e/kafkatest"
)

var (
	long   = flag.Bool("e2e.long", false, "run what takes minutes too, at its full size")
	rounds = flag.Int("e2e.rounds", 50, "kills in the crash tests, with -e2e.long")
	given  = flag.String("e2e.binary", "", "test this binary (built with -tags bidefault) instead of building one")
	seed   = flag.Uint64("e2e.seed", 0, "seed of everything random; 0 draws one")
)

// parallelTests is how many tests run at once: they wait for dues most of the time, so more than there
// are cores.
const parallelTests = "4"

// scratch is a directory for the binary and the shared brokers, gone after the run.
var scratch string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	flag.Parse()
	if *seed == 0 {
		*seed = rand.Uint64()
	}
	fmt.Printf("-e2e.seed=%d\n", *seed)
	if err := flag.Set("test.parallel", parallelTests); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	dir, err := os.MkdirTemp("", "bide-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	scratch = dir
	defer stopShared()
	return m.Run()
}

// sidecarBinary is the path of the program under test, built once a run with the fault hooks in it
// (BIDE_FAULT); in a long run else as a release is, without cgo. A short run shares what go test has
// compiled already.
var sidecarBinary = sync.OnceValues(func() (string, error) {
	if *given != "" {
		return filepath.Abs(*given)
	}
	path := filepath.Join(scratch, "sidecar")
	build := exec.Command("go", "build", "-tags", "bidefault", "-ldflags", "-s -w", "-o", path, "./cmd/sidecar")
	build.Dir = filepath.Join("..", "..")
	if *long {
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
	}
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build ./cmd/sidecar: %w\n%s", err, out)
	}
	return path, nil
})

// shared are the brokers that tests have in common, by version.
var shared struct {
	sync.Mutex
	brokers map[string]*kafkatest.Broker
}

func sharedBroker(version string) (*kafkatest.Broker, error) {
	shared.Lock()
	defer shared.Unlock()
	if b := shared.brokers[version]; b != nil {
		return b, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute) // with a download
	defer cancel()
	b, err := kafkatest.Start(ctx, version, filepath.Join(scratch, "kafka-"+version), bigRecords)
	if err != nil {
		return nil, err
	}
	if shared.brokers == nil {
		shared.brokers = map[string]*kafkatest.Broker{}
	}
	shared.brokers[version] = b
	return b, nil
}

// bigRecords lets the broker fetch and replicate the largest records that a test sends.
const bigRecords = "replica.fetch.max.bytes=8388608"

func stopShared() {
	shared.Lock()
	defer shared.Unlock()
	var errs []error
	for _, b := range shared.brokers {
		errs = append(errs, b.Stop(syscall.SIGKILL)) // nobody needs its data any more
	}
	if err := errors.Join(errs...); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}

// rng returns a source of random numbers that depends on the run's seed and the test's name.
func rng(t testing.TB) *rand.Rand {
	sum := uint64(14695981039346656037) // FNV-1a, so that tests draw different numbers
	for _, c := range []byte(t.Name()) {
		sum = (sum ^ uint64(c)) * 1099511628211
	}
	return rand.New(rand.NewPCG(*seed, sum))
}

// scale returns full in a long run and quick otherwise.
func scale[T any](quick, full T) T {
	if *long {
		return full
	}
	return quick
}

func needLong(t testing.TB) {
	t.Helper()
	if !*long {
		t.Skip("takes minutes: run with -e2e.long")
	}
}
