package check

import (
	"context"

	"github.com/fairlead/fairlead/pkg/diagnose/collect"
)

// Servers are the xds-servers, asked for one workload cluster: *collect.Servers.
type Servers interface {
	// Observe returns what they know of the tunnel with an id, and of the Envoy clusters with these names. The error says that none could
	// be asked; one of several that did not answer is in the Fleet.
	Observe(ctx context.Context, id string, names []string) (collect.Fleet, error)
	// Look has the edges of that tunnel look at their apiserver now, and returns what those saw that are connected. The error says that
	// none could be asked.
	ProbeAPIServers(ctx context.Context, id string) ([]collect.EdgeProbe, error)
}
