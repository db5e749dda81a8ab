// Package ending lets others than its handler end a gRPC call, with a status, while the handler waits for a message. In goes the context of a
// call, out comes a function that ends it.
//
// Trade-offs. GRPC has a handler return for that, which one in Recv does not. So the handler runs in a goroutine beside the one that gRPC gave it,
// and lives on until its Recv fails, which it does as soon as Serve has returned. That goroutine costs each call some KB of stack.
package ending

import (
	"context"

	"google.golang.org/grpc/status"
)

// Serve runs the handler of a call, and returns its error or, if somebody has called end before that returned, the error, a gRPC status, that end
// was first called with. Anybody may call end, at any time; it never blocks. Ctx is that of the call.
func Serve(ctx context.Context, handle func(ctx context.Context, end func(error)) error) error {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	done := make(chan error, 1)
	go func() { done <- handle(ctx, end) }()
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
