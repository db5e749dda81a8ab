package report

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fairlead/fairlead/internal/retry"
	"github.com/fairlead/fairlead/pkg/certs"
)

const (
	// longStream is how long a stream must have lived for its end not to lengthen the wait.
	longStream = 10 * time.Second
	// openTime bounds the wait for a connection, after which the log states again why there is none.
	openTime = 30 * time.Second
)

// Keep calls serve repeatedly, with the waits of reopen, until ctx ends (nil) or the server rejects permanently (the
// error then wraps certs.ErrRefused). Every second call is patient: its stream waits for a connection. The first one is
// not, so that its error names the problem.
func Keep(ctx context.Context, reopen retry.Backoff, log *slog.Logger,
	serve func(ctx context.Context, patient bool) error,
) error {
	var reasons retry.Reasons
	for attempt := 0; ; attempt++ {
		began := time.Now()
		bounded, cancel := context.WithCancel(ctx)
		err := serve(bounded, attempt%2 == 1)
		cancel()
		switch {
		case ctx.Err() != nil:
			return nil
		case status.Code(err) == codes.FailedPrecondition:
			return fmt.Errorf("reporting: %w: %s", certs.ErrRefused, status.Convert(err).Message())
		case time.Since(began) > longStream && status.Code(err) != codes.Canceled:
			attempt, reasons = -1, retry.Reasons{}
		}
		if reasons.New(err) {
			log.Warn("cannot report to the xds-server, retrying", "error", err)
		}
		if retry.Sleep(ctx, reopen.WaitFor(max(attempt, 0), err)) != nil {
			return nil
		}
	}
}

// Open opens a stream. A patient call waits for a connection for openTime, which redials within seconds: see dial.Conn;
// any other call requires one.
func Open[S any](ctx context.Context, patient bool, call func(context.Context, ...grpc.CallOption) (S, error)) (S,
	error,
) {
	if !patient {
		return call(ctx)
	}
	ctx, cancel := context.WithCancel(ctx) // of the whole stream
	giveUp := time.AfterFunc(openTime, cancel)
	defer giveUp.Stop()
	return call(ctx, grpc.WaitForReady(true))
}
