package xds_test

import (
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/model"
)

func TestInvalidClientsAreRejected(t *testing.T) {
	c1 := workload("c1")
	edge := edgeOf(c1)
	stranger := edgeOf(workload("c9"))
	tests := map[string]struct {
		is     *model.Subject // nil: without a certificate
		ended  bool           // the certificate has expired
		claims *corev3.Node
		in     *discoveryv3.DeltaDiscoveryRequest // nil: a subscription to all Envoy clusters
		want   codes.Code
	}{
		"no certificate": {claims: &corev3.Node{Id: "CN=gateway-0"}, want: codes.Unauthenticated},
		"an expired certificate": {
			is:     &gateway,
			ended:  true,
			claims: &corev3.Node{Id: "CN=gateway-0"},
			want:   codes.Unauthenticated,
		},
		"a gateway that claims another": {
			is:     &gateway,
			claims: &corev3.Node{Id: "CN=gateway-1", Metadata: bind.Metadata()},
			want:   codes.PermissionDenied,
		},
		"an edge that claims another edge": {
			is:     &edge,
			claims: &corev3.Node{Id: "CN=edge-b"},
			want:   codes.PermissionDenied,
		},
		"an edge that claims a gateway": {
			is:     &edge,
			claims: &corev3.Node{Id: "CN=gateway-0", Cluster: "gateway", Metadata: bind.Metadata()},
			want:   codes.PermissionDenied,
		},
		"a gateway that claims an edge": {
			is:     &gateway,
			claims: &corev3.Node{Id: "CN=edge-a"},
			want:   codes.PermissionDenied,
		},
		"no claimed node": {is: &edge, want: codes.PermissionDenied},
		"an edge of a tunnel that is not": {
			is:     &stranger,
			claims: &corev3.Node{Id: "CN=edge-a"},
			want:   codes.Unavailable,
		},
		"the xds-server's own certificate": {
			is:     ptr(model.ControlSubject()),
			claims: &corev3.Node{Id: "CN=control"},
			want:   codes.PermissionDenied,
		},
		"a gateway without a listener": {
			is:     &gateway,
			claims: &corev3.Node{Id: "CN=gateway-0"},
			want:   codes.InvalidArgument,
		},
		"a type that is not served": {
			is:     &edge,
			claims: &corev3.Node{Id: "CN=edge-a"},
			in: &discoveryv3.DeltaDiscoveryRequest{
				TypeUrl: "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret",
			},
			want: codes.InvalidArgument,
		},
		"an edge that dials nonsense": {
			is:     &edge,
			claims: &corev3.Node{Id: "CN=edge-a", Metadata: nonsense()},
			want:   codes.InvalidArgument,
		},
		"no type": {
			is:     &edge,
			claims: &corev3.Node{Id: "CN=edge-a"},
			in:     &discoveryv3.DeltaDiscoveryRequest{},
			want:   codes.InvalidArgument,
		},
		"resources by name": {
			is:     &edge,
			claims: &corev3.Node{Id: "CN=edge-a"},
			in: &discoveryv3.DeltaDiscoveryRequest{
				TypeUrl:                cds,
				ResourceNamesSubscribe: []string{"c1.prod.tunnels.example.com"},
			},
			want: codes.InvalidArgument,
		},
		"a certificate without a known profile": {
			is:     &model.Subject{Role: model.RoleEdge, Node: "gateway-0", ID: c1.ID},
			claims: &corev3.Node{Id: "CN=gateway-0"},
			want:   codes.PermissionDenied,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			b := newBed(t, c1)
			var identity *certs.Identity
			if tc.is != nil {
				end := time.Now().Add(time.Hour)
				if tc.ended {
					end = time.Now().Add(-time.Minute)
				}
				identity = ptr(b.identity(t, *tc.is, end))
			}
			a := b.claim(t, identity, tc.claims)
			if tc.in == nil {
				tc.in = &discoveryv3.DeltaDiscoveryRequest{TypeUrl: cds}
			}
			a.send(t, tc.in)
			if code := a.refusal(t); code != tc.want {
				t.Errorf("got %s, want %s", code, tc.want)
			}
			if len(a.got) > 0 {
				t.Error("something was sent")
			}
		})
	}
}

// nonsense returns gateways that are not addresses, under the key that an edge's agent uses.
func nonsense() *structpb.Struct {
	return envoy.EdgeDial{Gateways: []model.Endpoint{{Host: "a b", Port: 1}}}.Metadata()
}

func ptr[T any](v T) *T { return &v }

func TestALaterRequestCannotClaimAnotherNode(t *testing.T) {
	c1 := workload("c1")
	a := newBed(t, c1).envoy(t, edgeOf(c1))
	a.fetch(t, cds)
	a.node = &corev3.Node{Id: "CN=gateway-0"}
	a.subscribe(t, lds, nil)
	if code := a.refusal(t); code != codes.PermissionDenied {
		t.Errorf("the stream ended with %s", code)
	}
}

func TestAnEdgeReceivesItsOwnResourcesDespiteItsNode(t *testing.T) {
	c1 := workload("c1")
	b := newBed(t, c1, workload("c2"))
	identity := b.identity(t, edgeOf(c1), time.Now().Add(time.Hour))
	a := b.claim(t, &identity, &corev3.Node{Id: "CN=edge-a", Cluster: "gateway", Metadata: bind.Metadata()})
	a.send(t, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: cds, ResourceNamesSubscribe: []string{"*"}})
	expect(t, "Envoy clusters", names(a.next(t)), edgeClusters)
}

func TestStateOfTheWorldRequestsAreRejected(t *testing.T) {
	b := newBed(t, workload("c1"))
	identity := b.identity(t, gateway, time.Now().Add(time.Hour))
	stream, err := b.dial(t, &identity).StreamAggregatedResources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&discoveryv3.DiscoveryRequest{
		TypeUrl: cds,
		Node:    &corev3.Node{Id: gateway.NodeID()},
	}); err != nil {
		t.Logf("sending: %v", err)
	}
	if _, err := stream.Recv(); status.Code(err) != codes.Unimplemented {
		t.Errorf("got %v", err)
	}
}

func TestACertificateOfAnotherCAReceivesNothing(t *testing.T) {
	b, foreign := newBed(t), newBed(t)
	identity := foreign.identity(t, gateway, time.Now().Add(time.Hour))
	stream, err := b.dial(t, &identity).DeltaAggregatedResources(t.Context())
	if err == nil {
		_, err = stream.Recv()
	}
	if status.Code(err) != codes.FailedPrecondition {
		t.Errorf("got %v", err)
	}
}

// Times of certificates have whole seconds, so this takes one or two seconds.
func TestAConnectionEndsWithTheLeaf(t *testing.T) {
	b := newBed(t, workload("c1"))
	identity := b.identity(t, gateway, time.Now().Add(2*time.Second))
	a := b.claim(t, &identity, &corev3.Node{Id: gateway.NodeID(), Metadata: bind.Metadata()})
	a.fetch(t, cds)
	if code := a.refusal(t); code != codes.Unavailable {
		t.Errorf("the stream ended with %s", code)
	}
	if time.Now().Before(identity.NotAfter()) {
		t.Error("it ended before the leaf")
	}
}
