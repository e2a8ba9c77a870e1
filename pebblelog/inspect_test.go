package pebblelog

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestMain is another process that has a log open, when it is asked to.
func TestMain(m *testing.M) {
	if dir := os.Getenv("BIDE_TEST_HOLD"); dir != "" {
		l, err := Open(dir, Options{})
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Println("open")
		_, _ = io.Copy(io.Discard, os.Stdin) // until the test closes it
		if err := l.Close(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func TestHolderNamesTheProcessThatHasTheLogOpen(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "log")
	want := func(pid int) {
		t.Helper()
		if got, err := Holder(dir); got != pid || err != nil {
			t.Errorf("holder %d, %v; want %d", got, err, pid)
		}
	}
	want(0)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "BIDE_TEST_HOLD="+dir)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fscanln(out, new(string)); err != nil {
		t.Fatal(err)
	}
	want(cmd.Process.Pid)
	if err := in.Close(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	want(0)
	if _, err := os.Stat(filepath.Join(dir, "LOCK")); err != nil {
		t.Errorf("the lock's file is gone: %v", err)
	}
}

func TestFreeBytesOfADirectory(t *testing.T) {
	if free, err := FreeBytes(t.TempDir()); err != nil || free == 0 {
		t.Errorf("%d, %v", free, err)
	}
	if _, err := FreeBytes(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("a directory that is not there has free space")
	}
}
