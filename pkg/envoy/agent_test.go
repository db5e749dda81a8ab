package envoy_test

import (
	"context"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	secretv3 "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	serverv3 "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"google.golang.org/grpc"

	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/envoy/sds"
	"github.com/fairlead/fairlead/pkg/model"
)

// agent is a fake agent: it sends one Envoy its certificates and its configuration.
type agent struct {
	*countingListener
	resources cachev3.SnapshotCache
	clusters  []types.Resource
	scopes    []types.Resource
	version   atomic.Int64
}

// anyNode maps every node to the same id.
type anyNode struct{}

// ID implements cachev3.NodeHash.
func (anyNode) ID(*corev3.Node) string { return "" }

// serveAgent serves the Envoy of a directory: the identities of some subjects and trust bundles, and Envoy clusters
// once listen is called.
func (in *installation) serveAgent(
	t *testing.T, dir string, clusters []*clusterv3.Cluster, subjects ...model.Subject,
) *agent {
	t.Helper()
	secrets := map[string]types.Resource{}
	for _, s := range subjects {
		issued := in.ca.issue(t, s)
		key, err := issued.KeyPEM()
		if err != nil {
			t.Fatal(err)
		}
		identity, trust := sds.Names(s)
		secrets[identity] = sds.Identity(identity, issued.ChainPEM(), key)
		secrets[trust] = sds.Trust(trust, in.ca.ca.CertPEM())
	}
	a := &agent{
		countingListener: newCountingListener(t, "unix", filepath.Join(dir, envoy.AgentSocket), nil),
		resources:        cachev3.NewSnapshotCache(true, anyNode{}, nil),
	}
	for _, c := range clusters {
		a.clusters = append(a.clusters, c)
	}
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	server := grpc.NewServer()
	secretv3.RegisterSecretDiscoveryServiceServer(
		server,
		serverv3.NewServer(ctx, cachev3.NewLinearCache(resourcev3.SecretType, cachev3.WithInitialResources(secrets)), nil),
	)
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(server, serverv3.NewServer(ctx, a.resources, nil))
	go func() { _ = server.Serve(a.countingListener) }()
	t.Cleanup(server.Stop)
	return a
}

// listen sends all Envoy clusters and these listeners.
func (a *agent) listen(t *testing.T, listeners []*listenerv3.Listener) {
	t.Helper()
	var all []types.Resource
	for _, l := range listeners {
		all = append(all, l)
	}
	snapshot, err := cachev3.NewSnapshot(strconv.FormatInt(a.version.Add(1), 10), map[resourcev3.Type][]types.Resource{
		resourcev3.ClusterType: a.clusters, resourcev3.ListenerType: all, resourcev3.ScopedRouteType: a.scopes,
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := a.resources.SetSnapshot(context.Background(), anyNode{}.ID(nil), snapshot); err != nil {
		t.Fatal(err)
	}
}
