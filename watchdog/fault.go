//go:build bidefault

package watchdog

import (
	"fmt"
	"os"
	"strings"
	"time"
)

// FaultsBuiltIn says whether this build takes faults from the environment variable BIDE_FAULT, which
// only tests ask for (build tag bidefault): kind:loop@after, separated by commas, where kind is hang
// or panic. The loop fails so at its first Work once that long has passed since the process started.
const FaultsBuiltIn = true

// faultStart is when the process started, near enough.
var faultStart = time.Now()

// hook is the fault that a pulse is to have.
type hook struct {
	kind  string
	after time.Duration
}

// arm reads the fault of p's loop from the environment. What cannot be read panics: it is a test's fault.
func (p *Pulse) arm() {
	for spec := range strings.SplitSeq(os.Getenv("BIDE_FAULT"), ",") {
		if spec == "" {
			continue
		}
		kind, rest, _ := strings.Cut(spec, ":")
		loop, at, _ := strings.Cut(rest, "@")
		after, err := time.ParseDuration(at)
		if err != nil || (kind != "hang" && kind != "panic") {
			panic(fmt.Sprintf("BIDE_FAULT: %q is not kind:loop@after", spec))
		}
		if loop == p.loop {
			p.hook = hook{kind: kind, after: after}
		}
	}
}

func (p *Pulse) fault() {
	if p.hook.kind == "" || time.Since(faultStart) < p.hook.after {
		return
	}
	if p.hook.kind == "panic" {
		panic("fault asked for by BIDE_FAULT")
	}
	select {}
}
