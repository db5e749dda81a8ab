package view

import (
	"context"
	"log/slog"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
)

// refusing is an xds-server that rejects the first watcher, as one does that has not received the controller's CA yet.
type refusing struct {
	reportv1.UnimplementedReportServer
	refused bool
	watched chan struct{}
}

func (r *refusing) Watch(_ *reportv1.WatchRequest, stream grpc.ServerStreamingServer[reportv1.Change]) error {
	if !r.refused {
		r.refused = true
		return status.Error(codes.FailedPrecondition, "the certificate is of a CA that this installation does not have")
	}
	r.watched <- struct{}{}
	<-stream.Context().Done()
	return nil
}

func TestARejectionByAControllerIsRetried(t *testing.T) {
	t.Parallel()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &refusing{watched: make(chan struct{})}
	server := grpc.NewServer()
	reportv1.RegisterReportServer(server, r)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	resolve := func(context.Context) ([]string, error) { return []string{listener.Addr().String()}, nil }
	dial := func(address string) (*grpc.ClientConn, error) {
		return grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = New(resolve, dial, func(string) {}, slog.New(slog.DiscardHandler)).Run(ctx)
	}()
	select {
	case <-r.watched:
	case <-ctx.Done():
		t.Error("the server that refused the controller once is not watched any more")
	}
	cancel()
	<-ended
}
