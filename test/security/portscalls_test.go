package security

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fairlead/fairlead/pkg/certs"
	enrolv1 "github.com/fairlead/fairlead/pkg/enrol/v1"
	"github.com/fairlead/fairlead/pkg/model"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/lab/netns"
	"github.com/fairlead/fairlead/test/outsider"
	"github.com/fairlead/fairlead/test/world"
)

// identity is what a caller presents: a certificate, a token, both or nothing.
type identity struct {
	name        string
	certificate *tls.Certificate
	token       string
	subject     model.Subject
}

// identities returns all kinds of identities: an edge of each tunnel, a gateway, a caller with a certificate of another
// CA, and each token.
func (in *installation) identities(t *testing.T) []identity {
	t.Helper()
	stolen, err := outsider.StealAll(world.Domain, in.Dir)
	must(t, err)
	names := map[string]string{in.idOf(t, in.tenant): "edge", in.idOf(t, in.victim): "other edge"}
	found := map[string]identity{}
	for i := range stolen {
		s := &stolen[i]
		name := names[s.Subject.ID]
		if s.Subject.Role == model.RoleGateway {
			name = "gateway"
		}
		if name != "" {
			found[name] = identity{name: name, certificate: &s.Certificate, subject: s.Subject}
		}
	}
	if len(found) != 3 {
		t.Fatalf("the identities are %v", found)
	}
	ca, err := certs.NewCA("kubernetes", time.Now().Add(-time.Hour), 24*time.Hour)
	must(t, err)
	forged, err := outsider.Forge(
		ca, world.Domain, found["other edge"].subject, time.Now().Add(-time.Minute), time.Now().Add(time.Hour),
	)
	must(t, err)
	certificate := forged.TLSCertificate()
	all := []identity{
		found["edge"],
		found["other edge"],
		found["gateway"],
		{name: "workload admin", certificate: &certificate},
	}
	for name, token := range in.tokens(t) {
		all = append(all, identity{name: name, token: token})
	}
	return all
}

// idOf returns the tunnel id of a member.
func (in *installation) idOf(t *testing.T, m *world.Member) string {
	t.Helper()
	tunnel, err := m.Tunnel(t.Context())
	must(t, err)
	return tunnel.Spec.ID
}

// tokens returns the tokens of a namespace's owner and of a viewer of the installation, and an empty one. Each is valid
// at the management cluster's apiserver.
func (in *installation) tokens(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{"none": ""}
	for name, account := range map[string]types.NamespacedName{
		"namespace owner": {Namespace: world.Namespace, Name: "default"}, "viewer": {
			Namespace: lab.InstallationNamespace,
			Name:      "viewer",
		},
	} {
		request := &authenticationv1.TokenRequest{}
		holder := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: account.Namespace, Name: account.Name}}
		if err := in.Management.Client.Get(t.Context(), account, &corev1.ServiceAccount{}); err != nil {
			must(t, in.Management.Client.Create(t.Context(), holder))
		}
		must(t, in.Management.Client.SubResource("token").Create(t.Context(), holder, request))
		all[name] = request.Status.Token
	}
	return all
}

// call is one method with a message, which may depend on its caller, and the expected code. OK means that the caller is
// admitted.
type call struct {
	method  string
	message func(identity) proto.Message
	inside  bool // not served through the public port
	// with holds the code for callers with a certificate of the installation, by the name of the identity; without is
	// the code for all others.
	with    map[string]codes.Code
	without codes.Code
}

// outcome returns the code with which a call must end.
func (c call) outcome(caller identity, public bool) codes.Code {
	switch {
	case caller.name == "workload admin":
		return codes.FailedPrecondition // for every method: the certificate is of no CA of the installation
	case caller.name == "gateway" && public:
		return codes.PermissionDenied // for every method: this identity is not permitted here
	case public && c.inside:
		return codes.PermissionDenied
	case caller.certificate == nil:
		return c.without
	}
	return c.with[caller.name]
}

const (
	enrolment        = "/fairlead.enrol.v1.Enrolment/"
	reporting        = "/fairlead.report.v1.Report/"
	discoveryService = "/envoy.service.discovery.v3.AggregatedDiscoveryService/"
)

// roles returns the codes for the edges and for the gateway.
func roles(edges, gateway codes.Code) map[string]codes.Code {
	return map[string]codes.Code{"edge": edges, "other edge": edges, "gateway": gateway}
}

// calls returns all methods of the control channel, some that are served elsewhere, and some that do not exist.
func calls() []call {
	fixed := func(m proto.Message) func(identity) proto.Message { return func(identity) proto.Message { return m } }
	node := func(id string) proto.Message {
		return &discoveryv3.DeltaDiscoveryRequest{Node: &corev3.Node{Id: id}, TypeUrl: outsider.ClusterType}
	}
	guess := &enrolv1.EnrolGatewayRequest_Token{Token: "fl1.guess"}
	all := []call{
		{
			enrolment + "EnrolEdge",
			fixed(&enrolv1.EnrolEdgeRequest{Token: "fl1.guess"}),
			false,
			roles(codes.Unauthenticated, codes.Unauthenticated),
			codes.Unauthenticated,
		},
		{
			enrolment + "EnrolGateway",
			fixed(&enrolv1.EnrolGatewayRequest{Gateway: "gateway-1", Credential: guess}),
			true,
			roles(codes.Unauthenticated, codes.Unauthenticated),
			codes.Unauthenticated,
		},
		{
			enrolment + "ReportBoot",
			fixed(&enrolv1.ReportBootRequest{Token: "flr1.guess"}),
			false,
			roles(codes.Unauthenticated, codes.Unauthenticated),
			codes.Unauthenticated,
		},
		// InvalidArgument: the caller is admitted, but the request is invalid.
		{
			enrolment + "Renew",
			fixed(&enrolv1.RenewRequest{Csr: []byte("none")}),
			false,
			roles(codes.InvalidArgument, codes.InvalidArgument),
			codes.Unauthenticated,
		},
		{
			reporting + "Edge",
			fixed(&reportv1.EdgeReport{}),
			false,
			roles(codes.OK, codes.PermissionDenied),
			codes.Unauthenticated,
		},
		{
			reporting + "Gateway",
			fixed(&reportv1.GatewayReport{}),
			true,
			roles(codes.PermissionDenied, codes.InvalidArgument),
			codes.Unauthenticated,
		},
		{
			reporting + "Peers",
			fixed(&reportv1.PeersRequest{}),
			true,
			roles(codes.PermissionDenied, codes.OK),
			codes.Unauthenticated,
		},
		{
			reporting + "Watch",
			fixed(&reportv1.WatchRequest{}),
			true,
			roles(codes.PermissionDenied, codes.PermissionDenied),
			codes.Unauthenticated,
		},
		{
			discoveryService + "DeltaAggregatedResources",
			func(caller identity) proto.Message { return node(caller.subject.NodeID()) },
			false,
			roles(codes.OK, codes.InvalidArgument),
			codes.Unauthenticated,
		},
		// With another node's id.
		{
			discoveryService + "DeltaAggregatedResources",
			fixed(node(model.NodeID("edge-aaaaaaaaaaaaaaaa"))),
			false,
			roles(codes.PermissionDenied, codes.PermissionDenied),
			codes.Unauthenticated,
		},
	}
	for _, method := range []string{
		discoveryService + "StreamAggregatedResources", "/envoy.service.secret.v3.SecretDiscoveryService/StreamSecrets",
		"/envoy.service.status.v3.ClientStatusDiscoveryService/FetchClientStatus", "/fairlead.inspect.v1.Inspect/Fleet",
		"/fairlead.inspect.v1.Inspect/Dump", "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
		"/no.such.Service/Method",
	} {
		all = append(
			all,
			call{
				method,
				fixed(&reportv1.WatchRequest{}),
				false,
				roles(codes.Unimplemented, codes.Unimplemented),
				codes.Unauthenticated,
			},
		)
	}
	return all
}

// tryCalls makes every call with every identity at one address.
func tryCalls(t *testing.T, in *installation, door string, dial func(identity) (*grpc.ClientConn, error), public bool) {
	t.Helper()
	var group sync.WaitGroup
	for _, caller := range in.identities(t) {
		group.Go(func() {
			conn, err := dial(caller)
			if err != nil {
				t.Error(err)
				return
			}
			defer func() { _ = conn.Close() }()
			for _, c := range calls() {
				expected := c.outcome(caller, public)
				if got := attempted(t.Context(), conn, caller, c, expected); status.Code(got) != expected {
					t.Errorf("%s: %s with the identity %q is answered with %v, want %s", door, c.method, caller.name, got, expected)
				}
			}
		})
	}
	group.Wait()
}

// letIn is the duration after which a call that has not ended counts as admitted.
const letIn = 1500 * time.Millisecond

// attempted makes a call, and returns nil if it is admitted: it is answered, or continues. A call to be rejected is
// repeated if the agent with the same identity reconnects before its rejection, which ends it.
func attempted(ctx context.Context, conn *grpc.ClientConn, caller identity, c call, expected codes.Code) error {
	for range 20 {
		err := attemptedOnce(ctx, conn, caller, c, expected)
		if status.Code(err) != codes.Aborted {
			return err
		}
		if expected == codes.OK {
			return nil
		}
	}
	return errors.New("each attempt was replaced by the agent's own")
}

func attemptedOnce(ctx context.Context, conn *grpc.ClientConn, caller identity, c call, expected codes.Code) error {
	patience := 15 * time.Second // a busy machine may take long to reject the call
	if expected == codes.OK {
		patience = letIn
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if caller.token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+caller.token)
	}
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, c.method)
	if err != nil {
		return err
	}
	if err := errors.Join(stream.SendMsg(c.message(caller)), stream.CloseSend()); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	err = stream.RecvMsg(&discoveryv3.DeltaDiscoveryResponse{})
	switch status.Code(err) {
	case codes.DeadlineExceeded, codes.Internal: // it continues; an answer of another type
		return nil
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// tryInsideControl makes all calls at the address of an xds-server in the management network.
func tryInsideControl(t *testing.T, in *installation, p port) {
	attack(
		t,
		"every identity calls every method at the xds-server's own address",
		"the role in the certificate of each call",
		func(t *testing.T) {
			tryCalls(t, in, "inside", func(caller identity) (*grpc.ClientConn, error) {
				return in.outsider(t, in.Network.Management, p.address.String(), caller).Control()
			}, false)
		},
		nil,
	)
	attack(
		t,
		"a host in the workload network connects to the xds-server's own address",
		"networks: the address is not routed",
		func(t *testing.T) {
			dialFails(t, in.Network.Workload, p.address)
		},
		func(t *testing.T) {
			conn, err := in.Network.Management.DialContext(t.Context(), "tcp", p.address.String())
			must(t, err)
			_ = conn.Close()
		},
	)
}

// outsider returns a caller with an identity at a place.
func (in *installation) outsider(t *testing.T, from *netns.Namespace, address string, id identity) outsider.Outsider {
	t.Helper()
	return outsider.Outsider{
		From:        from,
		Address:     address,
		Domain:      world.Domain,
		Roots:       in.Roots(t),
		Certificate: id.certificate,
	}
}

// counted is a connection that counts the bytes that it receives.
type counted struct {
	net.Conn
	bytes int
}

// Read implements net.Conn.
func (c *counted) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.bytes += n
	return n, err
}

// startTLS starts TLS with a server name, and returns the result: "closed" before TLS, "alert" if TLS is rejected, or
// "open".
func startTLS(t *testing.T, from *netns.Namespace, to, name string, certificate *tls.Certificate) string {
	t.Helper()
	raw, err := from.DialContext(t.Context(), "tcp", to)
	must(t, err)
	defer func() { _ = raw.Close() }()
	_ = raw.SetDeadline(time.Now().Add(10 * time.Second))
	conn := &counted{Conn: raw}
	// an attacker verifies nothing
	config := &tls.Config{
		InsecureSkipVerify: true,
		ServerName:         name,
		MinVersion:         tls.VersionTLS12,
		NextProtos:         []string{"h2", "http/1.1"},
	}
	if certificate != nil {
		config.Certificates = []tls.Certificate{*certificate}
	}
	client := tls.Client(conn, config)
	err = client.HandshakeContext(t.Context())
	if err == nil {
		_ = raw.SetDeadline(time.Now().Add(letIn))
		if _, err = client.Read(make([]byte, 1)); err == nil || errors.Is(err, context.DeadlineExceeded) || isTimeout(err) {
			return "open"
		}
	}
	if conn.bytes == 0 {
		return "closed"
	}
	return "alert"
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}
