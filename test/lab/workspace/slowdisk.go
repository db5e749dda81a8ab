package workspace

import (
	"context"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/fairlead/fairlead/test/lab/netns"
)

// NewSlowDisk is NewDisk for a disk that can be slow. This process serves it by FUSE, so it must be closed before this
// process ends, or its mount remains until the next lab removes it.
func (w *Workspace) NewSlowDisk(ctx context.Context, name string, kib int) (*Disk, error) {
	fast, err := w.NewDisk(ctx, name+"-fast", kib)
	if err != nil {
		return nil, err
	}
	d := &Disk{Path: w.File(name), fast: fast.Path}
	if err := d.serve(); err != nil {
		return nil, fmt.Errorf("mounting %s by FUSE: %w", d.Path, err)
	}
	w.OnClose(func(context.Context) { netns.Unmount(d.Path) })
	return d, nil
}

// serve mounts the disk.
func (d *Disk) serve() error {
	if err := os.MkdirAll(d.Path, 0o755); err != nil {
		return err
	}
	root, err := fs.NewLoopbackRoot(d.fast)
	if err != nil {
		return err
	}
	d.slow = &slowFS{RawFileSystem: fs.NewNodeFS(root, &fs.Options{})}
	server, err := fuse.NewServer(d.slow, d.Path, &fuse.MountOptions{
		DirectMountStrict: true, FsName: "fairlead-lab", Name: "fairlead-lab",
	})
	if err != nil {
		return err
	}
	go server.Serve()
	return server.WaitMount()
}

// Slow makes each change of the disk take so much longer; zero: as long as usual. Reading is not affected.
func (d *Disk) Slow(by time.Duration) { d.slow.by.Store(int64(by)) }

// slowFS is a file system whose changes take longer.
type slowFS struct {
	fuse.RawFileSystem
	by atomic.Int64 // a time.Duration
}

func (s *slowFS) wait() { time.Sleep(time.Duration(s.by.Load())) }

// Write implements fuse.RawFileSystem, like the methods below.
func (s *slowFS) Write(cancel <-chan struct{}, input *fuse.WriteIn, data []byte) (uint32, fuse.Status) {
	s.wait()
	return s.RawFileSystem.Write(cancel, input, data)
}

// Fsync waits before a file is synchronised.
func (s *slowFS) Fsync(cancel <-chan struct{}, input *fuse.FsyncIn) fuse.Status {
	s.wait()
	return s.RawFileSystem.Fsync(cancel, input)
}

// FsyncDir waits before a folder is synchronised.
func (s *slowFS) FsyncDir(cancel <-chan struct{}, input *fuse.FsyncIn) fuse.Status {
	s.wait()
	return s.RawFileSystem.FsyncDir(cancel, input)
}

// Create waits before a file is created.
func (s *slowFS) Create(
	cancel <-chan struct{}, input *fuse.CreateIn, name string, out *fuse.CreateOut,
) fuse.Status {
	s.wait()
	return s.RawFileSystem.Create(cancel, input, name, out)
}

// Rename waits before a file is renamed.
func (s *slowFS) Rename(cancel <-chan struct{}, input *fuse.RenameIn, from, to string) fuse.Status {
	s.wait()
	return s.RawFileSystem.Rename(cancel, input, from, to)
}

// Unlink waits before a file is removed.
func (s *slowFS) Unlink(cancel <-chan struct{}, header *fuse.InHeader, name string) fuse.Status {
	s.wait()
	return s.RawFileSystem.Unlink(cancel, header, name)
}
