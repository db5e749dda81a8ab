package hooks

import (
	"encoding/json"
	"errors"
	"fmt"

	runtimehooksv1 "sigs.k8s.io/cluster-api/api/runtime/hooks/v1alpha1"

	"github.com/fairlead/fairlead/pkg/capi/inject"
	"github.com/fairlead/fairlead/pkg/model"
)

// clusterOf returns the Cluster of the builtin variable. Its metadata is never nil.
func clusterOf(variables []runtimehooksv1.Variable) (*runtimehooksv1.ClusterBuiltins, error) {
	var builtin runtimehooksv1.Builtins
	if err := find(runtimehooksv1.BuiltinsName, &builtin, variables); err != nil {
		return nil, err
	}
	cluster := builtin.Cluster
	if cluster == nil || cluster.Name == "" || cluster.Namespace == "" {
		return nil, errors.New("the request does not name its Cluster: Cluster API 1.9 or later is required")
	}
	if cluster.Metadata == nil {
		cluster.Metadata = &runtimehooksv1.ObjectMeta{}
	}
	return cluster, nil
}

// optionsOf reads Fairlead's variable. A value for the control plane takes precedence over one for the whole topology.
func optionsOf(cluster *runtimehooksv1.ClusterBuiltins, scopes ...[]runtimehooksv1.Variable) (inject.Options, error) {
	var v inject.Variable
	if err := find(inject.VariableName, &v, scopes...); err != nil {
		return inject.Options{}, err
	}
	return options(v, cluster.Namespace, cluster.Name), nil
}

func options(v inject.Variable, namespace, name string) inject.Options {
	return inject.Options{
		Cluster: model.Key{
			Namespace: namespace,
			Name:      name,
		}, Domain: model.TunnelDomain(v.TunnelDomain), Image: v.Image, APIServerPort: v.APIServerPort,
	}
}

// find reads a variable from the first scope that contains it.
func find(name string, into any, scopes ...[]runtimehooksv1.Variable) error {
	for _, variables := range scopes {
		for _, v := range variables {
			if v.Name != name {
				continue
			}
			if err := json.Unmarshal(v.Value.Raw, into); err != nil {
				return fmt.Errorf("reading variable %s: %w", name, err)
			}
			return nil
		}
	}
	return fmt.Errorf(
		"variable %s not found: set discoverVariablesExtension of the ClusterClass to %s.<ExtensionConfig>, or define "+
			"the variable there",
		name,
		DiscoverVariablesName,
	)
}
