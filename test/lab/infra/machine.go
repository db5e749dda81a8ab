package infra

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// machineImage returns flags with the programs of a machine's image for a version of Kubernetes; without a version, of
// MachineVersion. Containers run the program of their image's tag, regardless of the machine's version, or the only
// program if there is one.
func (c *Cloud) machineImage(ctx context.Context, version string) ([]string, error) {
	parts := c.workspace.Parts
	next, err := parts.NextVersion(ctx)
	if err != nil {
		return nil, err
	}
	if version == "" {
		if version, err = parts.MachineVersion(ctx); err != nil {
			return nil, err
		}
	}
	edgeAgent := parts.OwnPath("edge-agent")
	programs := map[string]string{
		"edge-agent": edgeAgent, "fairlead-edge": edgeAgent, // by command and by image
		"kube-apiserver:" + next: parts.MachinePath("kube-apiserver-next"),
	}
	for _, name := range []string{"kubeadm", "kubeadm-next", "kube-apiserver", "kube-controller-manager"} {
		programs[name] = parts.MachinePath(name)
	}
	for _, name := range []string{"kubectl", "etcd", "envoy"} {
		programs[name] = parts.RealPath(name)
	}
	if version == next {
		programs["kubeadm"] = programs["kubeadm-next"]
	}
	flags := []string{"--kubelet-version=" + version}
	for name, program := range programs {
		flags = append(flags, "--program="+name+"="+program)
	}
	return flags, nil
}

// Command returns a command that root runs on the machine, with its files, its network and its processes.
func (m *Machine) Command(ctx context.Context, program string, args ...string) (*exec.Cmd, error) {
	first, err := m.firstProcess()
	if err != nil {
		return nil, fmt.Errorf("looking for the first process of machine %s: %w", m.Name, err)
	}
	all := append([]string{"--target=" + first, "--mount", "--pid", "--net", "--uts", "--wd=/", program}, args...)
	return exec.CommandContext(ctx, "nsenter", all...), nil
}

// firstProcess returns the lab's process id of the machine's process 1: the only child of the program that simulates
// the machine.
func (m *Machine) firstProcess() (string, error) {
	threads, err := filepath.Glob(filepath.Join("/proc", strconv.Itoa(m.process.PID()), "task", "*", "children"))
	if err != nil {
		return "", err
	}
	for _, file := range threads {
		children, err := os.ReadFile(file)
		if err != nil {
			return "", err
		}
		if pids := strings.Fields(string(children)); len(pids) > 0 {
			return pids[0], nil
		}
	}
	return "", fmt.Errorf("process %d has no child", m.process.PID())
}

// File returns the path in the lab of a file of the machine.
func (m *Machine) File(path string) string { return filepath.Join(m.Dir, "disk", path) }
