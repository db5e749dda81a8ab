package xds_test

import (
	"maps"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/rollout"
)

// TestLanesFollowTheSizeOfTheFleet: edges get what the fleet has room for, and gateways always accept all lanes, so
// that their listeners do not change.
func TestLanesFollowTheSizeOfTheFleet(t *testing.T) {
	with := inst
	with.Lanes = 5
	b := newBedOf(t, with)
	c, named := workload("c1"), workload("c2", "api.c2.example.com", "c2.example.org")
	b.Replace([]model.WorkloadCluster{c, named})
	of := func(size int) {
		b.SetRollout(&rollout.Record{Current: profileOf(with), Size: size})
	}
	lanes := func(has map[string]string) (n int) {
		for name := range has {
			if strings.Contains(name, "_lane-") && strings.HasSuffix(name, "_gateway-0") {
				n++
			}
		}
		return n
	}
	dial := func(c model.WorkloadCluster) *ads {
		identity := b.identity(t, edgeOf(c), time.Now().Add(time.Hour))
		node := nodeOf(edgeOf(c))
		node.Metadata = envoy.EdgeDial{Version: envoy.Current}.Metadata()
		return b.claim(t, &identity, node)
	}
	edge := dial(c)
	has := edge.fetch(t, lds)
	if n := lanes(has); n != 0 {
		t.Errorf("%d lanes without a record", n)
	}
	of(100)
	own, at := b.identity(t, gateway, time.Now().Add(time.Hour)), bind
	at.Version = envoy.Current
	gw := b.claim(t, &own, &corev3.Node{Id: gateway.NodeID(), Metadata: at.Metadata()})
	gw.fetch(t, cds)
	gw.fetch(t, lds)
	for i, step := range []struct{ size, want int }{{100, 5}, {800, 3}, {3_200, 1}, {6_400, 0}, {200, 5}} {
		if i > 0 {
			of(step.size)
		}
		apply(has, edge.next(t))
		if n := lanes(has); n != step.want {
			t.Errorf("%d lanes in a fleet of %d, want %d", n, step.size, step.want)
		}
	}
	of(100)
	edge.quiet(t, "an edge with all lanes")
	gw.quiet(t, "a gateway")
	of(1_600)
	apply(has, edge.next(t))
	other := dial(named).fetch(t, lds)
	if one, three := lanes(has), lanes(other); one != 2 || three != 1 {
		t.Errorf("%d lanes with one name, and %d with three names and more usual reverse tunnels", one, three)
	}
}

// apply applies a response to the resources that a client has.
func apply(has map[string]string, r *discoveryv3.DeltaDiscoveryResponse) {
	maps.Copy(has, versions(r))
	for _, name := range r.GetRemovedResources() {
		delete(has, name)
	}
}
