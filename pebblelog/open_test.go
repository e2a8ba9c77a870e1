package pebblelog

import (
	"context"
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/bide-mq/bide"
)

// holdEnv makes the test binary a process that holds the log it names until its input ends.
const holdEnv = "PEBBLELOG_HOLD"

func TestMain(m *testing.M) {
	if dir := os.Getenv(holdEnv); dir != "" {
		hold(dir)
	}
	os.Exit(m.Run())
}

func hold(dir string) {
	_, err := Open(dir, Options{})
	if err != nil {
		os.Stdout.WriteString(err.Error() + "\n")
		os.Exit(1)
	}
	os.Stdout.WriteString("open\n")
	_, _ = os.Stdin.Read(make([]byte, 1))
	os.Exit(0)
}

// wantError checks an error of Open: what it is, and that it says where and what to do.
func wantError(t *testing.T, err, is error, words ...string) {
	t.Helper()
	if !errors.Is(err, is) {
		t.Fatalf("error %v, want one that is %v", err, is)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("error %q does not say %q", err, w)
		}
	}
}

func TestALogInUseIsRefused(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), holdEnv+"="+dir)
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
	line := make([]byte, 5)
	if _, err := out.Read(line); err != nil || string(line) != "open\n" {
		t.Fatalf("the other process says %q, %v", line, err)
	}
	_, err = Open(dir, Options{})
	wantError(t, err, ErrInUse, dir, "stop that process")
	if err := in.Close(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	l := openWith(t, dir, Options{}) // and now it is free, though that process did not close it
	_, err = Open(dir, Options{})
	wantError(t, err, ErrInUse, dir)
	if free, err := l.FreeBytes(); err != nil || free == 0 {
		t.Errorf("free %d, %v", free, err)
	}
}

// withStore lets edit change a closed store.
func withStore(t *testing.T, mem vfs.FS, m *pebble.Merger, edit func(db *pebble.DB) error) {
	t.Helper()
	db, err := pebble.Open("data", &pebble.Options{FS: mem, Merger: m, FormatMajorVersion: storeFormat, Logger: storeLogger{newFault("data", Options{}.withDefaults().Logger)}})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(edit(db), db.Close()); err != nil {
		t.Fatal(err)
	}
}

func TestAStoreOfANewerVersionIsRefused(t *testing.T) {
	mem := vfs.NewMem()
	withStore(t, mem, merger(), func(db *pebble.DB) error {
		return db.Set([]byte{spaceFormat}, binary.AppendUvarint([]byte(formatMagic), formatVersion+1), pebble.Sync)
	})
	_, err := Open("data", Options{FS: mem})
	wantError(t, err, ErrVersion, "data", "version 2", "up to 1", "newer release")
}

func TestAStoreOfANewerPebbleIsRefused(t *testing.T) {
	mem := vfs.NewMem()
	if err := openMem(t, mem).Close(); err != nil {
		t.Fatal(err)
	}
	names, err := mem.List("data")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if strings.HasPrefix(name, "marker.format-version.") {
			if err := mem.Rename("data/"+name, "data/marker.format-version.000999.999"); err != nil {
				t.Fatal(err)
			}
		}
	}
	_, err = Open("data", Options{FS: mem})
	wantError(t, err, ErrVersion, "data", "999", "newer release")
}

func TestAStoreOfSomebodyElseIsRefused(t *testing.T) {
	for name, m := range map[string]*pebble.Merger{"other merger": pebble.DefaultMerger, "other keys": merger()} {
		t.Run(name, func(t *testing.T) {
			mem := vfs.NewMem()
			withStore(t, mem, m, func(db *pebble.DB) error { return db.Set([]byte("theirs"), nil, pebble.Sync) })
			_, err := Open("data", Options{FS: mem})
			wantError(t, err, ErrForeign, "data", "of its own")
		})
	}
}

func TestADirectoryThatCannotBeUsedIsNamed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Open(filepath.Join(file, "data"), Options{})
	wantError(t, err, syscall.ENOTDIR, file, "this user can write")

	denied := errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind.ReadOrWrite() == errorfs.OpIsWrite && op.Kind != errorfs.OpMkdirAll {
			return &fs.PathError{Op: "open", Path: op.Path, Err: syscall.EACCES}
		}
		return nil
	}))
	_, err = Open("data", Options{FS: denied})
	wantError(t, err, fs.ErrPermission, "data", "this user can write")
}

func TestACorruptStoreIsRefused(t *testing.T) {
	for _, kind := range []string{"MANIFEST-", ".sst", ".log"} {
		t.Run(kind, func(t *testing.T) {
			mem := vfs.NewMem()
			l := openMem(t, mem)
			n := openLane(t, l, ordersA)
			appendTo(t, n, bide.Durable, 1, msg(1, 1))
			if err := l.db.Flush(); err != nil {
				t.Fatal(err)
			}
			m := msg(1, 1)
			m.Value = make([]byte, 10_000)
			for i := range int64(20) { // Pebble looks for the end of a write-ahead log in blocks of 32 KiB
				m.Offset = i
				appendTo(t, n, bide.Durable, 1, m)
			}
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
			if damage(t, mem, kind) == 0 {
				t.Fatal("nothing was damaged")
			}
			l, err := Open("data", Options{FS: mem})
			if err == nil {
				err = l.Close()
				t.Fatalf("opened, and closed with %v", err)
			}
			wantError(t, err, bide.ErrLogCorrupt, "data", "rebuilt from the ingress")
		})
	}
}

// damage overwrites the middle of all files of a kind and returns how many there were.
func damage(t *testing.T, mem vfs.FS, kind string) (damaged int) {
	t.Helper()
	names, err := mem.List("data")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if !strings.Contains(name, kind) {
			continue
		}
		f, err := mem.OpenReadWrite("data/"+name, vfs.WriteCategoryUnspecified)
		if err != nil {
			t.Fatal(err)
		}
		info, err := f.Stat()
		if err != nil {
			t.Fatal(err)
		}
		if info.Size() > 90 {
			if _, err := f.WriteAt([]byte(strings.Repeat("\xff", 40)), info.Size()/3); err != nil {
				t.Fatal(err)
			}
			damaged++
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return damaged
}

func TestADamagedLaneSaysSoUntilItIsReset(t *testing.T) {
	for name, key := range map[string][]byte{
		"state": laneKey(nil, spaceState, 1), "mark": laneKey(nil, spaceMark, 1), "count": countKey(nil, 1, 0),
	} {
		t.Run(name, func(t *testing.T) {
			mem := vfs.NewMem()
			l := openMem(t, mem)
			appendTo(t, openLane(t, l, ordersA), bide.Durable, 2, msg(1000, 0), msg(2000, 1))
			appendTo(t, openLane(t, l, ordersB), bide.Durable, 1, msg(1000, 0))
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
			withStore(t, mem, merger(), func(db *pebble.DB) error { return db.Set(key, []byte{99, 99}, pebble.Sync) })
			l = openMem(t, mem)
			n := openLane(t, l, ordersA)
			_, _, err := n.Scan(bide.NoPosition, bide.LastPosition(5000), bide.Budget{Messages: 9, Bytes: 999})
			wantError(t, err, bide.ErrLogCorrupt, "orders/0")
			err = l.Append(context.Background(), []bide.Append{{Lane: n, Messages: []bide.Message{msg(1, 2)}}}, bide.Durable)
			wantError(t, err, bide.ErrLogCorrupt)
			sameMessages(t, all(t, openLane(t, l, ordersB)), []bide.Message{msg(1000, 0)})
			if err := n.Reset(bide.Commit{}); err != nil {
				t.Fatal(err)
			}
			appendTo(t, n, bide.Durable, 2, msg(1000, 0))
			sameMessages(t, all(t, n), []bide.Message{msg(1000, 0)})
			checkCounts(t, n)
		})
	}
}

func TestAMessageThatCannotBeReadIsNamed(t *testing.T) {
	l := openMem(t, vfs.NewMem())
	n := openLane(t, l, ordersA)
	appendTo(t, n, bide.Durable, 2, msg(1000, 0), msg(2000, 1))
	if err := l.db.Set(messageKey(nil, n.number, bide.Position{DueMs: 2000, Offset: 1}), []byte{7}, pebble.Sync); err != nil {
		t.Fatal(err)
	}
	_, _, err := n.Scan(bide.NoPosition, bide.LastPosition(5000), bide.Budget{Messages: 9, Bytes: 9999})
	wantError(t, err, bide.ErrLogCorrupt, "2000/1", "message version 7", "orders/0")
	wantError(t, n.Forget(bide.LastPosition(5000)), bide.ErrLogCorrupt, "2000/1")
}

// TestDiskSpaceComesBack settles everything and waits for Pebble to give back what it took. The wait has an end, but no
// part in the outcome.
func TestDiskSpaceComesBack(t *testing.T) {
	mem := vfs.NewMem()
	l := openWith(t, "data", Options{FS: mem, MemtableBytes: 256 << 10, reclaimAfter: 5 * time.Millisecond, reclaimBytes: 1 << 20})
	n := openLane(t, l, ordersA)
	var msgs []bide.Message
	value := make([]byte, 1000)
	for i := range int64(8000) {
		m := msg(1000+i*7919%8000, i)
		for j := range value {
			value[j] = byte(i * int64(j) >> 3)
		}
		m.Value = append([]byte{}, value...)
		msgs = append(msgs, m)
	}
	for len(msgs) > 0 {
		appendTo(t, n, bide.Durable, 0, msgs[:500]...)
		msgs = msgs[500:]
	}
	full := tableBytes(t, mem)
	cursor := bide.NoPosition
	for {
		members, _, err := n.Scan(cursor, bide.LastPosition(1<<40), bide.Budget{Messages: 700, Bytes: 1 << 30})
		if err != nil {
			t.Fatal(err)
		}
		if len(members) == 0 {
			break
		}
		cursor = members[len(members)-1].Position()
		settle(t, n, bide.Commit{Cursor: cursor}, members...)
	}
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		left := tableBytes(t, mem)
		if left < full/50 {
			t.Logf("%d of %d bytes left", left, full)
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d bytes left", left, full)
		}
	}
}

// tableBytes returns the size of all tables.
func tableBytes(t *testing.T, mem vfs.FS) (n int64) {
	t.Helper()
	names, err := mem.List("data")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if info, err := mem.Stat("data/" + name); err == nil && strings.HasSuffix(name, ".sst") {
			n += info.Size()
		}
	}
	return n
}

func TestMetricsTellWhatTheLogDoes(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	l := openWith(t, "data", Options{FS: vfs.NewMem(), Metrics: NewMetrics(reg)})
	n := openLane(t, l, ordersA)
	appendTo(t, n, bide.Durable, 3, msg(1000, 0), msg(1000, 1), msg(2000, 2))
	settle(t, n, bide.Commit{Cursor: bide.LastPosition(1000)}, msg(1000, 0), msg(1000, 1))
	values := func() map[string]float64 {
		t.Helper()
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]float64{}
		for _, f := range families {
			for _, m := range f.GetMetric() {
				got[f.GetName()] += m.GetGauge().GetValue() + m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
		return got
	}
	got := values()
	for name, want := range map[string]float64{
		"bide_log_append_seconds": 1, "bide_log_appended_messages_total": 3, "bide_log_messages": 1,
		"bide_log_removed_messages_total": 2, "bide_log_background_errors_total": 0,
	} {
		if v, ok := got[name]; !ok || v != want {
			t.Errorf("%s is %v (%t), want %v", name, v, ok, want)
		}
	}
	if got["bide_log_size_bytes"] == 0 || got["bide_log_appended_bytes_total"] == 0 {
		t.Errorf("sizes: %v", got)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if _, ok := values()["bide_log_messages"]; ok {
		t.Error("a closed log has messages")
	}
}

// TestAnIdleLogSleeps lets a century pass in a bubble: a log that looked at the time now and then would not see
// the end of it.
func TestAnIdleLogSleeps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, err := Open("data", Options{FS: vfs.NewMem()})
		if err != nil {
			t.Fatal(err)
		}
		n := openLane(t, l, ordersA)
		appendTo(t, n, bide.Durable, 3, msg(1000, 0), msg(1000, 1), msg(2000, 2))
		settle(t, n, bide.Commit{Cursor: bide.LastPosition(1000)}, msg(1000, 0), msg(1000, 1))
		time.Sleep(100 * 365 * 24 * time.Hour)
		sameMessages(t, all(t, n), []bide.Message{msg(2000, 2)})
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	})
}
