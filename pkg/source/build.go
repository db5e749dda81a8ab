// Package source turns Cluster and Tunnel objects, or a YAML file, into the plain values of pkg/model, and says what
// changes. Objects go in through watches, workload clusters come out, to a Publisher. It also answers from the same objects
// which bootstrap tokens there are. It only reads, and does not know what is made of the values.
package source

import (
	"cmp"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/model"
)

// What edges dial where neither the Tunnel nor its Cluster says so: an apiserver on their own machine.
const (
	defaultAddress = "127.0.0.1"
	defaultPort    = 6443
)

// Candidate returns what a Cluster and the Tunnel of the same name say together. It returns false if there is nothing to
// serve: if one of the two is nil, if the Tunnel has no id yet, if its kubeconfig leads through a network of the user's own, or
// if it is not this Cluster's but that of an earlier one with the same name. Pausing or deleting either changes nothing until
// it is gone.
func Candidate(cluster *clusterv1.Cluster, tunnel *v1alpha1.Tunnel) (model.Candidate, bool) {
	if cluster == nil || tunnel == nil || tunnel.ClaimedID() == "" || !tunnel.Spec.Kubeconfig.Mode.Tunnelled() || !metav1.IsControlledBy(tunnel, cluster) {
		return model.Candidate{}, false
	}
	return model.Candidate{
		Key:          model.Key{Namespace: tunnel.Namespace, Name: tunnel.Name},
		Created:      tunnel.CreationTimestamp.Time,
		ID:           tunnel.ClaimedID(),
		ExtraNames:   tunnel.Spec.ExtraNames,
		EndpointName: tunnel.Status.Kubeconfig.EndpointName,
		APIServer:    apiServer(cluster, tunnel),
		Others:       others(cluster, tunnel),
		Limits:       limits(tunnel.Spec.Limits),
		Revoked:      tunnel.Spec.RevokedEdges,
		Held:         held(tunnel.Status),
		Recorded:     tunnel.HeldID() != "",
		Lives:        tunnel.HeldID() != "" && tunnel.DeletionTimestamp.IsZero(),
	}, true
}

// limits are those of a Tunnel, which may be no valid ones: the model says so.
func limits(spec v1alpha1.LimitsSpec) model.Limits {
	l := model.Limits{Connections: int64(spec.Connections), Pending: int64(spec.PendingConnections)}
	if spec.Bandwidth != nil {
		l.Bandwidth = spec.Bandwidth.Value()
		if l.Bandwidth == 0 {
			l.Bandwidth = -1 // a limit of nothing is not the same as none
		}
	}
	return l
}

// held are the names and the id that the controller has recorded as this Tunnel's.
func held(status v1alpha1.TunnelStatus) []string {
	if status.ID == "" {
		return status.Names
	}
	return append(slices.Clone(status.Names), status.ID)
}

// apiServer fills what the Tunnel leaves open, as the comments of v1alpha1.APIServerSpec promise.
func apiServer(cluster *clusterv1.Cluster, tunnel *v1alpha1.Tunnel) model.Endpoint {
	endpoint := cluster.Spec.ControlPlaneEndpoint
	return model.Endpoint{
		Host: canonical(cmp.Or(tunnel.Spec.APIServer.Address, endpoint.Host, defaultAddress)),
		Port: uint16(cmp.Or(tunnel.Spec.APIServer.Port, endpoint.Port, cluster.Spec.ClusterNetwork.APIServerPort, defaultPort)),
	}
}

// others are the further apiservers, by default on the port of the first.
func others(cluster *clusterv1.Cluster, tunnel *v1alpha1.Tunnel) []model.Endpoint {
	var all []model.Endpoint
	for _, other := range tunnel.Spec.APIServer.Others {
		all = append(all, model.Endpoint{
			Host: canonical(other.Address),
			Port: cmp.Or(uint16(other.Port), apiServer(cluster, tunnel).Port),
		})
	}
	return all
}

// canonical is the one form of an address that everything from here on knows. Clouds write names as DNS would take them, in
// upper case and with the dot of the root.
func canonical(address string) string { return strings.ToLower(strings.TrimSuffix(address, ".")) }

// Build resolves several candidates together, so that the result does not depend on their order: resolution i is that of
// candidate i. The names stay claimed.
func Build(d model.TunnelDomain, names *model.Names, candidates []model.Candidate) []model.Resolution {
	for _, c := range candidates {
		names.Resolve(d, c)
	}
	// Only now does everyone know everyone.
	resolutions := make([]model.Resolution, len(candidates))
	for i, c := range candidates {
		resolutions[i] = names.Resolve(d, c)
	}
	return resolutions
}
