package networks

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/lab/netns"
	"github.com/fairlead/fairlead/test/promise"
	"github.com/fairlead/fairlead/test/world"
)

// secondDomain is the tunnel domain of the installation that a Cluster is moved to.
const secondDomain = "tunnels.second.test"

// moving is a Cluster with a network in the first of two installations, and the agents of its Tunnels, by Tunnel.
type moving struct {
	first, second *world.World
	target        string // kubeconfig of the second management cluster
	shop          *controlPlane
	site          *remote
	node          *netns.Site
	agents        map[string]*lab.Agent
}

// TestANetworkMoves proves that clusterctl moves a Cluster with its networks to a second management cluster that has
// its own gateways, tunnel domain and CA, and that apiservers and machines reach each other through these then.
func TestANetworkMoves(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes a minute: make verify-networks")
	}
	m := &moving{first: world.Start(t, &proof, lab.Options{Lean: true})}
	other, err := m.first.NewSecond(t.Context(), lab.Options{TunnelDomain: secondDomain, Lean: true})
	m.second = &world.World{Lab: proof.Start(t, other, err)}
	m.target, err = m.first.SecondKubeconfig(t.Context(), other)
	must(t, err)
	m.build(t)
	m.prepares(t)
	if t.Failed() {
		return
	}
	m.arrives(t)
	m.left(t)
	m.stays(t)
	m.first.Logs(t)
}

// build starts a hosted apiserver with an edge and an Envoy beside it, and a network with a Node.
func (m *moving) build(t *testing.T) {
	m.shop = newHosted(t, m.first, "shop", 100)
	must(t, m.shop.Patch(t.Context(), map[string]any{"metadata": map[string]any{
		"labels": map[string]any{v1alpha1.TunnelLabel: v1alpha1.TunnelEnabled},
	}}))
	must(t, m.shop.SetProvisioned(t.Context()))
	_, err := m.first.StartManager(t.Context(), "capi-first", world.Namespace)
	must(t, err)
	bootstrap, err := m.shop.Bootstrap(t.Context())
	must(t, err)
	own, err := m.first.RunEdge(lab.EdgeSpec{
		Name: "shop-edge", Site: m.shop.Site.Namespace, Bootstraps: [][]byte{bootstrap},
	})
	must(t, err)
	m.site = newRemote(t, m.first, "site1", "10.1.0.0/16")
	m.shop.network(t, "site1", v1alpha1.RemoteNetworkSpec{CIDRs: []string{"10.1.0.0/16"}})
	edge, _ := m.site.edge(t, m.shop, "edge", 2, "site1", "--apiserver-listen=10.1.0.2:6443")
	m.node = m.site.node(t, m.shop, "node1", 5)
	must(t, m.shop.Enrol(t.Context()))
	m.agents = map[string]*lab.Agent{"shop": own, "shop.egress": m.shop.Egress, "site1.network": edge}
	eventually(t, networkIs(m.first, "site1", v1alpha1.ConditionReady, metav1.ConditionTrue, ""))
	eventually(t, m.works)
	eventually(t, m.recorded)
}

// recorded returns nil once each Tunnel of the Cluster has its edge in its status, which move prepare reads.
func (m *moving) recorded(ctx context.Context) error {
	for name := range m.agents {
		tunnel, err := m.at(m.first, name).Tunnel(ctx)
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(tunnel.Status.Edges, func(e v1alpha1.EdgeStatus) bool {
			return e.Connected || len(e.Gateways) > 0
		}) {
			return fmt.Errorf("the Tunnel %s has no connected edge", name)
		}
	}
	return nil
}

// works returns nil if the apiserver reaches a kubelet of the network, and a machine there its apiserver.
func (m *moving) works(ctx context.Context) error {
	if err := m.shop.RunsOn("node1", m.node)(ctx); err != nil {
		return err
	}
	return version(ctx, m.node, m.shop, "")
}

// prepares proves that the edges of all Tunnels of a Cluster enrol at the target in advance.
func (m *moving) prepares(t *testing.T) {
	that(t, "fairlead move prepare prints what to run at the edges of a Cluster, of its networks and its apiservers",
		func(t *testing.T) {
			out, err := m.prepare(t.Context(), "--wait=false")
			if err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			printed := lab.Joining(out)
			if len(printed) != len(m.agents) {
				t.Fatalf("it prints %d commands:\n%s", len(printed), lab.RedactJoining(out))
			}
			for tunnel, input := range printed {
				if _, err := m.first.Join(t.Context(), m.agents[tunnel], input); err != nil {
					t.Fatalf("%s: %v", tunnel, err)
				}
			}
		})
	that(t, "fairlead move prepare is ready when these edges are enrolled at the target, and nothing is served there",
		func(t *testing.T) {
			if out, err := m.prepare(t.Context(), "--timeout=30s"); err != nil || !strings.Contains(out, "ready:") {
				t.Fatalf("%v: %s", err, lab.RedactJoining(out))
			}
			for name := range m.agents {
				tunnel, err := m.at(m.second, name).Tunnel(t.Context())
				must(t, err)
				if tunnel.Status.Served == nil || !tunnel.Status.Served.EnrolmentOnly {
					t.Errorf("Tunnel %s serves %+v", name, tunnel.Status.Served)
				}
			}
			must(t, m.works(t.Context()))
		})
}

// prepare runs fairlead move prepare.
func (m *moving) prepare(ctx context.Context, flags ...string) (string, error) {
	return m.first.Exec(ctx, append([]string{
		"move", "prepare", "--namespace=" + world.Namespace, "--to-kubeconfig=" + m.target, "shop",
	}, flags...)...)
}

// at returns the Tunnel of an installation as a Cluster of its name.
func (m *moving) at(in *world.World, tunnel string) *lab.Cluster {
	return in.Cluster(types.NamespacedName{Namespace: world.Namespace, Name: tunnel})
}

// arrives proves that the network works at the target.
func (m *moving) arrives(t *testing.T) {
	eventually(t, func(ctx context.Context) error {
		cluster, err := m.shop.Get(ctx)
		if err == nil && !ptr.Deref(cluster.Status.Initialization.InfrastructureProvisioned, false) {
			err = fmt.Errorf("Cluster API has not seen the infrastructure: %+v", cluster.Status)
		}
		return err
	})
	that(t, "clusterctl moves the Cluster with its networks, and both ways work again soon", func(t *testing.T) {
		watched := promise.Watch(t, m.works)
		began := time.Now()
		out, err := m.first.Clusterctl(
			t.Context(), "move", "--namespace="+world.Namespace, "--to-kubeconfig="+m.target, "--v=5",
		)
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		measured("network_move_s", time.Since(began).Seconds())
		eventually(t, networkIs(m.second, "site1", v1alpha1.ConditionReady, metav1.ConditionTrue, ""))
		measured("network_moved_ready_s", time.Since(began).Seconds())
		eventually(t, m.works)
		w := watched()
		measured("network_move_outage_s", w.Outage.Seconds())
	})
	that(t, "the target serves the network to the apiservers, and the machines their apiserver", func(t *testing.T) {
		network := &v1alpha1.RemoteNetwork{}
		at := client.ObjectKey{Namespace: world.Namespace, Name: "site1"}
		must(t, m.second.Management.Client.Get(t.Context(), at, network))
		cluster := &clusterv1.Cluster{}
		at.Name = "shop"
		must(t, m.second.Management.Client.Get(t.Context(), at, cluster))
		if !metav1.IsControlledBy(network, cluster) {
			t.Errorf("its owners are %+v", network.OwnerReferences)
		}
		for name := range m.agents {
			tunnel, err := m.at(m.second, name).Tunnel(t.Context())
			must(t, err)
			if len(tunnel.Status.Edges) != 1 || tunnel.Status.Edges[0].RevokedAt != nil || tunnel.Status.ConnectedEdges != 1 {
				t.Errorf("the edges of %s are %+v", name, tunnel.Status.Edges)
			}
			if _, err := m.at(m.second, name).Bootstrap(t.Context()); err != nil {
				t.Error(err)
			}
		}
	})
}

// left proves that the source has let the network go.
func (m *moving) left(t *testing.T) {
	that(t, "the source has nothing of the network left, and has revoked and ended nothing", func(t *testing.T) {
		network := &v1alpha1.RemoteNetwork{}
		at := client.ObjectKey{Namespace: world.Namespace, Name: "site1"}
		if err := m.first.Management.Client.Get(t.Context(), at, network); !apierrors.IsNotFound(err) {
			t.Errorf("the RemoteNetwork at the source: %v", err)
		}
		for name := range m.agents {
			if _, err := m.at(m.first, name).Tunnel(t.Context()); !apierrors.IsNotFound(err) {
				t.Errorf("the Tunnel %s at the source: %v", name, err)
			}
		}
		for _, w := range []*world.World{m.first, m.second} {
			ended := &corev1.ConfigMap{}
			at := client.ObjectKey{Namespace: lab.InstallationNamespace, Name: v1alpha1.EndedTunnelsConfigMapName}
			must(t, client.IgnoreNotFound(w.Management.Client.Get(t.Context(), at, ended)))
			if len(ended.Data) > 0 {
				t.Errorf("on record as ended: %v", ended.Data)
			}
		}
	})
}

// stays proves that nothing depends on the source any longer.
func (m *moving) stays(t *testing.T) {
	that(t, "the network works without the source, also after its edge's Envoy was killed", func(t *testing.T) {
		for _, s := range m.first.Controllers {
			s.Hold()
		}
		for _, s := range m.first.XDSServers {
			s.Hold()
		}
		for _, g := range m.first.Gateways {
			g.Hold()
		}
		must(t, m.works(t.Context()))
		must(t, m.agents["site1.network"].KillEnvoy())
		eventually(t, m.works)
	})
}
