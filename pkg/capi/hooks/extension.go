// Package hooks answers the hooks of Cluster API's Runtime SDK: it patches control planes so that edges arrive with
// their machines, rejects topologies that cannot work, defines the variable, and delays a new Cluster until its edges
// can enrol. The input is requests; the output is responses. The package reads only Tunnels, writes nothing, and
// returns the same patches for the same request.
package hooks

import (
	"context"
	"fmt"
	"time"

	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	runtimehooksv1 "sigs.k8s.io/cluster-api/api/runtime/hooks/v1alpha1"
	"sigs.k8s.io/cluster-api/exp/runtime/server"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/pkg/capi/inject"
)

// Names of the handlers. A ClusterClass appends a dot and the name of the ExtensionConfig.
const (
	GeneratePatchesName     = "generate-patches"
	ValidateTopologyName    = "validate-topology"
	DiscoverVariablesName   = "discover-variables"
	BeforeClusterCreateName = "before-cluster-create"
)

// timeoutSeconds is how long Cluster API waits for a response. No handler takes longer than one read from the
// apiserver.
const timeoutSeconds = 10

// Extension contains the handlers.
type Extension struct {
	variable clusterv1.ClusterClassVariable
	tunnels  client.Reader
	now      func() time.Time
}

// New returns an Extension. defaults are the defaults of the variable in a ClusterClass that uses it; they are
// validated. tunnels reads Tunnels.
func New(defaults inject.Variable, tunnels client.Reader, now func() time.Time) (*Extension, error) {
	if err := validate(defaults); err != nil {
		return nil, err
	}
	variable, err := inject.Definition(defaults)
	if err != nil {
		return nil, err
	}
	return &Extension{variable: variable, tunnels: tunnels, now: now}, nil
}

// Handlers returns the handlers for a server of the Runtime SDK.
func (e *Extension) Handlers() []server.ExtensionHandler {
	handlers := []server.ExtensionHandler{
		{Hook: runtimehooksv1.GeneratePatches, Name: GeneratePatchesName, HandlerFunc: e.GeneratePatches},
		{Hook: runtimehooksv1.ValidateTopology, Name: ValidateTopologyName, HandlerFunc: e.ValidateTopology},
		{Hook: runtimehooksv1.DiscoverVariables, Name: DiscoverVariablesName, HandlerFunc: e.DiscoverVariables},
		{Hook: runtimehooksv1.BeforeClusterCreate, Name: BeforeClusterCreateName, HandlerFunc: e.BeforeClusterCreate},
	}
	for i := range handlers {
		handlers[i].TimeoutSeconds = ptr.To[int32](timeoutSeconds)
		// A control plane without its edge cannot be reached, so it is better not to create it.
		handlers[i].FailurePolicy = ptr.To(runtimehooksv1.FailurePolicyFail)
	}
	return handlers
}

// DiscoverVariables returns the variable that a ClusterClass gets.
func (e *Extension) DiscoverVariables(
	_ context.Context, _ *runtimehooksv1.DiscoverVariablesRequest, response *runtimehooksv1.DiscoverVariablesResponse,
) {
	response.Status = runtimehooksv1.ResponseStatusSuccess
	response.Variables = []clusterv1.ClusterClassVariable{*e.variable.DeepCopy()}
}

// validate validates defaults as the options that they become.
func validate(defaults inject.Variable) error {
	o := options(defaults, "default", "c")
	if _, err := o.Hostname(); err != nil {
		return fmt.Errorf("checking the defaults of variable %s: %w", inject.VariableName, err)
	}
	return nil
}
