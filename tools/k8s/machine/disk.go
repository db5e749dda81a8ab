package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// ownFolders are the top-level folders that a machine does not share with the host. The others contain the host's
// programs and libraries.
var ownFolders = map[string]os.FileMode{
	"etc": 0o755, "var": 0o755, "run": 0o755, "tmp": 0o777 | os.ModeSticky, "root": 0o700, "home": 0o755,
}

// prepareDisk creates the machine's folders: /etc as a copy of the host's, once; /run empty, at each boot.
func prepareDisk(c config, userData []byte) error {
	disk := c.disk()
	if err := os.RemoveAll(filepath.Join(disk, "run")); err != nil {
		return err
	}
	_, err := os.Stat(filepath.Join(disk, "etc"))
	first := errors.Is(err, os.ErrNotExist)
	for name, mode := range ownFolders {
		path := filepath.Join(disk, name)
		if err := errors.Join(os.MkdirAll(path, 0o755), os.Chmod(path, mode)); err != nil {
			return err
		}
	}
	if first {
		if err := firstBoot(c); err != nil {
			return err
		}
	}
	own := filepath.Join(disk, ownDir)
	if err := os.MkdirAll(own, 0o700); err != nil {
		return err
	}
	data, err := json.Marshal(c)
	if err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(filepath.Join(disk, configFile), data, 0o600),
		os.WriteFile(filepath.Join(disk, userDataFile), userData, 0o600),
	)
}

// firstBoot fills /etc and /var like an image at its first boot.
func firstBoot(c config) error {
	disk := c.disk()
	etc := filepath.Join(disk, "etc")
	if out, err := exec.Command("cp", "-a", "/etc/.", etc).CombinedOutput(); err != nil {
		return fmt.Errorf("copying /etc: %w: %s", err, out)
	}
	for _, name := range []string{"kubernetes", "fairlead", "netns"} {
		if err := os.RemoveAll(filepath.Join(etc, name)); err != nil {
			return err
		}
	}
	for _, name := range []string{
		"etc/kubernetes/manifests", "var/lib", "var/log", "var/cache", "var/spool", "var/tmp",
	} {
		if err := os.MkdirAll(filepath.Join(disk, name), 0o755); err != nil {
			return err
		}
	}
	hosts, err := os.OpenFile(filepath.Join(etc, "hosts"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(hosts, "127.0.0.1 localhost\n%s %s\n", c.Address, c.Hostname)
	return errors.Join(err, hosts.Close(),
		os.WriteFile(filepath.Join(etc, "hostname"), []byte(c.Hostname+"\n"), 0o644),
		os.Symlink("/run", filepath.Join(disk, "var/run")))
}

// enterDisk makes disk the root of this process's mount namespace, which no other process shares.
func enterDisk(disk string, c config) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("taking mounts private: %w", err)
	}
	if err := bind(disk, disk, 0); err != nil {
		return err
	}
	if err := bindHost(disk); err != nil {
		return err
	}
	if err := bindEtc(disk); err != nil {
		return err
	}
	if err := bindPrograms(disk, c); err != nil {
		return err
	}
	if err := mountProc(filepath.Join(disk, "proc")); err != nil {
		return err
	}
	// pivot_root with the same folder twice mounts the old root on top of the new one, where it is unmounted at once.
	if err := unix.Chdir(disk); err != nil {
		return err
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("making %s the root: %w", disk, err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("leaving the host's root: %w", err)
	}
	return unix.Chdir("/")
}

// bindHost mounts the host's folders that the machine shares.
func bindHost(disk string) error {
	entries, err := os.ReadDir("/")
	if err != nil {
		return err
	}
	for _, entry := range entries {
		name := entry.Name()
		from, to := "/"+name, filepath.Join(disk, name)
		_, own := ownFolders[name]
		switch {
		case own || name == "proc":
		case entry.Type()&os.ModeSymlink != 0:
			target, err := os.Readlink(from)
			if err != nil {
				return err
			}
			if err := os.Symlink(target, to); err != nil && !errors.Is(err, os.ErrExist) {
				return err
			}
		case entry.IsDir():
			if err := os.MkdirAll(to, 0o755); err != nil {
				return err
			}
			if err := bind(from, to, unix.MS_REC); err != nil {
				return err
			}
		}
	}
	return nil
}

// bindEtc keeps the mounts over single files of /etc, such as hosts and resolv.conf of `ip netns exec`: the network's
// owner changes these files while the machine runs.
func bindEtc(disk string) error {
	points, err := mountPoints()
	if err != nil {
		return err
	}
	for _, at := range points {
		info, err := os.Stat(at)
		if !strings.HasPrefix(at, "/etc/") || err != nil || !info.Mode().IsRegular() {
			continue
		}
		to := filepath.Join(disk, at)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return err
		}
		// A link of the image to a file that is written at run time is dangling here.
		if info, err := os.Lstat(to); err == nil && info.Mode()&os.ModeSymlink != 0 {
			if err := os.Remove(to); err != nil {
				return err
			}
		}
		if err := errors.Join(touch(to), bind(at, to, 0)); err != nil {
			return err
		}
	}
	return nil
}

// mountPoints returns all mount points of this process.
func mountPoints() ([]string, error) {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	var points []string
	for line := range strings.Lines(string(data)) {
		if fields := strings.Fields(line); len(fields) > 4 {
			points = append(points, fields[4])
		}
	}
	return points, nil
}

// bindPrograms gives the machine a /usr/local/bin with its programs and systemctl.
func bindPrograms(disk string, c config) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	programs := map[string]string{"machine": self, "systemctl": self}
	for name, path := range c.Programs {
		programs[name] = path
	}
	folder := filepath.Join(filepath.Dir(disk), "programs")
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	at := filepath.Join(disk, programDir)
	if err := bind(folder, at, 0); err != nil {
		return err
	}
	for name, path := range programs {
		to := filepath.Join(at, name)
		if err := touch(to); err != nil {
			return err
		}
		if err := bind(path, to, 0); err != nil {
			return err
		}
	}
	return nil
}

func mountProc(at string) error {
	if err := os.MkdirAll(at, 0o755); err != nil {
		return err
	}
	if err := unix.Mount("proc", at, "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mounting %s: %w", at, err)
	}
	return nil
}

func bind(from, to string, flags uintptr) error {
	if err := unix.Mount(from, to, "", unix.MS_BIND|flags, ""); err != nil {
		return fmt.Errorf("mounting %s on %s: %w", from, to, err)
	}
	return nil
}

// touch creates an empty file unless the file exists.
func touch(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	return f.Close()
}
