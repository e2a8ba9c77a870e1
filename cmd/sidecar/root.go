package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/bide-mq/bide/cmd/sidecar/internal/config"
)

const (
	exitClean = 0
	exitFault = 1
	exitUsage = 2
)

// program is what every command is given of the process around it.
type program struct {
	environ        []string
	stdout, stderr io.Writer
}

// failure is an error of a command that did run, as opposed to one of its command line.
type failure struct{ error }

func (f failure) Unwrap() error { return f.error }

// run is the whole program but for the process around it: it returns the exit code, and ends soon
// after ctx does.
func run(ctx context.Context, args, environ []string, stdout, stderr io.Writer) int {
	root := newRoot(&program{environ: environ, stdout: stdout, stderr: stderr})
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	called, err := root.ExecuteContextC(ctx)
	var faults *config.FaultError
	switch {
	case err == nil:
		return exitClean
	case errors.As(err, &faults):
		fmt.Fprintf(stderr, "sidecar: %v\n", faults)
		return exitUsage
	case errors.As(err, new(failure)):
		// The rest of the text, the stack of a panic say, is in the log.
		first, _, _ := strings.Cut(err.Error(), "\n")
		fmt.Fprintf(stderr, "sidecar: %s\n", first)
		return exitFault
	default:
		fmt.Fprintf(stderr, "sidecar: %v\nRun '%s --help' for usage.\n", err, called.CommandPath())
		return exitUsage
	}
}

func newRoot(p *program) *cobra.Command {
	root := &cobra.Command{
		Use:           "sidecar",
		Short:         "Delayed messages for Apache Kafka",
		Version:       thisBuild().version,
		Args:          knownCommand,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetVersionTemplate("bide {{.Version}}\n")
	root.SetFlagErrorFunc(explainFlag)
	root.CompletionOptions.HiddenDefaultCmd = true
	root.AddCommand(newRunCommand(p), newCheckCommand(p), newDevCommand(p), newDemoCommand(p), newConfigCommand(p), newVersionCommand(p))
	return root
}

// knownCommand refuses what is the name of no command.
func knownCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	cmd.SuggestionsMinimumDistance = 2
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		return fmt.Errorf("unknown command %q; did you mean %s?", args[0], near[0])
	}
	return fmt.Errorf("unknown command %q", args[0])
}

// explainFlag says which flag may have been meant by one that there is not.
func explainFlag(cmd *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	if !errors.As(err, &unknown) || len(unknown.GetSpecifiedName()) < 2 {
		return err
	}
	var known []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) { known = append(known, f.Name) })
	return errors.New(config.UnknownFlag(unknown.GetSpecifiedName(), known))
}

// fails marks the errors of a command as its own.
func fails(do func(cmd *cobra.Command) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, _ []string) error {
		if err := do(cmd); err != nil {
			return failure{err}
		}
		return nil
	}
}
