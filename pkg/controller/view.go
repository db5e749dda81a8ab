package controller

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"strconv"

	"google.golang.org/grpc"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/dial"
	"github.com/fairlead/fairlead/pkg/model"
	reportview "github.com/fairlead/fairlead/pkg/report/view"
)

// newView returns a view of what the xds-servers know. Ids of tunnels of which something has changed go into a queue, which
// holds each once.
func newView(config Config, cached, live client.Reader, log *slog.Logger, changed workqueue.TypedInterface[string]) *reportview.View {
	trust := publishedTrust{cached, config.Namespace}
	identity := &selfIssued{config: config, live: live, trust: trust}
	dialOne := func(address string) (*grpc.ClientConn, error) {
		endpoint, err := model.ParseEndpoint(address)
		if err != nil {
			return nil, err
		}
		return dial.Conn(&dial.Way{Addresses: []model.Endpoint{endpoint}}, config.Domain, trust, identity)
	}
	return reportview.New(addresses(config.XDSServer, net.DefaultResolver.LookupHost), dialOne, changed.Add, log)
}

// leading is a part of the manager that runs only while this process leads.
type leading struct{ run func(context.Context) error }

// Start implements manager.Runnable.
func (l leading) Start(ctx context.Context) error { return l.run(ctx) }

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (leading) NeedLeaderElection() bool { return true }

// addresses finds all xds-servers behind one name: each knows what reports to it alone. An IP address stands for itself.
func addresses(server model.Endpoint, lookup func(ctx context.Context, host string) ([]string, error)) func(context.Context) ([]string, error) {
	return func(ctx context.Context) ([]string, error) {
		hosts, err := lookup(ctx, server.Host)
		if err != nil {
			return nil, fmt.Errorf("looking up the xds-servers: %w", err)
		}
		for i, host := range hosts {
			hosts[i] = net.JoinHostPort(host, strconv.Itoa(int(server.Port)))
		}
		return hosts, nil
	}
}

// publishedTrust is the installation's trust bundle at this moment.
type publishedTrust struct {
	from      client.Reader
	namespace string
}

var _ certs.TrustSource = publishedTrust{}

// wakeTunnels has the Tunnels with these ids reconciled until ctx ends. An empty id stands for all of them; one that no Tunnel has
// is dropped.
func wakeTunnels(ctx context.Context, from client.Reader, log *slog.Logger, ids workqueue.TypedInterface[string],
	queue workqueue.TypedRateLimitingInterface[reconcile.Request],
) {
	defer context.AfterFunc(ctx, ids.ShutDown)()
	for {
		id, end := ids.Get()
		if end {
			return
		}
		var which []client.ListOption
		if id != "" {
			which = []client.ListOption{client.MatchingFields{tunnelIDIndex: id}}
		}
		for _, request := range tunnelRequests(ctx, from, log.With("tunnel", id), which...) {
			queue.Add(request)
		}
		ids.Done(id)
	}
}
