// Package ending ends a gRPC call with a status from outside of its handler, while the handler is blocked in Recv. Its
// input is the context of a call. Its output is a function that ends the call.
//
// Trade-offs: gRPC ends a stream when its handler returns, but a handler that is blocked in Recv cannot return. The
// handler therefore runs in a second goroutine beside the one that gRPC started. That goroutine lives until its Recv
// fails, which happens as soon as Serve has returned. It costs each call a few KB of stack.
package ending

import (
	"context"

	"google.golang.org/grpc/status"
)

// Serve runs the handler of a call and returns its error. If end is called first, Serve returns the error of the first
// call of end, which is a gRPC status, without waiting for the handler. If ctx, the context of the call, ends first,
// Serve returns its error as a status. end is safe for concurrent use and never blocks.
func Serve(ctx context.Context, handle func(ctx context.Context, end func(error)) error) error {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	done := make(chan error, 1)
	go func() { done <- handle(ctx, end) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		// The cause is the same error if end was not called.
		if cause := context.Cause(ctx); cause != ctx.Err() { //nolint:errorlint // see above
			return cause
		}
		return status.FromContextError(ctx.Err()).Err()
	}
}
