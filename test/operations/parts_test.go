package operations

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/lab/proc"
	"github.com/fairlead/fairlead/test/outsider"
	"github.com/fairlead/fairlead/test/promise"
	"github.com/fairlead/fairlead/test/traffic"
	"github.com/fairlead/fairlead/test/world"
)

const (
	lostServers = "The controller or all xds-servers are lost"
	// away is how long xds-servers and controllers are away: renewals and dials happen meanwhile.
	away = 15 * time.Second
)

// stolenEdge is an edge that was thrown out, and what lies on its disk.
type stolenEdge struct {
	edge   *edge
	stolen outsider.Stolen
}

// gatewaysLost loses one gateway with its disk, then all.
func (o *operations) gatewaysLost(t *testing.T) {
	that(t, "one gateway is lost with its disk: the other serves, and what takes its place enrols by itself (the test starts the Pod)", func(t *testing.T) {
		o.kubelet.hold(func() {
			o.loseGateway(t, 0)
			must(t, o.reachedAgain(t))
			must(t, o.ReplaceGateway(t.Context(), 0, grace))
		})
		measured("gateway_back_s", o.within(t, o.well).Seconds())
		o.unvisited(t)
	})
	that(t, "all gateways are lost: tunnels are back within a minute after the first one is", func(t *testing.T) {
		o.kubelet.hold(func() {
			o.loseGateway(t, 0)
			o.loseGateway(t, 1)
			must(t, o.ReplaceGateway(t.Context(), 0, grace))
			measured("first_gateway_back_s", o.within(t, o.reached).Seconds())
			must(t, o.ReplaceGateway(t.Context(), 1, grace))
		})
		if took := o.within(t, o.well); took > time.Minute {
			t.Errorf("it took %s", took)
		}
		o.unvisited(t)
	})
}

// loseGateway ends a gateway as the loss of its machine does. Its disk goes with ReplaceGateway.
func (o *operations) loseGateway(t *testing.T, i int) {
	t.Helper()
	o.Gateways[i].Hold()
	must(t, o.Gateways[i].KillEnvoy())
}

// reachedAgain is no error if all workload clusters are reached within a few attempts, as clients make them.
func (o *operations) reachedAgain(t *testing.T) error {
	t.Helper()
	return proc.Wait(t.Context(), promise.Patience, o.reached)
}

// serversLost loses controllers and xds-servers.
func (o *operations) serversLost(t *testing.T) {
	m := o.load(t)
	that(t, "without controllers and xds-servers no request fails, and edges and gateways go on", func(t *testing.T) {
		o.kubelet.hold(func() {
			for _, s := range slices.Concat(o.Controllers, o.XDSServers) {
				s.Hold()
			}
		})
		since := m.Count()
		must(t, proc.Wait(t.Context(), away+promise.Patience, m.AtLeast(since.Requests+int(away.Seconds())*loadRate/2)))
		must(t, m.Unbroken(since))
	})
	that(t, "an edge whose Envoy starts anew meanwhile serves with what is on its disk", func(t *testing.T) {
		must(t, o.edges[2].KillEnvoy())
		must(t, o.reachedAgain(t))
	})
	that(t, "a kubeconfig that its provider writes meanwhile leads its own way", func(t *testing.T) { o.rewrite(t) })
	that(t, "the commands of the document bring them back (the test starts the Pods), and the kubeconfig is repaired", func(t *testing.T) {
		for _, s := range slices.Concat(o.Controllers, o.XDSServers) {
			s.Resume()
		}
		o.run(t, block(t, lostServers, 0))
		measured("servers_back_s", o.within(t, o.well).Seconds())
		o.unvisited(t)
	})
	m.Stop()
}

// loadRate is how many requests a second are made while something is lost.
const loadRate = 20

// load asks for the version of the first workload cluster all the time, through each gateway by both routes.
func (o *operations) load(t *testing.T) *traffic.Load {
	t.Helper()
	var paths []traffic.Path
	for gateway := range o.Gateways {
		for _, connect := range []bool{false, true} {
			paths = append(paths, o.way(o.clusters[0], gateway, connect))
		}
	}
	return traffic.Start(t, loadRate, 0, "/version", paths...)
}

// way is one of a client to a workload cluster.
func (o *operations) way(c *lab.Cluster, gateway int, connect bool) traffic.Path {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(c.APIServer.CA.CertPEM)
	return traffic.Path{
		From: o.Network.Management, Gateway: gateway, Connect: connect, Hostname: world.HostnameIn(namespace, c.Name), ServerName: "kubernetes", Roots: roots,
	}
}

// rewrite writes the kubeconfig of the first Cluster as its provider does.
func (o *operations) rewrite(t *testing.T) {
	t.Helper()
	original, err := o.clusters[0].ProviderSecret()
	must(t, err)
	secret, err := o.clusters[0].Secret(t.Context(), "-kubeconfig")
	must(t, err)
	secret.Data["value"] = original.Data["value"]
	must(t, o.Management.Client.Update(t.Context(), secret))
	must(t, o.direct(t.Context(), o.clusters[0]))
}

// direct is the condition that the kubeconfig of a Cluster leads to its apiserver itself.
func (o *operations) direct(ctx context.Context, c *lab.Cluster) error {
	kubeconfig, err := c.Kubeconfig(ctx)
	if err != nil {
		return err
	}
	config, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig)
	if err != nil {
		return err
	}
	if config.Host != c.APIServer.URL() || config.ServerName != "" || config.Proxy != nil {
		return fmt.Errorf("the kubeconfig of %s leads to %s as %q", c, config.Host, config.ServerName)
	}
	return nil
}

// edgeLost loses an edge, whose disk somebody may have.
func (o *operations) edgeLost(t *testing.T) {
	lost := o.enrol(t, o.clusters[0])
	o.within(t, o.well)
	o.edges = o.edges[:len(o.edges)-1]
	stolen := world.Steal(t, lost.Agent)
	world.StopEdge(t, lost.Agent)
	that(t, "the edges that are left serve on", func(t *testing.T) { must(t, o.reachedAgain(t)) })
	that(t, "the command of the document keeps out whoever has its disk", func(t *testing.T) {
		o.run(t, strings.ReplaceAll(command(t, "An edge, or its machine, is lost", "fairlead edge revoke"), "NODE", stolen.Subject.Node+" --xds-server="+lab.InspectAddress(0)+","+lab.InspectAddress(1)))
		must(t, o.refused(t.Context(), stolenEdge{lost, stolen}))
	})
	o.revoked = append(o.revoked, stolenEdge{lost, stolen})
}

// endTunnel deletes a Cluster whose edge lives on.
func (o *operations) endTunnel(t *testing.T) {
	c := o.cluster(t, "c3", o.SNI)
	e := o.enrol(t, c)
	o.edges = o.edges[:len(o.edges)-1]
	o.within(t, func(ctx context.Context) error { return o.connected(ctx, e) })
	o.ended = append(o.ended, stolenEdge{e, world.Steal(t, e.Agent)})
	must(t, c.Delete(t.Context()))
	o.within(t, c.Gone)
	o.within(t, func(ctx context.Context) error {
		if _, err := c.Tunnel(ctx); err == nil {
			return errors.New("its Tunnel is still there")
		}
		return nil
	})
}

// keptOut is the condition that those who were thrown out before a disaster are not let in after it.
func (o *operations) keptOut(ctx context.Context) error {
	for _, s := range slices.Concat(o.revoked, o.ended) {
		if err := o.refused(ctx, s); err != nil {
			return err
		}
	}
	return nil
}

// refused is no error if neither a gateway nor the control channel has anything for an edge.
func (o *operations) refused(ctx context.Context, s stolenEdge) error {
	if code, err := o.knock(ctx, s.stolen); err == nil && code == 200 {
		return fmt.Errorf("a gateway lets %s in", s.edge.name)
	}
	if names, err := o.Outsider(s.stolen).Fetch(ctx, s.stolen.Subject.NodeID()); err == nil {
		return fmt.Errorf("the control channel gives %s %q", s.edge.name, names)
	}
	return nil
}
