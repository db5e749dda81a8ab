// Package infra is an infrastructure provider for Cluster API whose machines are network namespaces. Input: LabCluster
// and LabMachine objects. Output: machines that run kubeadm, and a load balancer for each workload cluster. It does
// not know Fairlead.
package infra

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"

	"k8s.io/apimachinery/pkg/types"

	"github.com/fairlead/fairlead/test/lab/netns"
	"github.com/fairlead/fairlead/test/lab/proc"
	"github.com/fairlead/fairlead/test/lab/workspace"
)

// Cloud runs the machines of LabMachines: each is a site on the workload network. As in any cloud, its resources do
// not depend on which management cluster has objects for them.
type Cloud struct {
	workspace *workspace.Workspace // for logs and files
	network   *netns.Network

	mu        sync.Mutex
	names     map[string][]netip.Addr // resolved on all machines
	machines  map[types.NamespacedName]*Machine
	balancers map[types.NamespacedName]*balancer
}

// Machine is one machine.
type Machine struct {
	*netns.Site
	Name    string
	Cluster types.NamespacedName
	Dir     string // of all its files
	process *proc.Process
	serves  bool // it has an apiserver
}

// machineSpec describes a machine.
type machineSpec struct {
	key          types.NamespacedName
	cluster      types.NamespacedName
	host         string
	userData     []byte
	version      string // of Kubernetes
	controlPlane bool
}

// NewCloud returns a cloud without machines on the workload network.
func NewCloud(w *workspace.Workspace, network *netns.Network) *Cloud {
	return &Cloud{
		workspace: w, network: network, names: map[string][]netip.Addr{},
		machines: map[types.NamespacedName]*Machine{}, balancers: map[types.NamespacedName]*balancer{},
	}
}

// AddName makes a name resolve on all present and future machines.
func (c *Cloud) AddName(name string, addresses ...netip.Addr) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.names[name] = addresses
	for _, machine := range c.machines {
		if err := machine.SetHost(name, addresses...); err != nil {
			return err
		}
	}
	return nil
}

// machine returns a machine, or nil if it does not exist.
func (c *Cloud) machine(key types.NamespacedName) *Machine {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.machines[key]
}

// Machines returns the running machines of a Cluster, by name.
func (c *Cloud) Machines(cluster types.NamespacedName) []*Machine {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []*Machine
	for _, key := range slices.SortedFunc(maps.Keys(c.machines),
		func(a, b types.NamespacedName) int { return compare(a, b) }) {
		if c.machines[key].Cluster == cluster {
			all = append(all, c.machines[key])
		}
	}
	return all
}

// create starts a machine with its bootstrap data.
func (c *Cloud) create(ctx context.Context, spec machineSpec) (*Machine, error) {
	site, err := c.network.AddSite(ctx, spec.host)
	if err != nil {
		return nil, fmt.Errorf("making machine %s: %w", spec.host, err)
	}
	m := &Machine{
		Site: site, Name: spec.host, Cluster: spec.cluster, Dir: c.workspace.File("machines", spec.host),
		serves: spec.controlPlane,
	}
	// Every machine has a default route: kubeadm takes its address from it. It leads nowhere.
	if err := site.IP(ctx, "route", "add", "default", "via", netns.WorkloadAddress.String()); err != nil {
		return nil, err
	}
	if err := c.install(ctx, m, spec); err != nil {
		netns.RemoveNamespace(context.WithoutCancel(ctx), site.Name)
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.machines[spec.key] = m
	c.updateBalancer(spec.cluster)
	return m, nil
}

// install gives a machine its names and its bootstrap data, and starts it.
func (c *Cloud) install(ctx context.Context, m *Machine, spec machineSpec) error {
	c.mu.Lock()
	names := maps.Clone(c.names)
	c.mu.Unlock()
	for name, addresses := range names {
		if err := m.SetHost(name, addresses...); err != nil {
			return err
		}
	}
	if err := m.SetHost(m.Name, m.Address); err != nil {
		return err
	}
	if err := os.MkdirAll(m.Dir, 0o755); err != nil {
		return fmt.Errorf("making machine %s: %w", m.Name, err)
	}
	userData := filepath.Join(c.workspace.File("machines"), m.Name+".user-data")
	if err := os.WriteFile(userData, spec.userData, 0o600); err != nil {
		return fmt.Errorf("making machine %s: %w", m.Name, err)
	}
	args := []string{
		"run", "--dir=" + m.Dir, "--hostname=" + m.Name, "--address=" + m.Address.String(),
		"--user-data=" + userData, "--provider-id=" + providerID(spec.key),
	}
	image, err := c.machineImage(ctx, spec.version)
	if err != nil {
		return err
	}
	m.process, err = proc.Start(proc.Spec{
		Name: "machine-" + m.Name, Namespace: m.Namespace, Program: c.workspace.Parts.RealPath("machine"),
		Args: append(args, image...),
		Log:  c.workspace.LogFile("machine-" + m.Name),
	})
	return err
}

// providerID returns the id of a machine in this cloud, as on its Node and its LabMachine.
func providerID(key types.NamespacedName) string { return "lab:///" + key.String() }

// remove ends a machine permanently. If it does not exist, remove does nothing.
func (c *Cloud) remove(ctx context.Context, key types.NamespacedName) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.machines[key]
	if m == nil {
		return
	}
	delete(c.machines, key)
	c.updateBalancer(m.Cluster)
	m.Destroy(ctx)
	netns.RemoveNamespace(ctx, m.Namespace.Name)
	netns.UnmountBelow(m.Dir)
	_ = os.RemoveAll(m.Dir)
}

// Destroy ends a machine without an orderly shutdown, like the loss of its power.
func (m *Machine) Destroy(ctx context.Context) {
	_ = m.Unplug(ctx)
	for _, pid := range netns.NamespacePIDs(ctx, m.Namespace.Name) {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	m.process.Kill()
}

// compare orders names.
func compare(a, b types.NamespacedName) int {
	switch as, bs := a.String(), b.String(); {
	case as < bs:
		return -1
	case as > bs:
		return 1
	}
	return 0
}
