package main

import (
	"flag"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the tables of settings into the documentation")

// docsFile has the tables between these two lines.
const (
	docsFile  = "../../docs/configuration.md"
	docsBegin = "<!-- sidecar config --markdown -->\n"
	docsEnd   = "<!-- end -->\n"
)

// go test ./cmd/sidecar -run TestDocumentationHasEverySetting -update
func TestDocumentationHasEverySetting(t *testing.T) {
	code, tables, stderr := once(t, nil, "config", "--markdown")
	if code != 0 {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	text, err := os.ReadFile(docsFile)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(text), docsBegin)
	written, after, ok2 := strings.Cut(rest, docsEnd)
	if !ok || !ok2 {
		t.Fatalf("%s has no lines %q and %q", docsFile, docsBegin, docsEnd)
	}
	if *update {
		if err := os.WriteFile(docsFile, []byte(before+docsBegin+tables+docsEnd+after), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if written != tables {
		t.Errorf("%s is not what 'sidecar config --markdown' prints; run this test with -update", docsFile)
	}
}
