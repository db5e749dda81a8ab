package controlchannel_test

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/pires/go-proxyproto"
	statusv1 "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/controlchannel"
	enrolv1 "github.com/fairlead/fairlead/pkg/enrol/v1"
	"github.com/fairlead/fairlead/pkg/model"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
)

// FuzzOpening writes bytes to the listener: a PROXY header and TLS, or anything else.
func FuzzOpening(f *testing.F) {
	b := newTestbed(f, controlchannel.Bounds{Handshake: 300 * time.Millisecond})
	hello := clientHello(f)
	ipv4 := header(0x21, 0x11, []byte{203, 0, 113, 7, 192, 0, 2, 1, 0x30, 0x39, 0x01, 0xbb})
	for _, seed := range [][]byte{
		{},
		hello, append(append([]byte{}, ipv4...), hello...), append(header(0x20, 0, nil), hello[:100]...), ipv4[:15],
		[]byte("PROXY TCP4 203.0.113.7 192.0.2.1 1 2\r\n"), []byte("PROXY UNKNOWN\r\n"), proxyproto.SIGV2,
		[]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
		header(0x21, 0x31, make([]byte, 216)), header(0x21, 0x11, make([]byte, 5000)),
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		conn, err := b.raw(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		must(t, conn.SetDeadline(time.Now().Add(patience)))
		_, _ = conn.Write(in) // it may have been closed by then
		if tcp, ok := conn.(*net.TCPConn); ok {
			_ = tcp.CloseWrite() // so that the server does not wait for more
		}
		if _, err := io.Copy(io.Discard, conn); isTimeout(err) {
			t.Fatal("the connection is still open")
		}
	})
}

// FuzzFrames writes bytes into TLS: HTTP/2 frames or anything else.
func FuzzFrames(f *testing.F) {
	// a busy machine needs time for a handshake
	b := newTestbed(f, controlchannel.Bounds{Handshake: patience, Unauthenticated: 300 * time.Millisecond})
	one := newFrames(f)
	one.open(f, 1, enrolEdge)
	for _, seed := range [][]byte{{}, openStreams(f, 3), one.Bytes(), one.Bytes()[:40], []byte("GET / HTTP/1.1\r\n\r\n")} {
		f.Add(seed)
	}
	config := b.clientTLS(f, nil)
	f.Fuzz(func(t *testing.T, in []byte) {
		raw, err := b.raw(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		defer raw.Close()
		must(t, raw.SetDeadline(time.Now().Add(patience)))
		conn := tls.Client(raw, config)
		must(t, conn.HandshakeContext(t.Context()))
		_, _ = conn.Write(in)
		_ = conn.CloseWrite()
		if _, err := io.Copy(io.Discard, conn); isTimeout(err) {
			t.Fatal("the connection is still open")
		}
	})
}

// encode returns a seed.
func encode(f *testing.F, m proto.Message) []byte {
	f.Helper()
	data, err := proto.Marshal(m)
	if err != nil {
		f.Fatal(err)
	}
	return data
}

// FuzzCalls sends two messages to any method as any caller: a caller without permission never gets an answer, no
// caller gets an internal error, and nothing panics, which would end the test.
func FuzzCalls(f *testing.F) {
	// otherwise most would be rejected before they are read
	b := newTestbed(f, controlchannel.Bounds{Calls: 1 << 30, AddressCalls: 1 << 30, OtherCalls: 1 << 30})
	conns := []*grpc.ClientConn{b.dial(f, nil, ""), b.dial(f, nil, "203.0.113.1:1")}
	for _, s := range []model.Subject{edge, gateway, model.ControllerSubject()} {
		conns = append(conns, b.dial(f, ptr(b.identity(f, s, time.Hour)), ""))
	}
	conns = append(conns, b.dial(f, ptr(b.identity(f, edge, -time.Hour)), ""))
	key, err := certs.NewKey()
	if err != nil {
		f.Fatal(err)
	}
	signed, err := certs.NewCSR(key)
	if err != nil {
		f.Fatal(err)
	}
	discovery := encode(f, &discoveryv3.DeltaDiscoveryRequest{Node: nodeOf(edge), TypeUrl: resourcev3.ClusterType})
	seeds := map[string][][]byte{
		enrolEdge: {encode(f, &enrolv1.EnrolEdgeRequest{Token: "fl1.x", Csr: signed, Host: "h"})},
		enrolGateway: {
			encode(
				f,
				&enrolv1.EnrolGatewayRequest{
					Gateway:    "gateway-0",
					Csr:        signed,
					Credential: &enrolv1.EnrolGatewayRequest_ServiceAccountToken{ServiceAccountToken: "a.b.c"},
				},
			),
		},
		renew: {encode(f, &enrolv1.RenewRequest{Csr: signed})},
		ads: {discovery, encode(f, &discoveryv3.DeltaDiscoveryRequest{
			TypeUrl: resourcev3.ClusterType, ResponseNonce: "1", ErrorDetail: &statusv1.Status{Code: 3, Message: "no"},
			ResourceNamesSubscribe: []string{"*"},
		})},
		reportEdge: {
			encode(
				f,
				&reportv1.EdgeReport{
					Form:      "Process",
					Version:   "v1",
					ApiServer: &reportv1.APIServer{Address: "10.0.0.1:6443", Healthy: true, CertificateNames: []string{"kubernetes"}},
				},
			),
		},
		reportGate: {
			encode(
				f,
				&reportv1.GatewayReport{
					Snapshot: true,
					Tunnels:  []*reportv1.Tunnel{{Key: "203.0.113.1:1", Node: "edge-a", TunnelId: c1.ID, Worker: "worker_0"}},
				},
			),
			encode(f, &reportv1.GatewayReport{Closed: []string{"203.0.113.1:1"}}),
		},
		watch: {encode(f, &reportv1.WatchRequest{})},
	}
	for i, method := range methods {
		second := seeds[method][len(seeds[method])-1]
		for client := range conns {
			f.Add(uint8(client), uint8(i), seeds[method][0], second)
		}
		f.Add(uint8(2), uint8(i), []byte{0xff, 0xff}, []byte(nil))
	}
	f.Fuzz(func(t *testing.T, client, method uint8, first, second []byte) {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond) // some run until their caller ends them
		defer cancel()
		err := send(ctx, conns[int(client)%len(conns)], methods[int(method)%len(methods)], first, second)
		switch status.Code(err) {
		case codes.Unknown, codes.Internal, codes.DataLoss:
			if !isEncoding(err) {
				t.Errorf("got %v", err)
			}
		}
	})
}

// isEncoding reports whether an error is gRPC's own about an undecodable message, or about a second message of a unary
// call.
func isEncoding(err error) bool {
	text := strings.ToLower(status.Convert(err).Message())
	return strings.Contains(text, "unmarshal") || strings.Contains(text, "cardinality violation")
}
