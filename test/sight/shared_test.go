package sight

import (
	"context"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/pkg/diagnose/check"
	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/lab/netns"
	"github.com/fairlead/fairlead/test/lab/proc"
	"github.com/fairlead/fairlead/test/world"
)

// gatewayFaults are faults of parts that all workload clusters share: names, gateways, xds-servers.
var gatewayFaults = []fault{
	{
		ID: "dns-gone", Hop: check.HopName, Short: true,
		Title: "the name of the gateways is missing in DNS",
		Cause: "is missing in DNS",
		Cure:  " to the gateways (the Service",
		Do:    "create the record again",
		Inject: func(t *testing.T, r *room) func(*testing.T) {
			usual := r.world.Network.Management.Addresses(netns.GatewayName)
			must(t, r.world.Network.Management.SetHost(netns.GatewayName))
			return func(t *testing.T) { must(t, r.world.Network.Management.SetHost(netns.GatewayName, usual...)) }
		},
	},
	{
		ID: "gateway-port-closed", Hop: check.HopPort, Short: true,
		Title: "nothing listens on the gateways' port",
		Cause: "nothing listens there",
		Cure:  "shows whether it is ready",
		Do:    "restore the Pods and the Service of the gateways",
		Inject: func(t *testing.T, r *room) func(*testing.T) {
			return r.world.stopGateways(t, r.world.Gateways...)
		},
	},
	{
		ID: "one-gateway-down", Hop: check.HopPort, Status: check.Warning,
		Title: "one of two gateways is down",
		Cause: "nothing listens there",
		Cure:  "shows whether it is ready",
		Do:    "restore that gateway",
		Inject: func(t *testing.T, r *room) func(*testing.T) {
			return r.world.stopGateways(t, r.world.Gateways[1])
		},
	},
	{
		ID: "gateway-black-hole", Hop: check.HopPort,
		Title: "packets to the gateways are dropped",
		Cause: "drops packets",
		Cure:  "allow TCP to this address and port",
		Do:    "allow TCP in firewalls and NetworkPolicies, and check routes",
		Inject: func(t *testing.T, r *room) func(*testing.T) {
			var back []func(context.Context) error
			for i := range r.world.Gateways {
				one, err := r.world.LoseGateway(t.Context(), i)
				must(t, err)
				back = append(back, one)
			}
			return func(t *testing.T) {
				for _, b := range back {
					must(t, b(t.Context()))
				}
			}
		},
	},
	{
		ID: "gateway-stale", Hop: check.HopRoute, Status: check.Warning, Short: true,
		Title: "the gateway-agent of one gateway is down, so its Envoy receives no changes",
		Cause: "receives no changes",
		Cure:  "agent runs and reaches an xds-server",
		Do:    "restore the gateway-agent, and its route to the xds-servers",
		Inject: func(_ *testing.T, r *room) func(*testing.T) {
			r.world.Gateways[0].Hold() // its Envoy continues
			return func(*testing.T) { r.world.Gateways[0].Resume() }
		},
	},
	{
		ID: "nack", Hop: check.HopRoute,
		Title: "Envoy rejects the configuration from an xds-server (NACK)",
		Cause: "rejects the configuration from the xds-server",
		Cure:  "rollout undo deployment/xds-server",
		Do:    "revert the last upgrade of the xds-servers, or upgrade the gateways",
		Inject: func(t *testing.T, r *room) func(*testing.T) {
			usual := r.world.XDSServers[0].Process().Program
			// Our agents accept any number here, but Envoy rejects this one.
			faulty, err := r.world.BuildFaulty(
				t.Context(), "xds-server", "pkg/envoy/cluster.go", "durationpb.New(tunnelConnectTimeout)",
				"durationpb.New(0*tunnelConnectTimeout)",
			)
			must(t, err)
			r.world.xdsServers(t, func(s *proc.Spec) { s.Program = faulty })
			return func(t *testing.T) { r.world.xdsServers(t, func(s *proc.Spec) { s.Program = usual }) }
		},
	},
	{
		ID: "worker-without-tunnel", Hop: check.HopTunnels, Status: check.Warning,
		Title: "a gateway has workers without a tunnel: it has more workers than the xds-servers are configured for",
		Cause: "are on other workers",
		Cure:  "--gateway-workers",
		Do:    "set `--gateway-workers` of the xds-servers to the `--workers` of the gateways",
		Inject: func(t *testing.T, r *room) func(*testing.T) {
			g := r.world.Gateways[1]
			usual := g.Process().Spec
			restart := func(change func(*proc.Spec)) {
				world.StopEdge(t, g)
				g.Change(change)
				g.Resume()
			}
			restart(func(s *proc.Spec) { s.Args = append(slices.Clone(s.Args), "--workers="+tooMany) })
			return func(*testing.T) { restart(func(s *proc.Spec) { *s = usual }) }
		},
	},
	{
		ID: "xds-server-down", Hop: check.HopServers, Status: check.Warning,
		Title: "one of two xds-servers is down",
		Cause: "that xds-server does not run",
		Cure:  "get pods -l app.kubernetes.io/name=xds-server",
		Do:    "restore that xds-server",
		Inject: func(_ *testing.T, r *room) func(*testing.T) {
			r.world.XDSServers[1].Hold()
			return func(*testing.T) { r.world.XDSServers[1].Resume() }
		},
	},
	{
		ID: "xds-servers-down", Hop: check.HopServers,
		Title: "all xds-servers are down",
		Cause: "no xds-server runs",
		Cure:  "get pods -l app.kubernetes.io/name=xds-server",
		Do:    "restore the xds-servers",
		Inject: func(_ *testing.T, r *room) func(*testing.T) {
			for _, x := range r.world.XDSServers {
				x.Hold()
			}
			return func(*testing.T) {
				for _, x := range r.world.XDSServers {
					x.Resume()
				}
			}
		},
	},
}

// controllerFaults are faults of the controller and its webhook.
var controllerFaults = []fault{
	{
		ID: "controller-down", Hop: check.HopServers,
		Title: "the controller is down",
		Cause: "nothing is signed, renewed or repaired",
		Cure:  "restart the controller",
		Do:    "restart the controller",
		Inject: func(_ *testing.T, r *room) func(*testing.T) {
			r.world.Controller.Hold()
			return func(*testing.T) { r.world.Controller.Resume() }
		},
	},
	{
		ID: "secret-edited", Hop: check.HopKubeconfig,
		Title: "the kubeconfig Secret is edited by hand, and the controller is down",
		Cause: "was edited",
		Cure:  "restart the controller",
		Do:    "restart the controller: it corrects the Secret",
		Inject: func(t *testing.T, r *room) func(*testing.T) {
			r.world.Controller.Hold()
			r.edit(t, func(c *clientcmdapi.Cluster, _ *clientcmdapi.AuthInfo) { c.Server, c.ProxyURL = r.api.URL(), "" })
			return func(*testing.T) { r.world.Controller.Resume() }
		},
	},
	{
		ID: "bootstrap-deleted", Hop: check.HopEdge,
		Title:   "the bootstrap Secret is deleted, and the controller is down",
		Cause:   "the bootstrap Secret was deleted",
		Cure:    "restart the controller",
		Do:      "restart the controller: it creates the Secret again",
		Of:      "newcomer",
		Healthy: func(r *room) func(context.Context) error { return r.Healthy("newcomer") },
		Inject: func(t *testing.T, r *room) func(*testing.T) {
			c := r.bare(t, "newcomer", "")
			_, err := c.WaitKubeconfig(t.Context())
			must(t, err)
			r.world.Controller.Hold()
			secret, err := c.Secret(t.Context(), "-edge-bootstrap")
			must(t, err)
			must(t, r.world.Management.Client.Delete(t.Context(), secret))
			return func(t *testing.T) { r.world.Controller.Resume(); r.enrolSibling(t, c) }
		},
	},
	{
		ID: "webhook-down", Hop: check.HopServers, Status: check.Warning,
		Title: "the webhook is down",
		Cause: "the webhook does not answer",
		Cure:  "Service fairlead-webhook",
		Do:    "restore the Service `fairlead-webhook` and the controller behind it",
		Inject: func(t *testing.T, r *room) func(*testing.T) {
			usual := r.world.Controller.Process().Spec
			r.world.Restart(t, r.world.Controller, r.world.ControllerReady, func(s *proc.Spec) {
				s.Args = append(
					slices.DeleteFunc(slices.Clone(s.Args), func(a string) bool { return strings.HasPrefix(a, "--webhook-listen=") }),
					"--webhook-listen=0",
				)
			})
			return func(t *testing.T) {
				r.world.Restart(t, r.world.Controller, r.world.ControllerReady, func(s *proc.Spec) { *s = usual })
			}
		},
	},
	{
		ID: "rbac-controller", Hop: check.HopKubeconfig,
		Title:   "the controller may not write Secrets (RBAC)",
		Cause:   "may not patch Secrets",
		Cure:    "apply your installation again",
		Do:      "[apply your installation again](runbooks.md#apply-your-installation-again)",
		Of:      "barred",
		Healthy: func(r *room) func(context.Context) error { return r.Healthy("barred") },
		Inject: func(t *testing.T, r *room) func(*testing.T) {
			usual := r.world.withoutPatch(t)
			c := r.bare(t, "barred", "")
			return func(t *testing.T) {
				role := &rbacv1.ClusterRole{}
				must(t, r.world.Management.Client.Get(t.Context(), client.ObjectKey{Name: usual.Name}, role))
				role.Rules = usual.Rules
				must(t, r.world.Management.Client.Update(t.Context(), role))
				r.enrolSibling(t, c)
			}
		},
	},
	{
		ID: "edge-certificate-ended", Hop: check.HopEdge,
		Title:   "the edge had no control channel until its certificate expired",
		Cause:   "the edge could not renew it",
		Cure:    "restore the edge",
		Do:      "restore the edge: it renews its certificate with its key",
		Of:      "sleeper",
		Healthy: func(r *room) func(context.Context) error { return r.Healthy("sleeper") },
		Inject:  func(t *testing.T, r *room) func(*testing.T) { return r.sleeps(t) },
	},
}

// stopGateways stops gateways with their Envoys, and returns a function that starts them again.
func (s *sight) stopGateways(t *testing.T, all ...*lab.Agent) func(*testing.T) {
	t.Helper()
	for _, g := range all {
		world.StopEdge(t, g)
	}
	return func(*testing.T) {
		for _, g := range all {
			g.Resume()
		}
	}
}

// tooMany is more workers than an edge has tunnels to the gateways: two to each of two addresses of each of two
// gateways.
const tooMany = "12"

// xdsServers starts all xds-servers again with a change, one after the other.
func (s *sight) xdsServers(t *testing.T, change func(*proc.Spec)) {
	t.Helper()
	for _, x := range s.XDSServers {
		s.Restart(t, x, s.XDSServerReady, change)
	}
}

// withoutPatch revokes the controller's permission to patch Secrets, and returns the ClusterRole as it was.
func (s *sight) withoutPatch(t *testing.T) *rbacv1.ClusterRole {
	t.Helper()
	role := &rbacv1.ClusterRole{}
	must(t, s.Management.Client.Get(t.Context(), client.ObjectKey{Name: "fairlead-controller"}, role))
	usual := role.DeepCopy()
	for i := range role.Rules {
		if slices.Contains(role.Rules[i].Resources, "secrets") {
			role.Rules[i].Verbs = slices.DeleteFunc(
				slices.Clone(role.Rules[i].Verbs), func(v string) bool { return v == "patch" },
			)
		}
	}
	must(t, s.Management.Client.Update(t.Context(), role))
	return usual
}

// sleeps enrols an edge of an additional Cluster with a short lifetime, and stops it until its certificate has expired.
func (r *room) sleeps(t *testing.T) func(*testing.T) {
	t.Helper()
	usual := r.world.Controller.Process().Spec
	r.world.Restart(t, r.world.Controller, r.world.ControllerReady, func(s *proc.Spec) {
		s.Args = append(slices.Clone(s.Args), "--leaf-lifetime=30s")
	})
	c := r.bare(t, "sleeper", "")
	file, err := c.Bootstrap(t.Context())
	must(t, err)
	edge, err := r.world.RunEdge(lab.EdgeSpec{Name: "edge-sleeper", Bootstraps: [][]byte{file}, Site: r.site.Namespace})
	must(t, err)
	eventually(t, r.world.LogContains("edge-sleeper", "certificate obtained"))
	world.StopEdge(t, edge)
	r.world.Restart(t, r.world.Controller, r.world.ControllerReady, func(s *proc.Spec) { *s = usual })
	t.Cleanup(func() { world.StopEdge(t, edge) })
	return func(*testing.T) { edge.Resume() }
}
