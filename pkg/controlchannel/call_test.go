package controlchannel_test

import (
	"crypto/tls"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/fairlead/fairlead/internal/eventually"
	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/controlchannel"
	enrolv1 "github.com/fairlead/fairlead/pkg/enrol/v1"
	"github.com/fairlead/fairlead/pkg/model"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
)

// All methods of the control channel.
const (
	enrolEdge    = enrolv1.Enrolment_EnrolEdge_FullMethodName
	enrolGateway = enrolv1.Enrolment_EnrolGateway_FullMethodName
	renew        = enrolv1.Enrolment_Renew_FullMethodName
	ads          = discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResources_FullMethodName
	reportEdge   = reportv1.Report_Edge_FullMethodName
	reportGate   = reportv1.Report_Gateway_FullMethodName
	watch        = reportv1.Report_Watch_FullMethodName
)

var methods = []string{enrolEdge, enrolGateway, renew, ads, reportEdge, reportGate, watch}

// TestEachMethodHasItsPermittedRoles sends an empty message to each method as each kind of caller. Calls without
// permission are rejected before the message is read, by the listed code. Calls with permission get the service's own
// answer to an empty message, which never has one of these codes.
func TestEachMethodHasItsPermittedRoles(t *testing.T) {
	b := newTestbed(t, controlchannel.Bounds{})
	const (
		ok       = codes.OK
		unknown  = codes.Unauthenticated
		refused  = codes.PermissionDenied
		over     = codes.FailedPrecondition
		outside  = "203.0.113.9:4000"
		expired  = -time.Hour
		tooOld   = -grace - time.Hour
		notYet   = 101 * time.Hour // leaves of this test become valid 100 h before they expire
		inFuture = codes.Unavailable
	)
	all := func(code codes.Code) (want [7]codes.Code) {
		for i := range want {
			want[i] = code
		}
		return want
	}
	controller := model.ControllerSubject()
	tests := map[string]struct {
		is   *model.Subject
		left time.Duration
		of   *testbed
		from string
		want [7]codes.Code // by method, as in methods
	}{
		"a client without a certificate": {want: [7]codes.Code{ok, ok, unknown, unknown, unknown, unknown, unknown}},
		"a client without a certificate, from outside": {
			from: outside,
			want: [7]codes.Code{ok, refused, unknown, unknown, unknown, refused, refused},
		},
		"an edge": {is: &edge, left: time.Hour, want: all(ok)},
		"an edge, from outside": {
			is:   &edge,
			left: time.Hour,
			from: outside,
			want: [7]codes.Code{ok, refused, ok, ok, ok, refused, refused},
		},
		"an edge that slept": {
			is:   &edge,
			left: expired,
			from: outside,
			want: [7]codes.Code{unknown, refused, ok, unknown, unknown, refused, refused},
		},
		"an edge that slept for too long": {is: &edge, left: tooOld, from: outside, want: all(over)},
		"an edge of the future":           {is: &edge, left: notYet, want: all(inFuture)},
		"an edge of another CA": {
			is:   &edge,
			left: time.Hour,
			of:   newTestbed(t, controlchannel.Bounds{}),
			want: all(over),
		},
		"a gateway": {is: &gateway, left: time.Hour, want: all(ok)},
		"a gateway that slept": {
			is:   &gateway,
			left: expired,
			want: [7]codes.Code{unknown, unknown, ok, unknown, unknown, unknown, unknown},
		},
		"a stolen gateway, from outside": {is: &gateway, left: time.Hour, from: outside, want: all(refused)},
		"the controller":                 {is: &controller, left: time.Hour, want: all(ok)},
		"the controller, from outside":   {is: &controller, left: time.Hour, from: outside, want: all(refused)},
		"an xds-server":                  {is: ptr(model.ControlSubject()), left: time.Hour, want: all(refused)},
		"no known profile": {
			is:   &model.Subject{Role: model.RoleEdge, Node: "gateway-0", ID: c1.ID},
			left: time.Hour,
			want: all(refused),
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var identity *certs.Identity
			if tc.is != nil {
				from := b
				if tc.of != nil {
					from = tc.of
				}
				identity = ptr(from.identity(t, *tc.is, tc.left))
			}
			for i, method := range methods {
				conn := b.dial(t, identity, tc.from) // a connection with a rejected call may be closing
				err := send(t.Context(), conn, method)
				if text := status.Convert(err).Message(); tc.want[i] == ok {
					if isChannelError(text) {
						t.Errorf("%s: got %v, want the service's own answer", method, err)
					}
				} else if status.Code(err) != tc.want[i] || !isChannelError(text) {
					t.Errorf("%s: got %v, want %s", method, err, tc.want[i])
				}
			}
		})
	}
}

// isChannelError reports whether a text is the channel's own error and not a service's.
func isChannelError(text string) bool {
	for _, part := range []string{
		": enrol first", ": renew it first", "enrol again", "public port", "is a clock wrong?",
		"are not accepted here", "matches no profile", "the node name of a gateway",
	} {
		if strings.Contains(text, part) {
			return true
		}
	}
	return false
}

func TestMessageSizes(t *testing.T) {
	b := newTestbed(t, controlchannel.Bounds{})
	tests := map[string]struct {
		is   *model.Subject
		size int
		want bool // the message is too large
	}{
		"20 KiB without a certificate": {size: 20 << 10},
		"33 KiB without a certificate": {size: 33 << 10, want: true},
		"9 MiB without a certificate":  {size: 9 << 20, want: true},
		"200 KiB of an edge":           {is: &edge, size: 200 << 10},
		"300 KiB of an edge":           {is: &edge, size: 300 << 10, want: true},
		"31 MiB of a gateway":          {is: &gateway, size: 31 << 20},
		"33 MiB of a gateway":          {is: &gateway, size: 33 << 20, want: true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			method, conn := enrolEdge, b.dial(t, nil, "")
			if tc.is != nil {
				method, conn = ads, b.dial(t, ptr(b.identity(t, *tc.is, time.Hour)), "")
			}
			err := send(t.Context(), conn, method, field(15, tc.size)) // a field that no message has
			large := status.Code(err) == codes.ResourceExhausted && strings.Contains(err.Error(), "larger than max")
			if large != tc.want {
				t.Errorf("got %v, want that it is too large: %t", err, tc.want)
			}
		})
	}
	b.alive(t)
}

// field returns a field of bytes in protobuf encoding.
func field(number protowire.Number, size int) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), make([]byte, size))
}

// An agent keeps its connection as long as it exists, and would otherwise never present its new leaf.
func TestARejectedEdgeReconnectsWithItsNextLeaf(t *testing.T) {
	b := newTestbed(t, controlchannel.Bounds{})
	for name, old := range map[string]certs.Identity{
		"an expired leaf":   b.identity(t, edge, -time.Hour),
		"one of another CA": newTestbed(t, controlchannel.Bounds{}).identity(t, edge, time.Hour),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var current atomic.Pointer[certs.Identity]
			current.Store(&old)
			config := b.clientTLS(t, nil)
			config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
				return ptr(current.Load().TLSCertificate()), nil
			}
			conn, err := grpc.NewClient(b.address, grpc.WithTransportCredentials(credentials.NewTLS(config)))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if err := fetch(t, conn, edge); err == nil {
				t.Fatal("it was served")
			}
			current.Store(ptr(b.identity(t, edge, time.Hour)))
			begin := time.Now()
			eventually.True(t, patience, "being served with the next leaf", func() error { return fetch(t, conn, edge) })
			if took := time.Since(begin); took > 5*time.Second {
				t.Errorf("it took %s", took)
			}
		})
	}
}

func TestShutdown(t *testing.T) {
	b := newTestbed(t, controlchannel.Bounds{})
	conn := b.dial(t, ptr(b.identity(t, edge, time.Hour)), "")
	open, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := open.Send(&discoveryv3.DeltaDiscoveryRequest{
		Node:    nodeOf(edge),
		TypeUrl: resourcev3.ClusterType,
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := open.Recv(); err != nil {
		t.Fatal(err)
	}
	silent, err := b.raw(t.Context(), "") // has sent nothing
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	begin := time.Now()
	if err := b.stop(); err != nil {
		t.Error(err)
	}
	if took := time.Since(begin); took > 5*time.Second {
		t.Errorf("it took %s", took)
	}
	if _, err := open.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("the stream ended with %v", err)
	}
	if _, err := b.raw(t.Context(), ""); err == nil {
		t.Error("it still accepts connections")
	}
}
