package ending_test

import (
	"context"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/fairlead/fairlead/internal/ending"
)

// patience is far longer than any step of these tests takes.
const patience = 30 * time.Second

var description = grpc.StreamDesc{StreamName: "Wait", ClientStreams: true, ServerStreams: true}

// wait serves a method whose handler only receives messages, and returns a call of it.
func wait(t *testing.T, ends chan<- func(error)) grpc.ClientStream {
	t.Helper()
	call := serve(t, func(end func(error), stream grpc.ServerStream) error {
		if err := stream.SendMsg(&emptypb.Empty{}); err != nil {
			return err
		}
		ends <- end
		return stream.RecvMsg(&emptypb.Empty{})
	})
	if err := call.RecvMsg(&emptypb.Empty{}); err != nil {
		t.Fatal(err)
	}
	return call
}

// serve serves a method, and returns a call of it.
func serve(t *testing.T, handle func(end func(error), stream grpc.ServerStream) error) grpc.ClientStream {
	t.Helper()
	method := description
	method.Handler = func(_ any, stream grpc.ServerStream) error {
		return ending.Serve(stream.Context(), func(end func(error)) error { return handle(end, stream) })
	}
	server := grpc.NewServer()
	server.RegisterService(
		&grpc.ServiceDesc{ServiceName: "test", HandlerType: (*any)(nil), Streams: []grpc.StreamDesc{method}}, nil,
	)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	call, err := conn.NewStream(ctx, &description, "/test/Wait")
	if err != nil {
		t.Fatal(err)
	}
	return call
}

func TestACallIsEndedWhileItsHandlerReceives(t *testing.T) {
	ends := make(chan func(error), 1)
	call := wait(t, ends)
	end := <-ends
	end(status.Error(codes.FailedPrecondition, "it is over"))
	end(status.Error(codes.Internal, "this comes too late"))
	err := call.RecvMsg(&emptypb.Empty{})
	if status.Code(err) != codes.FailedPrecondition || status.Convert(err).Message() != "it is over" {
		t.Errorf("got %v", err)
	}
}

func TestACallEndsWhenItsHandlerReturns(t *testing.T) {
	ends := make(chan func(error), 1)
	call := wait(t, ends)
	if err := call.SendMsg(&emptypb.Empty{}); err != nil {
		t.Fatal(err)
	}
	err := call.RecvMsg(&emptypb.Empty{})
	(<-ends)(status.Error(codes.Internal, "this comes too late"))
	if err == nil || err.Error() != "EOF" {
		t.Errorf("got %v, want EOF", err)
	}
}

// TestACallIsEndedWhileItsHandlerSends ends a call whose handler is blocked because the client reads nothing.
func TestACallIsEndedWhileItsHandlerSends(t *testing.T) {
	ends, sending := make(chan func(error), 1), make(chan error, 1)
	call := serve(t, func(end func(error), stream grpc.ServerStream) error {
		ends <- end
		for {
			if err := stream.SendMsg(wrapperspb.Bytes(make([]byte, 64<<10))); err != nil {
				sending <- err
				return err
			}
		}
	})
	end := <-ends
	select {
	case err := <-sending:
		t.Fatalf("the handler is not blocked: %v", err)
	case <-time.After(100 * time.Millisecond):
	}
	end(status.Error(codes.FailedPrecondition, "it is over"))
	select {
	case err := <-sending:
		if err == nil {
			t.Error("a message of an ended call was sent")
		}
	case <-time.After(patience):
		t.Fatal("the handler still sends")
	}
	var err error
	for err == nil {
		err = call.RecvMsg(&wrapperspb.BytesValue{})
	}
	if status.Code(err) != codes.FailedPrecondition {
		t.Errorf("got %v", err)
	}
}
