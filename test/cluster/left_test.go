package cluster

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/test/lab/cluster"
	"github.com/fairlead/fairlead/test/lab/workspace"
)

// traces lists what there is of a cluster on this machine: network namespaces and their files, folders, control groups,
// mounts, and the processes that belong to one of its control groups or name one of its files.
func traces(t *testing.T, name string) []string {
	t.Helper()
	var found []string
	for _, pattern := range []string{
		"/run/netns/", "/etc/netns/", os.TempDir() + "/", "/sys/fs/cgroup/", "/sys/fs/cgroup/*/",
	} {
		matches, err := filepath.Glob(pattern + name + "*")
		must(t, err)
		found = append(found, matches...)
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	must(t, err)
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, name) {
			found = append(found, "mount "+strings.TrimSpace(line))
		}
	}
	return append(found, processes(t, name)...)
}

// processes lists the processes of a cluster: the ones whose command line or control group has its name.
func processes(t *testing.T, name string) []string {
	t.Helper()
	dirs, err := filepath.Glob("/proc/[0-9]*")
	must(t, err)
	var found []string
	for _, dir := range dirs {
		command, err := os.ReadFile(filepath.Join(dir, "cmdline"))
		if err != nil {
			continue // it has ended
		}
		groups, err := os.ReadFile(filepath.Join(dir, "cgroup"))
		if err == nil && strings.Contains(string(command)+string(groups), name) {
			found = append(found, "process "+filepath.Base(dir)+" "+strings.ReplaceAll(string(command), "\x00", " "))
		}
	}
	return found
}

func proveStopped(t *testing.T, c *cluster.Cluster) {
	before := traces(t, c.Workspace.Name)
	containers := slices.DeleteFunc(processes(t, c.Workspace.Name), func(p string) bool {
		return !strings.Contains(p, " /guest ")
	})
	if len(before) < 20 || len(containers) < 2 {
		t.Fatalf("of a running cluster there is only %q", before)
	}
	began := time.Now()
	must(t, c.Stop(t.Context()))
	measured("stop_s", time.Since(began).Seconds())
	if left := traces(t, c.Workspace.Name); len(left) > 0 {
		t.Errorf("left: %s", strings.Join(left, "\n"))
	}
	for _, dir := range []string{"/var/lib/kubelet", "/var/lib/containerd", "/var/lib/cni", "/var/log/containers"} {
		if _, err := os.Stat(dir); err == nil && !existed[dir] {
			t.Errorf("the cluster made %s on the machine", dir)
		}
	}
}

// existed has the folders of a node that this machine had before the first cluster.
var existed = func() map[string]bool {
	dirs := map[string]bool{}
	for _, dir := range []string{"/var/lib/kubelet", "/var/lib/containerd", "/var/lib/cni", "/var/log/containers"} {
		_, err := os.Stat(dir)
		dirs[dir] = err == nil
	}
	return dirs
}()

// crashEnv makes the test program start a cluster, print its name, and wait until it is killed.
const crashEnv = "FAIRLEAD_TEST_CLUSTER_CRASH"

func crash() int {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	c, err := cluster.Start(ctx, cluster.Options{Name: "killed"})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println(c.Workspace.Name)
	<-ctx.Done()
	return 1
}

// TestNextStartRemovesAKilledCluster kills the process that runs a cluster, as a crash does.
func TestNextStartRemovesAKilledCluster(t *testing.T) {
	proof.Need(t)
	that(t, "the next start removes what a killed process left", func(t *testing.T) {
		victim := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^$")
		victim.Env = append(os.Environ(), crashEnv+"=1")
		victim.Stderr = os.Stderr
		out, err := victim.StdoutPipe()
		must(t, err)
		must(t, victim.Start())
		name, err := bufio.NewReader(out).ReadString('\n')
		_ = victim.Process.Kill()
		_ = victim.Wait()
		if err != nil {
			t.Fatalf("the cluster did not start: %v", err)
		}
		name = strings.TrimSpace(name)
		if before := traces(t, name); len(before) < 15 {
			t.Fatalf("of the killed process's cluster there is only %q", before)
		}
		must(t, workspace.RemoveLeftovers(t.Context()))
		eventually(t, func(context.Context) error { // killed processes take a moment
			if left := traces(t, name); len(left) > 0 {
				return fmt.Errorf("left: %s", strings.Join(left, "\n"))
			}
			return nil
		})
	})
}
