package cgroup

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// What mountinfo has on a machine with version 2, with version 1, and with both.
const (
	unified = `22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 22 0:26 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:4 - cgroup2 cgroup2 rw,nsdelegate
`
	separate = `22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 22 0:26 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
31 30 0:27 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
32 30 0:28 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
33 30 0:29 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd
`
	hybrid = separate + "34 30 0:30 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n"
	none   = "22 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n34 22 0:30 / /mnt/cgroup rw - cgroup cgroup rw,memory\n"
)

func TestVersionIsThatOfTheMountPoint(t *testing.T) {
	three := []string{mountPoint + "/cpu,cpuacct", mountPoint + "/memory", mountPoint + "/systemd"}
	for name, test := range map[string]struct {
		mounts  string
		version int
		roots   []string
	}{
		"version 2": {unified, 2, []string{mountPoint}},
		"version 1": {separate, 1, three},
		// Its controllers are in the hierarchies of version 1.
		"both": {hybrid, 1, append(slices.Clone(three), mountPoint+"/unified")},
	} {
		h, err := parse(test.mounts)
		if err != nil || h.Version != test.version || !slices.Equal(h.roots, test.roots) {
			t.Errorf("%s: %+v, %v; want version %d in %v", name, h, err, test.version, test.roots)
		}
	}
	if h, err := parse(none); err == nil {
		t.Errorf("a machine without control groups at %s has %+v", mountPoint, h)
	}
}

func TestVersion2RequiresTheControllersOfAKubelet(t *testing.T) {
	for available, want := range map[string]string{
		"cpuset cpu io memory hugetlb pids rdma misc\n": "+cpu +cpuset +memory +pids +io +hugetlb",
		"cpuset cpu memory pids\n":                      "+cpu +cpuset +memory +pids",
	} {
		if got, err := controllers(available); got != want || err != nil {
			t.Errorf("of %q it enables %q (%v), want %q", available, got, err, want)
		}
	}
	for _, available := range []string{"", "cpuset cpu io pids\n", "cpu memory pids\n"} {
		if got, err := controllers(available); err == nil {
			t.Errorf("of %q it enables %q, and a kubelet would not start", available, got)
		}
	}
}

// TestVersion2DelegatesEachLevel uses files in place of a hierarchy: the kernel makes those files in each new folder.
func TestVersion2DelegatesEachLevel(t *testing.T) {
	root := t.TempDir()
	for _, dir := range []string{"", "lab", "lab/node"} {
		write(t, filepath.Join(root, dir, "cgroup.controllers"), "cpu cpuset memory pids\n")
	}
	if err := (Hierarchies{Version: 2, roots: []string{root}}).Make("lab/node"); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"", "lab", "lab/node"} {
		got, err := os.ReadFile(filepath.Join(root, dir, "cgroup.subtree_control"))
		if want := "+cpu +cpuset +memory +pids"; err != nil || string(got) != want {
			t.Errorf("level %q delegates %q (%v), want %q", dir, got, err, want)
		}
	}
}

// TestVersion1InheritsProcessors uses files in place of two hierarchies.
func TestVersion1InheritsProcessors(t *testing.T) {
	cpus, memory := t.TempDir(), t.TempDir()
	write(t, filepath.Join(cpus, "cpuset.cpus"), "0-1\n")
	write(t, filepath.Join(cpus, "cpuset.mems"), "0\n")
	h := Hierarchies{Version: 1, roots: []string{cpus, memory}}
	if err := h.Make("lab/node"); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{
		"lab/cpuset.cpus": "0-1\n", "lab/node/cpuset.cpus": "0-1\n", "lab/node/cpuset.mems": "0\n",
	} {
		if got, err := os.ReadFile(filepath.Join(cpus, file)); err != nil || string(got) != want {
			t.Errorf("%s has %q (%v), want %q", file, got, err, want)
		}
	}
	if _, err := os.Stat(filepath.Join(memory, "lab/node/cpuset.cpus")); err == nil {
		t.Error("a hierarchy without the controller cpuset got its files")
	}
	if got := h.Names(); !slices.Equal(got, []string{"lab"}) {
		t.Errorf("the groups at the top are %v", got)
	}
}

// TestRemoveEndsProcesses uses the real hierarchies of this machine.
func TestRemoveEndsProcesses(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("making control groups needs root")
	}
	h, err := Find()
	if err != nil {
		t.Skip(err)
	}
	name := "fairlead-test-" + strconv.Itoa(os.Getpid())
	if err := h.Make(name + "/node"); err != nil {
		if h.Version == 2 && strings.Contains(err.Error(), "busy") {
			t.Skip(err) // in a container that has no group for it
		}
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = h.Remove(context.Background(), name) })
	sleep := exec.CommandContext(t.Context(), "sleep", "60")
	if err := sleep.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- sleep.Wait() }()
	for _, root := range h.roots {
		write(t, filepath.Join(root, name, "node", "cgroup.procs"), strconv.Itoa(sleep.Process.Pid))
	}
	if got, err := h.Processes(name); err != nil || !slices.Equal(got, []int{sleep.Process.Pid}) {
		t.Errorf("the group has the processes %v (%v), want %d", got, err, sleep.Process.Pid)
	}
	if err := h.Remove(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err == nil {
		t.Error("the process in the group was not killed")
	}
	if slices.Contains(h.Names(), name) {
		t.Error("the group is still there")
	}
	if err := h.Remove(t.Context(), name); err != nil {
		t.Errorf("removing a group that is gone: %v", err)
	}
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestTheKernelKillsBeyondTheLimit fills a group with a limit of 32 MiB.
func TestTheKernelKillsBeyondTheLimit(t *testing.T) {
	h, err := Find()
	if err != nil {
		t.Skip(err)
	}
	name := fmt.Sprintf("fairlead-limit-%d", os.Getpid())
	if err := h.Make(name); err != nil {
		t.Skip("this user may not make control groups: ", err)
	}
	t.Cleanup(func() {
		if err := h.Remove(context.Background(), name); err != nil {
			t.Error(err)
		}
	})
	procs, err := h.LimitMemory(name, 32<<20)
	if err != nil {
		t.Fatal(err)
	}
	fill := func(bytes int) error {
		return exec.CommandContext(
			t.Context(), "sh", "-c", `echo $$ > "$0" && exec head -c "$1" /dev/zero | tail -c "$1" > /dev/null`, procs,
			strconv.Itoa(bytes),
		).Run()
	}
	if err := fill(4 << 20); err != nil {
		t.Errorf("4 MiB: %v", err)
	}
	if m, err := h.Memory(name); err != nil || m.Kills != 0 || m.Highest < 4<<20 || m.Highest > 32<<20 {
		t.Errorf("%+v, %v", m, err)
	}
	if err := fill(64 << 20); err == nil {
		t.Error("64 MiB fit")
	}
	if m, err := h.Memory(name); err != nil || m.Kills != 1 || m.Highest < 31<<20 {
		t.Errorf("%+v, %v", m, err)
	}
}
