package identity

import (
	"context"
	"slices"
	"sync"

	secretv3 "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	serverv3 "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"github.com/google/uuid"
	"google.golang.org/grpc"

	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/envoy/sds"
	"github.com/fairlead/fairlead/pkg/model"
)

// SecretServer serves the identities and trust bundles of all memberships to the Envoy beside it, by SDS. Every process
// that can open its socket gets the keys, so the socket and its folder are closed to other users. It is safe for
// concurrent use.
type SecretServer struct {
	cache *cachev3.LinearCache

	mu    sync.Mutex
	names map[any][]string // what each membership has in the cache
}

// NewSecretServer returns a server without secrets.
func NewSecretServer() *SecretServer {
	return &SecretServer{
		// With the prefix, versions of this agent differ from the ones that Envoy got from an earlier agent.
		cache: cachev3.NewLinearCache(resourcev3.SecretType, cachev3.WithVersionPrefix(uuid.NewString()+"-")),
		names: map[any][]string{},
	}
}

// Set replaces both secrets of the membership m atomically. Envoy uses them for new connections; open ones continue.
func (s *SecretServer) Set(m any, subject model.Subject, identity certs.Identity, bundle []byte) error {
	key, err := identity.KeyPEM()
	if err != nil {
		return err
	}
	identityName, trustName := sds.Names(subject)
	s.mu.Lock()
	defer s.mu.Unlock()
	var gone []string
	for _, name := range s.names[m] {
		if name != identityName && name != trustName {
			gone = append(gone, name)
		}
	}
	s.names[m] = []string{identityName, trustName}
	return s.cache.UpdateResources(map[string]types.Resource{
		identityName: sds.Identity(identityName, identity.ChainPEM(), key),
		trustName:    sds.Trust(trustName, bundle),
	}, gone)
}

// Drop removes the secrets of the membership m.
func (s *SecretServer) Drop(m any) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	gone := slices.Clone(s.names[m])
	delete(s.names, m)
	return s.cache.UpdateResources(nil, gone)
}

// Register registers SDS on the gRPC server that serves Envoy's socket.
func (s *SecretServer) Register(ctx context.Context, server *grpc.Server) {
	secretv3.RegisterSecretDiscoveryServiceServer(server, serverv3.NewServer(ctx, s.cache, nil))
}
