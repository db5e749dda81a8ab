package xdsproxy

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fairlead/fairlead/internal/retry"
	"github.com/fairlead/fairlead/pkg/xdsproxy/relay"
)

// ErrOver is wrapped by the error of Run if the xds-server will never serve this identity again.
var ErrOver = errors.New("this identity is permanently rejected")

var errSilent = errors.New("the xds-server has not answered in time")

// reopening is the wait between two streams. After an outage of any length, the proxy retries within its maximum.
var reopening = retry.Backoff{Min: 200 * time.Millisecond, Max: 4 * time.Second}

const (
	// maxMessage leaves room for resources of 64 MiB, which pkg/xds sends together, and the names of removed ones.
	maxMessage = 128 << 20
	// maxUnsent is the number of requests that may wait until the xds-server reads them.
	maxUnsent = 64
	// wildcard subscribes to all resources of a type.
	wildcard = "*"
)

// run is Run after its checks.
func (p *Proxy) run(ctx context.Context, u Upstream) error {
	p.vet(u) // Keep is optional
	logged := false
	for attempt, lost := 0, codes.OK; ctx.Err() == nil; attempt++ {
		// Every other attempt waits for a connection, so that the stream opens with it and not at the end of a wait. The
		// others fail with the reason why there is none.
		patient := attempt%2 == 1
		answered, err := p.follow(ctx, u, patient)
		switch code := status.Code(err); {
		case ctx.Err() != nil:
			continue
		case code == codes.FailedPrecondition:
			return fmt.Errorf("requesting resources of %s: %w: %s", u.Name, ErrOver, status.Convert(err).Message())
		case errors.Is(err, relay.ErrRemoved):
			attempt, lost, logged = -1, codes.OK, false
			continue
		case answered:
			attempt, lost = 0, code
			p.log.Warn("xds-server disconnected, Envoy keeps its configuration", "upstream", u.Name, "error", err)
		case patient && errors.Is(err, errSilent):
		case !logged && p.State(u.Name).Cached:
			logged, lost = true, code
			p.log.Info("xds-server does not answer, Envoy is served from the cache", "upstream", u.Name, "error", err)
		case code != lost:
			lost = code
			p.log.Warn("xds-server does not answer, retrying", "upstream", u.Name, "error", err)
		}
		_ = retry.Sleep(ctx, reopening.WaitFor(attempt, err)) // the loop checks ctx
	}
	return nil
}

// stream is an open stream to an xds-server.
type stream struct {
	id       uint64
	node     *corev3.Node
	end      context.CancelCauseFunc
	notified chan struct{}
	out      []relay.Effect // to be sent; guarded by the proxy's lock
}

// enqueue has a request sent. An xds-server that sends responses and does not read the answers is not followed on.
func (st *stream) enqueue(request relay.Effect) {
	if len(st.out) >= maxUnsent {
		st.end(relay.ErrTooMany)
		return
	}
	st.out = append(st.out, request)
	notify(st.notified)
}

// follow opens a stream and reads it to its end. A patient one waits for a connection, as long as for an answer. It
// returns whether there was an answer.
func (p *Proxy) follow(ctx context.Context, u Upstream, patient bool) (answered bool, err error) {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	silent := time.AfterFunc(p.silence, func() { end(errSilent) })
	defer silent.Stop()
	conn, err := discoveryv3.NewAggregatedDiscoveryServiceClient(u.Conn).
		DeltaAggregatedResources(ctx, grpc.MaxCallRecvMsgSize(maxMessage), grpc.WaitForReady(patient))
	if err != nil {
		return false, cause(ctx, err)
	}
	st := &stream{end: end, notified: make(chan struct{}, 1)}
	if u.Node != nil {
		st.node = u.Node()
	}
	p.mu.Lock()
	p.number++
	st.id = p.number
	p.streams[st.id] = st
	p.mu.Unlock()
	p.apply(relay.Opened{Upstream: u.Name, Stream: st.id})
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		p.send(ctx, st, conn)
	}()
	defer func() {
		end(nil)
		<-sent
		p.apply(relay.Closed{Upstream: u.Name, Stream: st.id, Code: status.Code(err)})
		p.mu.Lock()
		delete(p.streams, st.id)
		p.mu.Unlock()
	}()
	for {
		response, err := conn.Recv()
		if err != nil {
			return answered, cause(ctx, err)
		}
		silent.Stop()
		answered = true
		k, ok := relay.KindOf(response.GetTypeUrl())
		if !ok {
			return true, fmt.Errorf("reading response of type %q: %w", response.GetTypeUrl(), relay.ErrNotAsked)
		}
		p.apply(relay.Received{
			Upstream: u.Name, Stream: st.id, Kind: k, Nonce: response.GetNonce(), Changes: parse(k, response, u.Check),
		})
	}
}

// send sends the queued requests until the stream ends. The receiver gets the reason of the end.
func (p *Proxy) send(
	ctx context.Context, st *stream, conn discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient,
) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-st.notified:
		}
		p.mu.Lock()
		out := st.out
		st.out = nil
		p.mu.Unlock()
		for _, effect := range out {
			if err := conn.Send(st.request(effect)); err != nil {
				return
			}
		}
	}
}

// request returns the message of an effect.
func (st *stream) request(effect relay.Effect) *discoveryv3.DeltaDiscoveryRequest {
	switch e := effect.(type) {
	case relay.Subscribe:
		q := &discoveryv3.DeltaDiscoveryRequest{
			TypeUrl: e.Kind.TypeURL(), ResourceNamesSubscribe: []string{wildcard}, InitialResourceVersions: e.Versions,
		}
		if e.First {
			q.Node = st.node
		}
		return q
	case relay.Answer:
		return &discoveryv3.DeltaDiscoveryRequest{
			TypeUrl: e.Kind.TypeURL(), ResponseNonce: e.Nonce, ErrorDetail: statusOf(e.Kind, e.Rejections),
		}
	}
	return nil
}

// cause returns why a stream ended. If it was ended here, gRPC reports only that.
func cause(ctx context.Context, err error) error {
	if why := context.Cause(ctx); why != nil {
		return why
	}
	return err
}
