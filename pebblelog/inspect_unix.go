//go:build darwin || freebsd || linux || netbsd || openbsd

package pebblelog

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// Holder returns the process that has the log in dir open, 0 where none has, or where there is no log. It
// neither takes the lock nor changes anything. The own process has to have no log open there: its lock is not
// seen, and is lost.
func Holder(dir string) (pid int, err error) {
	f, err := os.Open(filepath.Join(dir, "LOCK"))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("look at the lock of %s: %w", dir, err)
	}
	defer func() { _ = f.Close() }() // only read
	lock := syscall.Flock_t{Type: syscall.F_WRLCK, Whence: io.SeekStart}
	if err := syscall.FcntlFlock(f.Fd(), syscall.F_GETLK, &lock); err != nil {
		return 0, fmt.Errorf("look at the lock of %s: %w", dir, err)
	}
	if lock.Type == syscall.F_UNLCK {
		return 0, nil
	}
	return int(lock.Pid), nil
}
