// Package secrets simulates the agents of Envoys in benchmarks that measure only the data path: it serves each Envoy
// its identity, its trust bundle and the routes of apiservers, as its agent would. Everything else is in the bootstrap.
// Identities are not renewed.
package secrets

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	secretv3 "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	serverv3 "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/envoy/sds"
	"github.com/fairlead/fairlead/pkg/model"
)

// Authority issues the identities of the Envoys of one installation.
type Authority struct {
	domain model.TunnelDomain
	ca     *certs.CA
}

// NewAuthority returns an authority that is valid for a day.
func NewAuthority(domain model.TunnelDomain) (*Authority, error) {
	ca, err := certs.NewCA("bench", time.Now(), 24*time.Hour)
	return &Authority{domain, ca}, err
}

// Envoy is an Envoy to run in a folder of its own.
type Envoy struct {
	Dir  string // is made
	Self model.Subject
	// Bootstrap has no dynamic resources: see envoy.Static.
	Bootstrap *bootstrapv3.Bootstrap
	// ADS is the source of Scopes; nil: there are none.
	ADS    *bootstrapv3.Bootstrap_DynamicResources
	Scopes []*routev3.ScopedRouteConfiguration
}

// Prepare makes the folder of an Envoy, with envoy.yaml, and serves its secrets and scopes there until stop.
func (a *Authority) Prepare(e Envoy) (stop func(), err error) {
	if err := os.Mkdir(e.Dir, 0o700); err != nil {
		return nil, err
	}
	bootstrap := proto.CloneOf(e.Bootstrap)
	if e.ADS != nil {
		bootstrap.DynamicResources = &bootstrapv3.Bootstrap_DynamicResources{AdsConfig: e.ADS.GetAdsConfig()}
	}
	config, err := envoy.MarshalYAML(bootstrap)
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(e.Dir, "envoy.yaml"), config, 0o600); err != nil {
		return nil, err
	}
	secrets, err := a.issue(e.Self)
	if err != nil {
		return nil, fmt.Errorf("issuing the identity of %s: %w", e.Self.Node, err)
	}
	scopes := map[string]types.Resource{}
	for _, s := range e.Scopes {
		scopes[s.GetName()] = s
	}
	return serve(filepath.Join(e.Dir, envoy.AgentSocket), map[string]cachev3.Cache{
		resourcev3.SecretType: cachev3.NewLinearCache(resourcev3.SecretType, cachev3.WithInitialResources(secrets)),
		resourcev3.ScopedRouteType: cachev3.NewLinearCache(
			resourcev3.ScopedRouteType, cachev3.WithInitialResources(scopes),
		),
	})
}

// serve serves resources by their type on a Unix socket.
func serve(socket string, resources map[string]cachev3.Cache) (stop func(), err error) {
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return nil, err
	}
	all := serverv3.NewServer(context.Background(), &cachev3.MuxCache{
		Classify:      func(r *cachev3.Request) string { return r.GetTypeUrl() },
		ClassifyDelta: func(r *cachev3.DeltaRequest) string { return r.GetTypeUrl() },
		Caches:        resources,
	}, nil)
	server := grpc.NewServer()
	secretv3.RegisterSecretDiscoveryServiceServer(server, all)
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(server, all)
	go func() { _ = server.Serve(listener) }()
	return server.Stop, nil
}

// issue returns the secrets of an Envoy by their names.
func (a *Authority) issue(self model.Subject) (map[string]types.Resource, error) {
	key, err := certs.NewKey()
	if err != nil {
		return nil, err
	}
	chain, err := a.ca.Issue(key.Public(), certs.Leaf{
		CommonName: self.Node, DNSNames: a.domain.DNSNames(self), Server: true, Client: true,
		NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(12 * time.Hour),
	})
	if err != nil {
		return nil, err
	}
	issued, err := certs.NewIdentity(chain, key)
	if err != nil {
		return nil, err
	}
	pem, err := issued.KeyPEM()
	if err != nil {
		return nil, err
	}
	identity, trust := sds.Names(self)
	return map[string]types.Resource{
		identity: sds.Identity(identity, issued.ChainPEM(), pem),
		trust:    sds.Trust(trust, a.ca.CertPEM()),
	}, nil
}

// Args are the arguments of an Envoy that runs in a folder of Prepare with one worker.
func Args() []string {
	return []string{
		"-c", "envoy.yaml", "--disable-hot-restart", "--concurrency", "1", "-l", "warning",
		"--component-log-level", envoy.ComponentLogLevel,
	}
}
