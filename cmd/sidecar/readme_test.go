package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/bide-mq/bide/cmd/sidecar/internal/config"
	"github.com/bide-mq/bide/kafka"
)

const root = "../.."

// Tables of the documentation stand between a line that names them and an end. Those that show a choice
// (main …) say with their first column which rows they have; everything else is made from the code.
var tableOf = regexp.MustCompile(`(?ms)^<!-- table: ([a-z ]+) -->\n(.*?)^<!-- end -->$`)

// go test ./cmd/sidecar -run TestDocumentationHasTheTablesOfTheCode -update
func TestDocumentationHasTheTablesOfTheCode(t *testing.T) {
	metrics := servedMetrics(t)
	makers := map[string]func(rows []string) string{
		"control headers":  func([]string) string { return headerRows(kafka.Control) },
		"added headers":    func([]string) string { return headerRows(kafka.Added) },
		"reserved headers": func([]string) string { return headerRows(kafka.Reserved) },
		"reason codes":     func([]string) string { return reasonRows() },
		"main settings":    func(keys []string) string { return settingRows(t, keys) },
		"ingress settings": func([]string) string { return ingressRows() },
		"main metrics":     func(names []string) string { return metricRows(t, metrics, names) },
		"metrics":          func([]string) string { return metricRows(t, metrics, slices.Sorted(maps.Keys(metrics))) },
	}
	found := make(map[string]bool)
	for _, name := range []string{"README.md", "docs/metrics.md"} {
		path := filepath.Join(root, name)
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		made := tableOf.ReplaceAllStringFunc(string(text), func(table string) string {
			parts := tableOf.FindStringSubmatch(table)
			maker := makers[parts[1]]
			if maker == nil {
				t.Fatalf("%s has a table %q, which nothing makes", name, parts[1])
			}
			found[parts[1]] = true
			want := maker(firstCells(parts[2]))
			if !*update && parts[2] != want {
				t.Errorf("%s: table %q is not what the code has; run this test with -update\n%s", name, parts[1], firstDifference(parts[2], want))
			}
			return fmt.Sprintf("<!-- table: %s -->\n%s<!-- end -->", parts[1], want)
		})
		if *update {
			if err := os.WriteFile(path, []byte(made), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	for table := range makers {
		if !found[table] {
			t.Errorf("no document has a table %q", table)
		}
	}
}

// firstCells returns the names in the first column of a table, below its head.
func firstCells(table string) []string {
	var cells []string
	for _, m := range regexp.MustCompile("(?m)^\\| `([^`]+)`").FindAllStringSubmatch(table, -1) {
		cells = append(cells, m[1])
	}
	return cells
}

// firstDifference shows the first line in which two tables differ.
func firstDifference(got, want string) string {
	a, b := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := range max(len(a), len(b)) {
		line := func(lines []string) string {
			if i < len(lines) {
				return lines[i]
			}
			return "(nothing)"
		}
		if line(a) != line(b) {
			return fmt.Sprintf("document: %s\ncode:     %s", line(a), line(b))
		}
	}
	return ""
}

func headerRows(kind kafka.HeaderKind) string {
	b := &strings.Builder{}
	b.WriteString("| header | value | meaning |\n|---|---|---|\n")
	for _, h := range kafka.HeaderTable() {
		if h.Kind == kind {
			fmt.Fprintf(b, "| `%s` | %s | %s |\n", h.Name, escape(h.Value), escape(h.Meaning))
		}
	}
	return b.String()
}

func reasonRows() string {
	b := &strings.Builder{}
	b.WriteString("| `delay-error-code` | meaning |\n|---|---|\n")
	for _, c := range kafka.ReasonCodes() {
		fmt.Fprintf(b, "| `%s` | %s |\n", c.Code, escape(c.Meaning))
	}
	return b.String()
}

func settingRows(t *testing.T, keys []string) string {
	t.Helper()
	b := &strings.Builder{}
	b.WriteString("| key, and flag `--key` | default | meaning |\n|---|---|---|\n")
	all := config.Settings()
	for _, key := range keys {
		i := slices.IndexFunc(all, func(s config.Setting) bool { return s.Key == key })
		if i < 0 {
			t.Errorf("%s is no setting", key)
			continue
		}
		fmt.Fprintf(b, "| `%s` | %s | %s |\n", key, code(all[i].Default()), escape(meaning(all[i])))
	}
	return b.String()
}

func ingressRows() string {
	b := &strings.Builder{}
	b.WriteString("| of each `ingress` | meaning |\n|---|---|\n")
	for _, s := range config.IngressSettings() {
		fmt.Fprintf(b, "| `%s` | %s |\n", s.Key, escape(meaning(s)))
	}
	return b.String()
}

// metric is what the documentation says of one.
type metric struct{ kind, labels, help string }

func metricRows(t *testing.T, all map[string]metric, names []string) string {
	t.Helper()
	b := &strings.Builder{}
	b.WriteString("| name | type | labels | meaning |\n|---|---|---|---|\n")
	for _, name := range names {
		m, ok := all[name]
		if !ok {
			t.Errorf("no metric %s is served", name)
			continue
		}
		fmt.Fprintf(b, "| `%s` | %s | %s | %s |\n", name, m.kind, m.labels, escape(m.help))
	}
	return b.String()
}

// servedMetrics returns the metrics of a sidecar that has delivered a message and rejected one.
func servedMetrics(t *testing.T) map[string]metric {
	t.Helper()
	broker, err := startBroker("", 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(broker.Close)
	conf := config.Default()
	conf.DataDir, conf.HTTPAddr = t.TempDir(), ""
	createOnDemand(broker, []string{conf.Ingress[0].Topic, conf.DeadLetterTopic})
	embedConnection(&conf, broker.ListenAddrs())
	s := newService(conf, zap.NewNop())
	done := make(chan error, 1)
	go func() { done <- s.run(t.Context()) }()
	t.Cleanup(func() {
		if err := <-done; err != nil {
			t.Errorf("the sidecar ended: %v", err)
		}
	})
	if !s.awaitReady(done) {
		t.Fatal("the sidecar ended before it was ready")
	}
	client := connect(t, broker.ListenAddrs()[0], "orders")
	send(t, client, "a message", "0", "orders")
	send(t, client, "one without a delay that can be read", "soon", "orders")
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		metrics := gather(t, s)
		_, delivered := metrics["bide_messages_delivered_total"]
		_, dead := metrics["bide_messages_dead_lettered_total"]
		if delivered && dead {
			return metrics
		}
	}
	t.Fatal("the messages were not delivered and rejected")
	return nil
}

func gather(t *testing.T, s *service) map[string]metric {
	t.Helper()
	families, err := s.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	metrics := make(map[string]metric)
	for _, f := range families {
		if !strings.HasPrefix(f.GetName(), "bide_") {
			continue
		}
		var labels []string
		for _, l := range f.GetMetric()[0].GetLabel() {
			labels = append(labels, "`"+l.GetName()+"`")
		}
		metrics[f.GetName()] = metric{strings.ToLower(f.GetType().String()), strings.Join(labels, ", "), f.GetHelp()}
	}
	return metrics
}

func TestOperationsTellOfMetricsThatThereAre(t *testing.T) {
	guide, err := os.ReadFile(filepath.Join(root, "docs", "operations.md"))
	if err != nil {
		t.Fatal(err)
	}
	table, err := os.ReadFile(filepath.Join(root, "docs", "metrics.md"))
	if err != nil {
		t.Fatal(err)
	}
	names := regexp.MustCompile(`\bbide_[a-z_]+`).FindAllString(string(guide), -1)
	if len(names) == 0 {
		t.Fatal("no metric is named")
	}
	for _, name := range names {
		if !strings.Contains(string(table), "`"+name+"`") {
			t.Errorf("docs/operations.md names %s, which docs/metrics.md does not have", name)
		}
	}
}

var (
	linkTo    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading   = regexp.MustCompile(`(?m)^#+ (.+)$`)
	codeBlock = regexp.MustCompile("(?ms)^```.*?^```$")
	notInSlug = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

func TestLinksOfTheDocumentationLeadSomewhere(t *testing.T) {
	documents, err := filepath.Glob(filepath.Join(root, "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	more, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, document := range append(documents, more...) {
		text := proseOf(t, document)
		for _, m := range linkTo.FindAllStringSubmatch(text, -1) {
			link := m[1]
			if strings.Contains(link, "://") {
				continue
			}
			name, anchor, _ := strings.Cut(link, "#")
			path := document
			if name != "" {
				path = filepath.Join(filepath.Dir(document), filepath.FromSlash(name))
			}
			if _, err := os.Stat(path); err != nil {
				t.Errorf("%s: link %s: %v", document, link, err)
			} else if anchor != "" && !slices.Contains(anchors(proseOf(t, path)), anchor) {
				t.Errorf("%s: link %s: no heading has that anchor", document, link)
			}
		}
	}
}

// proseOf returns a document without its blocks of code.
func proseOf(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return codeBlock.ReplaceAllString(string(text), "")
}

// anchors returns the anchors that a forge makes of the headings.
func anchors(text string) []string {
	var out []string
	for _, m := range heading.FindAllStringSubmatch(text, -1) {
		out = append(out, strings.ReplaceAll(notInSlug.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-"))
	}
	return out
}
