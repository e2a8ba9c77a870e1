package main

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
)

// build says what the binary was made of.
type build struct{ version, commit, goVersion string }

func thisBuild() build {
	b := build{version: "devel", commit: "unknown", goVersion: runtime.Version()}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	if v := info.Main.Version; v != "(devel)" {
		b.version = cmp.Or(v, b.version)
	}
	changed := ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			b.commit = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			changed = " with changes"
		}
	}
	b.commit += changed
	return b
}

// register adds bide_build_info, always 1.
func (b build) register(reg prometheus.Registerer) {
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "bide_build_info", Help: "What the binary was made of; always 1.",
		ConstLabels: prometheus.Labels{"version": b.version, "commit": b.commit, "go": b.goVersion},
	})
	info.Set(1)
	reg.MustRegister(info)
}

func newVersionCommand(p *program) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print version, commit and Go version",
		Args:  cobra.NoArgs,
		RunE: fails(func(*cobra.Command) error {
			b := thisBuild()
			_, err := fmt.Fprintf(p.stdout, "bide %s\ncommit %s\n%s %s/%s\n", b.version, b.commit, b.goVersion, runtime.GOOS, runtime.GOARCH)
			return err
		}),
	}
}
