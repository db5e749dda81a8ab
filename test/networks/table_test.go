package networks

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/diagnose/check"
	"github.com/fairlead/fairlead/test/faults"
	"github.com/fairlead/fairlead/test/hosted"
	"github.com/fairlead/fairlead/test/lab/kube"
	"github.com/fairlead/fairlead/test/lab/netns"
	"github.com/fairlead/fairlead/test/lab/proc"
	"github.com/fairlead/fairlead/test/world"
)

// allFaults returns the faults of the table. The first one is injected before the apiserver of shop enrols.
func allFaults() []fault {
	return slices.Concat([]fault{noEgress}, objectFaults, pathFaults, nodeFaults, nameFaults, forwardFaults)
}

// noEgress is the state of a Cluster whose apiserver has not enrolled.
var noEgress = fault{
	Title: "no apiserver of the Cluster has enrolled for egress", Hop: check.HopEgress, Cause: "no edge-agent runs with",
	Cure: "fairlead network egress", Short: true, Only: true,
	Do: "apply what `fairlead network egress` prints for the control plane",
	Inject: func(_ *testing.T, f *fleet) func(*testing.T) {
		return func(t *testing.T) { must(t, f.shop.Enrol(t.Context())) }
	},
}

// adds injects a fault by a further network of shop, which is then corrected.
func adds(spec v1alpha1.RemoteNetworkSpec) func(*testing.T, *fleet) func(*testing.T) {
	return func(t *testing.T, f *fleet) func(*testing.T) {
		f.shop.network(t, extra, spec)
		return func(t *testing.T) { f.patchNetwork(t, extra, `{"spec":{"cidrs":["10.7.0.0/16"]}}`) }
	}
}

func cidrs(all ...string) v1alpha1.RemoteNetworkSpec { return v1alpha1.RemoteNetworkSpec{CIDRs: all} }

// objectFaults are faults of RemoteNetworks.
var objectFaults = []fault{
	{
		Title: "two networks of a Cluster have the same CIDR", Hop: check.HopNetworks, Only: true,
		Cause: "two networks of the Cluster have the same CIDR", Cure: "remove it from one of the two",
		Do:     "remove it from one of the two RemoteNetworks",
		Inject: adds(cidrs("10.1.0.0/16")),
	},
	{
		Title: "a CIDR is a part of the Cluster's Pod CIDR", Hop: check.HopNetworks, Only: true,
		Cause: "would lead into the network by accident", Cure: "a CIDR beside it",
		Do: "give the whole Pod CIDR, or a CIDR beside it",
		Inject: func(t *testing.T, f *fleet) func(*testing.T) {
			pods := map[string]any{"pods": map[string]any{"cidrBlocks": []string{"10.244.0.0/16"}}}
			must(t, f.shop.Patch(t.Context(), map[string]any{"spec": map[string]any{"clusterNetwork": pods}}))
			return adds(cidrs("10.244.7.0/24"))(t, f)
		},
	},
	{
		Title: "a CIDR contains the gateways", Hop: check.HopNetworks, Only: true,
		Cause: "the CIDR contains a gateway", Cure: "without the gateway",
		Do:     "give smaller CIDRs, without the gateways",
		Inject: adds(cidrs(netip.PrefixFrom(netns.InsideAddress(0), 32).String())),
	},
	{
		Title: "a CIDR has only link-local addresses, such as a metadata service", Hop: check.HopNetworks, Only: true,
		Cause: "it has only addresses that no edge dials", Cure: "remove it",
		Do:     "remove it: edges never dial loopback, link-local, multicast and metadata addresses",
		Inject: adds(cidrs("169.254.0.0/16")),
	},
	{
		Title: "a RemoteNetwork names a Cluster that does not exist in its namespace", Hop: check.HopCluster, Of: "shopp",
		Cause: "names a Cluster that does not exist", Cure: "create it with the right spec.clusterName",
		Do:      "create it again with the right `spec.clusterName`, in the namespace of the Cluster",
		Healthy: func(f *fleet) func(context.Context) error { return faults.HopIs(f, "shop", check.HopNetworks) },
		Inject: func(t *testing.T, f *fleet) func(*testing.T) {
			network := &v1alpha1.RemoteNetwork{
				ObjectMeta: metav1.ObjectMeta{Namespace: world.Namespace, Name: extra},
				Spec:       v1alpha1.RemoteNetworkSpec{ClusterName: "shopp", CIDRs: []string{"10.7.0.0/16"}},
			}
			must(t, f.Management.Client.Create(t.Context(), network))
			return func(t *testing.T) {
				f.cleanUp(t)
				f.shop.network(t, extra, cidrs("10.7.0.0/16"))
			}
		},
	},
	{
		Title: "the RemoteNetwork is paused", Hop: check.HopNetworks, Status: check.Warning,
		Cause: "the RemoteNetwork was paused", Cure: "annotate remotenetwork",
		Do: "remove its annotation `cluster.x-k8s.io/paused`",
		Inject: func(t *testing.T, f *fleet) func(*testing.T) {
			const patch = `{"metadata":{"annotations":{"cluster.x-k8s.io/paused":%s}}}`
			return f.patched(t, "site2", fmt.Sprintf(patch, `""`), fmt.Sprintf(patch, "null"))
		},
	},
	{
		Title: "the RemoteNetwork is being deleted, and a finalizer is left", Hop: check.HopNetworks, Status: check.Warning,
		Cause: "the RemoteNetwork was deleted", Cure: "the controller of each finalizer",
		Do: "wait until the controller of the finalizer has removed it",
		Inject: func(t *testing.T, f *fleet) func(*testing.T) {
			f.shop.network(t, extra, cidrs("10.7.0.0/16"))
			f.patchNetwork(t, extra, `{"metadata":{"finalizers":["example.com/keep"]}}`)
			at := metav1.ObjectMeta{Namespace: world.Namespace, Name: extra}
			must(t, f.Management.Client.Delete(t.Context(), &v1alpha1.RemoteNetwork{ObjectMeta: at}))
			return func(t *testing.T) { f.patchNetwork(t, extra, `{"metadata":{"finalizers":null}}`) }
		},
	},
}

// pathFaults are faults between an apiserver and the edges of a network.
var pathFaults = []fault{
	{
		Title: "no edge of the network has enrolled", Hop: check.HopNetworkEdges, Cause: "no edge-agent runs with",
		Cure: "network-edge-bootstrap", Only: true,
		Do: "run edge-agent in the network: `fairlead network join` prints how",
		Inject: func(t *testing.T, f *fleet) func(*testing.T) {
			f.shop.network(t, extra, cidrs("10.7.0.0/16"))
			return func(t *testing.T) { newRemote(t, f.World, extra, "10.7.0.0/16").edge(t, f.shop, "edge", 2, extra) }
		},
	},
	{
		Title: "all edges of the network are down", Hop: check.HopNetworkEdges, Short: true,
		Cause: "the process edge-agent or its machine is down", Cure: "check that edge-agent runs",
		Do: "restart edge-agent on a machine of the network",
		Inject: func(t *testing.T, f *fleet) func(*testing.T) {
			world.StopEdge(t, f.edge2)
			return func(*testing.T) { f.edge2.Resume() }
		},
	},
	{
		Title: "one of two edges of the network is down", Hop: check.HopNetworkEdges, Status: check.Warning,
		Cause: "and the others serve it", Cure: "restart edge-agent on that machine",
		Do: "restart edge-agent on its machine, or revoke the edge if it will not return",
		Inject: func(t *testing.T, f *fleet) func(*testing.T) {
			if f.tunnels("site1.network", 2)(t.Context()) != nil {
				f.site1.edge(t, f.shop, "edge-2", 3, "site1")
				eventually(t, f.tunnels("site1.network", 2))
			}
			world.StopEdge(t, f.edge1)
			return func(*testing.T) { f.edge1.Resume() }
		},
	},
	{
		Title: "the only edge of the network is revoked", Hop: check.HopNetworkEdges, Of: "bank",
		Cause: "it was revoked", Cure: "enrol another edge",
		Do: "enrol another edge with the newest bootstrap file and an empty state folder",
		Inject: func(t *testing.T, f *fleet) func(*testing.T) {
			f.revoke(t, "vault.network", f.edge3)
			return func(t *testing.T) {
				world.StopEdge(t, f.edge3) // its address is free then
				f.edge3, _ = f.vault.edge(t, f.bank, "edge-b", 3, "vault", "--apiserver-listen=10.1.0.3:6443")
			}
		},
	},
	{
		Title: "the Envoy beside the apiserver is down", Hop: check.HopEgress,
		Cause: "the Envoy beside the apiserver, or its agent, does not run", Cure: "check that it runs beside the apiserver",
		Do: "restart the sidecar",
		Inject: func(t *testing.T, f *fleet) func(*testing.T) {
			world.StopEdge(t, f.shop.Egress)
			return func(*testing.T) { f.shop.Egress.Resume() }
		},
	},
	{
		Title: "the certificate of the apiserver's Envoy is revoked", Hop: check.HopEgress, Of: "bank",
		Cause: "it was revoked", Cure: "an empty state folder",
		Do: "enrol it again with the newest bootstrap file and an empty state folder",
		Inject: func(t *testing.T, f *fleet) func(*testing.T) {
			f.revoke(t, "bank.egress", f.bank.Egress)
			return func(t *testing.T) {
				world.StopEdge(t, f.bank.Egress)
				must(t, f.bank.EnrolAs(t.Context(), "bank-egress-b"))
			}
		},
	},
	{
		Title: "the certificate of the apiserver's Envoy has expired", Hop: check.HopEgress,
		Cause: "could not renew it", Cure: "it renews an expired certificate with its key",
		Do:     "restart the sidecar: it renews its certificate with its key, and its log has the reason if it cannot",
		Inject: func(t *testing.T, f *fleet) func(*testing.T) { return f.expires(t) },
	},
	{
		Title: "an edge runs with the bootstrap file of another network", Hop: check.HopNetworkEdges, Only: true,
		Cause: "was started with the bootstrap file of RemoteNetwork site1", Cure: "the bootstrap file of its own network",
		Do: "revoke it, and start edge-agent with an empty state folder and the bootstrap file of its own network",
		Inject: func(t *testing.T, f *fleet) func(*testing.T) {
			f.shop.network(t, extra, cidrs("10.8.0.0/16"))
			site := newRemote(t, f.World, "astray", "10.8.0.0/16")
			wrong, _ := site.edge(t, f.shop, "wrong", 2, "site1")
			return func(t *testing.T) {
				f.revoke(t, "site1.network", wrong)
				world.StopEdge(t, wrong)
				site.edge(t, f.shop, "right", 3, extra)
			}
		},
	},
}

// expires replaces the Envoy beside the apiserver of shop by one with a certificate of 30 s, and stops that until its
// certificate has expired.
func (f *fleet) expires(t *testing.T) func(*testing.T) {
	t.Helper()
	usual := f.Controller.Process().Spec
	f.Restart(t, f.Controller, f.ControllerReady, func(s *proc.Spec) {
		s.Args = append(slices.Clone(s.Args), "--leaf-lifetime=30s")
	})
	before := f.shop.Egress
	world.StopEdge(t, before)
	const name = "shop-egress-b"
	must(t, f.shop.EnrolAs(t.Context(), name))
	eventually(t, f.LogContains(name, "certificate obtained"))
	world.Steal(t, f.shop.Egress) // once it is on disk
	world.StopEdge(t, f.shop.Egress)
	f.revoke(t, "shop.egress", before) // only now, because that ends the token of both
	f.Restart(t, f.Controller, f.ControllerReady, func(s *proc.Spec) { *s = usual })
	return func(*testing.T) { f.shop.Egress.Resume() }
}

// nodeFaults are faults that an apiserver observes when it dials a Node.
var nodeFaults = []fault{
	{
		Title: "the socket of the apiserver's Envoy is missing", Hop: check.HopNodes,
		Cause: "does not accept connections at its socket", Cure: "--egress-socket",
		Do: "share the folder of the socket between the two containers, and restart the sidecar",
		Inject: func(t *testing.T, f *fleet) func(*testing.T) {
			must(t, os.Remove(f.shop.Socket))
			return func(t *testing.T) { must(t, f.shop.Egress.KillEnvoy()) }
		},
	},
	{
		Title: "the apiserver runs without an EgressSelectorConfiguration", Hop: check.HopNodes,
		Cause: "it runs without an EgressSelectorConfiguration", Cure: "fairlead network egress",
		Do: "start the apiserver with `--egress-selector-config-file`: `fairlead network egress` prints both",
		Inject: func(t *testing.T, f *fleet) func(*testing.T) {
			usual := f.shop.APIServer.Process.Args
			f.shop.restartAPIServer(t, func(args []string) []string {
				return slices.DeleteFunc(slices.Clone(args), func(flag string) bool {
					return strings.HasPrefix(flag, "--egress-selector-config-file")
				})
			})
			return func(t *testing.T) { f.shop.restartAPIServer(t, func([]string) []string { return usual }) }
		},
	},
	{
		Title: "the apiserver dials the names of Nodes", Hop: check.HopNodes,
		Cause: "dials the name of the Node", Cure: "--kubelet-preferred-address-types",
		Do: "start the apiserver with `--kubelet-preferred-address-types=InternalIP,ExternalIP`",
		Inject: func(t *testing.T, f *fleet) func(*testing.T) {
			f.hostname(t, "node2", "node2")
			f.shop.dialsFirst(t, "Hostname,InternalIP") // as by default
			return func(t *testing.T) { f.shop.dialsFirst(t, "InternalIP,ExternalIP") }
		},
	},
	{
		Title: "the address of a Node is in no network", Hop: check.HopNodes,
		Cause: "is in no RemoteNetwork of the Cluster", Cure: "spec.cidrs",
		Do: "add it to `spec.cidrs` of the RemoteNetwork of that site",
		Inject: func(t *testing.T, f *fleet) func(*testing.T) {
			return f.patched(t, "site2", `{"spec":{"cidrs":["10.2.0.0/30"]}}`, `{"spec":{"cidrs":["10.2.0.0/16"]}}`)
		},
	},
	{
		Title: "the network does not permit the port of kubelets", Hop: check.HopNodes,
		Cause: "does not permit the port of the kubelet", Cure: "spec.ports",
		Do: "add port 10250 to `spec.ports` of the RemoteNetwork",
		Inject: func(t *testing.T, f *fleet) func(*testing.T) {
			ports := `{"spec":{"ports":[{"port":7000},{"port":4443},{"port":9443,"endPort":%d}]}}`
			return f.patched(t, "site2", fmt.Sprintf(ports, 10249), fmt.Sprintf(ports, kube.KubeletPort))
		},
	},
	{
		Title: "the owner of the edge's machine does not allow the Node (`--allow-target`)", Hop: check.HopNodes,
		Cause: "the owner of its machine allows less", Cure: "--allow-target",
		Do: "add the destination to `--allow-target` of edge-agent",
		Inject: func(t *testing.T, f *fleet) func(*testing.T) {
			return restart(t, f.edge2, func(s *proc.Spec) {
				s.Args = append(slices.Clone(s.Args), "--allow-target=10.2.0.9/32:10250")
			})
		},
	},
	{
		Title: "the kubelet is down", Hop: check.HopNodes, Short: true,
		Cause: "no kubelet listens there", Cure: "start the kubelet",
		Do: "start the kubelet on that machine",
		Inject: func(t *testing.T, f *fleet) func(*testing.T) {
			kubelet := f.site2.Kubelets["node2"]
			kubelet.Kill()
			return func(t *testing.T) {
				again, err := proc.Start(kubelet.Spec)
				must(t, err)
				f.OnClose(func(context.Context) { again.Kill() })
			}
		},
	},
	{
		Title: "packets between edge and Node are dropped", Hop: check.HopNodes,
		Cause: "a firewall drops packets between them", Cure: "allow TCP from the edge",
		Do: "allow TCP from the edge to port 10250 of the Node, and check the machine",
		Inject: func(t *testing.T, f *fleet) func(*testing.T) {
			link := func(state string) {
				must(t, f.node2.IP(context.WithoutCancel(t.Context()), "link", "set", "inner0", state))
			}
			link("down")
			return func(*testing.T) { link("up") }
		},
	},
	{
		Title: "the limit of the network's connections is reached", Hop: check.HopNodes,
		Cause: "limit of connections is reached", Cure: "spec.limits",
		Do: "raise `spec.limits.connections` of the Tunnel of the network",
		Inject: func(t *testing.T, f *fleet) func(*testing.T) {
			tunnel := f.Cluster(types.NamespacedName{Namespace: world.Namespace, Name: "site2.network"})
			limit := func(n any) {
				must(t, tunnel.PatchTunnel(t.Context(), map[string]any{"limits": map[string]any{"connections": n}}))
			}
			limit(1)
			f.fill(t, "site2")
			return func(t *testing.T) {
				must(t, tunnel.PatchTunnel(t.Context(), map[string]any{"limits": map[string]any{"connections": 1000}}))
			}
		},
	},
}

// nameFaults are faults of a network whose Nodes an apiserver dials by name.
var nameFaults = []fault{
	{
		Title: "a name of `spec.dnsSuffixes` does not resolve at the edge", Hop: check.HopNodes,
		Cause: "does not resolve the name: the edge asks the name servers", Cure: "getent ahosts node2.site2.test",
		Do: "correct the DNS of that site, or `spec.dnsSuffixes`: the edge asks the name servers of its machine",
		Inject: func(t *testing.T, f *fleet) func(*testing.T) {
			dns := f.named(t)
			return func(*testing.T) { dns.Set(nodeName, f.node2.Address) }
		},
		After: unnamed,
	},
	{
		Title: "a name of `spec.dnsSuffixes` resolves to an address that edges may not dial", Hop: check.HopNodes,
		Cause: "the name resolves to an address that the edge may not dial", Cure: "getent ahosts node2.site2.test",
		Do: "correct the DNS of that site, or add the address to `spec.cidrs`",
		Inject: func(t *testing.T, f *fleet) func(*testing.T) {
			dns := f.named(t)
			dns.Set(nodeName, netip.MustParseAddr("169.254.169.254"), netip.MustParseAddr("192.0.2.77"))
			return func(*testing.T) { dns.Set(nodeName, f.node2.Address) }
		},
		After: unnamed,
	},
}

// nodeName is the name of node2 in the DNS of site2.
const nodeName = "node2.site2.test"

// named makes the apiserver of shop dial node2 by its name, and returns the DNS of the edge's machine, which lacks it.
func (f *fleet) named(t *testing.T) *netns.DNS {
	t.Helper()
	dns, err := f.edgeHost2.ServeDNS(t.Context())
	must(t, err)
	dns.Set(netns.PublicName, f.Network.PublicAddresses()...)
	restart(t, f.edge2, func(*proc.Spec) {}) // only then Envoy reads which name server to ask
	f.patchNetwork(t, "site2", `{"spec":{"dnsSuffixes":["site2.test"]}}`)
	// Before it dials a name for check, an apiserver resolves it itself.
	must(t, f.shop.Site.SetHost(nodeName, f.node2.Address))
	f.hostname(t, "node2", nodeName)
	f.shop.dialsFirst(t, "Hostname,InternalIP")
	return dns
}

// unnamed reverts named.
func unnamed(t *testing.T, f *fleet) {
	t.Helper()
	f.shop.dialsFirst(t, "InternalIP,ExternalIP")
	f.patchNetwork(t, "site2", `{"spec":{"dnsSuffixes":null}}`)
	must(t, f.shop.Site.SetHost(nodeName))
	must(t, f.edgeHost2.SetHost(netns.PublicName, f.Network.PublicAddresses()...))
	restart(t, f.edge2, func(*proc.Spec) {})
	eventually(t, f.shop.RunsOn("node2", f.node2))
}

// dialsFirst restarts the apiserver with other types of addresses that it prefers for Nodes.
func (h *controlPlane) dialsFirst(t *testing.T, types string) {
	t.Helper()
	h.restartAPIServer(t, func(args []string) []string {
		const flag = "--kubelet-preferred-address-types="
		args = slices.DeleteFunc(slices.Clone(args), func(a string) bool { return strings.HasPrefix(a, flag) })
		return append(args, flag+types)
	})
}

// fill holds connections to the machine of a network until no further one is accepted.
func (f *fleet) fill(t *testing.T, _ string) {
	t.Helper()
	eventually(t, func(ctx context.Context) error {
		conn, status, err := f.shop.connect(ctx, authority(f.node2, hosted.EchoPort))
		if err != nil {
			return err
		}
		if conn == nil {
			if status == 503 {
				return nil
			}
			return fmt.Errorf("the answer is %d", status)
		}
		t.Cleanup(func() { _ = conn.Close() })
		_, _ = ask(conn)
		return fmt.Errorf("a further connection was accepted")
	})
}

// forwardFaults are faults on the way from a machine of a network to its apiserver.
var forwardFaults = []fault{
	{
		Title: "gateways may not dial the apiserver for the machines of a network", Hop: check.HopForward, Of: "bank",
		Cause: "gateways have no way to the apiserver", Cure: "--apiserver-cidrs",
		Do: "give the Cluster a tunnel, or add the address of its apiserver to `--apiserver-cidrs` of the controller",
		Inject: func(t *testing.T, f *fleet) func(*testing.T) {
			endpoint := func(host string) map[string]any {
				return map[string]any{"spec": map[string]any{"controlPlaneEndpoint": map[string]any{"host": host}}}
			}
			must(t, f.bank.Patch(t.Context(), endpoint("203.0.113.1")))
			usual := f.bank.APIServer.Endpoint.Addr().String()
			return func(t *testing.T) { must(t, f.bank.Patch(t.Context(), endpoint(usual))) }
		},
	},
	{
		Title: "another program has the port of `--apiserver-listen`", Hop: check.HopForward,
		Cause: "another program listens", Cure: "end that program",
		Do: "end that program, or choose another port",
		Inject: func(t *testing.T, f *fleet) func(*testing.T) {
			world.StopEdge(t, f.edge1)
			var listener net.Listener
			eventually(t, func(ctx context.Context) (err error) { // once Envoy has ended
				listener, err = f.edgeHost1.Listen(context.WithoutCancel(ctx), "10.1.0.2:6443")
				return err
			})
			go func() {
				for {
					conn, err := listener.Accept()
					if err != nil {
						return
					}
					_, _ = io.WriteString(conn, "220 mail.example.com ESMTP\r\n")
					_ = conn.Close()
				}
			}()
			f.edge1.Resume()
			return func(t *testing.T) {
				must(t, listener.Close())
				restart(t, f.edge1, func(*proc.Spec) {})
			}
		},
	},
	{
		Title: "the machine lacks the address of `--apiserver-listen`", Hop: check.HopForward,
		Cause: "the machine lacks that address", Cure: "give an address of that machine",
		Do: "give an address of the edge's machine in `--apiserver-listen`",
		Inject: func(t *testing.T, f *fleet) func(*testing.T) {
			return restart(t, f.edge1, func(s *proc.Spec) {
				s.Args = slices.Clone(s.Args)
				for i, arg := range s.Args {
					if strings.HasPrefix(arg, "--apiserver-listen=") {
						s.Args[i] = "--apiserver-listen=10.1.0.200:6443"
					}
				}
			})
		},
	},
}

// hostname sets the name of a Node of shop, beside its IP address.
func (f *fleet) hostname(t *testing.T, node, name string) {
	t.Helper()
	n := &corev1.Node{}
	must(t, f.shop.APIServer.Client.Get(t.Context(), client.ObjectKey{Name: node}, n))
	n.Status.Addresses = append(slices.DeleteFunc(n.Status.Addresses, func(a corev1.NodeAddress) bool {
		return a.Type == corev1.NodeHostName
	}), corev1.NodeAddress{Type: corev1.NodeHostName, Address: name})
	must(t, f.shop.APIServer.Client.Status().Update(t.Context(), n))
}

// TestTheTableOfNetworkFaultsMatchesTheTests proves that the documented faults are the ones that are injected here.
func TestTheTableOfNetworkFaultsMatchesTheTests(t *testing.T) {
	all := allFaults()
	if len(all) < 15 {
		t.Errorf("there are only %d faults", len(all))
	}
	faults.CheckTable(t, "network faults", all)
}
