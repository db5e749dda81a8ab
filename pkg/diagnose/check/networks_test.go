package check

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/diagnose/collect"
	"github.com/fairlead/fairlead/pkg/envoy/peers"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/observed"
)

const nodeAddress = "10.1.0.5"

// site is a RemoteNetwork of the Cluster, with everything that is observed of it.
type site struct {
	network, egress    *v1alpha1.Tunnel
	object             *v1alpha1.RemoteNetwork
	fleet, egressFleet *collect.Fleet
	nodeProblem        string // why the apiserver does not reach the Node; empty: it does
	nodeSilent         bool
	nodeReason         metav1.StatusReason
	nodeAddress        string
	nodeDelay          time.Duration
	forward            *observed.APIServer // what the edge finds behind its own listener; nil: it has none
}

// withSite adds a healthy network with one Node.
func (s *situation) withSite() *site {
	tunnel := func(name, id, edge string) *v1alpha1.Tunnel {
		return &v1alpha1.Tunnel{
			ObjectMeta: metav1.ObjectMeta{Namespace: "prod", Name: name, CreationTimestamp: s.tunnel.CreationTimestamp},
			Status: v1alpha1.TunnelStatus{
				ID: id, Served: &v1alpha1.ServedStatus{},
				Edges: []v1alpha1.EdgeStatus{{
					NodeID: model.NodeID(edge), CertificateNotAfter: metav1.NewTime(s.now.Add(20 * time.Hour)),
					EnrolledAt: metav1.NewTime(s.now.Add(-time.Hour)), LastSeen: ptr.To(metav1.NewTime(s.now)),
				}},
				Tokens: s.tunnel.Status.Tokens,
			},
		}
	}
	w := &site{
		network: tunnel("site1.network", strings.Repeat("b", 24), "n1"),
		egress:  tunnel("c1.egress", strings.Repeat("c", 24), "a1"), nodeAddress: nodeAddress,
		forward: &observed.APIServer{Address: "10.1.0.2:6443", Healthy: true},
	}
	w.network.Spec.ID, w.egress.Spec.ID = w.network.Status.ID, w.egress.Status.ID
	w.network.Spec.Network, w.egress.Spec.EgressOf = "site1", "c1"
	w.network.Status.Served.Network = &v1alpha1.ServedNetwork{
		ClusterName: "c1", EgressID: w.egress.Status.ID, CIDRs: []string{"10.1.0.0/16"},
		APIServers: []string{"10.0.0.1:6443"},
	}
	w.object = &v1alpha1.RemoteNetwork{
		ObjectMeta: metav1.ObjectMeta{Namespace: "prod", Name: "site1"},
		Spec:       v1alpha1.RemoteNetworkSpec{ClusterName: "c1", CIDRs: []string{"10.1.0.0/16"}},
	}
	w.accepted(metav1.ConditionTrue, v1alpha1.ReasonAccepted, "everything is served")
	w.fleet, w.egressFleet = s.fleetOf(w.network, "n1", "network/"), s.fleetOf(w.egress, "a1", "")
	w.egressFleet.Tunnels = nil
	s.sites = map[string]*collect.Fleet{w.network.Status.ID: w.fleet, w.egress.Status.ID: w.egressFleet}
	s.site = w
	s.others = append(s.others, w.object, w.network, w.egress)
	for _, name := range []string{w.network.Name, w.egress.Name} {
		s.others = append(s.others, &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: "prod", Name: name + v1alpha1.BootstrapSecretSuffix},
			Data:       map[string][]byte{v1alpha1.BootstrapTokenKey: []byte(goodToken)},
		})
	}
	s.serve = func(rw http.ResponseWriter, r *http.Request) { w.serve(rw, r) }
	return w
}

// fleetOf returns what the xds-servers report of a Tunnel with one edge.
func (s *situation) fleetOf(t *v1alpha1.Tunnel, edge, prefix string) *collect.Fleet {
	f := &collect.Fleet{
		Domain: "test", Servers: s.fleet.Servers,
		Edges: []observed.Edge{{Node: edge, ID: t.Status.ID, Connected: true, Since: s.now.Add(-time.Hour)}},
	}
	for _, g := range s.fleet.Gateways {
		g.Resources = []collect.Resource{
			{Name: prefix + t.Status.ID, Status: collect.Synced}, {Name: peers.SNIListener, Status: collect.Synced},
		}
		f.Gateways = append(f.Gateways, g)
		f.Tunnels = append(f.Tunnels, collect.Tunnel{Gateway: g.Name, Node: edge, ID: t.Status.ID, Worker: "worker_0"})
	}
	return f
}

func (w *site) accepted(status metav1.ConditionStatus, reason, message string) {
	w.object.Status.Conditions = []metav1.Condition{{
		Type: v1alpha1.ConditionAccepted, Status: status, Reason: reason, Message: message,
	}}
}

// serve answers like an apiserver with one Node.
func (w *site) serve(rw http.ResponseWriter, r *http.Request) {
	switch {
	case r.URL.Path == "/api/v1/nodes" && r.URL.Query().Get("watch") == "":
		table := metav1.Table{ColumnDefinitions: []metav1.TableColumnDefinition{
			{Name: "Name"}, {Name: "Status"}, {Name: "Internal-IP"},
		}, Rows: []metav1.TableRow{{Cells: []any{"node1", "Ready", w.nodeAddress}}}}
		_ = json.NewEncoder(rw).Encode(table)
	case strings.HasPrefix(r.URL.Path, "/api/v1/nodes/node1/proxy") && r.Header.Get("Upgrade") == "":
		rw.WriteHeader(http.StatusBadRequest) // only an upgrade opens a new connection
	case strings.HasPrefix(r.URL.Path, "/api/v1/nodes/node1/proxy"):
		if w.nodeSilent {
			panic(http.ErrAbortHandler)
		}
		time.Sleep(w.nodeDelay)
		if w.nodeProblem == "" {
			_, _ = io.WriteString(rw, "ok")
			return
		}
		rw.WriteHeader(http.StatusInternalServerError)
		_ = json.NewEncoder(rw).Encode(metav1.Status{
			TypeMeta: metav1.TypeMeta{Kind: "Status"}, Message: w.nodeProblem, Reason: w.nodeReason,
		})
	default:
		wellServed(rw, r)
	}
}

// answered is the message of an apiserver about a code of its proxy.
func answered(code int) string {
	// the path of the socket looks like other messages
	const message = "error dialing backend: proxy error from /a 403 unix .sock while dialing %s:10250, code %d: %[2]d"
	return fmt.Sprintf(message, nodeAddress, code)
}

// leave ends the reports and tunnels of the only node of a Tunnel.
func leave(f *collect.Fleet) { f.Edges[0].Connected, f.Tunnels = false, nil }

// never removes every trace of an enrolled node.
func never(t *v1alpha1.Tunnel, f *collect.Fleet) { t.Status.Edges, f.Edges, f.Tunnels = nil, nil, nil }

// of returns a case of a network.
func of(change func(s *situation, w *site)) func(*situation) {
	return func(s *situation) { change(s, s.withSite()) }
}

func denied(reason, message string) func(*situation) {
	return of(func(_ *situation, w *site) { w.accepted(metav1.ConditionFalse, reason, message) })
}

func behindListener(reason model.APIServerReason) func(*situation) {
	return of(func(_ *situation, w *site) {
		w.forward = &observed.APIServer{Address: "10.1.0.2:6443", Reason: reason}
	})
}

func nodeFails(problem string) func(*situation) {
	return of(func(_ *situation, w *site) { w.nodeProblem = problem })
}

// named returns a case of a Node that the apiserver dials by a name in the network.
func named(code int) func(*situation) {
	return of(func(_ *situation, w *site) {
		w.network.Status.Served.Network.DNSSuffixes = []string{"test", "site1.test"}
		w.nodeProblem = strings.Replace(answered(code), nodeAddress, "node1.site1.test", 1)
	})
}

// another adds a healthy network without Nodes.
func (s *situation) another(w *site, name, cidr string) (*v1alpha1.Tunnel, *collect.Fleet) {
	object, tunnel := w.object.DeepCopy(), w.network.DeepCopy()
	object.Name, object.Spec.CIDRs = name, []string{cidr}
	tunnel.Name, tunnel.Spec.Network, tunnel.Status.Served.Network.CIDRs = name+".network", name, []string{cidr}
	tunnel.Spec.ID, tunnel.Status.ID = strings.Repeat("d", 24), strings.Repeat("d", 24)
	tunnel.Status.Edges[0].NodeID = model.NodeID("n9")
	fleet := s.fleetOf(tunnel, "n9", "network/")
	s.sites[tunnel.Status.ID] = fleet
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "prod", Name: tunnel.Name + v1alpha1.BootstrapSecretSuffix},
		Data:       map[string][]byte{v1alpha1.BootstrapTokenKey: []byte(goodToken)},
	}
	s.others = append(s.others, object, tunnel, secret)
	return tunnel, fleet
}

// networkFaults has the cases of the table of faults of networks.
var networkFaults = map[string]func(s *situation){
	"no apiserver of the Cluster has enrolled for egress": of(func(_ *situation, w *site) {
		never(w.egress, w.egressFleet)
	}),
	"two networks of a Cluster have the same CIDR": denied(v1alpha1.ReasonAmbiguousNetwork, "has it too"),
	"a CIDR is a part of the Cluster's Pod CIDR":   denied(v1alpha1.ReasonNetworkOverlap, "a part of the Pod CIDR"),
	"a CIDR contains the gateways":                 denied(v1alpha1.ReasonNetworkHasGateway, "the gateway"),
	"a CIDR has only link-local addresses, such as a metadata service": denied(
		v1alpha1.ReasonNeverDialled, "edges never dial loopback",
	),
	"a RemoteNetwork names a Cluster that does not exist in its namespace": of(func(s *situation, w *site) {
		s.key.Name, w.object.Spec.ClusterName = "c2", "c2"
	}),
	"the RemoteNetwork is paused": of(func(_ *situation, w *site) {
		w.object.Annotations = map[string]string{clusterv1.PausedAnnotation: ""}
	}),
	"the RemoteNetwork is being deleted, and a finalizer is left": of(func(s *situation, w *site) {
		w.object.Finalizers, w.object.DeletionTimestamp = []string{"example.com/keep"}, ptr.To(metav1.NewTime(s.now))
	}),
	"no edge of the network has enrolled": of(func(_ *situation, w *site) { never(w.network, w.fleet) }),
	"all edges of the network are down":   of(func(_ *situation, w *site) { leave(w.fleet) }),
	"one of two edges of the network is down": of(func(s *situation, w *site) {
		second := w.network.Status.Edges[0]
		second.NodeID = model.NodeID("n2")
		w.network.Status.Edges = append(w.network.Status.Edges, second)
	}),
	"the only edge of the network is revoked": of(func(_ *situation, w *site) {
		leave(w.fleet)
		w.network.Spec.RevokedEdges = []string{"n1"}
	}),
	"the Envoy beside the apiserver is down": of(func(_ *situation, w *site) { leave(w.egressFleet) }),
	"the certificate of the apiserver's Envoy is revoked": of(func(_ *situation, w *site) {
		w.egress.Spec.RevokedEdges = []string{"a1"}
	}),
	"the certificate of the apiserver's Envoy has expired": of(func(s *situation, w *site) {
		w.egress.Status.Edges[0].CertificateNotAfter = metav1.NewTime(s.now.Add(-time.Minute))
		leave(w.egressFleet)
	}),
	"an edge runs with the bootstrap file of another network": of(func(s *situation, w *site) {
		never(s.another(w, "site2", "10.2.0.0/16"))
		w.fleet.Edges[0].Addresses = []netip.Addr{netip.MustParseAddr("192.0.2.9"), netip.MustParseAddr("10.2.0.3")}
	}),
	"a name of `spec.dnsSuffixes` does not resolve at the edge":                   named(http.StatusBadGateway),
	"a name of `spec.dnsSuffixes` resolves to an address that edges may not dial": named(http.StatusForbidden),
	"the socket of the apiserver's Envoy is missing": nodeFails(
		"error dialing backend: dial unix /s.sock: connect: no such file or directory",
	),
	"the apiserver runs without an EgressSelectorConfiguration": nodeFails(
		"error dialing backend: dial tcp " + nodeAddress + ":10250: connect: no route to host",
	),
	"the apiserver dials the names of Nodes": nodeFails("lookup node1: no such host"),
	"the address of a Node is in no network": of(func(_ *situation, w *site) {
		w.nodeAddress, w.nodeProblem = "10.9.0.5", answered(http.StatusForbidden)
	}),
	"the network does not permit the port of kubelets": of(func(_ *situation, w *site) {
		w.network.Status.Served.Network.Ports = []v1alpha1.NetworkPort{{Port: 443}, {Port: 8000, EndPort: 10249}}
		w.nodeProblem = answered(http.StatusForbidden)
	}),
	"the owner of the edge's machine does not allow the Node (`--allow-target`)": nodeFails(
		answered(http.StatusForbidden),
	),
	"the kubelet is down": nodeFails(answered(http.StatusServiceUnavailable)),
	"packets between edge and Node are dropped": of(func(_ *situation, w *site) {
		w.nodeProblem, w.nodeDelay = answered(http.StatusServiceUnavailable), 2*time.Second
	}),
	"the limit of the network's connections is reached": nodeFails(answered(http.StatusServiceUnavailable)),
	"gateways may not dial the apiserver for the machines of a network": of(func(_ *situation, w *site) {
		w.network.Status.Served.Network.APIServers = nil
		w.forward = &observed.APIServer{Reason: model.APIServerConnectionFailed}
	}),
	"another program has the port of `--apiserver-listen`":  behindListener(model.APIServerNotAPIServer),
	"the machine lacks the address of `--apiserver-listen`": behindListener(model.APIServerConnectionTimeout),
}

// TestWhatIsNoFaultOfANode has answers of kubelets and of the apiserver that are none, and a user that may not ask.
func TestWhatIsNoFaultOfANode(t *testing.T) {
	for problem, want := range map[string]struct {
		reason metav1.StatusReason
		status Status
	}{
		"invalid upgrade response: status code 200":                          {"", OK},
		"error dialing backend: x509: certificate is not for a1":             {"", OK},
		"nodes \"node1\" not found":                                          {metav1.StatusReasonNotFound, OK},
		"nodes \"node1\" is forbidden: cannot get nodes/proxy":               {metav1.StatusReasonForbidden, Unknown},
		"error dialing backend: proxy error while dialing node1:1, code 403": {"", Broken},
	} {
		s := newSituation(t)
		w := s.withSite()
		w.nodeProblem, w.nodeReason = problem, want.reason
		got := s.check(t)
		at := slices.IndexFunc(got.Hops, func(h Result) bool { return h.ID == HopNodes })
		if got.Hops[at].Status != want.status {
			t.Errorf("%s: %+v", problem, got.Hops[at])
		}
	}
}

// TestOnlyARefusalOfNodesIsAboutPermissions: another answer has another cure.
func TestOnlyARefusalOfNodesIsAboutPermissions(t *testing.T) {
	for answer, permissions := range map[string]bool{"403 {}": true, "500 {}": false, "200 {\"rows\":[": false} {
		s := newSituation(t)
		w := s.withSite()
		s.serve = func(rw http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/api/v1/nodes" {
				w.serve(rw, r)
				return
			}
			status, body, _ := strings.Cut(answer, " ")
			code, _ := strconv.Atoi(status)
			rw.WriteHeader(code)
			_, _ = io.WriteString(rw, body)
		}
		got := s.check(t)
		hop := got.Hops[slices.IndexFunc(got.Hops, func(h Result) bool { return h.ID == HopNodes })]
		if hop.Status != Unknown || strings.Contains(hop.Cure, "nodes/proxy") != permissions || hop.Cure == "" {
			t.Errorf("%s: %+v", answer, hop)
		}
	}
}

// TestAnEdgeInAnotherNetworkIsOnlyAnExplanation: edges of a network need not have addresses in it, so nothing is wrong
// while both networks work.
func TestAnEdgeInAnotherNetworkIsOnlyAnExplanation(t *testing.T) {
	for name, tc := range map[string]struct {
		addresses []string
		change    func(w *site, other *v1alpha1.Tunnel, fleet *collect.Fleet)
		hop       ID
		explained bool
	}{
		"both networks work": {[]string{"10.2.0.3"}, func(*site, *v1alpha1.Tunnel, *collect.Fleet) {}, "", false},
		"the other one has no edge": {
			[]string{"10.2.0.3"},
			func(_ *site, other *v1alpha1.Tunnel, fleet *collect.Fleet) { never(other, fleet) },
			HopNetworkEdges, true,
		},
		"the other one has no edge, and this one is in its own network too": {
			[]string{"10.2.0.3", "10.1.0.3"},
			func(_ *site, other *v1alpha1.Tunnel, fleet *collect.Fleet) { never(other, fleet) }, HopNetworkEdges, false,
		},
		"a Node is not reached": {
			[]string{"10.2.0.3"}, func(w *site, _ *v1alpha1.Tunnel, _ *collect.Fleet) {
				w.nodeProblem = answered(http.StatusServiceUnavailable)
			}, HopNodes, true,
		},
	} {
		s := newSituation(t)
		w := s.withSite()
		for _, a := range tc.addresses {
			w.fleet.Edges[0].Addresses = append(w.fleet.Edges[0].Addresses, netip.MustParseAddr(a))
		}
		other, fleet := s.another(w, "site2", "10.2.0.0/16")
		tc.change(w, other, fleet)
		got := s.check(t)
		const cause = "with the bootstrap file of RemoteNetwork site1"
		explained := got.Deciding() != nil && strings.Contains(got.Deciding().Cause, cause)
		if got.First != tc.hop || explained != tc.explained {
			t.Errorf("%s: %s", name, shown(got))
		}
	}
}

// otherNetworkCauses are causes without a documented fault.
var otherNetworkCauses = map[string]other{
	"the controller rejects another part": {
		HopNetworks, Broken, "rejects a part of the network", denied(v1alpha1.ReasonInvalidNetwork, "it is there twice"),
	},
	"the Cluster has too many networks": {
		HopNetworks, Broken, "not among the oldest", denied(v1alpha1.ReasonTooManyNetworks, "256 older RemoteNetworks"),
	},
	"the controller has not decided about a network": {
		HopNetworks, Broken, "is too slow", of(func(_ *situation, w *site) { w.object.Status.Conditions = nil }),
	},
	"the agent of an apiserver is away, by the record": {
		HopEgress, Broken, "no agent beside an apiserver is connected", of(func(s *situation, w *site) {
			s.fleetErr = io.ErrUnexpectedEOF
			w.egress.Status.Conditions = []metav1.Condition{
				condition(v1alpha1.ConditionTunnelReady, metav1.ConditionFalse, v1alpha1.ReasonNoEgress),
			}
		}),
	},
	"the agent of an apiserver reports an error": {
		HopEgress, Warning, "differ, or one has a fault", of(func(_ *situation, w *site) {
			w.egressFleet.Edges[0].LastError = "configuration: an unknown field"
		}),
	},
	"the routes of the apiservers are rejected": {
		HopEgressRoute, Broken, "rejects the configuration", of(func(_ *situation, w *site) {
			w.egressFleet.Gateways[0].Resources[0].Status = collect.Rejected
		}),
	},
	"an apiserver lacks the name of a Node that an edge resolves": {
		HopNodes, Warning, "exec and logs leave that to the edge", of(func(_ *situation, w *site) {
			w.network.Status.Served.Network.DNSSuffixes = []string{"site1.test"}
			w.nodeProblem = "lookup node1.site1.test on 10.0.0.53:53: no such host"
		}),
	},
	"an apiserver does not answer for a Node": {
		HopNodes, Broken, "the apiserver waits for the Node", of(func(_ *situation, w *site) { w.nodeSilent = true }),
	},
	"the apiserver behind a listener is down": {
		HopForward, Broken, "the gateways do not reach the apiserver", behindListener(model.APIServerNoAnswer),
	},
}

func init() {
	maps.Copy(faults, networkFaults)
	maps.Copy(others, otherNetworkCauses)
}

func TestAHealthyNetworkHasNoProblem(t *testing.T) {
	s := newSituation(t)
	s.withSite()
	got := s.check(t)
	for _, h := range got.Hops {
		if h.Status != OK {
			t.Errorf("%s is %s: %s", h.ID, h.Status, h.Detail)
		}
	}
	if len(got.Hops) != len(Hops()) {
		t.Errorf("%d hops of %d", len(got.Hops), len(Hops()))
	}
}

func TestAClusterWithNetworksNeedsNoTunnel(t *testing.T) {
	s := newSituation(t)
	s.withSite()
	s.cluster.Labels, s.tunnel = nil, nil
	got := s.check(t)
	if got.Deciding() != nil {
		t.Error(shown(got))
	}
}

// TestNetworksOfOtherClustersDoNotCount has a broken network of another Cluster, and a user that may not list networks.
func TestNetworksOfOtherClustersDoNotCount(t *testing.T) {
	s := newSituation(t)
	w := s.withSite()
	w.object.Spec.ClusterName = "c2"
	w.accepted(metav1.ConditionFalse, v1alpha1.ReasonInvalidNetwork, "broken")
	if got := s.check(t); got.Deciding() != nil || len(got.Hops) != len(Hops())-6 {
		t.Error(shown(got))
	}
	s = newSituation(t)
	s.withSite()
	s.refuses["remotenetworks"] = forbidden("remotenetworks")
	got := s.check(t)
	at := slices.IndexFunc(got.Hops, func(h Result) bool { return h.ID == HopNetworks })
	if got.Deciding() != nil || at < 0 || got.Hops[at].Status != Unknown {
		t.Error(shown(got))
	}
}

// TestAPausedNetworkGetsNoBootstrapSecret: the controller deletes the Secret when its token can enrol nothing.
func TestAPausedNetworkGetsNoBootstrapSecret(t *testing.T) {
	for name, change := range map[string]func(*situation, *site){
		"the Secret is gone": func(s *situation, w *site) {
			s.others = slices.DeleteFunc(s.others, func(o client.Object) bool {
				return o.GetName() == w.network.Name+v1alpha1.BootstrapSecretSuffix
			})
		},
		"its token is used up": func(_ *situation, w *site) {
			w.network.Status.Tokens = slices.Clone(w.network.Status.Tokens)
			w.network.Status.Tokens[0].Uses = w.network.Status.Tokens[0].MaxUses
		},
	} {
		s := newSituation(t)
		w := s.withSite()
		w.object.Annotations = map[string]string{clusterv1.PausedAnnotation: ""}
		never(w.network, w.fleet)
		change(s, w)
		got := s.check(t)
		if v := got.Deciding(); v == nil || v.ID != HopNetworkEdges || !strings.Contains(v.Cause, isPaused+", so") ||
			!strings.Contains(v.Cure, "unpause it") {
			t.Errorf("%s: %s", name, shown(got))
		}
	}
}

// TestOfSeveralNetworksTheWorstDecides has a network that is paused, and one that is ambiguous.
func TestOfSeveralNetworksTheWorstDecides(t *testing.T) {
	s := newSituation(t)
	w := s.withSite()
	w.object.Annotations = map[string]string{clusterv1.PausedAnnotation: ""}
	second := w.object.DeepCopy()
	second.Name, second.Annotations = "site2", nil
	second.Status.Conditions[0].Status = metav1.ConditionFalse
	second.Status.Conditions[0].Reason = v1alpha1.ReasonAmbiguousNetwork
	s.others = append(s.others, client.Object(second))
	got := s.check(t)
	v := got.Deciding()
	if v == nil || v.ID != HopNetworks || !strings.HasPrefix(v.Detail, "site2: ") ||
		!strings.HasSuffix(v.Detail, "2 networks have a fault here: site1, site2") {
		t.Error(shown(got))
	}
}
