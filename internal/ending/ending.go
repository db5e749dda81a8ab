// Package ending lets others than its handler end a gRPC call, with a status, while the handler waits for a message. In goes the context of a
// call, out comes a function that ends it.
//
// Trade-offs. gRPC's public interface has a handler return for that, which one in Recv does not. What gRPC's own Send does when it fails,
// to end the call while another goroutine is in Recv, can be reached by the value that gRPC puts into the context: it has a method WriteStatus. Where
// it has none any more there is a goroutine more for each call, with its stack: that is as good, but dear for 10,000 calls that hardly ever
// say anything. TestNoMoreGoroutines says so if a newer gRPC comes.
package ending

import (
	"context"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
)

// writer is what gRPC's transports have for each call. It never blocks, and does nothing when the call is over.
type writer interface {
	WriteStatus(*status.Status) error
}

// Serve runs the handler of a call, and returns its error or, if somebody has called end before that returned, the error, a gRPC status, that end
// was first called with. Anybody may call end, at any time; it never blocks. Ctx is that of the call.
func Serve(ctx context.Context, handle func(ctx context.Context, end func(error)) error) error {
	w, ok := grpc.ServerTransportStreamFromContext(ctx).(writer)
	if !ok {
		return beside(ctx, handle)
	}
	var why atomic.Pointer[error]
	err := handle(ctx, func(err error) {
		if why.CompareAndSwap(nil, &err) {
			_ = w.WriteStatus(status.Convert(err)) // it fails if nobody is there any more
		}
	})
	if ended := why.Load(); ended != nil {
		return *ended
	}
	return err
}

// beside is Serve by a goroutine beside the one that receives.
func beside(ctx context.Context, handle func(ctx context.Context, end func(error)) error) error {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	done := make(chan error, 1)
	go func() { done <- handle(ctx, end) }() // it ends with the call, when Serve has returned
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		if cause := context.Cause(ctx); cause != ctx.Err() { //nolint:errorlint // it is the same error if nobody gave another
			return cause
		}
		return status.FromContextError(ctx.Err()).Err()
	}
}
