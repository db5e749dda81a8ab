package sockets

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// Inode returns the inode of the socket that a process has open as the file descriptor fd. It returns ErrGone if the
// process has no such file, or if the file is not a socket. The caller must be permitted to read the links in the
// process's folder of file descriptors: proc_pid_fd(5).
func Inode(pid, fd int) (uint32, error) {
	target, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", pid, fd))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, ErrGone
	}
	if err != nil {
		return 0, fmt.Errorf("reading the sockets of process %d: %w", pid, err)
	}
	var inode uint64
	if _, err := fmt.Sscanf(target, "socket:[%d]", &inode); err != nil {
		return 0, ErrGone //nolint:nilerr // it is another file now
	}
	return uint32(inode), nil
}
