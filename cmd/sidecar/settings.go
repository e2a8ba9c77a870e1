package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/bide-mq/bide/cmd/sidecar/internal/config"
)

func newConfigCommand(p *program) *cobra.Command {
	var markdown bool
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Print all settings",
		Long: `Print all settings. Each has one name: the key in the file, --key as a flag, and in upper case with
_ for . and - and BIDE_ before it, the environment variable. Flags win over variables, variables over
the file.`,
		Args: cobra.NoArgs,
		RunE: fails(func(*cobra.Command) error {
			if markdown {
				return writeMarkdown(p.stdout)
			}
			return writeTable(p.stdout)
		}),
	}
	cmd.Flags().BoolVar(&markdown, "markdown", false, "as the tables of the documentation")
	return cmd
}

func writeTable(w io.Writer) error {
	tab := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tab, "KEY\tDEFAULT\tVARIABLE\tMEANING")
	for _, s := range config.Settings() {
		fmt.Fprintf(tab, "%s\t%s\t%s\t%s\n", s.Key, s.Default(), s.Env(), meaning(s))
	}
	fmt.Fprintln(tab, "\nOF EACH INGRESS")
	for _, s := range config.IngressSettings() {
		fmt.Fprintf(tab, "ingress[].%s\t\t\t%s\n", s.Key, meaning(s))
	}
	return tab.Flush()
}

// writeMarkdown writes the tables that the documentation has, which a test compares.
func writeMarkdown(w io.Writer) error {
	var b strings.Builder
	b.WriteString("| key, and flag `--key` | variable | default | meaning |\n|---|---|---|---|\n")
	for _, s := range config.Settings() {
		key := "`" + s.Key + "`"
		if s.Secret {
			key += " (no flag)"
		}
		fmt.Fprintf(&b, "| %s | `%s` | %s | %s |\n", key, s.Env(), code(s.Default()), escape(meaning(s)))
	}
	b.WriteString("\n| of each `ingress` | meaning |\n|---|---|\n")
	for _, s := range config.IngressSettings() {
		fmt.Fprintf(&b, "| `%s` | %s |\n", s.Key, escape(meaning(s)))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func meaning(s config.Setting) string {
	if s.Choices == nil {
		return s.Doc
	}
	return s.Doc + " (one of " + strings.Join(s.Choices, ", ") + ")"
}

func code(s string) string {
	if s == "" {
		return ""
	}
	return "`" + s + "`"
}

// escape keeps the bars and stars of a text from meaning something in a table.
func escape(s string) string { return strings.NewReplacer("|", `\|`, "*", `\*`).Replace(s) }
