package check

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/anypb"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/diagnose/collect"
	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/envoy/peers"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/observed"
)

var noon = time.Date(2026, time.May, 1, 12, 0, 0, 0, time.UTC)

// expected is the expected result of a hop: its status, and words of its detail, cause or cure.
type expected struct {
	status Status
	says   string
}

// visitOf returns a visit of a Cluster whose Tunnel is served, after the xds-servers were queried.
func visitOf(fleet *collect.Fleet) *visit {
	tunnel := &v1alpha1.Tunnel{}
	tunnel.Spec.Kubeconfig.Mode = v1alpha1.KubeconfigModeConnect
	tunnel.Status.Names, tunnel.Status.Hostname = []string{"c1.test"}, "c1.prod.test"
	v := &visit{Checker: &Checker{Now: func() time.Time { return noon }}, tunnel: tunnel, observed: fleet}
	v.defaults()
	return v
}

func (e expected) compare(t *testing.T, f finding) {
	t.Helper()
	if f.status != e.status || !strings.Contains(f.detail+"\n"+f.cause+"\n"+f.cure, e.says) {
		t.Errorf("got %+v, want %+v", f, e)
	}
}

// gateways returns gateways that report and accept clients, each with the changed route.
func gateways(change ...func(*collect.Gateway)) (all []collect.Gateway) {
	for i, c := range change {
		g := collect.Gateway{
			Name: []string{"gateway-0", "gateway-1"}[i], Installed: true, Connected: true, Ready: true,
			Since:     noon.Add(-time.Hour),
			Resources: []collect.Resource{{Name: "c1.test", Status: collect.Synced}},
		}
		c(&g)
		all = append(all, g)
	}
	return all
}

func well(*collect.Gateway) {}

func away(g *collect.Gateway) { g.Connected, g.Ready, g.Resources = false, false, nil }

func route(status collect.Status, since time.Time, refusal string) func(*collect.Gateway) {
	return func(g *collect.Gateway) {
		g.Resources = []collect.Resource{{Name: "c1.test", Status: status, Since: since, Refusal: refusal}}
	}
}

// without is a gateway whose routes were not observed, and its server.
func without(since time.Time, server ...string) func(*collect.Gateway) {
	return func(g *collect.Gateway) { g.Since, g.Resources, g.Server = since, nil, strings.Join(server, "") }
}

func TestRoutesOnGateways(t *testing.T) {
	hangs := func(g *collect.Gateway) { g.Hang = "its main thread" }
	for sentence, tc := range map[string]struct {
		gateways []collect.Gateway
		want     expected
	}{
		"every gateway accepted it": {
			gateways(well, well),
			expected{OK, "c1.test on gateway-0, gateway-1: accepted"},
		},
		"there is no gateway": {nil, expected{Broken, "scale statefulset gateway --replicas=2"}},
		"one gateway does not report": {
			gateways(well, away),
			expected{Warning, "gateway-1 since 2026-05-01T11:00:00Z (1h0m0s): the gateway-agent does not report to an " +
				"xds-server"},
		},
		"no gateway reports": {
			gateways(away, away),
			expected{Broken, "no gateway reports to an xds-server: gateway-0"},
		},
		"one that was removed is not missed": {
			gateways(well, func(g *collect.Gateway) { away(g); g.Installed = false }),
			expected{OK, "gateway-0: accepted"},
		},
		"an Envoy rejects it": {
			gateways(well, route(collect.Rejected, noon, "bad field")),
			expected{Broken, "NACK since 2026-05-01T12:00:00Z (0s): bad field"},
		},
		"a gateway was not sent it": {
			gateways(route(collect.Missing, time.Time{}, ""), well),
			expected{Broken, "gateway-0: not sent to the gateway"},
		},
		"it is on its way": {
			gateways(route(collect.Stale, noon.Add(-time.Second), ""), well),
			expected{OK, "accepted"},
		},
		"it is on its way for too long": {
			gateways(route(collect.Stale, noon.Add(-time.Minute), ""), well),
			expected{Warning, "sent, but not answered since"},
		},
		"a refusal outranks a slow answer": {
			gateways(route(collect.Stale, noon.Add(-time.Minute), ""), route(collect.Rejected, noon, "bad")),
			expected{Broken, "NACK"},
		},
		"one of two Envoys hangs": {
			gateways(func(g *collect.Gateway) { hangs(g); g.Ready = false }, well),
			expected{Warning, "the Envoy of gateway-0 hangs: no answer from its main thread"},
		},
		"the only Envoy that takes clients hangs": {
			gateways(func(g *collect.Gateway) { hangs(g); g.Ready = false }, away),
			expected{Broken, "no other gateway accepts clients"},
		},
		"an agent has no configuration stream": {
			gateways(without(noon.Add(-time.Hour)), well),
			expected{Warning, "gateway-0 reports to an xds-server, but has no configuration stream"},
		},
		"an agent has just connected": {
			gateways(without(noon.Add(-time.Second))),
			expected{Unknown, "gateway-0 has no configuration stream yet"},
		},
		"the routes of one gateway were not read": {
			gateways(without(noon.Add(-time.Hour), "b"), well),
			expected{Unknown, "what was sent to gateway-0 is not known: asking xds-server b: unimplemented"},
		},
		"a fault outranks routes that were not read": {
			gateways(without(noon.Add(-time.Hour), "b"), away),
			expected{Warning, "gateway-1 since 2026-05-01T11:00:00Z (1h0m0s): the gateway-agent does not report"},
		},
		"an agent reports and answers no question": {
			gateways(well, func(g *collect.Gateway) { g.Problem = "too slow" }),
			expected{Warning, "the gateway-agent of gateway-1 does not answer: too slow"},
		},
		"an absent agent is not queried": {
			gateways(well, func(g *collect.Gateway) { away(g); g.Problem = "it does not report" }),
			expected{Warning, "the gateway-agent does not report to an xds-server"},
		},
	} {
		t.Run(sentence, func(t *testing.T) {
			fleet := &collect.Fleet{
				Servers:  []collect.Server{{Name: "a"}, {Name: "b", Unread: errors.New("asking xds-server b: unimplemented")}},
				Gateways: tc.gateways,
			}
			tc.want.compare(t, checkRoute(t.Context(), visitOf(fleet)))
		})
	}
}

func TestTunnelsOnGateways(t *testing.T) {
	tunnel := func(gateway, node, worker string) collect.Tunnel {
		return collect.Tunnel{Gateway: gateway, Node: node, Worker: worker, RTT: 12 * time.Millisecond}
	}
	both := []collect.Tunnel{
		tunnel("gateway-0", "e1", "0"), tunnel("gateway-0", "e1", "1"),
		tunnel("gateway-1", "e1", "0"),
	}
	for sentence, tc := range map[string]struct {
		fleet   collect.Fleet
		revoked string
		want    expected
	}{
		"each gateway has some": {
			collect.Fleet{Gateways: gateways(well, well), Tunnels: both},
			"",
			expected{OK, "gateway-0: 2 on 2 workers; gateway-1: 1; round trip 12ms"},
		},
		"no gateway reports": {
			collect.Fleet{Gateways: gateways(away)},
			"",
			expected{Unknown, "no gateway reports to an xds-server"},
		},
		"there is none": {
			collect.Fleet{Gateways: gateways(well)},
			"",
			expected{Broken, "no edge is enrolled"},
		},
		"tunnels of a revoked edge do not count": {
			collect.Fleet{Gateways: gateways(well, well), Tunnels: both},
			"e1",
			expected{Broken, "no gateway has a tunnel to this workload cluster"},
		},
		"one gateway has none": {
			collect.Fleet{Gateways: gateways(well, well), Tunnels: both[:2]},
			"",
			expected{Broken, "no tunnel on gateway-1"},
		},
		"one has none, and whether it forwards was not observed": {
			collect.Fleet{Gateways: gateways(well, well), Tunnels: both[2:]},
			"",
			expected{OK, "gateway-0: 0; gateway-1: 1"},
		},
		"one that takes no clients has none": {
			collect.Fleet{Gateways: gateways(well, func(g *collect.Gateway) { g.Ready = false }), Tunnels: both[:2]},
			"",
			expected{OK, "gateway-1: 0"},
		},
		"a worker has none": {
			collect.Fleet{
				Gateways: gateways(well, well), Tunnels: both,
				Unserved: []collect.UnservedWorkers{{Gateway: "gateway-1", Node: "e1", Workers: 1}},
			},
			"",
			expected{Warning, "e1 has no tunnel on 1 of the workers of gateway-1"},
		},
		"a gateway may have more than it reports": {
			collect.Fleet{
				Gateways: gateways(well, func(g *collect.Gateway) { g.Incomplete = "a line was lost" }),
				Tunnels:  both,
			},
			"",
			expected{Warning, "gateway-1 is incomplete: a line was lost"},
		},
	} {
		t.Run(sentence, func(t *testing.T) {
			v := visitOf(&tc.fleet)
			v.tunnel.Spec.RevokedEdges = []string{tc.revoked}
			v.listeners = map[string]*anypb.Any{"gateway-1": nil}
			tc.want.compare(t, checkTunnels(t.Context(), v))
		})
	}
}

// silence returns two xds-servers of which one did not answer, such as one that only this machine does not reach.
func silence() []collect.Server {
	return []collect.Server{{Name: "a", Settled: true}, {Name: "b", Err: errors.New("asking xds-server b: refused")}}
}

// TestASilentServerMayHaveAllReports: gateways and edges that report to an xds-server that did not answer are not down.
func TestASilentServerMayHaveAllReports(t *testing.T) {
	drains := func(g *collect.Gateway) { g.Ready = false }
	recorded := []v1alpha1.EdgeGatewayStatus{{Name: "gateway-1", Tunnels: 2}}
	for sentence, tc := range map[string]struct {
		gateways []collect.Gateway
		recorded []v1alpha1.EdgeGatewayStatus
		route    expected
		tunnels  expected
		cutOff   bool
	}{
		"one of two gateways reports there": {
			gateways(drains, away), recorded,
			expected{Unknown, "gateway-1 since 2026-05-01T11:00:00Z (1h0m0s) may report to an xds-server that does not answer"},
			expected{OK, "gateway-1: 2, according to the Tunnel's status (asking xds-server b: refused)"},
			false,
		},
		"all gateways report there": {
			gateways(away, away), recorded,
			expected{Unknown, "may report to an xds-server that does not answer (asking xds-server b: refused)"},
			expected{OK, "gateway-1: 2, according to the Tunnel's status"},
			false,
		},
		"the Envoy of the other gateway hangs": {
			gateways(func(g *collect.Gateway) { drains(g); g.Hang = "its main thread" }, away), recorded,
			expected{Warning, "the Envoy of gateway-0 hangs"},
			expected{OK, "gateway-1: 2, according to the Tunnel's status"},
			false,
		},
		"the other gateway accepts clients and has no tunnel": {
			gateways(well, away), recorded,
			expected{Unknown, "gateway-0 is up to date"},
			expected{Broken, "no tunnel on gateway-0"},
			false,
		},
		"no tunnel is on record": {
			gateways(drains, away), nil,
			expected{Unknown, "gateway-0 is up to date"},
			expected{Broken, "no gateway has a tunnel to this workload cluster, according to the Tunnel's status"},
			true,
		},
	} {
		t.Run(sentence, func(t *testing.T) {
			v := visitOf(&collect.Fleet{Servers: silence(), Gateways: tc.gateways})
			v.tunnel.Status.Edges = []v1alpha1.EdgeStatus{{NodeID: model.NodeID("e1"), Gateways: tc.recorded}}
			v.listeners = map[string]*anypb.Any{"gateway-0": nil}
			tc.route.compare(t, checkRoute(t.Context(), v))
			tc.tunnels.compare(t, checkTunnels(t.Context(), v))
			if v.cutOff != tc.cutOff {
				t.Errorf("cut off: %t", v.cutOff)
			}
		})
	}
}

// TestASilentServerMayHaveTheReportsOfAnEdge has an edge whose tunnels are observed, and no report of it.
func TestASilentServerMayHaveTheReportsOfAnEdge(t *testing.T) {
	fleet := &collect.Fleet{
		Servers: silence(), Gateways: gateways(well), Tunnels: []collect.Tunnel{{Gateway: "gateway-0", Node: "e1"}},
	}
	v := visitOf(fleet)
	expected{Skipped, "no edge is connected"}.compare(t, checkHandshake(t.Context(), v))
	fleet.Servers = fleet.Servers[:1]
	expected{Warning, "e1 has tunnels, but does not report"}.compare(t, checkHandshake(t.Context(), v))
}

// TestAnXDSServerThatOnlyThisMachineDoesNotReach checks a healthy Cluster while everything reports to that server.
func TestAnXDSServerThatOnlyThisMachineDoesNotReach(t *testing.T) {
	s := newSituation(t)
	w := s.withSite()
	for _, f := range []*collect.Fleet{&s.fleet, w.fleet, w.egressFleet} {
		f.Servers, f.Tunnels, f.Edges = silence(), nil, nil
		f.Gateways = slices.Clone(f.Gateways)
		for i := range f.Gateways {
			away(&f.Gateways[i])
		}
	}
	w.network.Status.Edges[0].Gateways = s.tunnel.Status.Edges[0].Gateways
	w.egress.Status.Conditions = append(w.egress.Status.Conditions,
		condition(v1alpha1.ConditionTunnelReady, metav1.ConditionTrue, v1alpha1.ReasonConnected))
	got := s.check(t)
	if verdict := got.Deciding(); verdict == nil || verdict.ID != HopServers || verdict.Status != Warning {
		t.Error(shown(got))
	}
}

// TestAGatewayThatForwardsNeedsNoTunnel: with fewer gateways for each tunnel, most gateways have none.
func TestAGatewayThatForwardsNeedsNoTunnel(t *testing.T) {
	for perTunnel, want := range map[int]expected{0: {Broken, "no tunnel on gateway-1"}, 1: {OK, "gateway-1: 0"}} {
		at := model.Endpoint{Host: "127.0.0.1", Port: 1}
		inst := model.Installation{Domain: "tunnels.example.com", Public: at, Control: at, GatewaysPerTunnel: perTunnel}
		bind := envoy.GatewayBind{Public: at, APIServer: at, Connect: at, Version: envoy.Current}
		with := func(g *collect.Gateway) {
			for _, l := range envoy.GatewayListeners(inst, g.Name, bind, model.Denied{}) {
				config, err := anypb.New(l)
				if err != nil {
					t.Fatal(err)
				}
				if l.GetName() == peers.SNIListener {
					g.Resources = append(g.Resources, collect.Resource{Name: l.GetName(), Status: collect.Synced, Config: config})
				}
			}
		}
		fleet := collect.Fleet{Gateways: gateways(with, with), Tunnels: []collect.Tunnel{{Gateway: "gateway-0", Node: "e1"}}}
		listeners := fleet.Take(peers.SNIListener)
		v := visitOf(&fleet)
		v.listeners = listeners
		want.compare(t, checkTunnels(t.Context(), v))
		expected{OK, "c1.test on gateway-0, gateway-1: accepted"}.compare(t, checkRoute(t.Context(), v))
	}
}

func TestTunnelsOnRecord(t *testing.T) {
	for sentence, tc := range map[string]struct {
		edges []v1alpha1.EdgeStatus
		want  expected
	}{
		"the controller has noted some": {
			[]v1alpha1.EdgeStatus{
				{NodeID: model.NodeID("e1"), Gateways: []v1alpha1.EdgeGatewayStatus{{Name: "gateway-0", Tunnels: 2}}},
				{NodeID: model.NodeID("e2"), Gateways: []v1alpha1.EdgeGatewayStatus{{Name: "gateway-0", Tunnels: 1}}},
			},
			expected{OK, "gateway-0: 3, according to the Tunnel's status"},
		},
		"the controller has noted that the edge is away": {
			[]v1alpha1.EdgeStatus{{NodeID: model.NodeID("e1"), Host: "host-1", LastSeen: &metav1.Time{Time: noon}}},
			expected{Broken, "no edge has a tunnel (e1 on host-1 was last seen at 2026-05-01T12:00:00Z)"},
		},
		"no edge was ever there": {nil, expected{Broken, "no edge is enrolled"}},
	} {
		t.Run(sentence, func(t *testing.T) {
			v := visitOf(nil)
			v.tunnel.Status.Edges = tc.edges
			tc.want.compare(t, checkTunnels(t.Context(), v))
		})
	}
}

func TestErrorsReportedByEdges(t *testing.T) {
	for complaint, tc := range map[string]struct {
		noTunnel bool
		want     expected
	}{
		"certificate: the controller does not sign": {
			false,
			expected{Warning, "cannot obtain or renew its certificate"},
		},
		"configuration: an unknown field": {false, expected{Warning, "of the same version"}},
		"control channel: connection refused": {
			true,
			expected{Broken, "reaches the gateways' public port"},
		},
		"Envoy hangs: its main thread": {true, expected{Broken, "systemctl restart edge-envoy"}},
		"Envoy: exit code 1": {
			true,
			expected{Broken, "until Envoy has run for a minute"},
		},
		"start of Envoy: no such file": {true, expected{Broken, "the edge's Envoy cannot be started"}},
		"disk: no space left":          {false, expected{Warning, "free disk space"}},
		"something that is new":        {false, expected{Warning, "correct the reported error"}},
	} {
		t.Run(complaint, func(t *testing.T) {
			v := visitOf(&collect.Fleet{Edges: []observed.Edge{{Node: "e1", Connected: true, LastError: complaint}}})
			v.cutOff = tc.noTunnel
			f := checkHandshake(t.Context(), v)
			tc.want.compare(t, f)
			if !strings.Contains(f.detail, "e1 reports: "+complaint) {
				t.Errorf("it does not quote the edge: %+v", f)
			}
		})
	}
}

func TestWhyAnEdgeDoesNotReachItsAPIServer(t *testing.T) {
	for reason, cause := range map[model.APIServerReason]string{
		model.APIServerConnectionRefused:   "the apiserver is down",
		model.APIServerCertificateNotValid: "serving certificate is not valid now",
		model.APIServerNotReady:            "waits for etcd",
		model.APIServerNameNotResolved:     "does not resolve the apiserver's name",
		model.APIServerNotAPIServer:        "is not that of an apiserver",
		model.APIServerNoRoute:             "no route to the apiserver",
		model.APIServerConnectionTimeout:   "a firewall drops packets",
		model.APIServerNoAnswer:            "it hangs",
		model.APIServerConnectionFailed:    "does not reach the apiserver",
		"NewerThanThisVersionOfCheck":      "does not reach the apiserver",
		"":                                 "does not reach the apiserver", // of an earlier edge
	} {
		// An apiserver has a say in the message, so that decides nothing.
		const message = "it answers /readyz with status 500: nothing listens there"
		v := visitOf(&collect.Fleet{})
		f := v.unreachable(&observed.Edge{Node: "e1", APIServer: &observed.APIServer{
			Address: "a:6443", Reason: reason, Message: message,
		}})
		if f.status != Broken || !strings.Contains(f.cause, cause) || f.cure == "" || !strings.Contains(f.detail, message) {
			t.Errorf("%s: got %+v", reason, f)
		}
	}
}

func TestWhichEdgesCount(t *testing.T) {
	at := func(d time.Duration) metav1.Time { return metav1.NewTime(noon.Add(d)) }
	edge := func(node string, end time.Duration) v1alpha1.EdgeStatus {
		return v1alpha1.EdgeStatus{NodeID: model.NodeID(node), CertificateNotAfter: at(end)}
	}
	for sentence, tc := range map[string]struct {
		edges   []v1alpha1.EdgeStatus
		revoked string
		reports []observed.Edge
		want    expected
	}{
		"one has a certificate": {
			[]v1alpha1.EdgeStatus{edge("e1", -time.Hour), edge("e2", time.Hour)},
			"", nil,
			expected{OK, "e2, certificate valid for 1h0m0s"},
		},
		"its clock is wrong": {
			[]v1alpha1.EdgeStatus{edge("e1", time.Hour)},
			"",
			[]observed.Edge{{Node: "e1", LastError: "the clock is 2 h late"}},
			expected{Warning, "correct the clock (NTP) on the machine of e1"},
		},
		"a revoked edge's clock is no matter": {
			[]v1alpha1.EdgeStatus{edge("e1", time.Hour), edge("e2", time.Hour)},
			"e1",
			[]observed.Edge{{Node: "e1", LastError: "the clock is 2 h late"}},
			expected{OK, "e2"},
		},
	} {
		t.Run(sentence, func(t *testing.T) {
			v := visitOf(&collect.Fleet{Edges: tc.reports})
			v.tunnel.Status.Edges, v.tunnel.Spec.RevokedEdges = tc.edges, []string{tc.revoked}
			tc.want.compare(t, checkEdge(t.Context(), v))
		})
	}
}
