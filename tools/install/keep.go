package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// key returns a short hash of everything from which a part is made: the toolchain, the number of the recipe, and
// p.from.
func (p part) key(toolchain string) (string, error) {
	const recipe = "1" // increase it when the result of making a part changes
	h := sha256.New()
	if err := json.NewEncoder(h).Encode([]string{recipe, toolchain, p.name}); err != nil {
		return "", err
	}
	for _, from := range p.from {
		err := filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || strings.HasSuffix(path, "_test.go") {
				return err
			}
			return hashFile(h, path)
		})
		if err != nil {
			return "", err
		}
	}
	return hex.EncodeToString(h.Sum(nil))[:16], nil
}

func hashFile(h io.Writer, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(h, f)
	return err
}

// toolchain returns the part of the key that all parts share.
func toolchain(ctx context.Context) (string, error) {
	return output(ctx, ".", "go", "env", "GOVERSION", "GOOS", "GOARCH")
}

// keep moves a folder to its name in the cache by a rename, so that an interrupted run leaves nothing that looks
// complete.
func keep(work, kept string) error {
	if err := os.Chmod(work, 0o755); err != nil {
		return err
	}
	return os.Rename(work, kept)
}

// setLink makes a symbolic link at to target. It does not touch a link that is right already, and replaces a wrong one
// atomically, because tests may run at the same time.
func setLink(target, at string) error {
	if now, err := os.Readlink(at); err == nil && now == target {
		return nil
	}
	if info, err := os.Lstat(at); err == nil && info.IsDir() {
		if err := os.RemoveAll(at); err != nil {
			return err
		}
	}
	temporary := at + ".new"
	if err := os.Remove(temporary); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Symlink(target, temporary); err != nil {
		return err
	}
	return os.Rename(temporary, at)
}

// lockTime is long because another run may build everything on a busy machine.
const (
	lockTime  = 90 * time.Minute
	lockRetry = 200 * time.Millisecond
)

// lock takes an exclusive lock on a file, so that two runs do not build the same part twice. unlock may be called
// again.
func lock(ctx context.Context, path string, out io.Writer) (unlock func(), err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, lockTime, fmt.Errorf("another run has held %s for %s", path, lockTime))
	defer cancel()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	for told := false; ; told = true {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return sync.OnceFunc(func() { f.Close() }), nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			f.Close()
			return nil, err
		}
		if !told {
			fmt.Fprintln(out, "install: waiting for another run that installs parts")
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, context.Cause(ctx)
		case <-time.After(lockRetry):
		}
	}
}
