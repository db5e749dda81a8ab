package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// A containerStart is the input of a container's first process.
type containerStart struct {
	Program string
	Argv    []string
	Env     []string
	Dir     string
	Mounts  []mount
	UID     *int64
	GID     *int64
	Groups  []int
}

// A mount mounts From, on the machine, at At in the container.
type mount struct {
	From, At string
	ReadOnly bool
}

// runContainer is the first process of a container until it executes the container's program.
func runContainer([]string) error {
	var start containerStart
	in := os.NewFile(3, "start")
	err := errors.Join(json.NewDecoder(in).Decode(&start), in.Close())
	if err != nil {
		return fmt.Errorf("reading what to start: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("taking mounts private: %w", err)
	}
	if err := mountProc("/proc"); err != nil {
		return err
	}
	for _, m := range start.Mounts {
		if err := m.do(); err != nil {
			return err
		}
	}
	if err := os.Chdir(start.Dir); err != nil {
		return err
	}
	if err := start.dropUser(); err != nil {
		return err
	}
	err = syscall.Exec(start.Program, start.Argv, start.Env)
	return fmt.Errorf("starting %s: %w", start.Program, err)
}

func (m mount) do() error {
	if m.From != m.At {
		if err := m.makePoint(); err != nil {
			return err
		}
	}
	if m.From == m.At && !m.ReadOnly {
		return nil
	}
	if err := bind(m.From, m.At, unix.MS_REC); err != nil {
		return err
	}
	if !m.ReadOnly {
		return nil
	}
	if err := unix.Mount("", m.At, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		return fmt.Errorf("making %s read-only: %w", m.At, err)
	}
	return nil
}

// makePoint creates the file or folder to mount on, on the machine's disk, because containers have no image. It creates
// nothing in the host's folders.
func (m mount) makePoint() error {
	info, err := os.Stat(m.From)
	if err != nil {
		return err
	}
	if exists(m.At) {
		return nil
	}
	hosts, err := isHosts(m.At)
	if err != nil {
		return err
	}
	if hosts {
		return fmt.Errorf(
			"mounting %s: this machine has no such path, and can make none in a folder that is its host's", m.At,
		)
	}
	if info.IsDir() {
		return os.MkdirAll(m.At, 0o755)
	}
	if err := os.MkdirAll(filepath.Dir(m.At), 0o755); err != nil {
		return err
	}
	return touch(m.At)
}

// isHosts reports whether a path is in one of the host's folders.
func isHosts(path string) (bool, error) {
	top, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	if _, own := ownFolders[top]; own || strings.HasPrefix(path, programDir+"/") {
		return false, nil
	}
	points, err := mountPoints()
	return slices.Contains(points, "/"+top), err
}

// dropUser changes to the container's user. Changing to a user other than root also drops all
// capabilities.
func (s containerStart) dropUser() error {
	if s.GID != nil || s.UID != nil {
		if err := syscall.Setgroups(s.Groups); err != nil {
			return fmt.Errorf("setting groups: %w", err)
		}
	}
	if s.GID != nil {
		if err := syscall.Setgid(int(*s.GID)); err != nil {
			return fmt.Errorf("setting the group: %w", err)
		}
	}
	if s.UID != nil {
		if err := syscall.Setuid(int(*s.UID)); err != nil {
			return fmt.Errorf("setting the user: %w", err)
		}
	}
	return nil
}
