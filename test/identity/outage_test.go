package identity

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/lab/proc"
	"github.com/fairlead/fairlead/test/world"
)

// outageTime is how long every xds-server and the controller are down. exactWithin is how soon after their return
// status must be exact.
const (
	outageTime  = 5 * time.Minute
	exactWithin = 15 * time.Second
)

// outage is an installation whose control plane is down for a while.
type outage struct {
	*world.World
	oslo *world.Member
	edge *lab.Agent

	bergen     *world.Member // its Envoy crashes
	bergenEdge *lab.Agent

	fragile      *world.Member
	fragileEdge  *lab.Agent
	fragileSince time.Time // when bergen's Envoy was started
}

// TestEdgesServeWithoutTheControlPlane proves that status is correct, and that edges need no control plane to start, to
// recover from a crash, to stop and to find an apiserver.
func TestEdgesServeWithoutTheControlPlane(t *testing.T) {
	if testing.Short() {
		t.Skip("needs more than five minutes")
	}
	controlPlaneGone.expect(t)
	t.Parallel()
	// Status does not count the tunnels of lanes, which come and go with clients. Without lanes it counts every socket.
	o := &outage{World: newWorld(t, lab.Options{Gateways: 2, XDSServers: 2, XDSServerFlags: []string{"--lanes=0"}})}
	o.oslo = o.Member(t, "oslo", nil)
	o.edge = o.Edge(t, lab.EdgeSpec{Name: "edge-oslo"}, o.oslo)
	o.bergen = o.Member(t, "bergen", nil)
	o.bergenEdge = o.Edge(t, lab.EdgeSpec{Name: "edge-bergen"}, o.bergen)
	o.startFragile(t)
	t.Run("status", o.status)
	t.Run("bad configuration", o.badConfiguration)
	prepared := o.prepare(t)
	t.Run("calm", o.calm)
	o.away(t, func() {
		t.Run("starting without a control plane", func(t *testing.T) { o.startsAlone(t, prepared) })
		t.Run("supervision", func(t *testing.T) { o.supervision(t, prepared) })
		t.Run("apiservers", func(t *testing.T) { o.apiServers(t, prepared) })
		t.Run("tunnels change", func(t *testing.T) { o.change(t, prepared) })
	})
	t.Run("back", func(t *testing.T) { o.back(t, prepared) })
	t.Run("logs", func(t *testing.T) { o.Logs(t, "edge-bergen", "edge-crash", "edge-fragile") })
}

// status proves what status contains about a tunnel, and which program reports it.
func (o *outage) status(t *testing.T) {
	own, crashing := world.Steal(t, o.edge), world.Steal(t, o.bergenEdge).Subject.Node
	that(t, "status shows why an Envoy crashed", func(t *testing.T) {
		pid, err := o.bergenEdge.EnvoyPID()
		must(t, err)
		must(t, syscall.Kill(pid, syscall.SIGSEGV))
		eventually(t, o.bergen.HasError(crashing, "Envoy", "segmentation fault"))
		eventually(t, o.bergen.Works)
	})
	that(t, "status shows version, certificate, apiserver and tunnels of each edge", func(t *testing.T) {
		eventually(t, func(ctx context.Context) error {
			edge, err := o.oslo.EdgeStatus(ctx, own.Subject.Node)
			if err != nil {
				return err
			}
			return o.complete(edge, own.Leaf.NotAfter)
		})
	})
	for _, kind := range []string{
		v1alpha1.ConditionEnrolled, v1alpha1.ConditionTunnelReady,
		v1alpha1.ConditionAPIServerReachable, v1alpha1.ConditionReady,
	} {
		that(
			t, "the Tunnel's condition "+kind+" is True", func(t *testing.T) { eventually(t, o.oslo.Condition(kind, "True")) },
		)
	}
	that(
		t, "the Cluster's condition TunnelReady works as an availability gate",
		func(t *testing.T) { o.gate(t) },
	)
	that(
		t,
		"the gateways count reverse tunnels: an edge without its agent keeps its tunnels",
		func(t *testing.T) {
			// Its Envoy is new. While the agent is down, Envoy does not learn of a gateway that it has not dialled yet.
			eventually(t, func(ctx context.Context) error { return o.oslo.TunnelsOf(ctx, own.Subject.Node, 2) })
			o.edge.Hold()
			defer o.edge.Resume()
			must(t, o.oslo.Works(t.Context()))
			must(t, o.oslo.TunnelsOf(t.Context(), own.Subject.Node, 2))
			must(t, o.oslo.Condition(v1alpha1.ConditionTunnelReady, "True")(t.Context()))
		},
	)
	that(t, "the Tunnel's condition APIServerReachable is False while the apiserver is unhealthy", func(t *testing.T) {
		o.oslo.StandIn.Unhealthy.Store(true)
		measured(
			"apiserver_unhealthy_in_status_s",
			world.Took(t, patience, o.oslo.Condition(v1alpha1.ConditionAPIServerReachable, "False")).Seconds(),
		)
		o.oslo.StandIn.Unhealthy.Store(false)
		measured(
			"apiserver_healthy_in_status_s",
			world.Took(t, patience, o.oslo.Condition(v1alpha1.ConditionAPIServerReachable, "True")).Seconds(),
		)
	})
}

// forgiven is how long an Envoy must have run after a crash until its agent stops reporting the crash.
const forgiven = time.Minute

// calm proves that a crash is not reported for ever. Much else was proven in the meantime.
func (o *outage) calm(t *testing.T) {
	that(t, "the warning about a crashed Envoy ends after Envoy has run well again", func(t *testing.T) {
		must(
			t,
			proc.Wait(t.Context(), forgiven+patience, o.bergen.HasNoError(world.Steal(t, o.bergenEdge).Subject.Node, "Envoy")),
		)
	})
}

// complete returns an error that names what status lacks about an edge with tunnels to both gateways.
func (o *outage) complete(edge v1alpha1.EdgeStatus, notAfter time.Time) error {
	api := edge.APIServer
	switch {
	case edge.Form != form(), edge.Version == "", edge.Host == "", edge.LastSeen == nil, edge.LastError != "":
		return fmt.Errorf("got %+v", edge)
	case !edge.CertificateNotAfter.Time.Equal(notAfter):
		return fmt.Errorf("its certificate ends at %s, not at %s", edge.CertificateNotAfter, notAfter)
	case len(edge.Gateways) != 2 || edge.Gateways[0].Tunnels < 1 || edge.Gateways[1].Tunnels < 1:
		return fmt.Errorf("its gateways are %+v", edge.Gateways)
	case api == nil || !api.Healthy || api.Address != o.oslo.StandIn.Endpoint.String() || api.Version != world.Version:
		return fmt.Errorf("its apiserver is %+v", api)
	case !slices.Contains(api.CertificateNames, "kubernetes") || !slices.Contains(api.CertificateNames, o.oslo.Hostname):
		return fmt.Errorf("the apiserver's certificate has the names %v", api.CertificateNames)
	case api.CertificateNotAfter == nil || time.Until(api.CertificateNotAfter.Time) < time.Hour:
		return fmt.Errorf("the apiserver's certificate ends at %v", api.CertificateNotAfter)
	}
	return nil
}

// form returns the form of an edge that is started here, which may be inside a container.
func form() string {
	for _, sign := range []string{"/.dockerenv", "/run/.containerenv"} {
		if _, err := os.Stat(sign); err == nil {
			return "Container"
		}
	}
	return "Process"
}

// gate adds the condition to the Cluster's availability gates. From then on Cluster API requires it for Available.
func (o *outage) gate(t *testing.T) {
	must(
		t,
		o.oslo.Patch(
			t.Context(),
			map[string]any{
				"spec": map[string]any{
					"availabilityGates": []any{map[string]any{"conditionType": v1alpha1.ClusterConditionTunnelReady}},
				},
			},
		),
	)
	must(t, o.oslo.SetProvisioned(t.Context()))
	eventually(t, o.oslo.Gated(metav1.ConditionTrue, ""))
	world.StopEdge(t, o.edge)
	measured(
		"tunnel_down_in_cluster_s",
		world.Took(t, patience, o.oslo.Gated(metav1.ConditionFalse, v1alpha1.ClusterConditionTunnelReady)).Seconds(),
	)
	o.edge.Resume()
	measured("tunnel_up_in_cluster_s", world.Took(t, patience, o.oslo.Gated(metav1.ConditionTrue, "")).Seconds())
}

// away stops every xds-server and the controller, runs during, and waits until outageTime is over.
func (o *outage) away(t *testing.T, during func()) {
	t.Helper()
	services := append([]*proc.Service{o.Controller}, o.XDSServers...)
	for _, s := range services {
		s.Hold()
	}
	start := time.Now()
	controlPlaneGone.reach()
	during()
	must(t, proc.Wait(t.Context(), outageTime+patience, func(context.Context) error {
		if left := outageTime - time.Since(start); left > 0 {
			return fmt.Errorf("%s left", left)
		}
		return nil
	}))
	measured("outage_s", time.Since(start).Seconds())
	hold(t, 1)() // the rest is measured, so it needs the machine
	for _, s := range services {
		s.Resume()
	}
}

// back proves that status is exact soon after the control plane is back. The test itself counts the real state: the
// sockets of each edge's Envoy.
func (o *outage) back(t *testing.T, p *prepared) {
	that(
		t,
		"status is exact within 15 s after 5 minutes without xds-servers and controller",
		func(t *testing.T) {
			took := world.Took(t, patience, func(ctx context.Context) error { return o.exact(ctx, p) })
			measured("status_exact_s", took.Seconds())
			if took > exactWithin {
				t.Errorf("it took %s", took)
			}
		},
	)
	that(
		t, "an edge with an unusable cache receives its configuration after the outage",
		func(t *testing.T) { eventually(t, p.corrupt.Works) },
	)
	that(t, "all workload clusters are reachable after the outage", func(t *testing.T) {
		for _, m := range []*world.Member{o.oslo, p.cached, p.crash, p.drain, p.api} {
			must(t, m.Works(t.Context()))
		}
	})
}

// exact compares the status of each edge with its real state.
func (o *outage) exact(ctx context.Context, p *prepared) error {
	var errs []error
	for _, e := range p.all {
		want := 0
		if !e.gone {
			var err error
			if want, err = tunnelSockets(e.agent); err != nil {
				errs = append(errs, err)
			}
		}
		status, err := e.of.EdgeStatus(ctx, e.node)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		sum := 0
		for _, g := range status.Gateways {
			sum += int(g.Tunnels)
		}
		if sum != want {
			errs = append(errs, fmt.Errorf("status counts %d tunnels of %s, there are %d", sum, e.agent.Process().Name, want))
		}
		if want > 0 {
			errs = append(errs, e.of.TunnelsOf(ctx, e.node, 2))
		}
		state := map[bool]string{true: "True", false: "False"}[want > 0]
		errs = append(errs, e.of.Condition(v1alpha1.ConditionTunnelReady, state)(ctx))
	}
	return errors.Join(errs...)
}
