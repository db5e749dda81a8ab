// Package hooks answers the hooks of Cluster API's Runtime SDK: it patches control planes so that edges arrive with their
// machines, refuses topologies that could not work, says which variable there is, and holds a new Cluster back until its edges
// can enrol. Requests go in, responses come out; it reads Tunnels and nothing else, writes nothing, and gives the same patches
// for the same request.
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

// The names of the handlers. A ClusterClass names them with the ExtensionConfig's after a dot.
const (
	GeneratePatchesName     = "generate-patches"
	ValidateTopologyName    = "validate-topology"
	DiscoverVariablesName   = "discover-variables"
	BeforeClusterCreateName = "before-cluster-create"
)

// timeoutSeconds is how long Cluster API waits for an answer. None takes longer than one read from the apiserver.
const timeoutSeconds = 10

// Extension has the handlers.
type Extension struct {
	variable clusterv1.ClusterClassVariable
	tunnels  client.Reader
	now      func() time.Time
}

// New makes an extension. The defaults are those of the variable of a ClusterClass that uses it; tunnels reads Tunnels.
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

// Handlers are what to add to a server.
func (e *Extension) Handlers() []server.ExtensionHandler {
	handlers := []server.ExtensionHandler{
		{Hook: runtimehooksv1.GeneratePatches, Name: GeneratePatchesName, HandlerFunc: e.GeneratePatches},
		{Hook: runtimehooksv1.ValidateTopology, Name: ValidateTopologyName, HandlerFunc: e.ValidateTopology},
		{Hook: runtimehooksv1.DiscoverVariables, Name: DiscoverVariablesName, HandlerFunc: e.DiscoverVariables},
		{Hook: runtimehooksv1.BeforeClusterCreate, Name: BeforeClusterCreateName, HandlerFunc: e.BeforeClusterCreate},
	}
	for i := range handlers {
		handlers[i].TimeoutSeconds = ptr.To[int32](timeoutSeconds)
		// A control plane that is made without its edge can't be reached: better none is made.
		handlers[i].FailurePolicy = ptr.To(runtimehooksv1.FailurePolicyFail)
	}
	return handlers
}

// DiscoverVariables says which variable a ClusterClass gets.
func (e *Extension) DiscoverVariables(_ context.Context, _ *runtimehooksv1.DiscoverVariablesRequest, response *runtimehooksv1.DiscoverVariablesResponse) {
	response.Status = runtimehooksv1.ResponseStatusSuccess
	response.Variables = []clusterv1.ClusterClassVariable{*e.variable.DeepCopy()}
}

// validate checks defaults as the options that they become.
func validate(defaults inject.Variable) error {
	o := options(defaults, "default", "c")
	if _, err := o.Hostname(); err != nil {
		return fmt.Errorf("checking the defaults of variable %s: %w", inject.VariableName, err)
	}
	return nil
}
