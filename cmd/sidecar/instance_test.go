package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestInstanceIDIsMadeOnceAndKept(t *testing.T) {
	dir := t.TempDir()
	first, err := keptInstance(dir)
	if err != nil {
		t.Fatal(err)
	}
	again, err := keptInstance(dir)
	if err != nil || again != first {
		t.Errorf("second call: %q, %v, want %q", again, err, first)
	}
	other, err := keptInstance(t.TempDir())
	if err != nil || other == first {
		t.Errorf("another directory: %q, %v, want another id", other, err)
	}
	if !instanceID.MatchString(first) {
		t.Errorf("%q is no instance id", first)
	}
	if files, _ := filepath.Glob(filepath.Join(dir, "*")); len(files) != 1 {
		t.Errorf("files left: %v", files)
	}
}

func TestDamagedInstanceIDIsAnErrorThatNamesTheFile(t *testing.T) {
	for _, text := range []string{"", "a b", "\x00\x00"} {
		dir := t.TempDir()
		path := filepath.Join(dir, instanceFile)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if id, err := keptInstance(dir); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%q: id %q, %v, want an error that names %s", text, id, err, path)
		}
	}
}

func TestADataDirectoryBelongsToOneGroup(t *testing.T) {
	dir := t.TempDir()
	for range 2 {
		if err := bindGroup(dir, "bide"); err != nil {
			t.Fatal(err)
		}
	}
	err := bindGroup(dir, "other")
	if err == nil {
		t.Fatal("another group took the directory")
	}
	for _, want := range []string{dir, "bide", "other", "data-dir"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not name %s", err, want)
		}
	}
}
