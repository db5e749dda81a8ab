package controlchannel_test

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"

	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/model"
)

// verbatim is a codec for messages that are already encoded.
type verbatim struct{}

// Name implements encoding.CodecV2. The server treats it as protobuf.
func (verbatim) Name() string { return "proto" }

// Marshal implements encoding.CodecV2.
func (verbatim) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(*v.(*[]byte))}, nil
}

// Unmarshal implements encoding.CodecV2.
func (verbatim) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*[]byte) = data.Materialize()
	return nil
}

var _ encoding.CodecV2 = verbatim{}

// send calls a method with some messages, with any content, and returns its error. A call that is still running some
// time after the last message was accepted counts as OK.
func send(ctx context.Context, conn *grpc.ClientConn, method string, messages ...[]byte) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := conn.NewStream(
		ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method, grpc.ForceCodecV2(verbatim{}),
	)
	if err != nil {
		return err
	}
	for _, m := range messages {
		if stream.SendMsg(&m) != nil {
			break // receiving returns the reason
		}
	}
	_ = stream.CloseSend()
	for {
		var answer []byte
		if err := stream.RecvMsg(&answer); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
	}
}

// fetch requests Envoy clusters as the agent of a subject does.
func fetch(t testing.TB, conn *grpc.ClientConn, s model.Subject) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx)
	if err != nil {
		return err
	}
	if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{
		Node:    nodeOf(s),
		TypeUrl: resourcev3.ClusterType,
	}); err != nil {
		t.Logf("sending: %v", err) // receiving returns the reason
	}
	_, err = stream.Recv()
	return err
}

func nodeOf(s model.Subject) *corev3.Node {
	node := &corev3.Node{Id: s.NodeID()}
	if s.Role == model.RoleGateway {
		any := model.Endpoint{Host: "127.0.0.1", Port: 1}
		node.Metadata = envoy.GatewayBind{Public: any, APIServer: any, Connect: any}.Metadata()
	}
	return node
}

func csr(t testing.TB) []byte {
	t.Helper()
	key, err := certs.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	der, err := certs.NewCSR(key)
	if err != nil {
		t.Fatal(err)
	}
	return der
}
