package decision

import (
	"cmp"
	"strings"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/model"
)

const (
	// What edges dial where neither the Tunnel nor its Cluster says so: an apiserver on their own machine, on kubeadm's
	// port.
	defaultAddress = "127.0.0.1"
	defaultPort    = 6443
	// maxAddress is what a Tunnel's spec has room for. A longer address cannot be dialled and gets a condition.
	maxAddress = 253
)

// FillAPIServer fills what a Tunnel's spec leaves open with what its Cluster says, as the comments of
// v1alpha1.APIServerSpec promise. While the Cluster has no endpoint it changes nothing.
func FillAPIServer(spec *v1alpha1.APIServerSpec, cluster *clusterv1.Cluster) {
	endpoint := cluster.Spec.ControlPlaneEndpoint
	if !endpoint.IsValid() || len(endpoint.Host) > maxAddress {
		return
	}
	onControlPlane := cluster.Annotations[v1alpha1.EdgesAnnotation] == v1alpha1.EdgesOnControlPlane
	if onControlPlane && spec.Address == "" && spec.Port == 0 && len(spec.Others) == 0 {
		// Edges on control-plane machines dial the apiserver of their own machine, and the endpoint while that is not
		// healthy. A machine's apiserver listens where Cluster API's providers have it, whatever the port of the endpoint.
		*spec = v1alpha1.APIServerSpec{
			Address: defaultAddress, Port: cmp.Or(cluster.Spec.ClusterNetwork.APIServerPort, defaultPort),
			Others: []v1alpha1.APIServerAddress{{Address: endpoint.Host, Port: endpoint.Port}},
		}
	}
	spec.Address, spec.Port = cmp.Or(spec.Address, endpoint.Host), cmp.Or(spec.Port, endpoint.Port)
}

// apiServers are what the edges of a Tunnel dial: the first apiserver and the further ones, by default on the port of
// the first.
func apiServers(cluster *clusterv1.Cluster, tunnel *v1alpha1.Tunnel) (first model.Endpoint, others []model.Endpoint) {
	spec, endpoint := *tunnel.Spec.APIServer.DeepCopy(), cluster.Spec.ControlPlaneEndpoint
	FillAPIServer(&spec, cluster)
	first = model.Endpoint{
		Host: canonical(cmp.Or(spec.Address, endpoint.Host, defaultAddress)),
		Port: uint16(cmp.Or(spec.Port, endpoint.Port, cluster.Spec.ClusterNetwork.APIServerPort, defaultPort)),
	}
	for _, other := range spec.Others {
		others = append(others, model.Endpoint{Host: canonical(other.Address), Port: cmp.Or(uint16(other.Port), first.Port)})
	}
	return first, others
}

// canonical is the one form of an address that all programs use. Clouds write names as DNS would take them, in upper
// case and with the dot of the root.
func canonical(address string) string { return strings.ToLower(strings.TrimSuffix(address, ".")) }
