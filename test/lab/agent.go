package lab

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/fairlead/fairlead/api/v1alpha1"
)

// Agent is an edge-agent or a gateway-agent, with the Envoy that it runs.
type Agent struct {
	*Service
	StateDir string
	Ready    func(context.Context) error // the condition that the agent calls itself ready
	envoy    string
}

type agentSpec struct {
	name      string
	program   string
	namespace *Namespace
	dir       string
	health    string
	args      []string
	wrapper   []string // command that runs the agent; empty for none
}

// startAgent starts an agent and waits until it says that its Envoy is ready.
func (l *Lab) startAgent(ctx context.Context, spec agentSpec) (*Agent, error) {
	agent, err := l.runAgent(spec)
	if err != nil {
		return nil, err
	}
	return agent, agent.WaitReady(ctx, startTimeout, agent.Ready)
}

func (l *Lab) runAgent(spec agentSpec) (*Agent, error) {
	if err := os.MkdirAll(spec.dir, 0o700); err != nil {
		return nil, fmt.Errorf("making the state folder of %s: %w", spec.name, err)
	}
	args := append([]string{"run", "--state-dir=" + spec.dir, "--envoy=" + l.EnvoyPath(), "--health-listen=" + spec.health, "--log-level=debug"}, spec.args...)
	command := slices.Concat(spec.wrapper, []string{l.parts.fairlead(spec.program)}, args)
	service, err := l.supervise(Spec{Name: spec.name, Namespace: spec.namespace, Program: command[0], Args: command[1:]})
	if err != nil {
		return nil, err
	}
	return &Agent{Service: service, StateDir: spec.dir, Ready: ready(spec.namespace, spec.health), envoy: l.EnvoyPath()}, nil
}

// EnvoyPID is the process id of the agent's Envoy.
func (a *Agent) EnvoyPID() (int, error) { return findProcess(a.envoy, a.StateDir) }

// KillEnvoy ends the agent's Envoy as kill -9 does.
func (a *Agent) KillEnvoy() error {
	pid, err := a.EnvoyPID()
	if err != nil {
		return err
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		return fmt.Errorf("killing the Envoy of %s: %w", a.spec.Name, err)
	}
	return nil
}

// StartEdge starts an edge in the workload network with a bootstrap file, and doesn't wait for it. Names of edges must
// differ.
func (l *Lab) StartEdge(name string, bootstrap []byte) (*Agent, error) {
	spec, err := l.edgeSpec(name, bootstrap)
	if err != nil {
		return nil, err
	}
	edge, err := l.runAgent(spec)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.edges = append(l.edges, edge)
	return edge, nil
}

// StartMisledEdge is StartEdge for a machine on which a name leads to another address than on all others.
func (l *Lab) StartMisledEdge(name string, bootstrap []byte, host string, address netip.Addr) (*Agent, error) {
	spec, err := l.edgeSpec(name, bootstrap)
	if err != nil {
		return nil, err
	}
	hosts := l.file(name, "hosts")
	if err := os.WriteFile(hosts, fmt.Appendf(nil, "%s %s\n", address, host), 0o644); err != nil {
		return nil, fmt.Errorf("writing the hosts file of %s: %w", name, err)
	}
	spec.wrapper = []string{"unshare", "--mount", "sh", "-c", `mount --bind "$0" /etc/hosts && exec "$@"`, hosts}
	return l.runAgent(spec)
}

func (l *Lab) edgeSpec(name string, bootstrap []byte) (agentSpec, error) {
	dir := l.file(name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return agentSpec{}, fmt.Errorf("making a folder for %s: %w", name, err)
	}
	file := filepath.Join(dir, v1alpha1.BootstrapFileKey)
	if err := os.WriteFile(file, bootstrap, 0o600); err != nil {
		return agentSpec{}, fmt.Errorf("writing the bootstrap file of %s: %w", name, err)
	}
	return agentSpec{
		name: name, program: "edge-agent", namespace: l.Network.Workload, dir: filepath.Join(dir, "state"),
		health: l.nextHealthAddress(), args: []string{"--bootstrap=" + file},
	}, nil
}

// nextHealthAddress is an address for the health endpoint of one more edge.
func (l *Lab) nextHealthAddress() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.healthPorts++
	return fmt.Sprintf("127.0.0.1:%d", 8100+l.healthPorts)
}

// supervise starts a service of ours, which ends with the lab.
func (l *Lab) supervise(spec Spec) (*Service, error) {
	spec.Log = l.LogFile(spec.Name)
	service, err := supervise(spec)
	if err != nil {
		return nil, err
	}
	l.onClose(func(context.Context) { service.Stop() })
	return service, nil
}

// EnvoyPath is the Envoy that agents run.
func (l *Lab) EnvoyPath() string { return l.parts.real("envoy") }
