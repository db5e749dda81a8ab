package xdsproxy

import (
	"context"
	"errors"
	"fmt"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fairlead/fairlead/internal/retry"
)

// ErrOver is wrapped by the error of Run if the xds-server will never serve this identity again.
var ErrOver = errors.New("this identity is permanently rejected")

var errRemoved = errors.New("the resources of the upstream were removed")

// reopening is the wait between two streams. After an outage of any length, the proxy retries within its maximum.
var reopening = retry.Backoff{Min: 200 * time.Millisecond, Max: 4 * time.Second}

// maxMessage is enough for 60,000 Envoy clusters of about 2 KB.
const maxMessage = 128 << 20

// run is Run after its checks.
func (r *Proxy) run(ctx context.Context, u Upstream) error {
	// Keep is optional, so the loaded resources are checked here too.
	r.mu.Lock()
	r.contribution(u.Name).vet(u.Check)
	r.mu.Unlock()
	for attempt, lost := 0, codes.OK; ctx.Err() == nil; attempt++ {
		c := r.obtain(u.Name) // Remove may have replaced it
		answered, err := c.serve(ctx, u)
		c.downgrade(status.Code(err))
		switch code := status.Code(err); {
		case ctx.Err() != nil:
			continue
		case code == codes.FailedPrecondition:
			return fmt.Errorf("requesting resources of %s: %w: %s", u.Name, ErrOver, status.Convert(err).Message())
		case errors.Is(err, errRemoved):
			attempt, lost = -1, codes.OK
			continue
		case answered:
			attempt, lost = 0, code
			r.log.Warn("xds-server disconnected, Envoy keeps its configuration", "upstream", u.Name, "error", err)
		default:
			c.unanswered(code != lost, err)
			lost = code
		}
		_ = retry.Sleep(ctx, reopening.WaitFor(attempt, err)) // the loop checks ctx
	}
	r.mu.Lock()
	c := r.contributions[u.Name]
	r.mu.Unlock()
	if c != nil {
		c.write() // what Envoy accepted during the wait
	}
	return nil
}

// downgrade chooses whether the next stream asks for scopes. An xds-server that predates them rejects the request.
func (c *contribution) downgrade(ended codes.Code) {
	c.proxy.mu.Lock()
	defer c.proxy.mu.Unlock()
	c.plain = ended == codes.InvalidArgument && c.proxy.scoped && !c.plain
}

func (r *Proxy) obtain(name string) *contribution {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.contribution(name)
}

// unanswered logs once that Envoy is served from the cache, and each new reason why the xds-server is unavailable.
func (c *contribution) unanswered(reason bool, err error) {
	c.proxy.mu.Lock()
	shouldLog := c.cached() && !c.loggedCached
	c.loggedCached = c.loggedCached || shouldLog
	c.proxy.mu.Unlock()
	switch {
	case shouldLog:
		c.proxy.log.Info("xds-server does not answer, Envoy is served from the cache", "upstream", c.name, "error", err)
	case reason:
		c.proxy.log.Warn("xds-server does not answer, retrying", "upstream", c.name, "error", err)
	}
}

// serve follows the xds-server for the duration of one stream, and writes what Envoy accepts. It returns whether there
// was an answer.
func (c *contribution) serve(ctx context.Context, u Upstream) (answered bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	kept := make(chan struct{})
	go func() {
		defer close(kept)
		c.keep(ctx)
	}()
	defer func() {
		cancel()
		<-kept
	}()
	return c.follow(ctx, u)
}

// follow opens a stream and reads it to its end.
func (c *contribution) follow(ctx context.Context, u Upstream) (answered bool, _ error) {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	silent := time.AfterFunc(c.proxy.times.silence, func() { end(errSilent) })
	defer silent.Stop()
	conn, err := discoveryv3.NewAggregatedDiscoveryServiceClient(u.Conn).
		DeltaAggregatedResources(ctx, grpc.MaxCallRecvMsgSize(maxMessage))
	if err != nil {
		return false, reason(ctx, err)
	}
	st, err := c.open(u, end)
	if err != nil {
		return false, err
	}
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		st.send(ctx, conn, &c.proxy.mu)
	}()
	defer func() {
		end(nil)
		<-sent
		c.close(st)
	}()
	for {
		response, err := conn.Recv()
		if err != nil {
			return answered, reason(ctx, err)
		}
		silent.Stop()
		answered = true
		if err := c.take(st, response, u.Check); err != nil {
			return answered, err
		}
	}
}

// reason returns why a stream ended. If it was ended here, gRPC reports only that.
func reason(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}
