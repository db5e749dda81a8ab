package xds_test

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	adminv3 "github.com/envoyproxy/go-control-plane/envoy/admin/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/model"
)

const srds = resourcev3.ScopedRouteType

func idOf(name string) string { return name + strings.Repeat("0", 20-len(name)) }

// egress returns the apiservers of a Cluster.
func egress(name string) model.WorkloadCluster {
	return model.WorkloadCluster{
		Key: model.Key{Namespace: "prod", Name: name + ".egress"}, ID: idOf(name + "e"), Egress: true,
	}
}

// network returns a network with one target, for the apiservers of a Cluster.
func network(name, cluster string) model.WorkloadCluster {
	return model.WorkloadCluster{
		Key: model.Key{Namespace: "prod", Name: name + ".network"}, ID: idOf(name),
		Network: &model.Network{
			Name: name, Cluster: model.Key{Namespace: "prod", Name: cluster}, EgressID: egress(cluster).ID,
			CIDRs: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")},
			Targets: []model.Target{{
				Name: "bmc." + name + ".prod.tunnels.example.com", Address: model.Endpoint{Host: "10.1.0.9", Port: 443},
			}},
		},
	}
}

func scopeOf(cluster string) string { return envoy.ScopeName(domain, egress(cluster).ID) }

// gatewayWithNetworks opens the stream of a gateway whose agent supports networks, with all types.
func (b *bed) gatewayWithNetworks(t *testing.T) (a *ads, scopes map[string]string) {
	t.Helper()
	node, bind := nodeOf(gateway), bind
	bind.Version = envoy.Current
	node.Metadata = bind.Metadata()
	identity := b.identity(t, gateway, time.Now().Add(time.Hour))
	a = b.claim(t, &identity, node)
	a.fetch(t, cds)
	return a, a.fetch(t, srds)
}

func TestAChangeOfANetworkChangesOneScope(t *testing.T) {
	n1, n2, n3 := network("n1", "c1"), network("n2", "c1"), network("n3", "c2")
	b := newBed(t, workload("c1"), egress("c1"), egress("c2"), n1, n2, n3, network("n4", "c3"))
	g, scopes := b.gatewayWithNetworks(t)
	if len(scopes) != 2 || scopes[scopeOf("c1")] == "" || scopes[scopeOf("c2")] == "" {
		t.Fatalf("scopes are %v: those of the served apiservers are wanted", scopes)
	}
	one := func(what string, change func(), cluster string) {
		t.Helper()
		change()
		r := g.next(t)
		if r.GetTypeUrl() != srds {
			t.Fatalf("%s: %s was sent: %v, without %v", what, r.GetTypeUrl(), names(r), r.GetRemovedResources())
		}
		expect(t, what, names(r), []string{scopeOf(cluster)})
	}
	one("a CIDR", func() {
		n1.Network = clone(n1.Network)
		n1.Network.CIDRs = []netip.Prefix{netip.MustParsePrefix("10.2.0.0/16")}
		b.publish(n1)
	}, "c1")
	b.publish(n1) // nothing has changed, so nothing is sent for it
	one("another Cluster's network", func() {
		n3.Network = clone(n3.Network)
		n3.Network.Suffixes = []string{"corp.example"}
		b.publish(n3)
	}, "c2")
	// A network that moves changes both scopes, in one response.
	n2.Network = clone(n2.Network)
	n2.Network.EgressID = egress("c2").ID
	b.publish(n2)
	expect(t, "both", names(g.next(t)), []string{scopeOf("c1"), scopeOf("c2")})
	// A network whose apiservers are not served has no scope; it gets one with them.
	one("new apiservers", func() { b.publish(egress("c3")) }, "c3")
	// A network that is not served yet, and one of another namespace, are in no scope.
	before := b.scopes(t)
	early := network("n5", "c1")
	early.Prepared = true
	b.publish(early)
	foreign := network("n6", "c1")
	foreign.Key.Namespace, foreign.Network.Cluster.Namespace = "other", "other"
	b.publish(foreign)
	if after := b.scopes(t); after[scopeOf("c1")] != before[scopeOf("c1")] {
		t.Error("a network that apiservers must not use changes their scope")
	}
}

func (b *bed) scopes(t *testing.T) map[string]string {
	t.Helper()
	_, scopes := b.gatewayWithNetworks(t)
	return scopes
}

func clone(n *model.Network) *model.Network {
	c := *n
	return &c
}

// TestScopesComeAfterTheirEnvoyClustersAndGoBefore them: a scope never refers to an Envoy cluster that is gone.
func TestScopesComeAfterTheirEnvoyClustersAndGoBeforeThem(t *testing.T) {
	b := newBed(t, egress("c1"), network("n1", "c1"))
	g, _ := b.gatewayWithNetworks(t)
	two := network("n2", "c1")
	target := two.Network.Targets[0].Name
	b.publish(two)
	first, second := g.next(t), g.next(t)
	if first.GetTypeUrl() != cds || second.GetTypeUrl() != srds {
		t.Fatalf("the order is %s, %s", first.GetTypeUrl(), second.GetTypeUrl())
	}
	added := names(first)
	if !slices.Contains(added, target) {
		t.Errorf("new Envoy clusters are %v, without %s", added, target)
	}
	b.becomes(t, "gateway-0", scopeOf("c1"), adminv3.ClientResourceStatus_ACKED)
	b.Publish(two.Key, nil)
	first, second = g.next(t), g.next(t)
	if first.GetTypeUrl() != srds || second.GetTypeUrl() != cds {
		t.Fatalf("the order of the removal is %s, %s", first.GetTypeUrl(), second.GetTypeUrl())
	}
	expect(t, "removed Envoy clusters", sortedCopy(second.GetRemovedResources()), added)

	// Apiservers that are no longer served lose their scope, however they end.
	for what, end := range map[string]func(){
		"removed":  func() { b.Publish(egress("c1").Key, nil) },
		"withheld": func() { wc := egress("c1"); wc.Withheld = true; b.publish(wc) },
		"replaced": func() { b.Replace([]model.WorkloadCluster{network("n1", "c1")}) },
	} {
		end()
		expect(t, what, g.next(t).GetRemovedResources(), []string{scopeOf("c1")})
		b.publish(egress("c1"))
		expect(t, what+" and served again", names(g.next(t)), []string{scopeOf("c1")})
	}
}

// TestAnOlderGatewayReceivesNoScopes uses an agent that sends no version: it would reject what it does not support,
// together with everything else in the same response.
func TestAnOlderGatewayReceivesNoScopes(t *testing.T) {
	n1 := network("n1", "c1")
	b := newBed(t, egress("c1"), n1)
	g := b.envoy(t, gateway)
	expect(t, "scopes", names(firstOfType(t, g, srds)), nil)
	expect(t, "Envoy clusters", names(firstOfType(t, g, cds)), sorted(n1.Network.Targets[0].Name))
	if all := b.clusters(t); len(all) != len(sorted(n1.Network.Targets[0].Name))+1 {
		t.Errorf("a newer gateway has %v: one more Envoy cluster is wanted", all)
	}
	b.publish(egress("c2"))
	g.subscribe(t, lds, nil)
	if r := g.next(t); r.GetTypeUrl() != lds {
		t.Errorf("it received %s", r.GetTypeUrl())
	}
}

// clusters returns the names of the Envoy clusters of a gateway whose agent supports networks.
func (b *bed) clusters(t *testing.T) []string {
	t.Helper()
	node, bind := nodeOf(gateway), bind
	bind.Version = envoy.Current
	node.Metadata = bind.Metadata()
	identity := b.identity(t, gateway, time.Now().Add(time.Hour))
	return names(firstOfType(t, b.claim(t, &identity, node), cds))
}

func sortedCopy(all []string) []string { return slices.Sorted(slices.Values(all)) }

// TestEdgesOpenMoreTunnelsForNetworksThatForward: each network is one more Envoy cluster of the gateways that uses the
// reverse tunnels to the apiserver.
func TestEdgesOpenMoreTunnelsForNetworksThatForward(t *testing.T) {
	c1, n1 := workload("c1"), network("n1", "c1")
	b := newBed(t, c1, n1)
	e := b.envoy(t, edgeOf(c1))
	before := e.fetch(t, lds)
	n1.Network = clone(n1.Network)
	n1.Network.APIServerID = c1.ID
	b.publish(n1)
	more := versions(e.next(t))
	if len(more) != len(before) {
		t.Errorf("%d of %d listeners are changed", len(more), len(before))
	}
	// Gateways that dial the apiserver themselves do not use the reverse tunnels.
	n1.Network = clone(n1.Network)
	n1.Network.APIServers = []model.Endpoint{{Host: "10.0.0.7", Port: 6443}}
	b.publish(n1)
	expectVersions(t, "listeners without it", versions(e.next(t)), before)
	n1.Network = clone(n1.Network)
	n1.Network.APIServers = nil
	b.publish(n1)
	expectVersions(t, "listeners with it again", versions(e.next(t)), more)
	b.Publish(n1.Key, nil)
	expectVersions(t, "listeners after its removal", versions(e.next(t)), before)
}

func expectVersions(t *testing.T, what string, got, want map[string]string) {
	t.Helper()
	if !maps.Equal(got, want) {
		t.Fatalf("%s are %v, want %v", what, got, want)
	}
}

func firstOfType(t *testing.T, a *ads, typeURL string) *discoveryv3.DeltaDiscoveryResponse {
	t.Helper()
	a.subscribe(t, typeURL, nil)
	return a.next(t)
}

// TestRolesAreNotInterchangeable: a certificate of an edge is of no use to an apiserver, and the other way round.
func TestRolesAreNotInterchangeable(t *testing.T) {
	c1, e1, n1 := workload("c1"), egress("c1"), network("n1", "c1")
	b := newBed(t, c1, e1, n1)
	apiserver := func(id string) model.Subject { return model.Subject{Role: model.RoleEgress, Node: "kas-a", ID: id} }
	for _, tc := range []struct {
		name    string
		subject model.Subject
		want    codes.Code
	}{
		{"an edge of a Cluster", edgeOf(c1), codes.OK},
		{"an edge of a network", edgeOf(n1), codes.OK},
		{"an edge of apiservers", edgeOf(e1), codes.PermissionDenied},
		{"an apiserver", apiserver(e1.ID), codes.OK},
		{"an apiserver of a network", apiserver(n1.ID), codes.PermissionDenied},
		{"an apiserver of a Cluster's tunnel", apiserver(c1.ID), codes.PermissionDenied},
		{"an apiserver of no tunnel", apiserver(idOf("none")), codes.Unavailable},
	} {
		if got := status.Code(b.Admit(tc.subject)); got != tc.want {
			t.Errorf("%s: Admit returns %s, want %s", tc.name, got, tc.want)
		}
		a := b.envoy(t, tc.subject)
		a.subscribe(t, cds, nil)
		if tc.want == codes.OK {
			a.next(t)
		} else if got := a.refusal(t); got != tc.want {
			t.Errorf("%s: the stream ends with %s, want %s", tc.name, got, tc.want)
		}
	}
	// Neither may ask for the routes of apiservers.
	for _, s := range []model.Subject{edgeOf(n1), apiserver(e1.ID)} {
		a := b.envoy(t, s)
		a.subscribe(t, srds, nil)
		if got := a.refusal(t); got != codes.InvalidArgument {
			t.Errorf("scopes for the role %s: %s", s.Role, got)
		}
	}
	// It is revoked like an edge.
	a := b.envoy(t, apiserver(e1.ID))
	a.fetch(t, cds)
	e1.Revoked = []string{"kas-a"}
	b.publish(e1)
	if got := a.refusal(t); got != codes.FailedPrecondition {
		t.Errorf("the stream of a revoked apiserver ends with %s", got)
	}
	denied, _ := b.Denied()
	if len(denied.Edges) != 1 || denied.Edges[0] != (model.EdgeRef{Node: "kas-a", ID: e1.ID}) {
		t.Errorf("gateways deny %v", denied.Edges)
	}
	other := apiserver(e1.ID)
	other.Node = "kas-b"
	a = b.envoy(t, other)
	a.fetch(t, cds)
	b.Ended(map[string]time.Time{e1.ID: time.Now().Add(time.Hour)})
	if got := a.refusal(t); got != codes.FailedPrecondition {
		t.Errorf("the stream of an ended id ends with %s", got)
	}
}
