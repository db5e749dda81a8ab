package check

import (
	"context"

	"github.com/fairlead/fairlead/pkg/diagnose/collect"
)

// Servers queries the xds-servers for one workload cluster. *collect.Servers implements it.
type Servers interface {
	// Observe returns what they report of the tunnel with an id, and of the Envoy clusters with these names. The error
	// means that no server answered; if only some did not, that is in the Fleet.
	Observe(ctx context.Context, id string, names []string) (collect.Fleet, error)
	// ProbeAPIServers makes the edges of that tunnel probe their apiserver now, and returns the results of the connected
	// ones. The error means that no server answered.
	ProbeAPIServers(ctx context.Context, id string) ([]collect.EdgeProbe, error)
}
