package networks

import (
	"context"

	"github.com/fairlead/fairlead/test/bench/konnectivity"
	"github.com/fairlead/fairlead/test/lab/netns"
	"github.com/fairlead/fairlead/test/lab/proc"
)

// The subjects of konnectivity.
const (
	grpcMode    = "konnectivity " + konnectivity.GRPC
	connectMode = "konnectivity " + konnectivity.HTTPConnect
)

// konnectivityMode returns how konnectivity is started in one of its modes: with a server beside the gateway, and
// agents in the remote network.
func konnectivityMode(mode string, firstPort int) func(context.Context, *world, *subject) ([]byte, error) {
	return func(ctx context.Context, w *world, s *subject) ([]byte, error) {
		k, err := konnectivity.Start(ctx, w.Workspace, konnectivity.Spec{
			Mode: mode, Beside: w.network.Gateways[0], Address: netns.PublicAddress(0), FirstPort: firstPort,
		})
		if err != nil {
			return nil, err
		}
		s.shared = append(s.shared, k.Server)
		s.edge = func(ctx context.Context) (*proc.Process, error) { return k.StartAgent(ctx, w.network.Workload) }
		return k.Selector(), s.addEdge(ctx)
	}
}
