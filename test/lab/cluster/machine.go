package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/fairlead/fairlead/test/lab/netns"
	"github.com/fairlead/fairlead/test/lab/proc"
)

// firstMachine is the host number of the first Machine. Nodes are below.
const firstMachine = 100

// Machine is a machine in the network of a cluster that is no node of it: a network, processes, a host name, and the
// folders /etc, /usr/local, /var/lib and /run of its own. No service manager runs on it.
type Machine struct {
	Name      string
	Address   netip.Addr
	Namespace *netns.Namespace

	cluster *Cluster
	dir     string
	init    *proc.Process // the first process: when it ends, the kernel kills all others
}

// StartMachine starts a machine. It ends with the cluster.
func (c *Cluster) StartMachine(ctx context.Context, name string) (*Machine, error) {
	c.mu.Lock()
	number := firstMachine + c.machines
	c.machines++
	c.mu.Unlock()
	m := &Machine{Name: name, Address: netns.AddressAt(c.segment.Prefix, number), cluster: c, dir: c.File(name)}
	var err error
	if m.Namespace, err = c.segment.AddMachine(ctx, name, number); err == nil {
		m.init, err = startInit(c, name, m.Namespace)
	}
	if err == nil {
		c.OnClose(func(context.Context) { m.init.Kill() })
		err = enter(m.init.PID(), func() error {
			resolver := "nameserver " + c.segment.Gateway().String() + "\n"
			return errors.Join(
				prepareMachine(name, m.dir, "/etc", "/usr/local", "/var/lib"),
				os.WriteFile("/etc/resolv.conf", []byte(resolver), 0o644),
			)
		})
	}
	if err != nil {
		return nil, fmt.Errorf("starting machine %s: %w", name, err)
	}
	return m, nil
}

// Run runs a program on the machine with an input, as root, and returns its output.
func (m *Machine) Run(ctx context.Context, input, program string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	var out bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &out, &out
	err := enter(m.init.PID(), cmd.Start)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		return nil, fmt.Errorf("running %s on %s: %w: %s", program, m.Name, err, strings.TrimSpace(out.String()))
	}
	return out.Bytes(), nil
}

// Supervise runs a program on the machine as root. It is restarted when it ends.
func (m *Machine) Supervise(name, program string, args ...string) (*proc.Service, error) {
	service, err := proc.Supervise(proc.Spec{
		Name: m.Name + "-" + name, Program: program, Args: args, Log: m.cluster.LogFile(m.Name + "-" + name),
		Enter: func(start func() error) error { return enter(m.init.PID(), start) },
	})
	if err == nil {
		m.cluster.OnClose(func(context.Context) { service.Stop() })
	}
	return service, err
}

// File returns where a file of the machine's own folders is on the machine of the test.
func (m *Machine) File(path string) string { return filepath.Join(m.dir, "upper", path) }

// startInit makes the namespaces of a machine, which its first process holds.
func startInit(c *Cluster, name string, network *netns.Namespace) (*proc.Process, error) {
	return proc.Start(proc.Spec{
		Name: name + "-init", Program: c.Parts.RealPath("pause"), Log: c.LogFile(name + "-init"),
		Clone: syscall.CLONE_NEWNS | syscall.CLONE_NEWUTS | syscall.CLONE_NEWPID,
		Enter: network.Do,
	})
}
