package source

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/decision"
	"github.com/fairlead/fairlead/pkg/model"
)

// checkNetwork returns why a RemoteNetwork is none that an apiserver would accept, as far as no decision reports it.
func checkNetwork(d document, network *v1alpha1.RemoteNetwork) error {
	switch {
	case strings.Contains(d.head.Metadata.Name, "."):
		return d.fault(
			"metadata.name",
			fmt.Errorf("%q contains a dot: give a DNS label, because it is part of the names of targets", d.head.Metadata.Name),
		)
	case network.Spec.ClusterName == "":
		return d.fault("spec.clusterName", errors.New("is empty: give the name of the Cluster that has this network"))
	}
	return nil
}

// clusterOf returns the key of the Cluster that has a network.
func clusterOf(key model.Key, network *v1alpha1.RemoteNetwork) model.Key {
	return model.Key{Namespace: key.Namespace, Name: network.Spec.ClusterName}
}

// egressCandidates returns the candidates of the apiservers of all Clusters with networks. It reports as assumed that
// all other Tunnels of networks and of apiservers are not served.
func (l *loader) egressCandidates() (all []decision.Candidate) {
	used, clusters := map[model.Key]bool{}, map[model.Key][]model.Key{}
	for _, key := range sortedKeys(l.networks) {
		used[model.Key{Namespace: key.Namespace, Name: decision.NetworkTunnel(key.Name)}] = true
		cluster := clusterOf(key, l.networks[key])
		clusters[cluster] = append(clusters[cluster], key)
	}
	for _, key := range sortedKeys(clusters) {
		at := model.Key{Namespace: key.Namespace, Name: decision.EgressTunnel(key.Name)}
		used[at] = true
		of := func(string) document {
			if cluster, ok := l.docs["Cluster "+key.String()]; ok {
				return cluster
			}
			return l.docs["RemoteNetwork "+clusters[key][0].String()]
		}
		if !l.free(at, of, func(t *v1alpha1.Tunnel) bool { return t.Spec.EgressOf == key.Name }) {
			continue
		}
		cluster := l.cluster(key, "its networks have no way to its apiserver, and may overlap with its Pods and Services")
		owner := metav1.NewControllerRef(cluster, clusterv1.GroupVersion.WithKind("Cluster"))
		tunnel := l.tunnel(at, owner)
		tunnel.Spec.EgressOf = key.Name
		if c, ok := decision.EgressCandidate(cluster, tunnel); ok {
			all = append(all, c)
			l.origins = append(l.origins, l.originOf(at, of))
		}
	}
	for _, key := range sortedKeys(l.tunnels) {
		if tunnel := l.tunnels[key]; !tunnel.OfCluster() && !used[key] {
			l.assumed = append(l.assumed, fmt.Sprintf("nothing for %s: the input has no RemoteNetwork for this Tunnel", key))
		}
	}
	return all
}

// networkCandidates returns the candidates of all networks, in the order of their keys. The Tunnels of their Clusters
// and of the apiservers have what is on record.
func (l *loader) networkCandidates(inst model.Installation, forward []netip.Prefix) (all []decision.Candidate) {
	settings := decision.NetworkSettings{Gateways: l.gatewayAddresses(inst), APIServers: forward}
	for _, key := range sortedKeys(l.networks) {
		network := l.networks[key]
		at := model.Key{Namespace: key.Namespace, Name: decision.NetworkTunnel(key.Name)}
		of := func(string) document { return l.docs["RemoteNetwork "+key.String()] }
		if !l.free(at, of, func(t *v1alpha1.Tunnel) bool { return t.Spec.Network == key.Name }) {
			continue
		}
		network.Namespace, network.Name, network.UID = key.Namespace, key.Name, "network"
		tunnel := l.tunnel(at, metav1.NewControllerRef(network, v1alpha1.GroupVersion.WithKind("RemoteNetwork")))
		tunnel.Spec.Network = key.Name
		owners := l.owners(key)
		if problem := decision.ForwardTo(owners.Cluster, owners.Tunnel, settings).Problem; problem != "" {
			l.assumed = append(
				l.assumed, fmt.Sprintf("no way through edges of %s from its machines to the apiserver: %s", key, problem),
			)
		}
		if c, ok := decision.NetworkCandidate(tunnel, owners, settings); ok {
			all = append(all, c)
			l.origins = append(l.origins, l.originOf(at, of))
		}
	}
	return all
}

// owners returns the objects that decide about a network.
func (l *loader) owners(key model.Key) decision.NetworkOwners {
	cluster := clusterOf(key, l.networks[key])
	o := decision.NetworkOwners{
		Network: l.networks[key], Cluster: l.clusters[cluster], Tunnel: l.tunnels[cluster],
		Egress: l.tunnels[model.Key{Namespace: key.Namespace, Name: decision.EgressTunnel(cluster.Name)}],
	}
	for _, other := range sortedKeys(l.networks) {
		if other != key && clusterOf(other, l.networks[other]) == cluster {
			o.Others = append(o.Others, *l.networks[other])
		}
	}
	return o
}

// free reports whether the Tunnel of a key does not exist, or has the use that it must have. Otherwise it reports an
// error of the object that needs it.
func (l *loader) free(key model.Key, of func(string) document, use func(*v1alpha1.Tunnel) bool) bool {
	tunnel := l.tunnels[key]
	if tunnel == nil || use(tunnel) {
		return true
	}
	d := of("")
	l.errs = append(l.errs, d.fault("metadata.name", fmt.Errorf(
		"the Tunnel %s that the %s needs has another use: delete that Tunnel, or rename this object", key, d.head.Kind,
	)))
	return false
}

// originOf returns the origin of a candidate: the Tunnel for the fields that it has, otherwise another object.
func (l *loader) originOf(tunnel model.Key, other func(string) document) origin {
	return origin{
		of: func(field string) document {
			if d, ok := l.docs["Tunnel "+tunnel.String()]; ok && d.has(field) {
				return d
			}
			return other(field)
		},
		rename: func(field string) string { return field },
	}
}

// gatewayAddresses returns the addresses of the gateways that the settings contain.
func (l *loader) gatewayAddresses(inst model.Installation) []netip.Addr {
	all := []model.Endpoint{inst.Public}
	for _, name := range []string{"APISERVER_ADDRESS", "CONNECT_ADDRESS"} {
		if e, err := model.ParseEndpoint(l.settings[name]); err == nil {
			all = append(all, e)
		}
	}
	return model.Addresses(all...)
}
