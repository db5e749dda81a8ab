package cluster

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"
)

// namespaces of a node that a thread enters, in this order: the files of the others are opened before the mounts
// change.
var namespaces = []struct {
	file string
	flag int
}{
	{"net", unix.CLONE_NEWNET}, {"uts", unix.CLONE_NEWUTS}, {"pid", unix.CLONE_NEWPID}, {"mnt", unix.CLONE_NEWNS},
}

// enter calls a function on a thread in the namespaces of a process. Programs that it starts run in all of them.
func enter(pid int, f func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == os.Getpid() {
			// The main thread can't end, and its namespaces count as the process's: use another thread.
			defer runtime.UnlockOSThread()
			result <- enter(pid, f)
			return
		}
		// Never unlocked: the thread ends with this goroutine, so no other goroutine runs in these namespaces.
		result <- enterThread(pid, f)
	}()
	return <-result
}

func enterThread(pid int, f func() error) error {
	dir := filepath.Join("/proc", strconv.Itoa(pid), "ns")
	var files []*os.File
	defer func() {
		for _, file := range files {
			_ = file.Close()
		}
	}()
	for _, namespace := range namespaces {
		file, err := os.Open(filepath.Join(dir, namespace.file))
		if err != nil {
			return fmt.Errorf("entering a node: %w", err)
		}
		files = append(files, file)
	}
	// Only a thread that shares its root and working directory with no other thread may change its mounts.
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("entering a node: %w", err)
	}
	for i, namespace := range namespaces {
		if err := unix.Setns(int(files[i].Fd()), namespace.flag); err != nil {
			return fmt.Errorf("entering a node's %s namespace: %w", namespace.file, err)
		}
	}
	return f()
}

// kernelParameters are the parameters of the whole machine that a kubelet sets if they have other values. A node has
// files with the values that the kubelet expects in their place, so it sets none.
var kernelParameters = map[string]string{
	"vm/overcommit_memory": "1", "vm/panic_on_oom": "0", "kernel/panic": "10", "kernel/panic_on_oops": "1",
	"kernel/keys/root_maxkeys": "1000000", "kernel/keys/root_maxbytes": "25000000",
}

// bound are the folders of a node's own, in place of the machine's.
var bound = []string{"containerd", "kubelet", "cni"}

// staticPods is the folder in which a kubelet finds static Pods.
const staticPods = "/etc/kubernetes/manifests"

// prepare mounts the file systems of a node, on a thread in its namespaces, whose mounts are a copy of the machine's.
// All mounts end with the namespace.
func prepare(name, dir string) error {
	if err := prepareMachine(name, dir, "/etc", "/usr/local", "/var/lib", "/var/log"); err != nil {
		return err
	}
	if err := os.MkdirAll(staticPods, 0o755); err != nil {
		return err
	}
	var steps []mount
	for name := range kernelParameters {
		if _, err := os.Stat(filepath.Join("/proc/sys", name)); err == nil {
			file := filepath.Join(dir, "sys", name)
			steps = append(steps, mount{from: file, at: filepath.Join("/proc/sys", name), flags: unix.MS_BIND})
		}
	}
	for _, name := range bound {
		steps = append(steps, mount{
			from: filepath.Join(dir, name), at: filepath.Join("/var/lib", name), flags: unix.MS_BIND, create: true,
		})
	}
	// containerd and the kubelet see the mounts that containers add in volumes for them.
	return doAll(append(steps, mount{at: "/", flags: unix.MS_REC | unix.MS_SHARED}))
}

// prepareMachine mounts what every machine has: its own processes, an empty /run, and copies of folders. What a machine
// adds to these does not appear on the machine of the test.
func prepareMachine(name, dir string, folders ...string) error {
	if err := unix.Sethostname([]byte(name)); err != nil {
		return fmt.Errorf("naming the machine: %w", err)
	}
	steps := []mount{
		{at: "/", flags: unix.MS_REC | unix.MS_PRIVATE}, // before any other: no mount reaches the machine
		{at: "/proc", kind: "proc", inside: true},       // for the processes of whichever namespace mounts it
		{from: "tmpfs", at: "/run", kind: "tmpfs", options: "mode=755"},
	}
	for _, at := range folders {
		upper, work := filepath.Join(dir, "upper", at), filepath.Join(dir, "work", at)
		if err := errors.Join(os.MkdirAll(upper, 0o755), os.MkdirAll(work, 0o755)); err != nil {
			return err
		}
		options := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", at, upper, work)
		steps = append(steps, mount{from: "overlay", at: at, kind: "overlay", options: options})
	}
	return doAll(steps)
}

func doAll(steps []mount) error {
	for _, step := range steps {
		if err := step.do(); err != nil {
			return err
		}
	}
	return nil
}

// mount is one call of mount(2).
type mount struct {
	from, at, kind, options string
	flags                   uintptr
	create                  bool // the folder at which it is
	inside                  bool // done by a process of its own, because a thread keeps its process ids
}

func (m mount) do() error {
	if m.create {
		if err := os.MkdirAll(m.at, 0o755); err != nil {
			return err
		}
	}
	if m.inside {
		out, err := exec.Command("mount", "-t", m.kind, m.kind, m.at).CombinedOutput()
		if err != nil {
			return fmt.Errorf("mounting %s: %w: %s", m.at, err, out)
		}
		return nil
	}
	if err := unix.Mount(m.from, m.at, m.kind, m.flags, m.options); err != nil {
		return fmt.Errorf("mounting %s: %w", m.at, err)
	}
	return nil
}
