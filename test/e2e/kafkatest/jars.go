//go:build unix

package kafkatest

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// Versions are the releases that the end-to-end tests run against: the newest one, and the last one
// whose transactions need AddOffsetsToTxn (transaction.version 0).
var Versions = []string{"4.4.0", "3.9.1"}

// minJava is the oldest Java that runs kafka.Kafka 4.
const minJava = 17

//go:embed pom.xml
var pom []byte

// Missing returns an error that names what this machine lacks for a broker: java of 17 or newer, or
// mvn, where the jars of some version are not in the cache. nil says that Start will work.
func Missing() error {
	if err := missingJava(); err != nil {
		return err
	}
	if _, err := exec.LookPath("mvn"); err == nil {
		return nil
	}
	for _, v := range Versions {
		dir, err := jarsDir(v)
		if err != nil {
			return err
		}
		if _, err := os.Stat(dir); err != nil {
			return errors.New("no mvn on the path (Maven 3.6 or newer)")
		}
	}
	return nil
}

func missingJava() error {
	out, err := exec.Command("java", "-version").CombinedOutput()
	if err != nil {
		return fmt.Errorf("no java on the path (%d or newer): %w", minJava, err)
	}
	// The first line reads: openjdk version "17.0.15" 2025-04-15
	_, rest, _ := strings.Cut(string(out), `version "`)
	major, _, _ := strings.Cut(rest, ".")
	major, _, _ = strings.Cut(major, `"`)
	if n, err := strconv.Atoi(major); err != nil || n < minJava {
		return fmt.Errorf("java is %s, %d or newer is needed", major, minJava)
	}
	return nil
}

// Jars returns the directory that holds the broker's and the tools' jars of a version, and downloads
// them first where they are not cached. Processes may call it at the same time: one of them downloads.
func Jars(ctx context.Context, version string) (string, error) {
	dir, err := jarsDir(version)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return "", err
	}
	unlock, err := lockFile(dir + ".lock")
	if err != nil {
		return "", err
	}
	defer unlock()
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	return dir, download(ctx, version, dir)
}

// download fills a directory of its own and renames it, so that a directory with the final name is
// always complete.
func download(ctx context.Context, version, dir string) error {
	part, err := os.MkdirTemp(filepath.Dir(dir), version+".part-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(part)
	if err := os.WriteFile(filepath.Join(part, "pom.xml"), pom, 0o644); err != nil {
		return err
	}
	mvn := exec.CommandContext(ctx, "mvn", "-q", "-B", "dependency:copy-dependencies",
		"-Dkafka.version="+version, "-DoutputDirectory="+filepath.Join(part, "jars"))
	mvn.Dir = part
	if out, err := mvn.CombinedOutput(); err != nil {
		return fmt.Errorf("download Kafka %s: mvn: %w\n%s", version, err, out)
	}
	return os.Rename(filepath.Join(part, "jars"), dir)
}

func jarsDir(version string) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(cache, "bide-test", "kafka-"+version), nil
}

// lockFile takes an exclusive lock that the system drops when its process ends.
func lockFile(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return func() { _ = f.Close() }, nil
}
