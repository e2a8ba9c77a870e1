package main

import (
	"github.com/KimMachineGun/automemlimit/memlimit"
	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"github.com/bide-mq/bide/cmd/sidecar/internal/config"
)

// goMemory is the part of a container's memory that the Go heap may take: the log's memtables and block
// cache lie outside of it.
const goMemory = 0.75

func newRunCommand(p *program) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Deliver delayed messages of a Kafka cluster",
		Long: `Deliver delayed messages of a Kafka cluster until SIGTERM or SIGINT. Settings come from defaults, a YAML
file (--config), the environment and flags; the later wins. 'sidecar config' prints them all.`,
		Args: cobra.NoArgs,
	}
	config.AddFlags(cmd.Flags(), config.Default())
	cmd.RunE = fails(func(cmd *cobra.Command) error {
		conf, err := config.Load(config.Default(), cmd.Flags(), p.environ)
		if err != nil {
			return err
		}
		log, err := newLogger(conf.Log, p.stderr)
		if err != nil {
			return err
		}
		limit, err := memlimit.Set(memlimit.WithRatio(goMemory))
		if err != nil {
			log.Warn("memory limit of the container is not known", zap.Error(err))
		} else {
			log.Debug("memory limit", zap.Int64("bytes", limit))
		}
		err = newService(conf, log).run(cmd.Context())
		if err != nil {
			log.Error("ended by a fault", zap.Error(err))
		}
		return err
	})
	return cmd
}
