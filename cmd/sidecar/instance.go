package main

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

const (
	// instanceFile is where the instance id is kept in the data directory.
	instanceFile = "instance-id"
	// groupFile is where the data directory says whose commits its log goes with.
	groupFile = "group"
)

var (
	instanceID     = regexp.MustCompile(`^[a-zA-Z0-9._-]{1,200}$`)
	notInInstance  = regexp.MustCompile(`[^a-zA-Z0-9._-]+`)
	hostNameLength = 100 // of the id; the group coordinator takes 249 bytes with what is added
)

// keptInstance returns the instance id that dir keeps, and makes one where there is none: the host's
// name, so that a human knows it, and random digits, since hosts share names. It is durable when
// keptInstance returns. The caller holds the lock of the data directory.
func keptInstance(dir string) (string, error) {
	path := filepath.Join(dir, instanceFile)
	text, err := os.ReadFile(path)
	if err == nil {
		id := strings.TrimSpace(string(text))
		if !instanceID.MatchString(id) {
			return "", fmt.Errorf("instance id in %s is damaged; write the old one there, or delete the file to have a new one made", path)
		}
		return id, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("read instance id: %w", err)
	}
	id := newInstance()
	if err := writeDurably(path, id+"\n"); err != nil {
		return "", fmt.Errorf("keep instance id: %w", err)
	}
	return id, nil
}

// bindGroup ties dir to a consumer group: a log is right only beside the commits that it was written with.
// The caller holds the lock of the data directory.
func bindGroup(dir, group string) error {
	path := filepath.Join(dir, groupFile)
	text, err := os.ReadFile(path)
	switch kept := strings.TrimSpace(string(text)); {
	case errors.Is(err, fs.ErrNotExist):
		if err := writeDurably(path, group+"\n"); err != nil {
			return fmt.Errorf("keep the group's name: %w", err)
		}
		return nil
	case err != nil:
		return fmt.Errorf("read the group's name: %w", err)
	case kept != group:
		return fmt.Errorf("data directory %s belongs to group %q, and group is %q: give each group a data-dir of its own, or delete the directory if what waits in it is not needed", dir, kept, group)
	}
	return nil
}

func newInstance() string {
	host, err := os.Hostname()
	if err != nil {
		host = "host" // the digits alone tell it apart
	}
	host = strings.Trim(notInInstance.ReplaceAllString(host, "-"), "-")
	host = host[:min(len(host), hostNameLength)]
	digits := make([]byte, 6)
	_, _ = rand.Read(digits) // never fails
	return host + "-" + hex.EncodeToString(digits)
}

// writeDurably writes a file so that after a crash it is there whole, or not at all.
func writeDurably(path, text string) error {
	dir := filepath.Dir(path)
	file, err := os.CreateTemp(dir, instanceFile+".*")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(file.Name()) }() // gone already after the rename
	_, err = file.WriteString(text)
	if err := errors.Join(err, file.Sync(), file.Close()); err != nil {
		return err
	}
	if err := os.Rename(file.Name(), path); err != nil {
		return err
	}
	entries, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(entries.Sync(), entries.Close())
}
