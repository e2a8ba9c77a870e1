package pebblelog

import (
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// FreeBytes returns the free space of the file system that dir, which has to exist, is on. A file system
// that does not know counts as endless.
func FreeBytes(dir string) (uint64, error) {
	usage, err := vfs.Default.GetDiskUsage(dir)
	if errors.Is(err, vfs.ErrUnsupported) {
		return 1<<64 - 1, nil
	}
	if err != nil {
		return 0, fmt.Errorf("free space of %s: %w", dir, err)
	}
	return usage.AvailBytes, nil
}
