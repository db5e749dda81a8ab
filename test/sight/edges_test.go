package sight

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/diagnose/check"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/lab/clock"
	"github.com/fairlead/fairlead/test/lab/proc"
	"github.com/fairlead/fairlead/test/world"
)

// edgeFaults are faults of an edge and its machine.
var edgeFaults = []fault{
	{
		ID: "edge-dead", Hop: check.HopTunnels,
		Title: "the process edge-agent was killed",
		Cause: "the process edge-agent or its machine is down",
		Cure:  "check that edge-agent runs",
		Do:    "restart edge-agent on its machine",
		Inject: func(t *testing.T, r *room) func(*testing.T) {
			world.StopEdge(t, r.edge)
			return func(*testing.T) { r.edge.Resume() }
		},
	},
	{
		ID: "edge-black-hole", Hop: check.HopTunnels, Within: deadTime,
		Title: "the network of the edge drops all packets",
		Cause: "its network or --proxy blocks the way out",
		Cure:  "TCP to the gateways' public port",
		Do:    "allow TCP to the gateways' public port",
		Inject: func(t *testing.T, r *room) func(*testing.T) {
			must(t, r.site.Unplug(t.Context()))
			return func(t *testing.T) { must(t, r.site.Plug(t.Context())) }
		},
	},
	{
		ID: "wrong-proxy", Hop: check.HopHandshake, Status: check.Warning,
		Title: "`--proxy` of the edge names a port without a proxy",
		Cause: "a wrong --proxy",
		Cure:  "read its log",
		Do:    "correct `--proxy` of edge-agent",
		Inject: func(t *testing.T, r *room) func(*testing.T) {
			usual := r.edge.Process().Spec
			r.restartEdge(
				t, func(s *proc.Spec) { s.Args = append(slices.Clone(s.Args), "--proxy=http://"+nowhere.String()+":3128") },
			)
			return func(t *testing.T) { r.restartEdge(t, func(s *proc.Spec) { *s = usual }) }
		},
	},
	{
		ID: "edge-agent-dead", Hop: check.HopHandshake, Status: check.Warning, Short: true,
		Title: "the edge-agent was killed, and its Envoy continues to run",
		Cause: "edge-agent on that machine is down",
		Cure:  "check that edge-agent runs",
		Do:    "restart edge-agent on its machine",
		Inject: func(_ *testing.T, r *room) func(*testing.T) {
			r.edge.Hold()
			return func(*testing.T) { r.edge.Resume() }
		},
	},
	{
		ID: "edge-clock", Hop: check.HopHandshake,
		Title: "the clock of the edge's machine is wrong by days",
		Cause: "its clock is wrong",
		Cure:  "correct the clock of that machine",
		Do:    "correct the clock of that machine",
		Inject: func(t *testing.T, r *room) func(*testing.T) {
			clocks, err := builtClocks()
			must(t, err)
			usual := r.edge.Process().Spec
			r.restartEdge(t, func(s *proc.Spec) { s.Program, s.Env = wrongProgram(s, clocks), clocks.Env(-72*time.Hour) })
			return func(t *testing.T) { r.restartEdge(t, func(s *proc.Spec) { *s = usual }) }
		},
	},
	{
		ID: "edge-revoked", Hop: check.HopEdge, Short: true,
		Title: "the only edge is revoked",
		Cause: "it was revoked",
		Cure:  "enrol another",
		Do:    "enrol another edge with the newest bootstrap file and an empty state folder",
		Inject: func(t *testing.T, r *room) func(*testing.T) {
			tunnel, err := r.Tunnel(t.Context())
			must(t, err)
			node := ""
			for _, e := range tunnel.Status.Edges {
				if len(e.Gateways) > 0 {
					node, _ = model.ParseNodeID(e.NodeID)
				}
			}
			out, code, err := r.world.output(
				t.Context(), "edge", "revoke", "-n", r.Namespace, "--cluster", r.Name, node, r.world.Inspection(),
			)
			must(t, err)
			if code != 0 {
				t.Errorf("fairlead edge revoke exits with %d: %s", code, out)
			}
			return func(t *testing.T) { world.StopEdge(t, r.edge); r.enrol(t) }
		},
	},
	{
		ID: "no-edge", Hop: check.HopEdge,
		Title:   "no edge was started",
		Cause:   "no edge-agent runs with this Cluster's",
		Cure:    "run edge-agent",
		Do:      "run edge-agent with the bootstrap file",
		Of:      "lonely",
		Healthy: func(r *room) func(context.Context) error { return r.Healthy("lonely") },
		Inject: func(t *testing.T, r *room) func(*testing.T) {
			c := r.bare(t, "lonely", "")
			return func(t *testing.T) { r.enrolSibling(t, c) }
		},
	},
	{
		ID: "token-used-up", Hop: check.HopEdge,
		Title:   "the token in the edge's bootstrap file is used up",
		Cause:   "its bootstrap file is old: the token in it has expired or is used up",
		Cure:    "with the newest file from the Secret",
		Do:      "start edge-agent with the newest bootstrap file",
		Of:      "late",
		Healthy: func(r *room) func(context.Context) error { return r.Healthy("late") },
		Inject: func(t *testing.T, r *room) func(*testing.T) {
			return r.oldToken(t, "late", func(s *v1alpha1.TokenStatus) { s.Uses = s.MaxUses })
		},
	},
	{
		ID: "token-expired", Hop: check.HopEdge,
		Title:   "the token in the edge's bootstrap file has expired",
		Cause:   "its bootstrap file is old: the token in it has expired or is used up",
		Cure:    "with the newest file from the Secret",
		Do:      "start edge-agent with the newest bootstrap file",
		Of:      "later",
		Healthy: func(r *room) func(context.Context) error { return r.Healthy("later") },
		Inject: func(t *testing.T, r *room) func(*testing.T) {
			return r.oldToken(t, "later", func(s *v1alpha1.TokenStatus) { s.ExpiresAt.Time = time.Now().Add(-time.Minute) })
		},
	},
}

// builtClocks builds the programs with wrong clocks once.
var builtClocks = sync.OnceValues(func() (*clock.Clocks, error) { return clock.NewClocks(context.Background()) })

// wrongProgram returns the build of edge-agent whose clock can be wrong.
func wrongProgram(s *proc.Spec, clocks *clock.Clocks) string { return clocks.Program("edge-agent") }

// restartEdge starts the edge again with a change.
func (r *room) restartEdge(t *testing.T, change func(*proc.Spec)) {
	t.Helper()
	world.StopEdge(t, r.edge)
	r.edge.Change(change)
	r.edge.Resume()
}

// oldToken starts an edge of an additional Cluster with a bootstrap file whose token is not valid any longer.
func (r *room) oldToken(t *testing.T, name string, spoil func(*v1alpha1.TokenStatus)) func(*testing.T) {
	t.Helper()
	c := r.bare(t, name, "")
	old, err := c.Bootstrap(t.Context())
	must(t, err)
	eventually(t, func(ctx context.Context) error { // retried, because the controller may write too
		tunnel, err := c.Tunnel(ctx)
		if err != nil {
			return err
		}
		for i := range tunnel.Status.Tokens {
			spoil(&tunnel.Status.Tokens[i])
		}
		return r.world.Management.Client.Status().Update(ctx, tunnel)
	})
	edge, err := r.world.RunEdge(
		lab.EdgeSpec{Name: "edge-" + name + "-old", Bootstraps: [][]byte{old}, Site: r.site.Namespace},
	)
	must(t, err)
	return func(t *testing.T) { edge.Hold(); r.enrolSibling(t, c) }
}

// apiServerFaults are faults of a workload cluster's apiserver.
var apiServerFaults = []fault{
	{
		ID: "apiserver-down", Hop: check.HopAPIServer, Within: lookTime, Short: true,
		Title: "the apiserver is down",
		Cause: "the apiserver is down",
		Cure:  "start the apiserver",
		Do:    "start the apiserver",
		Inject: func(t *testing.T, r *room) func(*testing.T) {
			r.api.Process.Kill()
			return func(t *testing.T) { must(t, r.world.Up(t.Context(), r.api.APIServer)) }
		},
	},
	{
		ID: "apiserver-mute", Hop: check.HopAPIServer, Within: lookTime,
		Title: "the apiserver accepts connections and does not answer",
		Cause: "the apiserver does not answer",
		Cure:  "check the apiserver on the control-plane machine",
		Do:    "check the apiserver and its machine: one of them hangs",
		Inject: func(t *testing.T, r *room) func(*testing.T) {
			must(t, r.api.Process.Freeze())
			return func(t *testing.T) { must(t, r.api.Process.Thaw()) }
		},
	},
	{
		ID: "apiserver-not-ready", Hop: check.HopAPIServer, Within: lookTime,
		Title: "the apiserver is not ready (500): its etcd is down",
		Cause: "the apiserver runs but is not ready",
		Cure:  "of etcd",
		Do:    "see the log of the apiserver, and check etcd",
		Inject: func(t *testing.T, r *room) func(*testing.T) {
			r.api.Etcd.Kill()
			return func(t *testing.T) {
				etcd, err := r.world.Lab.Restart(r.api.Etcd)
				must(t, err)
				r.api.Etcd = etcd
			}
		},
	},
	{
		ID: "apiserver-certificate-expired", Hop: check.HopAPIServer, Within: lookTime,
		Title: "the apiserver's serving certificate has expired",
		Cause: "serving certificate is not valid now",
		Cure:  "kubeadm certs renew apiserver",
		Do:    "renew the certificate, and restart the apiserver",
		Inject: func(t *testing.T, r *room) func(*testing.T) {
			reissue := func(end time.Time) {
				r.api.Process.Kill()
				must(t, r.api.Reissue(end))
				must(t, r.world.Up(t.Context(), r.api.APIServer))
			}
			reissue(time.Now().Add(-time.Minute))
			return func(*testing.T) { reissue(time.Time{}) }
		},
	},
	{
		ID: "apiserver-address-wrong", Hop: check.HopAPIServer,
		Title: "the Tunnel has a wrong address for the apiserver",
		Cause: "listens at another address",
		Cure:  "spec.apiServer of Tunnel",
		Do:    "correct `spec.apiServer` of the Tunnel",
		Inject: func(t *testing.T, r *room) func(*testing.T) {
			port := int64(r.api.Endpoint.Port())
			address := func(port int64) map[string]any {
				return map[string]any{"apiServer": map[string]any{"address": r.api.Endpoint.Addr().String(), "port": port}}
			}
			must(t, r.PatchTunnel(t.Context(), address(port+1)))
			return func(t *testing.T) { must(t, r.PatchTunnel(t.Context(), address(port))) }
		},
	},
	{
		ID: "san-missing", Hop: check.HopAPIServer,
		Title:   "the mode is sni, and the serving certificate lacks the name",
		Cause:   "mode sni requires that name in the certificate",
		Cure:    `{"spec":{"kubeconfig":{"mode":"connect"}}}`,
		Do:      "set `spec.kubeconfig.mode` to `connect` or `auto`, or add the name to the certificate",
		Of:      "nameless",
		Healthy: func(r *room) func(context.Context) error { return r.Healthy("nameless") },
		Inject: func(t *testing.T, r *room) func(*testing.T) {
			c := r.bare(t, "nameless", v1alpha1.KubeconfigModeSNI)
			r.enrolSibling(t, c)
			return func(t *testing.T) {
				must(t, c.PatchTunnel(t.Context(), map[string]any{"kubeconfig": map[string]any{"mode": "connect"}}))
			}
		},
	},
}
