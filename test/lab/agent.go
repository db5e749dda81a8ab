package lab

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"syscall"

	"github.com/fairlead/fairlead/test/lab/netns"
	"github.com/fairlead/fairlead/test/lab/proc"
)

// Agent is an edge-agent or a gateway-agent, with the Envoy that it runs.
type Agent struct {
	*proc.Service
	StateDir string
	Ready    func(context.Context) error // returns nil if the agent reports that it is ready
	Health   string                      // address of its health endpoint, in its namespace
	Envoy    *proc.Service               // if Envoy is not the agent's child; otherwise nil
	envoy    string
}

type agentSpec struct {
	name      string
	program   string // path
	namespace *netns.Namespace
	dir       string
	health    string
	args      []string
	env       []string
	envoy     string   // program to run as Envoy; empty for Envoy itself
	wrapper   []string // command that runs the agent; empty for none
}

// startAgent starts an agent and waits until it reports that its Envoy is ready.
func (l *Lab) startAgent(ctx context.Context, spec agentSpec) (*Agent, error) {
	agent, err := l.runAgent(spec)
	if err != nil {
		return nil, err
	}
	return agent, agent.WaitReady(ctx, proc.StartTimeout, agent.Ready)
}

func (l *Lab) runAgent(spec agentSpec) (*Agent, error) {
	if err := os.MkdirAll(spec.dir, 0o700); err != nil {
		return nil, fmt.Errorf("making the state folder of %s: %w", spec.name, err)
	}
	args := append([]string{
		"run", "--state-dir=" + spec.dir, "--envoy=" + cmp.Or(spec.envoy, l.EnvoyPath()), "--health-listen=" + spec.health,
		l.logLevel(),
	}, spec.args...)
	args, err := l.known(context.Background(), spec.name, spec.program,
		append(args, l.metricsFlag(metricsBeside(spec.health))...))
	if err != nil {
		return nil, err
	}
	command := slices.Concat(spec.wrapper, []string{spec.program}, args)
	service, err := l.supervise(proc.Spec{
		Name: spec.name, Namespace: spec.namespace, Program: command[0],
		Args: command[1:], Env: spec.env,
	})
	if err != nil {
		return nil, err
	}
	return &Agent{
		Service: service, StateDir: spec.dir, Ready: ready(spec.namespace, spec.health), Health: spec.health,
		envoy: l.EnvoyPath(),
	}, nil
}

// EnvoyPID returns the process id of the agent's Envoy.
func (a *Agent) EnvoyPID() (int, error) { return proc.FindProcess(a.envoy, a.StateDir) }

// KillEnvoy ends the agent's Envoy with SIGKILL.
func (a *Agent) KillEnvoy() error {
	pid, err := a.EnvoyPID()
	if err != nil {
		return err
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		return fmt.Errorf("killing the Envoy of %s: %w", a.Process().Name, err)
	}
	return nil
}

// FreezeEnvoy stops the agent's Envoy with SIGSTOP. thaw continues it, unless the agent has replaced it meanwhile.
func (a *Agent) FreezeEnvoy() (pid int, thaw func(), err error) {
	if pid, err = a.EnvoyPID(); err != nil {
		return 0, nil, err
	}
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		return 0, nil, fmt.Errorf("freezing the Envoy of %s: %w", a.Process().Name, err)
	}
	return pid, func() {
		if now, err := a.EnvoyPID(); err == nil && now == pid {
			_ = syscall.Kill(pid, syscall.SIGCONT)
		}
	}, nil
}

// nextHealthAddress returns the address of the next edge's health endpoint.
func (l *Lab) nextHealthAddress() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.healthPorts++
	return fmt.Sprintf("127.0.0.1:%d", 8100+l.healthPorts)
}

// supervise starts a service of ours, which ends with the lab.
func (l *Lab) supervise(spec proc.Spec) (*proc.Service, error) {
	spec.Log = l.LogFile(spec.Name)
	service, err := proc.Supervise(spec)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.services = append(l.services, service)
	return service, nil
}

// stopServices ends all services of ours at the same time: an agent may take a while to drain its Envoy.
func (l *Lab) stopServices() {
	l.mu.Lock()
	services := l.services
	l.services = nil
	l.mu.Unlock()
	for _, gateway := range l.Gateways {
		if gateway != nil {
			gateway.Hold() // it would drain for longer than Stop waits; its Envoy ends with its network
		}
	}
	var group sync.WaitGroup
	for _, service := range services {
		group.Go(service.Stop)
	}
	group.Wait()
}

// EnvoyPath returns the path of the Envoy that agents run.
func (l *Lab) EnvoyPath() string { return l.Parts.RealPath("envoy") }
