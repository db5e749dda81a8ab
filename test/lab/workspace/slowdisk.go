package workspace

import (
	"context"
	"fmt"
	"os"
	"sync/atomic"
	"syscall"
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
		DisabledCapabilities: fuse.CAP_PASSTHROUGH, // with it, writes would not come here
	})
	if err != nil {
		return err
	}
	go server.Serve()
	return server.WaitMount()
}

// Slow makes each change of the disk take so much longer; zero: as long as usual. Reading is not affected.
func (d *Disk) Slow(by time.Duration) { d.slow.by.Store(int64(by)) }

// slowFS is a file system whose changes take longer, or fail as if it were mounted read-only. Files that are open for
// writing do not prevent that: a kernel does the same after an error of the disk.
type slowFS struct {
	fuse.RawFileSystem
	by       atomic.Int64 // a time.Duration
	readOnly atomic.Bool
}

// change does what each change begins with. If the result is not fuse.OK, it fails.
func (s *slowFS) change() fuse.Status {
	time.Sleep(time.Duration(s.by.Load()))
	if s.readOnly.Load() {
		return fuse.EROFS
	}
	return fuse.OK
}

// Open fails for writing if the file system is read-only. It implements fuse.RawFileSystem, like the methods below.
func (s *slowFS) Open(cancel <-chan struct{}, input *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	if input.Flags&syscall.O_ACCMODE != syscall.O_RDONLY && s.readOnly.Load() {
		return fuse.EROFS
	}
	return s.RawFileSystem.Open(cancel, input, out)
}

// Writev is a change.
func (s *slowFS) Writev(cancel <-chan struct{}, input *fuse.WriteIn, data [][]byte) (uint32, fuse.Status) {
	if status := s.change(); status != fuse.OK {
		return 0, status
	}
	return s.RawFileSystem.Writev(cancel, input, data)
}

// SetAttr changes a mode or a size. It is not slow: the time to replace a file is that of the other changes.
func (s *slowFS) SetAttr(cancel <-chan struct{}, input *fuse.SetAttrIn, out *fuse.AttrOut) fuse.Status {
	if s.readOnly.Load() {
		return fuse.EROFS
	}
	return s.RawFileSystem.SetAttr(cancel, input, out)
}

// Mkdir is a change.
func (s *slowFS) Mkdir(cancel <-chan struct{}, input *fuse.MkdirIn, name string, out *fuse.EntryOut) fuse.Status {
	if status := s.change(); status != fuse.OK {
		return status
	}
	return s.RawFileSystem.Mkdir(cancel, input, name, out)
}

// Mknod is a change: it makes sockets.
func (s *slowFS) Mknod(cancel <-chan struct{}, input *fuse.MknodIn, name string, out *fuse.EntryOut) fuse.Status {
	if status := s.change(); status != fuse.OK {
		return status
	}
	return s.RawFileSystem.Mknod(cancel, input, name, out)
}

// Fsync is a change.
func (s *slowFS) Fsync(cancel <-chan struct{}, input *fuse.FsyncIn) fuse.Status {
	if status := s.change(); status != fuse.OK {
		return status
	}
	return s.RawFileSystem.Fsync(cancel, input)
}

// FsyncDir is Fsync for a folder.
func (s *slowFS) FsyncDir(cancel <-chan struct{}, input *fuse.FsyncIn) fuse.Status {
	if status := s.change(); status != fuse.OK {
		return status
	}
	return s.RawFileSystem.FsyncDir(cancel, input)
}

// Create is a change.
func (s *slowFS) Create(
	cancel <-chan struct{}, input *fuse.CreateIn, name string, out *fuse.CreateOut,
) fuse.Status {
	if status := s.change(); status != fuse.OK {
		return status
	}
	return s.RawFileSystem.Create(cancel, input, name, out)
}

// Rename is a change.
func (s *slowFS) Rename(cancel <-chan struct{}, input *fuse.RenameIn, from, to string) fuse.Status {
	if status := s.change(); status != fuse.OK {
		return status
	}
	return s.RawFileSystem.Rename(cancel, input, from, to)
}

// Unlink is a change.
func (s *slowFS) Unlink(cancel <-chan struct{}, header *fuse.InHeader, name string) fuse.Status {
	if status := s.change(); status != fuse.OK {
		return status
	}
	return s.RawFileSystem.Unlink(cancel, header, name)
}

// Rmdir is a change.
func (s *slowFS) Rmdir(cancel <-chan struct{}, header *fuse.InHeader, name string) fuse.Status {
	if status := s.change(); status != fuse.OK {
		return status
	}
	return s.RawFileSystem.Rmdir(cancel, header, name)
}
