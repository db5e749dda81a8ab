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
	staleProbe  = "Cluster API still reports an outage"
	// probed is after how much time with a working path Cluster API's next probe has succeeded: 10 s between two of
	// them, and 5 s for the answer (clustercache/cluster_cache.go, HealthProbe).
	probed = 15 * time.Second
	// away is how long xds-servers and controllers are down. Edges renew and dial in that time.
	away = 15 * time.Second
)

// stolenEdge is a revoked edge, and the content of its disk.
type stolenEdge struct {
	edge   *edge
	stolen outsider.Stolen
}

// gatewaysLost destroys one gateway with its disk, then all.
func (o *operations) gatewaysLost(t *testing.T) {
	that(
		t,
		"the other gateway serves while one is lost with its disk, and the replacement enrols (the test starts "+
			"the Pod)",
		func(t *testing.T) {
			o.kubelet.hold(func() {
				o.loseGateway(t, 0)
				must(t, o.reachedAgain(t))
				must(t, o.ReplaceGateway(t.Context(), 0, grace))
			})
			measured("gateway_back_s", o.within(t, o.healthy).Seconds())
			o.edgesUnchanged(t)
		},
	)
	that(t, "edges reconnect within a minute after the first of all lost gateways starts again", func(t *testing.T) {
		o.kubelet.hold(func() {
			o.loseGateway(t, 0)
			o.loseGateway(t, 1)
			o.within(t, o.outageReported)
			must(t, o.ReplaceGateway(t.Context(), 0, grace))
			measured("first_gateway_back_s", o.within(t, o.allReachable).Seconds())
			must(t, o.ReplaceGateway(t.Context(), 1, grace))
		})
		if took := o.within(t, o.allConnected); took > time.Minute {
			t.Errorf("it took %s", took)
		}
		o.edgesUnchanged(t)
	})
	that(t, "the documented command ends an outage that Cluster API still reports", func(t *testing.T) {
		time.Sleep(probed)
		o.run(t, block(t, staleProbe, 0))
		o.within(t, o.healthy)
	})
}

// outageReported returns nil if Cluster API reports for each workload cluster that it does not reach it.
func (o *operations) outageReported(ctx context.Context) error {
	for _, c := range o.clusters {
		if c.RemoteConnectionProbe(ctx) == nil {
			return fmt.Errorf("cluster API still reaches %s", c)
		}
	}
	return nil
}

// loseGateway kills a gateway as if its machine were lost. ReplaceGateway discards its disk.
func (o *operations) loseGateway(t *testing.T, i int) {
	t.Helper()
	o.Gateways[i].Hold()
	must(t, o.Gateways[i].KillEnvoy())
}

// reachedAgain returns nil if all workload clusters are reached within a few attempts, like those of clients.
func (o *operations) reachedAgain(t *testing.T) error {
	t.Helper()
	return proc.Wait(t.Context(), promise.Patience, o.allReachable)
}

// serversLost stops controllers and xds-servers.
func (o *operations) serversLost(t *testing.T) {
	m := o.load(t)
	that(t, "no request fails while all controllers and xds-servers are lost", func(t *testing.T) {
		o.kubelet.hold(func() {
			for _, s := range slices.Concat(o.Controllers, o.XDSServers) {
				s.Hold()
			}
		})
		since := m.Count()
		must(t, proc.Wait(t.Context(), away+promise.Patience, m.AtLeast(since.Requests+int(away.Seconds())*loadRate/2)))
		must(t, m.Unbroken(since))
	})
	that(t, "an edge whose Envoy restarts during the loss serves from its cache", func(t *testing.T) {
		must(t, o.edges[2].KillEnvoy())
		must(t, o.reachedAgain(t))
	})
	that(t, "a kubeconfig that its provider rewrites during the loss bypasses the tunnel", func(t *testing.T) {
		o.rewrite(t)
	})
	that(
		t,
		"the documented commands restore the servers and the kubeconfig (the test starts the Pods)",
		func(t *testing.T) {
			for _, s := range slices.Concat(o.Controllers, o.XDSServers) {
				s.Resume()
			}
			o.run(t, block(t, lostServers, 0))
			measured("servers_back_s", o.within(t, o.healthy).Seconds())
			o.edgesUnchanged(t)
		},
	)
	m.Stop()
}

// loadRate is how many requests per second are made while a part is down.
const loadRate = 20

// load requests the version of the first workload cluster continuously, through each gateway by both routes.
func (o *operations) load(t *testing.T) *traffic.Load {
	t.Helper()
	var paths []traffic.Path
	for gateway := range o.Gateways {
		for _, connect := range []bool{false, true} {
			paths = append(paths, o.pathTo(o.clusters[0], gateway, connect))
		}
	}
	return traffic.Start(t, loadRate, 0, "/version", paths...)
}

// pathTo returns a client's path to a workload cluster.
func (o *operations) pathTo(c *lab.Cluster, gateway int, connect bool) traffic.Path {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(c.APIServer.CA.CertPEM)
	return traffic.Path{
		From: o.Network.Management, Gateway: gateway, Connect: connect, Hostname: world.HostnameIn(namespace, c.Name),
		ServerName: "kubernetes", Roots: roots,
	}
}

// rewrite writes the kubeconfig of the first Cluster like its provider.
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

// direct returns nil once the kubeconfig of a Cluster leads to its apiserver directly.
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

// edgeLost loses an edge whose disk may have been stolen.
func (o *operations) edgeLost(t *testing.T) {
	lost := o.enrol(t, o.clusters[0])
	o.within(t, o.healthy)
	o.edges = o.edges[:len(o.edges)-1]
	stolen := world.Steal(t, lost.Agent)
	world.StopEdge(t, lost.Agent)
	that(t, "the other edges serve while one is lost", func(t *testing.T) { must(t, o.reachedAgain(t)) })
	that(t, "the documented command revokes the lost edge, so its stolen disk gives no access", func(t *testing.T) {
		o.run(
			t,
			strings.ReplaceAll(
				command(t, "An edge, or its machine, is lost", "fairlead edge revoke"), "NODE",
				stolen.Subject.Node+" "+o.Inspection(),
			),
		)
		must(t, o.refused(t.Context(), stolenEdge{lost, stolen}))
	})
	o.revoked = append(o.revoked, stolenEdge{lost, stolen})
}

// endTunnel deletes a Cluster while its edge is running.
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

// stillRejected returns nil if edges that were revoked before a disaster are still rejected after it.
func (o *operations) stillRejected(ctx context.Context) error {
	for _, s := range slices.Concat(o.revoked, o.ended) {
		if err := o.refused(ctx, s); err != nil {
			return err
		}
	}
	return nil
}

// refused returns nil if the gateways and the control channel reject an edge.
func (o *operations) refused(ctx context.Context, s stolenEdge) error {
	if code, err := o.requestTunnel(ctx, s.stolen); err == nil && code == 200 {
		return fmt.Errorf("a gateway lets %s in", s.edge.name)
	}
	if names, err := o.Outsider(s.stolen).Fetch(ctx, s.stolen.Subject.NodeID()); err == nil {
		return fmt.Errorf("the control channel gives %s %q", s.edge.name, names)
	}
	return nil
}
