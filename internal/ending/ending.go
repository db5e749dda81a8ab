// Package ending ends a gRPC call with a status from outside of its handler, while the handler is blocked in Recv. Its
// input is the context of a call. Its output is a function that ends the call.
//
// Trade-offs: gRPC ends a stream when its handler returns, but a handler that is blocked in Recv cannot return. A
// second goroutine for each call would return for it, and cost a few KB of stack. Instead, the status is written by the
// method with which gRPC itself ends a call. It ends the context of the call too, so Recv and Send return. gRPC does
// not promise this method, so a version without it fails the tests of every package that uses Serve.
package ending

import (
	"context"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// writer is the method of gRPC's streams that sends a status and ends the stream.
type writer interface {
	WriteStatus(s *status.Status) error
}

// Serve runs the handler of a call and returns its error. If end is called first, the call ends with the error of the
// first call of end, which is a gRPC status; Recv and Send of the handler return, and Serve returns that error when the
// handler has returned. If ctx, the context of the call, ends first, Serve returns its error as a status. end is safe
// for concurrent use and never blocks.
func Serve(ctx context.Context, handle func(end func(error)) error) error {
	stream, ok := grpc.ServerTransportStreamFromContext(ctx).(writer)
	if !ok {
		return status.Error(codes.Internal, "gRPC's server has changed: calls cannot be ended")
	}
	var ended atomic.Pointer[error]
	err := handle(func(err error) {
		if ended.CompareAndSwap(nil, &err) {
			_ = stream.WriteStatus(status.Convert(err)) // an error means that the connection is closed
		}
	})
	if cause := ended.Load(); cause != nil {
		return *cause
	}
	if ctx.Err() != nil {
		return status.FromContextError(ctx.Err()).Err()
	}
	return err
}
