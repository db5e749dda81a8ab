package status

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"strconv"

	"google.golang.org/grpc"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/controller/ca"
	"github.com/fairlead/fairlead/pkg/controller/config"
	"github.com/fairlead/fairlead/pkg/dial"
	"github.com/fairlead/fairlead/pkg/model"
	reportview "github.com/fairlead/fairlead/pkg/report/view"
)

// NewView returns a view of the state in the xds-servers. It adds the ids of changed tunnels to a queue, which holds
// each once.
func NewView(
	config config.Config, cached, live client.Reader, log *slog.Logger, changed workqueue.TypedInterface[string],
) *reportview.View {
	trust := ca.PublishedTrust{From: cached, Namespace: config.Namespace}
	identity := &ca.SelfIssued{Config: config, Live: live, Trust: trust}
	dialOne := func(address string) (*grpc.ClientConn, error) {
		endpoint, err := model.ParseEndpoint(address)
		if err != nil {
			return nil, err
		}
		return dial.Conn(&dial.Dialer{Addresses: []model.Endpoint{endpoint}}, config.Domain, trust, identity)
	}
	view := reportview.New(addresses(config.XDSServer, net.DefaultResolver.LookupHost), dialOne, changed.Add, log)
	view.SetClock(config.Clock()) // what the view returns is compared with times of objects
	return view
}

// addresses returns a function that resolves one name to all xds-servers, because each has only the reports of its own
// agents . An IP address resolves to itself.
func addresses(
	server model.Endpoint, lookup func(ctx context.Context, host string) ([]string, error),
) func(context.Context) ([]string, error) {
	return func(ctx context.Context) ([]string, error) {
		hosts, err := lookup(ctx, server.Host)
		if err != nil {
			return nil, fmt.Errorf("resolving the xds-servers: %w", err)
		}
		for i, host := range hosts {
			hosts[i] = net.JoinHostPort(host, strconv.Itoa(int(server.Port)))
		}
		return hosts, nil
	}
}

var _ certs.TrustSource = ca.PublishedTrust{}
