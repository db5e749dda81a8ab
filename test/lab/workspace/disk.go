package workspace

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/fairlead/fairlead/test/lab/netns"
	"github.com/fairlead/fairlead/test/lab/proc"
)

// Disk is a small disk. It must not be in use while it is changed.
type Disk struct {
	Path string

	fast string  // where the files of a disk are that can be slow; empty: it cannot
	slow *slowFS // nil: it cannot be slow
}

// filler is the file that uses up all space.
const filler = "filler"

// NewDisk mounts a disk of the given size, which is removed with the lab.
func (w *Workspace) NewDisk(ctx context.Context, name string, kib int) (*Disk, error) {
	d := &Disk{Path: w.File(name)}
	if err := os.MkdirAll(d.Path, 0o755); err != nil {
		return nil, fmt.Errorf("making disk %s: %w", name, err)
	}
	if err := mount(ctx, "-t", "tmpfs", "-o", fmt.Sprintf("size=%dk", kib), "fairlead-lab", d.Path); err != nil {
		return nil, err
	}
	w.OnClose(func(context.Context) { netns.Unmount(d.Path) })
	return d, nil
}

// Close removes the disk, even if an ending process still uses it.
func (d *Disk) Close() {
	netns.Unmount(d.Path)
	netns.Unmount(d.files())
}

// files returns where the files are.
func (d *Disk) files() string { return cmp.Or(d.fast, d.Path) }

// Fill uses up all space of the disk.
func (d *Disk) Fill() error {
	file, err := os.Create(filepath.Join(d.files(), filler))
	if err != nil {
		return fmt.Errorf("filling disk: %w", err)
	}
	_, err = io.Copy(file, endless{})
	if err = errors.Join(err, file.Close()); !errors.Is(err, syscall.ENOSPC) {
		return fmt.Errorf("filling disk: ended with %w", err)
	}
	return nil
}

// Free releases the space that Fill used.
func (d *Disk) Free() error { return os.Remove(filepath.Join(d.files(), filler)) }

// closes is how long processes take to close the files that they write.
const closes = 10 * time.Second

// ReadOnly makes the disk read-only, or writable again. For one that cannot be slow, the kernel refuses the former as
// long as a file is open for writing, so it is tried for 10 seconds.
func (d *Disk) ReadOnly(ctx context.Context, readOnly bool) error {
	if d.slow != nil {
		d.slow.readOnly.Store(readOnly)
		return nil
	}
	option := "remount," + map[bool]string{true: "ro", false: "rw"}[readOnly]
	return proc.Wait(ctx, closes, func(ctx context.Context) error { return mount(ctx, "-o", option, d.Path) })
}

type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

func mount(ctx context.Context, args ...string) error {
	if out, err := exec.CommandContext(ctx, "mount", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("running mount %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}
