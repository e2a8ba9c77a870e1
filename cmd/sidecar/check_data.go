package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/bide-mq/bide/cmd/sidecar/internal/config"
	"github.com/bide-mq/bide/kafka"
	"github.com/bide-mq/bide/pebblelog"
)

// dataCheck looks at the data directory as run would find it.
type dataCheck struct {
	conf   *config.Config
	checks []kafka.Check
}

func (d *dataCheck) add(level kafka.CheckLevel, format string, args ...any) {
	d.checks = append(d.checks, kafka.Check{Level: level, Area: "data", Subject: d.conf.DataDir, Text: fmt.Sprintf(format, args...)})
}

// checkDataDir returns the instance id that run would use, empty where it would make one, and what was
// found. All that it writes is an empty file, which it removes.
func checkDataDir(conf *config.Config) (instance string, checks []kafka.Check) {
	d := &dataCheck{conf: conf}
	instance = conf.InstanceID
	dir := conf.DataDir
	info, err := os.Stat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		dir = d.futureDir()
	case err != nil:
		d.add(kafka.CheckError, "cannot be looked at: %v", err)
		return instance, d.checks
	case !info.IsDir():
		d.add(kafka.CheckError, "is no directory; name another one (data-dir), or move the file away")
		return instance, d.checks
	default:
		kept := d.inspect(dir)
		if instance == "" {
			instance = kept
		}
	}
	d.writable(dir)
	d.space(dir)
	return instance, d.checks
}

// futureDir returns the nearest directory above that is there.
func (d *dataCheck) futureDir() string {
	dir, err := filepath.Abs(d.conf.DataDir)
	for err == nil {
		parent := filepath.Dir(dir)
		if _, e := os.Stat(parent); e == nil || parent == dir {
			dir = parent
			break
		}
		dir = parent
	}
	d.add(kafka.CheckOK, "is not there yet; run makes it in %s. What waits in a group that has run before is read from the ingress again", dir)
	return dir
}

// inspect looks at what an earlier run left.
func (d *dataCheck) inspect(dir string) (instance string) {
	text, err := os.ReadFile(filepath.Join(dir, groupFile))
	switch kept := strings.TrimSpace(string(text)); {
	case err == nil && kept != d.conf.Group:
		d.add(kafka.CheckError, "belongs to group %q, and group is %q: give each group a data-dir of its own, or delete the directory if what waits in it is not needed", kept, d.conf.Group)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		d.add(kafka.CheckError, "%v", err)
	}
	text, err = os.ReadFile(filepath.Join(dir, instanceFile))
	switch instance = strings.TrimSpace(string(text)); {
	case err == nil && !instanceID.MatchString(instance):
		d.add(kafka.CheckError, "instance id in %s is damaged; write the old one there, or delete the file to have a new one made", filepath.Join(dir, instanceFile))
		instance = ""
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		d.add(kafka.CheckError, "%v", err)
	}
	pid, err := pebblelog.Holder(filepath.Join(dir, "log"))
	switch {
	case err != nil:
		d.add(kafka.CheckError, "%v", err)
	case pid > 0:
		d.add(kafka.CheckNote, "is in use by process %d. Fine if that is the sidecar in question; a second one needs a data-dir of its own", pid)
	}
	return instance
}

func (d *dataCheck) writable(dir string) {
	f, err := os.CreateTemp(dir, ".bide-check-*")
	if err == nil {
		err = errors.Join(f.Sync(), f.Close(), os.Remove(f.Name()))
	}
	if err != nil {
		d.add(kafka.CheckError, "cannot be written (%v): have it on a disk that this user can write, or name another one (data-dir)", err)
		return
	}
	d.add(kafka.CheckOK, "can be written")
}

func (d *dataCheck) space(dir string) {
	free, err := pebblelog.FreeBytes(dir)
	if err != nil {
		d.add(kafka.CheckError, "%v", err)
		return
	}
	reserve := uint64(d.conf.DataReserve)
	have := config.Bytes(min(free, 1<<62))
	switch {
	case free < reserve:
		d.add(kafka.CheckError, "%s free, less than data-reserve (%s): nothing would be accepted, only delivered; free some space, or lower data-reserve", roughly(have), d.conf.DataReserve)
	case free < 2*reserve:
		d.add(kafka.CheckWarning, "%s free, less than twice data-reserve (%s): below that nothing is accepted; free some space", roughly(have), d.conf.DataReserve)
	default:
		d.add(kafka.CheckOK, "%s free, data-reserve is %s", roughly(have), d.conf.DataReserve)
	}
}

// roughly rounds a size down to whole units.
func roughly(n config.Bytes) config.Bytes {
	for _, unit := range []config.Bytes{1 << 30, 1 << 20, 1 << 10} {
		if n >= 10*unit {
			return n / unit * unit
		}
	}
	return n
}
