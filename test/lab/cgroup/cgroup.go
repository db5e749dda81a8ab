// Package cgroup makes and removes the control groups of a lab's nodes, with version 1 or 2, whichever the machine has.
// Input: the names of a lab and of its nodes. Output: a group of each node in every hierarchy, with the controllers
// that a kubelet requires. It does not know what runs in the groups.
package cgroup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// mountPoint is where a kubelet and runc expect the control groups.
const mountPoint = "/sys/fs/cgroup"

// Hierarchies are the control groups of this machine.
type Hierarchies struct {
	// Version is 2 if there is one hierarchy with all controllers, else 1.
	Version int
	// roots are the folders of the hierarchies.
	roots []string
}

// Find returns the control groups of this machine.
func Find() (Hierarchies, error) {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return Hierarchies{}, fmt.Errorf("finding the control groups: %w", err)
	}
	return parse(string(mounts))
}

// parse reads the hierarchies from a list of mounts in the format of proc_pid_mountinfo(5). Like runc and the kubelet,
// it decides by the file system at mountPoint: a cgroup2 below it has no controllers that a kubelet uses.
func parse(mounts string) (Hierarchies, error) {
	h := Hierarchies{Version: 1}
	for line := range strings.Lines(mounts) {
		before, after, found := strings.Cut(line, " - ")
		fields, kind := strings.Fields(before), strings.Fields(after)
		if !found || len(fields) < 5 || len(kind) == 0 {
			continue
		}
		switch at := fields[4]; {
		case at == mountPoint && kind[0] == "cgroup2":
			return Hierarchies{Version: 2, roots: []string{mountPoint}}, nil
		// runc also makes groups in a cgroup2 without controllers.
		case strings.HasPrefix(kind[0], "cgroup") && strings.HasPrefix(at, mountPoint+"/"):
			h.roots = append(h.roots, at)
		}
	}
	if len(h.roots) == 0 {
		return h, fmt.Errorf("finding the control groups: none is mounted at %s", mountPoint)
	}
	return h, nil
}

// Make makes a group and the groups above it, for each hierarchy. The name has a slash between levels.
func (h Hierarchies) Make(name string) error {
	for _, root := range h.roots {
		if err := h.makeIn(root, name); err != nil {
			return fmt.Errorf("making control group %s: %w", filepath.Join(root, name), err)
		}
	}
	return nil
}

func (h Hierarchies) makeIn(root, name string) error {
	parent := root
	for level := range strings.SplitSeq(name, "/") {
		dir := filepath.Join(parent, level)
		if h.Version == 2 {
			if err := delegate(parent); err != nil {
				return err
			}
		}
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		if h.Version == 1 {
			if err := inheritCPUs(parent, dir); err != nil {
				return err
			}
		}
		parent = dir
	}
	if h.Version == 2 {
		return delegate(parent)
	}
	return nil
}

// inheritCPUs gives a group of version 1 the processors and memory nodes of the group above it. No process can be in it
// before. Groups of hierarchies without the controller cpuset have no such files.
func inheritCPUs(parent, dir string) error {
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		value, err := os.ReadFile(filepath.Join(parent, file))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, file), value, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// delegate enables the controllers of a group of version 2 for the groups in it.
func delegate(dir string) error {
	available, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return err
	}
	change, err := controllers(string(available))
	if err != nil {
		return err
	}
	err = os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte(change), 0o644)
	if errors.Is(err, syscall.EBUSY) {
		return fmt.Errorf("%w: processes run in %s itself: move them into a group below it", err, dir)
	}
	return err
}

// required are the controllers of version 2 without which a kubelet does not start. It uses optional ones if they
// exist.
var (
	required = []string{"cpu", "cpuset", "memory", "pids"}
	optional = []string{"io", "hugetlb"}
)

// controllers returns the text that enables all controllers that a kubelet uses, given the ones that are available.
func controllers(available string) (string, error) {
	names := strings.Fields(available)
	var enable []string
	for _, name := range slices.Concat(required, optional) {
		switch {
		case slices.Contains(names, name):
			enable = append(enable, "+"+name)
		case slices.Contains(required, name):
			return "", fmt.Errorf("controller %s is not available, only %q", name, names)
		}
	}
	return strings.Join(enable, " "), nil
}

// removal bounds the removal of a group, whose processes end some time after their SIGKILL.
const (
	removalTime  = 10 * time.Second
	removalRetry = 50 * time.Millisecond
)

// Remove ends all processes in a group and in the groups below it, and removes the groups. A missing group is no error.
func (h Hierarchies) Remove(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, removalTime)
	defer cancel()
	for {
		var errs []error
		for _, root := range h.roots {
			errs = append(errs, removeTree(filepath.Join(root, name)))
		}
		err := errors.Join(errs...)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("removing control group %s: %w", name, err)
		case <-time.After(removalRetry):
		}
	}
}

// removeTree makes one attempt to remove a group, the innermost groups first.
func removeTree(dir string) error {
	var dirs []string
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err == nil && entry.IsDir():
			dirs = append(dirs, path)
		}
		return err
	})
	errs := []error{err}
	for _, one := range slices.Backward(dirs) {
		for _, pid := range pids(one) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		if err := os.Remove(one); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func pids(dir string) []int {
	data, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if err != nil {
		return nil // it is gone
	}
	var all []int
	for field := range strings.FieldsSeq(string(data)) {
		if pid, err := strconv.Atoi(field); err == nil && pid > 0 {
			all = append(all, pid)
		}
	}
	return all
}

// Names returns the names of the groups at the top of all hierarchies.
func (h Hierarchies) Names() []string {
	var names []string
	for _, root := range h.roots {
		entries, err := os.ReadDir(root)
		if err != nil {
			continue
		}
		for _, entry := range entries {
			if entry.IsDir() && !slices.Contains(names, entry.Name()) {
				names = append(names, entry.Name())
			}
		}
	}
	return names
}

// Processes returns the processes in a group and in the groups below it.
func (h Hierarchies) Processes(name string) ([]int, error) {
	var all []int
	for _, root := range h.roots {
		err := filepath.WalkDir(filepath.Join(root, name), func(path string, entry fs.DirEntry, err error) error {
			switch {
			case errors.Is(err, fs.ErrNotExist):
				return nil
			case err == nil && entry.IsDir():
				all = append(all, pids(path)...)
			}
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("listing the processes of control group %s: %w", name, err)
		}
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}

// limited is the group in a group of Make that has the memory limit, because in version 2 a group with controllers for
// the groups in it cannot have processes.
const limited = "limited"

// LimitMemory makes a group with a memory limit in bytes inside a group of Make. It returns the file to which a process
// writes its id to enter it.
func (h Hierarchies) LimitMemory(name string, bytes uint64) (procs string, err error) {
	for _, root := range h.roots {
		for _, file := range []string{"memory.max", "memory.limit_in_bytes"} {
			if _, err := os.Stat(filepath.Join(root, name, file)); err != nil {
				continue // this hierarchy has not this controller
			}
			dir := filepath.Join(root, name, limited)
			err := os.Mkdir(dir, 0o755)
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, file), strconv.AppendUint(nil, bytes, 10), 0)
			}
			if err != nil {
				return "", fmt.Errorf("limiting the memory of control group %s: %w", dir, err)
			}
			return filepath.Join(dir, "cgroup.procs"), nil
		}
	}
	return "", fmt.Errorf("limiting the memory of control group %s: no hierarchy has the controller", name)
}

// Memory is what the kernel has counted in the group of LimitMemory.
type Memory struct {
	Highest uint64 // use in bytes since the group was made
	Kills   int    // processes that the kernel has killed because the group had no memory left
}

// Memory returns what the kernel has counted in the group that LimitMemory has made.
func (h Hierarchies) Memory(name string) (m Memory, err error) {
	for _, root := range h.roots {
		dir := filepath.Join(root, name, limited)
		for _, file := range []string{"memory.peak", "memory.max_usage_in_bytes"} {
			if text, err := os.ReadFile(filepath.Join(dir, file)); err == nil {
				m.Highest, _ = strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
			}
		}
		for _, file := range []string{"memory.events", "memory.oom_control"} {
			text, _ := os.ReadFile(filepath.Join(dir, file)) // each version has one of them
			for line := range strings.Lines(string(text)) {
				if count, ok := strings.CutPrefix(line, "oom_kill "); ok {
					m.Kills, _ = strconv.Atoi(strings.TrimSpace(count))
				}
			}
		}
	}
	if m.Highest == 0 {
		return m, fmt.Errorf("reading the memory of control group %s: the kernel has not counted it", name)
	}
	return m, nil
}
