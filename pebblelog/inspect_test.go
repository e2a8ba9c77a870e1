package pebblelog

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

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
	cmd.Env = append(os.Environ(), holdEnv+"="+dir)
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
	want(0) // it ended without closing the log
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
