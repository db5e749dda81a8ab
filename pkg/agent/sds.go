package agent

import (
	"context"
	"fmt"
	"net"

	secretv3 "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	serverv3 "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"github.com/google/uuid"
	"google.golang.org/grpc"

	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/envoy"
)

// secretServer serves identity and trust bundle to the Envoy beside it. Whoever can open its socket gets the key: the
// socket and its folder are closed to other users.
type secretServer struct{ cache *cachev3.LinearCache }

func newSecretServer() *secretServer {
	// The prefix makes the versions of this agent differ from those that Envoy got from the last one.
	return &secretServer{cache: cachev3.NewLinearCache(resourcev3.SecretType, cachev3.WithVersionPrefix(uuid.NewString()+"-"))}
}

// set replaces both secrets in one step. Envoy uses them for new connections; open ones go on.
func (s *secretServer) set(identity certs.Identity, bundle []byte) error {
	key, err := identity.KeyPEM()
	if err != nil {
		return err
	}
	s.cache.SetResources(map[string]types.Resource{
		envoy.IdentitySecretName: envoy.IdentitySecret(identity.ChainPEM(), key),
		envoy.TrustSecretName:    envoy.TrustSecret(bundle),
	})
	return nil
}

// serve answers until ctx ends, and closes the listener.
func (s *secretServer) serve(ctx context.Context, listener net.Listener) error {
	server := grpc.NewServer()
	secretv3.RegisterSecretDiscoveryServiceServer(server, serverv3.NewServer(ctx, s.cache, nil))
	stop := context.AfterFunc(ctx, server.Stop)
	defer stop()
	if err := server.Serve(listener); err != nil && ctx.Err() == nil {
		return fmt.Errorf("serving secrets to Envoy: %w", err)
	}
	return nil
}
