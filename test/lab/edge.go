package lab

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/agent/envoyproc"
	"github.com/fairlead/fairlead/test/lab/netns"
	"github.com/fairlead/fairlead/test/lab/proc"
)

// EdgeSpec describes an edge. Only Name is required, and names of edges must differ.
type EdgeSpec struct {
	Name string
	// Bootstraps are the bootstrap files, one for each workload cluster.
	Bootstraps [][]byte
	// Site is the location of the edge; by default the workload network.
	Site *netns.Namespace
	// Flags and Env are added to the agent's.
	Flags, Env []string
	// Program is a build of edge-agent, Envoy a program to run as Envoy; by default the lab's.
	Program, Envoy string
	// StateDir is the state folder; by default a new one.
	StateDir string
	// Hosts are names that resolve differently on this machine than on the others of its network.
	Hosts map[string]netip.Addr
	// Container runs Envoy beside the agent instead of as its child, like two containers of one Pod.
	Container bool
}

// StartEdge starts an edge in the workload network with a bootstrap file. It doesn't wait for it.
func (l *Lab) StartEdge(name string, bootstrap []byte) (*Agent, error) {
	return l.RunEdge(EdgeSpec{Name: name, Bootstraps: [][]byte{bootstrap}})
}

// RunEdge starts an edge. It doesn't wait for it.
func (l *Lab) RunEdge(spec EdgeSpec) (*Agent, error) {
	run, err := l.edgeSpec(spec)
	if err != nil {
		return nil, err
	}
	edge, err := l.runAgent(run)
	if err != nil {
		return nil, err
	}
	if spec.Container {
		if edge.Envoy, err = l.startEnvoyContainer(spec.Name, run); err != nil {
			return nil, err
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.edges = append(l.edges, edge)
	return edge, nil
}

func (l *Lab) edgeSpec(spec EdgeSpec) (agentSpec, error) {
	dir := l.File(spec.Name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return agentSpec{}, fmt.Errorf("making a folder for %s: %w", spec.Name, err)
	}
	run := agentSpec{
		name: spec.Name, program: l.Parts.OwnPath("edge-agent"), namespace: l.Network.Workload,
		dir:    filepath.Join(dir, "state"),
		health: l.nextHealthAddress(), env: spec.Env, envoy: spec.Envoy,
	}
	if spec.Program != "" {
		run.program = spec.Program
	}
	if spec.StateDir != "" {
		run.dir = spec.StateDir
	}
	if spec.Site != nil {
		run.namespace = spec.Site
	}
	for i, bootstrap := range spec.Bootstraps {
		file := l.BootstrapFile(spec.Name, i)
		if err := os.WriteFile(file, bootstrap, 0o600); err != nil {
			return agentSpec{}, fmt.Errorf("writing the bootstrap file of %s: %w", spec.Name, err)
		}
		run.args = append(run.args, "--bootstrap="+file)
	}
	run.args = append(run.args, spec.Flags...)
	if spec.Container {
		run.args = append(run.args, "--envoy-external")
	}
	if len(spec.Hosts) == 0 {
		return run, nil
	}
	hosts, err := l.writeOwnHosts(spec)
	run.wrapper = []string{"unshare", "--mount", "sh", "-c", `mount --bind "$0" /etc/hosts && exec "$@"`, hosts}
	return run, err
}

// BootstrapFile returns the path of the i-th bootstrap file of an edge.
func (l *Lab) BootstrapFile(edge string, i int) string {
	if i == 0 {
		return l.File(edge, v1alpha1.BootstrapFileKey)
	}
	return l.File(edge, strconv.Itoa(i)+"-"+v1alpha1.BootstrapFileKey)
}

// writeOwnHosts writes the hosts file of one machine.
func (l *Lab) writeOwnHosts(spec EdgeSpec) (string, error) {
	file := l.File(spec.Name, "hosts")
	var text []byte
	for name, address := range spec.Hosts {
		text = fmt.Appendf(text, "%s %s\n", address, name)
	}
	if err := os.WriteFile(file, text, 0o644); err != nil {
		return "", fmt.Errorf("writing the hosts file of %s: %w", spec.Name, err)
	}
	return file, nil
}

// envoyContainer does what the containers of a Pod do: the init container writes Envoy's bootstrap, then Envoy's own
// container runs it on each start.
const envoyContainer = `set -eu
state=$1 agent=$2 envoy=$3
shift 3
"$agent" bootstrap --state-dir="$state"
cd "$state"
exec "$envoy" "$@"`

func (l *Lab) startEnvoyContainer(name string, spec agentSpec) (*proc.Service, error) {
	return l.supervise(proc.Spec{
		Name: name + "-envoy", Namespace: spec.namespace, Program: "sh",
		Args: append([]string{"-c", envoyContainer, "sh", spec.dir, spec.program, l.EnvoyPath()},
			envoyproc.ExternalArguments()...),
	})
}

// Exec runs a command of ours in the management network with an administrator's kubeconfig, and returns its output.
func (l *Lab) Exec(ctx context.Context, args ...string) (string, error) {
	cmd, err := l.Command(ctx, args...)
	if err != nil {
		return "", err
	}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// Command returns the command that Exec runs, for callers that start it themselves.
func (l *Lab) Command(ctx context.Context, args ...string) (*exec.Cmd, error) {
	file, err := l.ManagementKubeconfig()
	if err != nil {
		return nil, err
	}
	cmd := l.Network.Management.Command(ctx, l.Parts.OwnPath("fairlead"), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+file)
	return cmd, nil
}
