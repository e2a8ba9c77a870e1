//go:build !synctests

package sim

import (
	"flag"
	"os"
	"os/exec"
	"strings"
	"testing"
)

func init() {
	// The simulation's own flags, passed on to it.
	for name, usage := range map[string]string{
		"sim.runs": "", "sim.seed": "", "sim.repeat": "", "sim.only": "",
	} {
		flag.String(name, "", usage)
	}
	flag.Bool("sim.log", false, "")
}

// TestSimulation builds and runs the simulation with the tag synctests: with it the Kafka client's locks are of
// a kind with which virtual time goes on while somebody waits for them.
func TestSimulation(t *testing.T) {
	args := []string{"test", "-tags=synctests", "-count=1", "-timeout=0", "-run=^TestSimulation$"}
	if testing.Verbose() {
		args = append(args, "-v")
	}
	args = append(args, ".", "-args")
	flag.Visit(func(f *flag.Flag) {
		if strings.HasPrefix(f.Name, "sim.") {
			args = append(args, "-"+f.Name+"="+f.Value.String())
		}
	})
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
}
