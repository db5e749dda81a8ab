package xds_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"

	"github.com/fairlead/fairlead/pkg/deltaxds/conformance"
	"github.com/fairlead/fairlead/pkg/model"
)

// conform runs the table of exchanges against a server, on real streams of one node.
func (b *bed) conform(t *testing.T, s model.Subject, target conformance.Server) {
	t.Helper()
	identity := b.identity(t, s, time.Now().Add(time.Hour))
	client := b.dial(t, &identity)
	target.Node = nodeOf(s)
	target.Open = func(ctx context.Context) (conformance.Stream, error) { return client.DeltaAggregatedResources(ctx) }
	for _, e := range conformance.Table(target) {
		t.Run(e.Rule, func(t *testing.T) {
			if err := e.Run(t.Context(), target); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestGatewaysConform uses the Envoy clusters of tunnels. Another content is another tunnel id.
func TestGatewaysConform(t *testing.T) {
	b := newBed(t)
	b.conform(t, gateway, conformance.Server{
		TypeURL: cds,
		Name:    func(name string) string { return workload(name).Hostname },
		Set: func(resources map[string]int) error {
			var all []model.WorkloadCluster
			for name, content := range resources {
				wc := workload(name)
				wc.ID = fmt.Sprintf("%s%019d", name, content)
				all = append(all, wc)
			}
			b.Replace(all)
			return nil
		},
	})
}

// TestEdgesConform uses the Envoy clusters of an edge, one for each gateway. Another content is another address.
func TestEdgesConform(t *testing.T) {
	c1 := workload("c1")
	b := newBed(t, c1)
	b.Unlimited()
	b.conform(t, edgeOf(c1), conformance.Server{
		TypeURL: cds,
		Name:    func(name string) string { return gatewayNamed(name) + "_edge-a" },
		Set: func(resources map[string]int) error {
			all := replicas(1) // an installation has gateways
			for name, content := range resources {
				at := model.Endpoint{Host: fmt.Sprintf("10.0.%d.1", content), Port: 443}
				all = append(all, model.Gateway{Name: gatewayNamed(name), Peer: at, Public: at})
			}
			b.SetGateways(all)
			return nil
		},
	})
}

// gatewayNamed returns the gateway for a name of the table: gateway-1 for a.
func gatewayNamed(name string) string { return fmt.Sprintf("gateway-%d", 1+name[0]-'a') }

// TestRequestsByNameAreRejected: a stream keeps no names, so no node can make the server keep any.
func TestRequestsByNameAreRejected(t *testing.T) {
	c1 := workload("c1")
	b := newBed(t, c1)
	for _, s := range []model.Subject{gateway, edgeOf(c1)} {
		a := b.envoy(t, s)
		a.fetch(t, cds)
		a.send(t, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: cds, ResourceNamesSubscribe: []string{"*", "a"}})
		if got := a.refusal(t); got != codes.InvalidArgument {
			t.Errorf("the stream of %s ends with %s", s.Node, got)
		}
	}
}
