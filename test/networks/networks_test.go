package networks

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/test/hosted"
	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/lab/netns"
	"github.com/fairlead/fairlead/test/promise"
	"github.com/fairlead/fairlead/test/traffic"
	"github.com/fairlead/fairlead/test/world"
)

const (
	metadataAddress = "169.254.169.254:80"
	// closing bounds the end of connections after a revocation or a removal.
	closing = 5 * time.Second
	// busy is added to bounds on a machine that does other work.
	busy = 5 * time.Second
)

// fleet is an installation with two Clusters whose control planes are hosted in the management network: shop, with two
// remote networks, and bank, with one network that has the addresses of the first one of shop.
type fleet struct {
	*world.World
	shop, bank          *controlPlane
	site1, site2, vault *remote
	node1, node2, node3 *netns.Site // of site1, site2 and vault
	edge1, edge2, edge3 *lab.Agent  // of site1, site2 and vault
	edgeHost1           *netns.Site // of edge1
	edgeHost2           *netns.Site
}

// TestNetworks proves everything in one installation, because each step is short beside its start.
func TestNetworks(t *testing.T) {
	f := &fleet{World: world.Start(t, &proof, lab.Options{
		Lean: true, WithoutWorkload: true, Gateways: 2, XDSServers: 2, Metrics: true,
		ControllerFlags: []string{
			"--apiserver-cidrs=" + netns.ManagementPrefix().String(),
			// an IP address, which a network may contain by mistake
			"--connect-address=" + netns.HostPort(netns.InsideAddress(0).String(), netns.ConnectPort),
		},
	})}
	f.build(t)
	f.shows(t)
	f.reaches(t)
	f.services(t)
	f.isolates(t)
	if testing.Short() { // before an Envoy is killed: its edge reports that for a minute
		f.faults(t)
	}
	f.workers(t)
	f.targets(t)
	if !testing.Short() {
		f.renders(t)
		f.talos(t)
		f.hardware(t)
		f.eks(t)
		f.streams(t)
		f.changes(t)
		f.faults(t)
		f.operates(t)
	}
	f.withdraws(t)
	f.Logs(t)
}

func (f *fleet) build(t *testing.T) {
	f.shop, f.bank = newHosted(t, f.World, "shop", 100), newHosted(t, f.World, "bank", 101)
	f.site1, f.site2 = newRemote(t, f.World, "site1", "10.1.0.0/16"), newRemote(t, f.World, "site2", "10.2.0.0/16")
	f.vault = newRemote(t, f.World, "vault", "10.1.0.0/16")
	ports := hosted.Ports()
	that(t, "a RemoteNetwork makes its Tunnels and bootstrap Secrets", func(t *testing.T) {
		f.shop.network(t, "site1", v1alpha1.RemoteNetworkSpec{
			CIDRs: []string{"10.1.0.0/16"}, Ports: ports,
			Targets: []v1alpha1.NetworkTarget{{Name: "vcenter", Address: "10.1.0.20", Port: 443}},
		})
		f.shop.network(t, "site2", v1alpha1.RemoteNetworkSpec{CIDRs: []string{"10.2.0.0/16"}, Ports: ports})
		f.bank.network(t, "vault", v1alpha1.RemoteNetworkSpec{CIDRs: []string{"10.1.0.0/16"}, Ports: ports})
		for _, network := range []string{"site1", "site2", "vault"} {
			eventually(t, networkIs(f.World, network, v1alpha1.ConditionAccepted, metav1.ConditionTrue, ""))
		}
	})
	f.prove(t, noEgress)
	must(t, f.bank.Enrol(t.Context()))
	f.edge1, f.edgeHost1 = f.site1.edge(t, f.shop, "edge", 2, "site1", "--apiserver-listen=10.1.0.2:6443")
	f.edge2, f.edgeHost2 = f.site2.edge(t, f.shop, "edge", 2, "site2")
	f.edge3, _ = f.vault.edge(t, f.bank, "edge", 2, "vault", "--apiserver-listen=10.1.0.2:6443")
	f.node1, f.node2 = f.site1.node(t, f.shop, "node1", 5), f.site2.node(t, f.shop, "node2", 5)
	f.node3 = f.vault.node(t, f.bank, "node3", 5)
	that(t, "networks are ready as soon as edges and apiservers have enrolled", func(t *testing.T) {
		for _, network := range []string{"site1", "site2", "vault"} {
			ready := took(t, networkIs(f.World, network, v1alpha1.ConditionReady, metav1.ConditionTrue, ""))
			measured("ready_s", ready.Seconds())
		}
	})
}

// reaches proves what kube-apiserver does with kubelets.
func (f *fleet) reaches(t *testing.T) {
	that(t, "exec runs on the Node of the right network, also with the same addresses in another", func(t *testing.T) {
		eventually(t, f.shop.RunsOn("node1", f.node1))
		eventually(t, f.shop.RunsOn("node2", f.node2))
		eventually(t, f.bank.RunsOn("node3", f.node3))
		eventually(t, f.shop.answers(authority(f.node1, echoPort), "site1/node1"))
		eventually(t, f.bank.answers(authority(f.node3, echoPort), "vault/node3"))
	})
	that(t, "logs and port-forward work", func(t *testing.T) {
		out, err := f.shop.Kubectl(t.Context(), "logs", "node2")
		if err != nil || len(out) != 1000 {
			t.Errorf("%v: %.200s", err, out)
		}
		forward, err := f.KubectlCommand(t.Context(), f.shop.Admin, "port-forward", "node1", fmt.Sprint("17000:", echoPort))
		must(t, err)
		must(t, forward.Start())
		defer func() { _ = forward.Process.Kill(); _ = forward.Wait() }()
		eventually(t, func(ctx context.Context) error {
			conn, err := f.Network.Management.DialContext(ctx, "tcp", "127.0.0.1:17000")
			if err != nil {
				return err
			}
			defer func() { _ = conn.Close() }()
			if who, err := ask(conn); who != "site1/node1" {
				return fmt.Errorf("%q answers: %w", who, err)
			}
			return nil
		})
	})
}

// services proves what kube-apiserver does with Services.
func (f *fleet) services(t *testing.T) {
	that(t, "a webhook in a network decides", func(t *testing.T) {
		must(t, f.shop.ServeWebhook(t.Context(), f.node2, "denied in site 2"))
		eventually(t, f.shop.Denied("denied in site 2"))
	})
	that(t, "kubectl top reads an aggregated API in a network", func(t *testing.T) {
		must(t, f.shop.ServeNodeMetrics(t.Context(), f.node1, "node1", "node2"))
		eventually(t, func(ctx context.Context) error {
			out, err := f.shop.Kubectl(ctx, "top", "nodes")
			if err != nil || !strings.Contains(out, "node2") {
				return fmt.Errorf("%w: %s", err, out)
			}
			return nil
		})
	})
}

// isolates proves what no apiserver reaches.
func (f *fleet) isolates(t *testing.T) {
	forged := "x-fairlead-egress: " + f.egressName(t, "bank")
	for name, destination := range map[string]string{
		"an address that no network has":              "10.9.0.1:7000",
		"a port that the network does not permit":     authority(f.node1, deniedPort),
		"the metadata service of a cloud":             metadataAddress,
		"the edge's own machine":                      "127.0.0.1:7000",
		"the edge's own machine as IPv6":              "[::1]:7000",
		"an IPv4 address as IPv6":                     "[::ffff:10.1.0.5]:7000",
		"a name that no network has":                  "node1:7000",
		"a gateway":                                   net.JoinHostPort(f.Network.PublicAddress(0).String(), "443"),
		"a target of a network, which is for clients": f.targetName(t, "vcenter", "site1", "shop") + ":443",
		"an address in another notation":              "0x0a010005:7000",
	} {
		that(t, "an apiserver does not reach "+name, func(t *testing.T) {
			must(t, f.shop.refused(t.Context(), destination))
			must(t, f.shop.refused(t.Context(), destination, forged))
		})
	}
	that(t, "a forged header does not lead to the network of another Cluster", func(t *testing.T) {
		who, err := f.shop.who(t.Context(), authority(f.node1, echoPort), forged)
		if err != nil || who != "site1/node1" {
			t.Errorf("%q answers: %v", who, err)
		}
		must(t, f.bank.refused(t.Context(), authority(f.node2, echoPort), "x-fairlead-egress: "+f.egressName(t, "shop")))
	})
	that(t, "a request for an address that does not answer is answered soon", func(t *testing.T) {
		began := time.Now()
		_, status, err := f.shop.connect(t.Context(), "10.1.0.99:7000")
		if err != nil || status < 500 {
			t.Errorf("status %d, %v", status, err)
		}
		measured("dead_address_s", time.Since(began).Seconds())
	})
	that(t, "metrics count the refused destinations, and those that do not answer", func(t *testing.T) {
		answers := func(class string) string {
			return `envoy_http_downstream_rq_xx{envoy_http_conn_manager_prefix="egress",envoy_response_code_class="` + class + `"}`
		}
		eventually(t, f.counts("gateway-agent", answers("4"), func(n float64) bool { return n >= 20 }))
		eventually(t, f.counts("gateway-agent", answers("5"), func(n float64) bool { return n >= 1 }))
	})
}

// workers proves that machines of a network reach their own apiserver.
func (f *fleet) workers(t *testing.T) {
	for name, serverName := range map[string]string{
		"without SNI": "", "with the name kubernetes.default": "kubernetes.default",
	} {
		that(t, "a machine reaches its apiserver through the edge "+name, func(t *testing.T) {
			eventually(t, func(ctx context.Context) error { return version(ctx, f.node1, f.shop, serverName) })
			eventually(t, func(ctx context.Context) error { return version(ctx, f.node3, f.bank, serverName) })
		})
	}
	that(t, "no machine reaches the apiserver of another Cluster", func(t *testing.T) {
		if err := version(t.Context(), f.node1, f.bank, ""); err == nil {
			t.Error("the apiserver of bank answers in a network of shop")
		}
	})
	that(t, "connections to the apiserver work again soon after the edge has restarted", func(t *testing.T) {
		must(t, f.edge1.KillEnvoy())
		again := took(t, func(ctx context.Context) error { return version(ctx, f.node1, f.shop, "") })
		measured("edge_restart_s", again.Seconds())
	})
}

// version requests the version of a Cluster's apiserver at the local endpoint of a network.
func version(ctx context.Context, from *netns.Site, of *controlPlane, serverName string) error {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	raw, err := from.DialContext(ctx, "tcp", "10.1.0.2:6443")
	if err != nil {
		return err
	}
	defer func() { _ = raw.Close() }()
	deadline, _ := ctx.Deadline()
	_ = raw.SetDeadline(deadline)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(of.APIServer.CA.CertPEM)
	config := &tls.Config{ServerName: serverName, RootCAs: roots, MinVersion: tls.VersionTLS12}
	if serverName == "" { // clients send no SNI for an address
		config.ServerName = "10.96.0.1"
	}
	conn := tls.Client(raw, config)
	const request = "GET /version HTTP/1.1\r\nHost: kubernetes\r\nConnection: close\r\n\r\n"
	if _, err := io.WriteString(conn, request); err != nil {
		return err
	}
	answer, err := io.ReadAll(conn)
	if !strings.HasPrefix(string(answer), "HTTP/1.1 200") {
		return fmt.Errorf("the answer is %.100q: %w", answer, err)
	}
	return nil
}

// targets proves named targets for clients of the gateways.
func (f *fleet) targets(t *testing.T) {
	site, err := f.site1.AddMachine(t.Context(), "vcenter", 20)
	must(t, err)
	name := f.targetName(t, "vcenter", "site1", "shop")
	must(t, f.shop.ServeTLS(t.Context(), site, name, 443, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})))
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(f.shop.APIServer.CA.CertPEM)
	that(t, "clients reach a named target through each gateway, by SNI and by CONNECT", func(t *testing.T) {
		for gateway := range f.Gateways {
			for _, connect := range []bool{false, true} {
				path := f.path(name, gateway, connect, roots)
				eventually(t, func(ctx context.Context) error {
					_, err := path.Get(ctx, "/")
					return err
				})
			}
		}
	})
	that(t, "clients reach nothing else of a network", func(t *testing.T) {
		other := f.targetName(t, "other", "site1", "shop")
		for _, connect := range []bool{false, true} {
			if _, err := f.path(other, 0, connect, roots).Get(t.Context(), "/"); err == nil {
				t.Error("a target that is not listed answers")
			}
		}
	})
}

// path returns the path of a client in the management network to a target.
func (f *fleet) path(name string, gateway int, connect bool, roots *x509.CertPool) traffic.Path {
	return traffic.Path{
		From: f.Network.Management, Gateway: gateway, Connect: connect, Hostname: name, ServerName: name, Roots: roots,
	}
}

// streams proves that streams do not stop each other, and survive the loss of an edge.
func (f *fleet) streams(t *testing.T) {
	that(t, "an unread stream delays no other stream", func(t *testing.T) {
		alone := f.roundTrip(t)
		unread := f.open(t, f.shop, authority(f.node1, echoPort))
		_, err := io.WriteString(unread, hosted.Flood+"\n")
		must(t, err)
		time.Sleep(3 * time.Second) // until all buffers are full
		beside := f.roundTrip(t)
		measured("beside_unread_x", float64(beside)/float64(alone))
		if beside > 10*alone+100*time.Millisecond {
			t.Errorf("a round trip takes %s, %s before", beside, alone)
		}
	})
	that(t, "a killed edge interrupts new streams for a moment while another one serves", func(t *testing.T) {
		f.site1.edge(t, f.shop, "edge-2", 3, "site1")
		eventually(t, f.tunnels("site1.network", 2))
		watched := promise.Watch(t, f.shop.answers(authority(f.node1, echoPort), "site1/node1"))
		time.Sleep(time.Second)
		must(t, f.edge1.KillEnvoy())
		time.Sleep(3 * time.Second)
		w := watched()
		measured("killed_edge_lost", float64(w.Lost))
		measured("killed_edge_outage_s", w.Outage.Seconds())
		if w.Lost > 0 {
			t.Errorf("lost %d of %d", w.Lost, w.Sent)
		}
	})
	that(t, "without controller and xds-servers everything continues", func(t *testing.T) {
		for _, server := range append(f.XDSServers, f.Controllers...) {
			server.Hold()
			defer server.Resume()
		}
		must(t, f.shop.RunsOn("node2", f.node2)(t.Context()))
		must(t, version(t.Context(), f.node1, f.shop, ""))
	})
}

// roundTrip returns the longest of 100 round trips to a machine.
func (f *fleet) roundTrip(t *testing.T) time.Duration {
	t.Helper()
	conn, status, err := f.shop.connect(t.Context(), authority(f.node1, echoPort))
	if err != nil || conn == nil {
		t.Fatalf("status %d: %v", status, err)
	}
	defer func() { _ = conn.Close() }()
	var worst time.Duration
	for range 100 {
		began := time.Now()
		if _, err := ask(conn); err != nil {
			t.Fatal(err)
		}
		worst = max(worst, time.Since(began))
	}
	return worst
}

// changes proves that changes of a RemoteNetwork take effect.
func (f *fleet) changes(t *testing.T) {
	that(t, "the most specific network of a Cluster wins", func(t *testing.T) {
		deep := f.site2.machine(t, "deep", 77)
		must(t, f.edgeHost2.AddAddress(t.Context(), netip.MustParseAddr("10.1.7.7")))
		f.patchNetwork(t, "site2", `{"spec":{"cidrs":["10.2.0.0/16","10.1.7.0/24"]}}`)
		eventually(t, f.shop.answers("10.1.7.7:7000", "site2/edge"))
		eventually(t, f.shop.answers(authority(deep, echoPort), "site2/deep"))
		must(t, f.shop.answers(authority(f.node1, echoPort), "site1/node1")(t.Context()))
	})
	that(t, "the same addresses in two networks of one Cluster are an error of the second", func(t *testing.T) {
		f.shop.network(t, "site3", v1alpha1.RemoteNetworkSpec{CIDRs: []string{"10.1.0.0/16"}})
		eventually(t, networkIs(f.World, "site3", v1alpha1.ConditionAccepted, metav1.ConditionFalse,
			v1alpha1.ReasonAmbiguousNetwork))
		must(t, f.shop.answers(authority(f.node1, echoPort), "site1/node1")(t.Context()))
		must(t, f.Management.Client.Delete(t.Context(), &v1alpha1.RemoteNetwork{
			ObjectMeta: metav1.ObjectMeta{Namespace: world.Namespace, Name: "site3"},
		}))
	})
}

// withdraws proves revocation and removal.
func (f *fleet) withdraws(t *testing.T) {
	that(t, "the streams of a revoked apiserver end, and it reaches nothing", func(t *testing.T) {
		conn := f.open(t, f.bank, authority(f.node3, echoPort))
		f.revoke(t, "bank.egress", f.bank.Egress)
		began := time.Now()
		must(t, ended(conn, closing+busy))
		measured("revoked_egress_s", time.Since(began).Seconds())
		eventually(t, func(ctx context.Context) error {
			if who, err := f.bank.who(ctx, authority(f.node3, echoPort)); err == nil {
				return fmt.Errorf("%s answers", who)
			}
			return nil
		})
	})
	that(t, "the streams of a removed network end in both directions", func(t *testing.T) {
		conn := f.open(t, f.shop, authority(f.node1, echoPort))
		back, err := f.node1.DialContext(t.Context(), "tcp", "10.1.0.2:6443")
		must(t, err)
		defer func() { _ = back.Close() }()
		must(t, f.Management.Client.Delete(t.Context(), &v1alpha1.RemoteNetwork{
			ObjectMeta: metav1.ObjectMeta{Namespace: world.Namespace, Name: "site1"},
		}))
		began := time.Now()
		must(t, ended(conn, closing+busy))
		must(t, ended(back, closing+busy))
		measured("removed_network_s", time.Since(began).Seconds())
		eventually(t, func(ctx context.Context) error { return f.shop.refused(ctx, authority(f.node1, echoPort)) })
		must(t, f.shop.RunsOn("node2", f.node2)(t.Context()))
	})
}

// open opens a stream to a machine.
func (f *fleet) open(t *testing.T, h *controlPlane, destination string) net.Conn {
	t.Helper()
	conn, status, err := h.connect(t.Context(), destination)
	if err != nil || conn == nil {
		t.Fatalf("status %d: %v", status, err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if _, err := ask(conn); err != nil {
		t.Fatal(err)
	}
	return conn
}

// revoke revokes the only identity of an agent.
func (f *fleet) revoke(t *testing.T, tunnel string, a *lab.Agent) {
	t.Helper()
	node := world.Steal(t, a).Subject.Node
	c := f.Cluster(types.NamespacedName{Namespace: world.Namespace, Name: tunnel})
	must(t, c.PatchTunnel(t.Context(), map[string]any{"revokedEdges": []any{node}}))
}

// tunnels returns a condition that is nil once a Tunnel has edges with tunnels.
func (f *fleet) tunnels(name string, edges int32) func(context.Context) error {
	return func(ctx context.Context) error {
		tunnel, err := f.Cluster(types.NamespacedName{Namespace: world.Namespace, Name: name}).Tunnel(ctx)
		if err == nil && tunnel.Status.ConnectedEdges != edges {
			err = fmt.Errorf("Tunnel %s has %d connected edges, want %d", name, tunnel.Status.ConnectedEdges, edges)
		}
		return err
	}
}

func (f *fleet) patchNetwork(t *testing.T, name, patch string) {
	t.Helper()
	n := &v1alpha1.RemoteNetwork{ObjectMeta: metav1.ObjectMeta{Namespace: world.Namespace, Name: name}}
	must(t, f.Management.Client.Patch(t.Context(), n, client.RawPatch(types.MergePatchType, []byte(patch))))
}

// egressName returns the name in the certificates of the apiservers of a Cluster.
func (f *fleet) egressName(t *testing.T, cluster string) string {
	t.Helper()
	name := types.NamespacedName{Namespace: world.Namespace, Name: cluster + v1alpha1.EgressTunnelSuffix}
	tunnel, err := f.Cluster(name).Tunnel(t.Context())
	must(t, err)
	return world.Domain.EgressID(tunnel.HeldID())
}

func (f *fleet) targetName(t *testing.T, target, network, cluster string) string {
	t.Helper()
	name, err := world.Domain.TargetName(target, network, model.Key{Namespace: world.Namespace, Name: cluster})
	must(t, err)
	return name
}
