package netns

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// Prefix begins the name of everything that a lab creates in the system. The owner's pid and start time follow, so
// that another lab can determine whether the owner still runs.
const Prefix = "fairlead-lab-"

// NewLabName returns a unique name for a lab.
func NewLabName() (string, error) {
	start, err := startTime(os.Getpid())
	if err != nil {
		return "", fmt.Errorf("naming the lab: %w", err)
	}
	random := make([]byte, 3)
	_, _ = rand.Read(random) // never fails
	return fmt.Sprintf("%s%d-%s-%s", Prefix, os.Getpid(), start, hex.EncodeToString(random)), nil
}

// RemoveLeftovers removes namespaces, processes and files of labs whose owner was killed.
func RemoveLeftovers(ctx context.Context) error {
	namespaces, err := deadNames(namespaceDir)
	if err != nil {
		return err
	}
	for _, name := range namespaces {
		RemoveNamespace(ctx, name)
	}
	for _, dir := range []string{etcDir, os.TempDir()} {
		names, err := deadNames(dir)
		if err != nil {
			return err
		}
		for _, name := range names {
			UnmountBelow(filepath.Join(dir, name))
			if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
				return fmt.Errorf("removing what a killed lab left: %w", err)
			}
		}
	}
	return nil
}

// deadNames lists the entries of a folder that belong to labs whose owner is gone. A missing folder has none.
func deadNames(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("looking for what killed labs left: %w", err)
	}
	var dead []string
	for _, entry := range entries {
		if OwnerIsGone(entry.Name()) {
			dead = append(dead, entry.Name())
		}
	}
	return dead, nil
}

// OwnerIsGone reports whether a name belongs to a lab whose owner no longer runs. The start time distinguishes the
// owner from another process with the same pid.
func OwnerIsGone(name string) bool {
	rest, ours := strings.CutPrefix(name, Prefix)
	if !ours {
		return false
	}
	fields := strings.Split(rest, "-")
	if len(fields) < 3 {
		return false
	}
	pid, err := strconv.Atoi(fields[0])
	if err != nil {
		return false
	}
	start, err := startTime(pid)
	return err != nil || start != fields[1]
}

// startTime returns the start time of a process, in the kernel's ticks since boot: field 22 of proc(5)'s stat. The
// second field may contain spaces, so fields are counted from its closing bracket.
func startTime(pid int) (string, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", fmt.Errorf("reading the start time of process %d: %w", pid, err)
	}
	text := string(data)
	fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	if len(fields) < 20 {
		return "", fmt.Errorf("reading the start time of process %d: unknown format", pid)
	}
	return fields[19], nil
}

// Unmount unmounts a disk, even if an ending process still uses it.
func Unmount(path string) { _ = syscall.Unmount(path, syscall.MNT_DETACH) }

// UnmountBelow unmounts all disks that are mounted in a folder.
func UnmountBelow(dir string) {
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return
	}
	for line := range strings.Lines(string(mounts)) {
		if fields := strings.Fields(line); len(fields) > 1 && strings.HasPrefix(fields[1], dir+"/") {
			Unmount(fields[1])
		}
	}
}
