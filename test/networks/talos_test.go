package networks

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/test/lab/kube"
	"github.com/fairlead/fairlead/test/lab/netns"
	"github.com/fairlead/fairlead/test/lab/proc"
	"github.com/fairlead/fairlead/test/world"
)

const (
	apidPort = 50000 // of Talos' API
	apidHost = 30    // the machine with it, in each network
)

// talosMachine is a control-plane machine of Talos whose API is a stand-in: see tools/targets.
type talosMachine struct {
	fleet   *fleet
	hosted  *controlPlane
	network string
	name    string // of the Machine, and the machine's host name
	dir     string // the PKI of its cluster
	site    *netns.Site
	target  string // DNS name
}

// talos proves that the client of Talos' control-plane provider reaches apid. Two Clusters have a machine with the same
// address.
func (f *fleet) talos(t *testing.T) {
	shop := f.talosMachine(t, f.shop, f.site1, "site1", v1alpha1.NetworkTarget{
		Name: "vcenter", Address: "10.1.0.20", Port: 443,
	})
	bank := f.talosMachine(t, f.bank, f.vault, "vault")
	that(t, "a policy adds the names of targets to the addresses of Talos' Machines, and of no other", func(t *testing.T) {
		f.applyMachinePolicy(t)
		for _, m := range []*talosMachine{shop, bank} {
			want := []string{m.site.Address.String(), m.target + ":6443"}
			eventually(t, func(ctx context.Context) error {
				got, err := m.report(ctx)
				if err == nil && !slices.Equal(got, want) {
					err = fmt.Errorf("the addresses of %s are %q, want %q", m.name, got, want)
				}
				return err
			})
		}
		other := &talosMachine{fleet: f, hosted: f.shop, name: "other", site: f.node2}
		must(t, other.create(t.Context()))
		if got, err := other.report(t.Context()); err != nil || len(got) != 1 {
			t.Errorf("the addresses of a Machine without a target are %q: %v", got, err)
		}
	})
	that(t, "Talos' provider does not reach apid by the address of the machine alone", func(t *testing.T) {
		if out, err := shop.provider(t, nil, "bootstrap", shop.site.Address.String()); err == nil {
			t.Errorf("apid answers: %s", out)
		}
	})
	that(t, "Talos' provider starts etcd by the names in its Machines", func(t *testing.T) {
		for _, m := range []*talosMachine{shop, bank} {
			m.resolve(t)
			m.answers(t, "bootstrap", "etcd is started")
			m.answers(t, "bootstrap", "etcd runs already: "+m.name)
		}
	})
	that(t, "Talos' provider reaches the machine of the right Cluster, though both have one address", func(t *testing.T) {
		for _, m := range []*talosMachine{shop, bank} {
			m.answers(t, "health", "etcd is healthy: "+m.name, "has booted: "+m.name)
		}
	})
	that(t, "Talos' client reaches apid by a proxy of its environment, if it has only the name", func(t *testing.T) {
		proxy := "HTTPS_PROXY=http://" + netns.HostPort(netns.InsideAddress(0).String(), netns.ConnectPort)
		for _, m := range []*talosMachine{shop, bank} {
			out, err := m.provider(t, []string{proxy}, "health", m.target)
			if err != nil || !strings.Contains(out, "etcd is healthy: "+m.name) {
				t.Errorf("%v: %s", err, out)
			}
		}
	})
	that(t, "apid rejects the administrator of another cluster", func(t *testing.T) {
		thief := *bank
		thief.dir = shop.dir
		if out, err := thief.provider(t, nil, "health", bank.target+":6443"); err == nil {
			t.Errorf("apid answers: %s", out)
		}
	})
	that(t, "Talos' provider removes exactly one machine from etcd", func(t *testing.T) {
		shop.answers(t, "leave", "has left etcd: "+shop.name)
		bank.answers(t, "health", "etcd is healthy: "+bank.name)
	})
}

// talosMachine starts apid on a machine, makes it a target of the network besides others, and creates its Machine.
func (f *fleet) talosMachine(
	t *testing.T, h *controlPlane, r *remote, network string, others ...v1alpha1.NetworkTarget,
) *talosMachine {
	t.Helper()
	site, err := r.AddMachine(t.Context(), "talos", apidHost)
	must(t, err)
	m := &talosMachine{
		fleet: f, hosted: h, network: network, name: "talos-" + h.Name, site: site, dir: f.File("talos-" + h.Name),
		target: f.targetName(t, "apid", network, h.Name),
	}
	targets := append(others, v1alpha1.NetworkTarget{Name: "apid", Address: site.Address.String(), Port: apidPort})
	f.setTargets(t, network, targets)
	program := f.Parts.RealPath("named-targets")
	pki := f.Network.Management.Command(
		t.Context(), program, "talos-pki", "-dir="+m.dir, "-addresses="+site.Address.String(), "-names="+m.target,
	)
	if out, err := pki.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	apid, err := proc.Start(proc.Spec{
		Name: m.name, Namespace: site.Namespace, Program: program, Log: f.LogFile(m.name),
		Args: []string{"talos-apid", "-dir=" + m.dir, "-address=" + site.Address.String(), "-hostname=" + m.name},
	})
	must(t, err)
	t.Cleanup(apid.Kill)
	must(t, m.create(t.Context()))
	return m
}

// setTargets replaces the targets of a network, and waits until the controller has granted them.
func (f *fleet) setTargets(t *testing.T, network string, targets []v1alpha1.NetworkTarget) {
	t.Helper()
	list, err := json.Marshal(targets)
	must(t, err)
	f.patchNetwork(t, network, `{"spec":{"targets":`+string(list)+`}}`)
	eventually(t, func(ctx context.Context) error {
		n := &v1alpha1.RemoteNetwork{}
		at := client.ObjectKey{Namespace: world.Namespace, Name: network}
		err := f.Management.Client.Get(ctx, at, n)
		if err == nil && len(n.Status.Targets) != len(targets) {
			err = fmt.Errorf("RemoteNetwork %s has the targets %q", network, n.Status.Targets)
		}
		return err
	})
}

// applyMachinePolicy installs deploy/talos.
func (f *fleet) applyMachinePolicy(t *testing.T) {
	t.Helper()
	file, err := os.ReadFile(filepath.Join(f.Parts.Root, "deploy", "talos", "machine-addresses.yaml"))
	must(t, err)
	policy, err := kube.ParseObjects(file)
	must(t, err)
	must(t, f.Management.CreateAll(t.Context(), policy))
}

// create creates the Machine, as its owner does.
func (m *talosMachine) create(ctx context.Context) error {
	return m.fleet.Management.Client.Create(ctx, &clusterv1.Machine{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: world.Namespace, Name: m.name, Labels: map[string]string{clusterv1.ClusterNameLabel: m.hosted.Name},
		},
		Spec: clusterv1.MachineSpec{
			ClusterName: m.hosted.Name, Bootstrap: clusterv1.Bootstrap{DataSecretName: ptr.To("none")},
			InfrastructureRef: clusterv1.ContractVersionedObjectReference{
				APIGroup: "infrastructure.cluster.x-k8s.io", Kind: "LabMachine", Name: m.name,
			},
		},
	})
}

// report writes the address into the status of the Machine, as Cluster API does at each reconciliation, and returns the
// addresses that Talos' provider reads.
func (m *talosMachine) report(ctx context.Context) (addresses []string, err error) {
	machine := &clusterv1.Machine{}
	key := client.ObjectKey{Namespace: world.Namespace, Name: m.name}
	if err := m.fleet.Management.Client.Get(ctx, key, machine); err != nil {
		return nil, err
	}
	machine.Status.Addresses = clusterv1.MachineAddresses{
		{Type: clusterv1.MachineHostName, Address: m.name},
		{Type: clusterv1.MachineInternalIP, Address: m.site.Address.String()},
	}
	if err := m.fleet.Management.Client.Status().Update(ctx, machine); err != nil {
		return nil, err
	}
	for _, a := range machine.Status.Addresses {
		if a.Type == clusterv1.MachineInternalIP || a.Type == clusterv1.MachineExternalIP {
			addresses = append(addresses, a.Address)
		}
	}
	return addresses, nil
}

// resolve makes the name of the target resolve to the gateways in the management network.
func (m *talosMachine) resolve(t *testing.T) {
	t.Helper()
	for gateway := range m.fleet.Gateways {
		must(t, m.fleet.Network.Management.AddHost(m.target, netns.InsideAddress(gateway)))
	}
}

// provider runs a step of Talos' provider in the management network, with variables in its environment.
func (m *talosMachine) provider(t *testing.T, environment []string, step string, endpoints ...string) (string, error) {
	t.Helper()
	cmd := m.fleet.Network.Management.Command(t.Context(), m.fleet.Parts.RealPath("named-targets"), "talos-provider",
		"-talosconfig="+filepath.Join(m.dir, "talosconfig"), "-step="+step, "-node="+m.site.Address.String(),
		"-endpoints="+strings.Join(endpoints, ","))
	cmd.Env = append(os.Environ(), environment...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// answers fails the test unless a step succeeds and prints some texts, with the addresses in the Machine.
func (m *talosMachine) answers(t *testing.T, step string, texts ...string) {
	t.Helper()
	endpoints, err := m.report(t.Context())
	must(t, err)
	out, err := m.provider(t, nil, step, endpoints...)
	if err != nil {
		t.Fatalf("%s of %s: %v: %s", step, m.name, err, out)
	}
	for _, text := range texts {
		if !strings.Contains(out, text) {
			t.Errorf("%s of %s: want %q, have %s", step, m.name, text, out)
		}
	}
}
