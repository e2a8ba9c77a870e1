package pebblelog

import (
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// diskFS stands between Pebble and the file system, for three things that Pebble does badly where the disk
// does not take what it is given.
//
//   - Where the write-ahead log, or the directory that holds it, cannot be written, Pebble panics: in part while it has given up a
//     lock that a deferred call then unlocks once more, which no recover survives. The process would end with a
//     stack in place of a message. So the call does not return: like Logger.Fatalf it raises the fault and keeps its
//     goroutine.
//   - A flush that fails is tried again at once, for ever, while appends wait for it in silence: on a full disk that would take a
//     core. So the error is returned only after a while, and after many of them in a row the log fails.
//   - After a fault nothing more is written, so that the disk stays as it was when it happened.
type diskFS struct {
	vfs.FS
	fault *fault
	// retryAfter is how long the error of a table's write is held back.
	retryAfter time.Duration
	// failures counts the errors of tables since one was synced.
	failures atomic.Int32
}

const (
	// defaultRetryAfter is soon enough for a disk that has room again.
	defaultRetryAfter = 500 * time.Millisecond
	// maxFailures ends the log after half a minute: whoever watches it must see more than appends that take their time.
	maxFailures = 60
)

// Create implements [vfs.FS].
func (d *diskFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	d.begin()
	f, err := d.FS.Create(name, c)
	return d.wrap(name, f, err)
}

// ReuseForWrite implements [vfs.FS].
func (d *diskFS) ReuseForWrite(oldname, newname string, c vfs.DiskWriteCategory) (vfs.File, error) {
	d.begin()
	f, err := d.FS.ReuseForWrite(oldname, newname, c)
	return d.wrap(newname, f, err)
}

// OpenDir implements [vfs.FS].
func (d *diskFS) OpenDir(name string) (vfs.File, error) {
	f, err := d.FS.OpenDir(name)
	if err != nil {
		return nil, err
	}
	return diskFile{f, d, name, true}, nil
}

// Remove implements [vfs.FS].
func (d *diskFS) Remove(name string) error {
	d.begin()
	return d.FS.Remove(name)
}

// Rename implements [vfs.FS].
func (d *diskFS) Rename(oldname, newname string) error {
	d.begin()
	return d.FS.Rename(oldname, newname)
}

// Unwrap implements [vfs.FS].
func (d *diskFS) Unwrap() vfs.FS { return d.FS }

func (d *diskFS) wrap(name string, f vfs.File, err error) (vfs.File, error) {
	file := diskFile{f, d, name, strings.HasSuffix(name, ".log")}
	if err != nil {
		return nil, file.result("create", err)
	}
	return file, nil
}

// begin returns where there was no fault, and else never.
func (d *diskFS) begin() {
	if d.fault.raised() != nil {
		select {}
	}
}

// diskFile is a file or a directory that is written.
type diskFile struct {
	vfs.File
	disk *diskFS
	name string
	// vital says that nothing may be lost of it: without it the log fails.
	vital bool
}

// result returns the error of an act, at its time.
func (f diskFile) result(act string, err error) error {
	switch {
	case err == nil:
		return nil
	case f.vital || f.disk.failures.Add(1) >= maxFailures:
		f.disk.fault.stop(act, f.name, err)
	}
	select {
	case <-time.After(f.disk.retryAfter):
	case <-f.disk.fault.done:
	}
	f.disk.begin()
	return err
}

// Write implements [vfs.File].
func (f diskFile) Write(p []byte) (int, error) {
	f.disk.begin()
	n, err := f.File.Write(p)
	return n, f.result("write", err)
}

// Sync implements [vfs.File].
func (f diskFile) Sync() error {
	f.disk.begin()
	return f.synced(f.File.Sync())
}

// SyncData implements [vfs.File].
func (f diskFile) SyncData() error {
	f.disk.begin()
	return f.synced(f.File.SyncData())
}

func (f diskFile) synced(err error) error {
	if err == nil && !f.vital {
		f.disk.failures.Store(0)
	}
	return f.result("sync", err)
}

// SyncTo implements [vfs.File].
func (f diskFile) SyncTo(length int64) (bool, error) {
	f.disk.begin()
	full, err := f.File.SyncTo(length)
	return full, f.result("sync", err)
}

// Close implements [vfs.File].
func (f diskFile) Close() error { return f.result("close", f.File.Close()) }

// stop returns where err is nil, and else never.
func (f *fault) stop(act, name string, err error) {
	if err != nil {
		_ = f.raise(fmt.Errorf("%s %s: %w", act, name, err))
		select {}
	}
}
