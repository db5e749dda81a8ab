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
	Fairlead string // our own programs, which `make build` builds
}

// BinEnv is the environment variable with the folder of our own programs; by default it is bin.
const BinEnv = "FAIRLEAD_BIN"

// FindParts finds all programs, from any working directory in the repository. The error names each missing program,
// and how to obtain it.
func FindParts() (Parts, error) {
	root, err := FindRoot()
	if err != nil {
		return Parts{}, err
	}
	p := Parts{Root: root, Real: filepath.Join(root, "bin")}
	if p.Fairlead, err = filepath.Abs(cmp.Or(os.Getenv(BinEnv), p.Real)); err != nil {
		return Parts{}, fmt.Errorf("finding our own programs: %w", err)
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
	return missing(p.Real, "make tools", "machine", "kubeadm", "kubeadm-next", "kube-apiserver-next",
		"kube-controller-manager", "capi-bootstrap", "capi-bootstrap-config",
		"capi-control-plane", "capi-control-plane-config", "clusterctl")
}

// FindClusterParts finds the programs of a cluster with real nodes, from any working directory in the repository.
func FindClusterParts() (Parts, error) {
	root, err := FindRoot()
	if err != nil {
		return Parts{}, err
	}
	p := Parts{Root: root, Real: filepath.Join(root, "bin")}
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

// NextVersion returns the version of Kubernetes that machines can be upgraded to: the next patch release after the
// pinned one. Its programs have the pinned sources with another version number; see tools/install.
func (w *Workspace) NextVersion(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, w.Parts.RealPath("kubeadm-next"), "version", "--output=short").Output()
	if err != nil {
		return "", fmt.Errorf("asking kubeadm for the next version: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}
