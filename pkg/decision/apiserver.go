package decision

import (
	"cmp"
	"strings"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/model"
)

const (
	// The address that edges connect to if neither the Tunnel nor its Cluster sets one: an apiserver on their own
	// machine, on kubeadm's port.
	defaultAddress = "127.0.0.1"
	defaultPort    = 6443
	// maxAddress is the maximum length in a Tunnel's spec. A longer address cannot be dialled and gets a condition.
	maxAddress = 253
)

// FillAPIServer fills empty fields of a Tunnel's apiServer from its Cluster, as documented at v1alpha1.APIServerSpec.
// While the Cluster has no valid endpoint, it changes nothing. Cluster API limits only the length of a host, and the
// apiserver would reject any that is neither an IP address nor a DNS name in a Tunnel.
func FillAPIServer(spec *v1alpha1.APIServerSpec, cluster *clusterv1.Cluster) {
	endpoint := cluster.Spec.ControlPlaneEndpoint
	address := model.Endpoint{Host: canonical(endpoint.Host), Port: defaultPort}
	if !endpoint.IsValid() || len(endpoint.Host) > maxAddress || address.Validate() != nil {
		return
	}
	onControlPlane := cluster.Annotations[v1alpha1.EdgesAnnotation] == v1alpha1.EdgesOnControlPlane
	if onControlPlane && spec.Address == "" && spec.Port == 0 && len(spec.Others) == 0 {
		// Edges on control-plane machines connect to the apiserver of their own machine, and to the endpoint while
		// that is unhealthy. A machine's apiserver listens on the port that Cluster API's providers use, which may
		// differ from that of the endpoint.
		*spec = v1alpha1.APIServerSpec{
			Address: defaultAddress, Port: cmp.Or(cluster.Spec.ClusterNetwork.APIServerPort, defaultPort),
			Others: []v1alpha1.APIServerAddress{{Address: endpoint.Host, Port: endpoint.Port}},
		}
	}
	spec.Address, spec.Port = cmp.Or(spec.Address, endpoint.Host), cmp.Or(spec.Port, endpoint.Port)
}

// apiServers returns the addresses that the edges of a Tunnel connect to: the first apiserver and the others, by
// default on the port of the first.
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

// canonical returns an address in the form that all programs use: lower case and without the trailing dot. Clouds write
// names in upper case or with a trailing dot, both of which DNS accepts. Only ASCII has a lower case here: a character
// that Unicode makes an ASCII letter is none in a Tunnel.
func canonical(address string) string {
	return strings.Map(func(r rune) rune {
		if 'A' <= r && r <= 'Z' {
			return r - 'A' + 'a'
		}
		return r
	}, strings.TrimSuffix(address, "."))
}
