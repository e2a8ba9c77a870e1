package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/bide-mq/bide/cmd/sidecar/internal/config"
	"github.com/bide-mq/bide/kafka"
)

func newCheckCommand(p *program) *cobra.Command {
	var asJSON, writes bool
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Name all that would keep 'run' from working, with what mends it",
		Long: `Look at the cluster and at this machine with the configuration of 'run', and name every problem at once: rights,
settings of topics, transactions that keep the ingress from being read, the group and its commits, clocks, the
data directory. Nothing is changed. It can be run beside a sidecar that runs.

Each line begins with ok, note, warning or error. The exit code is 0 without errors, 1 with errors, and 2 where the
configuration is wrong.`,
		Args: cobra.NoArgs,
	}
	config.AddFlags(cmd.Flags(), config.Default())
	cmd.Flags().BoolVar(&asJSON, "json", false, "write JSON")
	cmd.Flags().BoolVar(&writes, "write", false, "also write a record to the dead-letter topic in a transaction, and abort it")
	cmd.RunE = fails(func(cmd *cobra.Command) error {
		conf, err := config.Load(config.Default(), cmd.Flags(), p.environ)
		if err != nil {
			return err
		}
		instance, checks := checkDataDir(&conf)
		o := preflightOptions(&conf, instance)
		o.Write = writes
		checks = append(kafka.Preflight(cmd.Context(), o), checks...)
		write := writeChecks
		if asJSON {
			write = writeChecksJSON
		}
		if err := write(p.stdout, checks); err != nil {
			return err
		}
		if n := countChecks(checks)[kafka.CheckError]; n > 0 {
			return fmt.Errorf("check: %s", plural(n, "error"))
		}
		return nil
	})
	return cmd
}

// preflightOptions returns what the configuration says about the cluster.
func preflightOptions(conf *config.Config, instance string) kafka.PreflightOptions {
	keeper := topicKeeper{conf: conf}
	o := kafka.PreflightOptions{
		Connection: conf.Connection, Group: conf.Group, Instance: instance, GroupProtocol: kafka.GroupProtocol(conf.GroupProtocol),
		Topics: keeper.options(), Targets: slices.Clone(conf.Allow), AnyTarget: len(conf.Allow) == 0,
	}
	if conf.Delivery == config.AtLeastOnce {
		o.Mode = kafka.AtLeastOnce
	}
	for _, in := range conf.Ingress {
		if in.Trim {
			o.Trimmed = append(o.Trimmed, in.Topic)
		}
		if in.Target != "" && !slices.Contains(o.Targets, in.Target) {
			o.Targets = append(o.Targets, in.Target)
		}
	}
	return o
}

func countChecks(checks []kafka.Check) map[kafka.CheckLevel]int {
	n := make(map[kafka.CheckLevel]int)
	for _, c := range checks {
		n[c.Level]++
	}
	return n
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func writeChecksJSON(w io.Writer, checks []kafka.Check) error {
	n := countChecks(checks)
	out := json.NewEncoder(w)
	out.SetEscapeHTML(false)
	out.SetIndent("", "  ")
	return out.Encode(struct {
		Errors   int           `json:"errors"`
		Warnings int           `json:"warnings"`
		Checks   []kafka.Check `json:"checks"`
	}{n[kafka.CheckError], n[kafka.CheckWarning], checks})
}

// writeChecks writes one line a check, with what mends it below.
func writeChecks(w io.Writer, checks []kafka.Check) error {
	// By area, in the order in which they were looked at, so that a topic's rights stand together.
	var areas []string
	for _, c := range checks {
		if !slices.Contains(areas, c.Area) {
			areas = append(areas, c.Area)
		}
	}
	slices.SortStableFunc(checks, func(a, b kafka.Check) int {
		return cmp.Compare(slices.Index(areas, a.Area), slices.Index(areas, b.Area))
	})
	var b strings.Builder
	n := countChecks(checks)
	for _, c := range checks {
		fmt.Fprintf(&b, "%-8s %s %s: %s\n", c.Level, c.Area, c.Subject, c.Text)
		for i, fix := range c.Fix {
			word := "run:"
			if i > 0 {
				word = "or: "
			}
			fmt.Fprintf(&b, "         %s %s\n", word, fix)
		}
	}
	fmt.Fprintf(&b, "\n%s, %s\n", plural(n[kafka.CheckError], "error"), plural(n[kafka.CheckWarning], "warning"))
	_, err := io.WriteString(w, b.String())
	return err
}
