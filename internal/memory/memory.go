// Package memory keeps a program within the memory limit of its control group, which is the limit of a container or of
// a systemd unit. Its input are the files of the kernel. Its output is the limit, and the setting of Go's garbage
// collector that follows from it. It does not know what the program stores.
package memory

import (
	"io/fs"
	"log/slog"
	"math"
	"os"
	"path"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
)

const (
	// alone is the part of the limit that the heap of a program without other processes gets. The rest is for the
	// stacks of the kernel, files that are read, and what is not part of Go's runtime.
	alone = 0.9
	// beside is the part of the remaining memory that a program gets beside a process with a limit of its own. That
	// process has memory outside of its heap too.
	beside = 0.5
	// unlimited is a value that no machine reaches. Version 1 of control groups has the largest number of pages instead
	// of a word for no limit.
	unlimited = 1 << 60
)

// Limit returns the memory limit of the control group of this process in bytes: the lowest of its group and of the
// groups above it that are visible. It is false if there is none.
func Limit() (limit uint64, ok bool) { return read(os.DirFS("/")) }

// read reads the limit from the file system of a machine: cgroups(7), and memory.max of version 2 or
// memory.limit_in_bytes of version 1.
func read(root fs.FS) (limit uint64, ok bool) {
	groups, err := fs.ReadFile(root, "proc/self/cgroup")
	if err != nil {
		return 0, false
	}
	limit = math.MaxUint64
	for line := range strings.Lines(string(groups)) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3) // number, controllers, group
		if len(fields) < 3 {
			continue
		}
		mount, file := "", ""
		switch {
		case fields[0] == "0" && fields[1] == "":
			mount, file = "sys/fs/cgroup", "memory.max"
		case slices.Contains(strings.Split(fields[1], ","), "memory"):
			mount, file = "sys/fs/cgroup/memory", "memory.limit_in_bytes"
		default:
			continue
		}
		// A container may see the group of its host's name space, whose folder it does not have; its own is then the mount.
		for group := path.Clean("/" + fields[2]); ; group = path.Dir(group) {
			if value, err := fs.ReadFile(root, path.Join(mount, group, file)); err == nil {
				if n, err := strconv.ParseUint(strings.TrimSpace(string(value)), 10, 64); err == nil {
					limit = min(limit, n)
				}
			}
			if group == "/" {
				break
			}
		}
	}
	return limit, limit < unlimited
}

// Bound sets the soft limit of Go's runtime from the limit of the control group, so that the garbage collector runs
// more often instead of the kernel ending the program. other is the heap in bytes that another process in the same
// group may use, or 0. Bound returns what it has set, or 0 if it has set nothing: there is no limit, or the
// environment has GOMEMLIMIT, which is the decision of the operator. Call it once, at the start of a program.
func Bound(other uint64, log *slog.Logger) uint64 {
	limit, ok := Limit()
	if _, set := os.LookupEnv("GOMEMLIMIT"); !ok || set {
		return 0
	}
	soft := share(limit, other)
	debug.SetMemoryLimit(int64(soft))
	log.Info("bounding memory by the control group", "limit", limit, "own", soft)
	return soft
}

// share returns the soft limit of a program beside another process. A limit that is too low for the other process is
// not about both: they are in different groups.
func share(limit, other uint64) uint64 {
	if other == 0 || other >= limit {
		return uint64(alone * float64(limit))
	}
	return uint64(beside * float64(limit-other))
}
