package workspace

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// Parts are the folders of the programs that a lab runs.
type Parts struct {
	Root     string // of the repository
	Real     string // the real parts, which `make tools` installs
	Machines string // Kubernetes' programs of machines, which may have another version
	Fairlead string // our own programs, which `make build` builds
}

// Environment variables with folders; each is bin by default.
const (
	BinEnv      = "FAIRLEAD_BIN"           // our own programs
	RealEnv     = "FAIRLEAD_PARTS"         // the real parts of a lab
	MachinesEnv = "FAIRLEAD_MACHINE_PARTS" // Kubernetes' programs of machines; by default the folder of RealEnv
)

// FindParts finds all programs, from any working directory in the repository. The error names each missing program,
// and how to obtain it.
func FindParts() (Parts, error) {
	root, err := FindRoot()
	if err != nil {
		return Parts{}, err
	}
	p, bin := Parts{Root: root}, filepath.Join(root, "bin")
	for _, folder := range []struct {
		at   *string
		path string
	}{
		{&p.Fairlead, cmp.Or(os.Getenv(BinEnv), bin)},
		{&p.Real, cmp.Or(os.Getenv(RealEnv), bin)},
		{&p.Machines, cmp.Or(os.Getenv(MachinesEnv), os.Getenv(RealEnv), bin)},
	} {
		if *folder.at, err = filepath.Abs(folder.path); err != nil {
			return Parts{}, fmt.Errorf("finding programs: %w", err)
		}
	}
	errs := []error{
		missing(p.Real, "make tools", "envoy", "etcd", "kube-apiserver", "kubectl", "capi-core", "capi-config",
			"fake-kubelet"),
		missing(p.Fairlead, "make build", "controller", "xds-server", "gateway-agent", "edge-agent", "fairlead"),
	}
	return p, errors.Join(errs...)
}

// FindMachineParts checks the additional programs of a lab with machines.
func (p Parts) FindMachineParts() error {
	return errors.Join(
		missing(p.Real, "make tools", "machine", "kube-controller-manager", "capi-bootstrap", "capi-bootstrap-config",
			"capi-control-plane", "capi-control-plane-config", "clusterctl"),
		missing(p.Machines, "make tools", "kubeadm", "kubeadm-next", "kube-apiserver", "kube-apiserver-next",
			"kube-controller-manager"),
	)
}

// FindClusterParts finds the programs of a cluster with real nodes, from any working directory in the repository.
func FindClusterParts() (Parts, error) {
	root, err := FindRoot()
	if err != nil {
		return Parts{}, err
	}
	p := Parts{Root: root, Real: filepath.Join(root, "bin")}
	if p.Machines, err = filepath.Abs(cmp.Or(os.Getenv(MachinesEnv), p.Real)); err != nil {
		return Parts{}, fmt.Errorf("finding programs: %w", err)
	}
	return p, missing(p.Real, "make parts.cluster", "etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler",
		"kubectl", "kubelet", "kube-proxy", "containerd", "containerd-shim-runc-v2", "runc", "pause", "nft", "coredns",
		"bridge", "loopback", "host-local", "portmap")
}

// missing returns an error with the programs that a folder lacks, and the command that makes them.
func missing(folder, command string, names ...string) error {
	for _, name := range names {
		if _, err := os.Stat(filepath.Join(folder, name)); err != nil {
			return fmt.Errorf("finding programs: %s is not there: run %s", filepath.Join(folder, name), command)
		}
	}
	return nil
}

// FindRoot returns the folder with go.mod at or above the working directory.
func FindRoot() (string, error) {
	start, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("finding the repository: %w", err)
	}
	for dir := start; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("finding the repository: no go.mod at or above %s", start)
		}
	}
}

// RealPath returns the path of a real part.
func (p Parts) RealPath(name string) string { return filepath.Join(p.Real, name) }

// MachinePath returns the path of a program of Kubernetes on machines.
func (p Parts) MachinePath(name string) string { return filepath.Join(p.Machines, name) }

// OwnPath returns the path of a program of this repository.
func (p Parts) OwnPath(name string) string { return filepath.Join(p.Fairlead, name) }

// KnownArguments returns the arguments that a program of ours supports, whatever its version is.
func KnownArguments(ctx context.Context, program string, args []string) ([]string, error) {
	help := []string{"--help"}
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		help = []string{args[0], "--help"}
	}
	out, err := exec.CommandContext(ctx, program, help...).CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("asking %s for its flags: %w: %s", program, err, out)
	}
	flags := map[string]bool{}
	for field := range strings.FieldsSeq(string(out)) {
		flags[field] = true
	}
	return slices.DeleteFunc(slices.Clone(args), func(arg string) bool {
		flag, _, _ := strings.Cut(arg, "=")
		return strings.HasPrefix(flag, "--") && !flags[flag]
	}), nil
}

// MachineVersion returns the version of Kubernetes on machines.
func (p Parts) MachineVersion(ctx context.Context) (string, error) {
	return p.versionOf(ctx, "kubeadm")
}

// NextVersion returns the version of Kubernetes that machines can be upgraded to: the patch release after
// MachineVersion. Its programs have the same sources with another version number; see tools/install.
func (p Parts) NextVersion(ctx context.Context) (string, error) {
	return p.versionOf(ctx, "kubeadm-next")
}

func (p Parts) versionOf(ctx context.Context, kubeadm string) (string, error) {
	out, err := exec.CommandContext(ctx, p.MachinePath(kubeadm), "version", "--output=short").Output()
	if err != nil {
		return "", fmt.Errorf("asking %s for its version: %w", kubeadm, err)
	}
	return strings.TrimSpace(string(out)), nil
}
