package source

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/decision"
	"github.com/fairlead/fairlead/pkg/model"
)

// servedClusterIndex indexes the Tunnels of networks by the Cluster that they are recorded for.
const servedClusterIndex = "status.served.network.clusterName"

func servedClusters(object client.Object) []string {
	tunnel, ok := object.(*v1alpha1.Tunnel)
	if !ok || tunnel.Status.Served == nil || tunnel.Status.Served.Network == nil {
		return nil
	}
	return []string{tunnel.Status.Served.Network.ClusterName}
}

// neighbours are the objects beside the Tunnel of a network that can withdraw what it was granted; nil: an object does
// not exist.
type neighbours struct {
	network *v1alpha1.RemoteNetwork // that controls the Tunnel
	egress  *v1alpha1.Tunnel        // of the apiservers of the Cluster
	own     *v1alpha1.Tunnel        // of the Cluster
}

// network reads the RemoteNetwork that controls a Tunnel; nil: there is none, or it is being deleted. A finalizer,
// which the operator of a site may add, keeps nothing served.
func (k *Kube) network(ctx context.Context, tunnel *v1alpha1.Tunnel) (*v1alpha1.RemoteNetwork, error) {
	network, at := &v1alpha1.RemoteNetwork{}, client.ObjectKey{Namespace: tunnel.Namespace, Name: tunnel.Spec.Network}
	if err := k.objects.Get(ctx, at, network); apierrors.IsNotFound(err) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("reading RemoteNetwork %s: %w", at, err)
	}
	if !metav1.IsControlledBy(tunnel, network) || !network.DeletionTimestamp.IsZero() {
		return nil, nil
	}
	return network, nil
}

// beside reads the neighbours of the Tunnel of a network. A Tunnel of another kind has none.
func (k *Kube) beside(
	ctx context.Context, tunnel *v1alpha1.Tunnel, cluster *metav1.PartialObjectMetadata,
) (n neighbours, err error) {
	if tunnel.Spec.Network == "" || cluster == nil {
		return n, nil
	}
	if n.network, err = k.network(ctx, tunnel); err != nil {
		return n, err
	}
	for _, one := range []struct {
		name string
		into **v1alpha1.Tunnel
	}{{decision.EgressTunnel(cluster.Name), &n.egress}, {cluster.Name, &n.own}} {
		found, at := &v1alpha1.Tunnel{}, client.ObjectKey{Namespace: tunnel.Namespace, Name: one.name}
		if err := k.objects.Get(ctx, at, found); err == nil {
			*one.into = found
		} else if !apierrors.IsNotFound(err) {
			return n, fmt.Errorf("reading Tunnel %s: %w", at, err)
		}
	}
	return n, nil
}

// dependents returns the keys of the Tunnels whose translation depends on the objects of a key: the Tunnels of the
// networks of a Cluster depend on that Cluster, on its Tunnel and on that of its apiservers. The latter depends on the
// Cluster, also if there is no network. If it has not been processed yet, its own event follows.
func (k *Kube) dependents(ctx context.Context, key model.Key) (keys []model.Key, err error) {
	for _, cluster := range decision.ClustersOf(key.Name) {
		var list v1alpha1.TunnelList
		err = k.objects.List(
			ctx, &list, client.InNamespace(key.Namespace), client.MatchingFields{servedClusterIndex: cluster},
		)
		if err != nil {
			return nil, fmt.Errorf("listing Tunnels of networks: %w", err)
		}
		for i := range list.Items {
			keys = append(keys, model.Key{Namespace: key.Namespace, Name: list.Items[i].Name})
		}
		egress := model.Key{Namespace: key.Namespace, Name: decision.EgressTunnel(cluster)}
		if _, known := k.records.clusters[egress]; known {
			keys = append(keys, egress)
		}
	}
	return slices.DeleteFunc(keys, func(other model.Key) bool { return other == key }), nil
}

// addNetwork adds what is recorded for a Tunnel of a network or of apiservers, and not withdrawn. The error lists what
// cannot be served.
func addNetwork(
	d model.TunnelDomain, w *model.WorkloadCluster, cluster *metav1.PartialObjectMetadata, tunnel *v1alpha1.Tunnel,
	n neighbours, now time.Time,
) error {
	problems := addLimits(w, tunnel)
	served := tunnel.Status.Served.Network
	switch {
	case tunnel.Spec.EgressOf != "":
		w.Egress = true
		return errors.Join(problems...)
	case served == nil || n.network == nil || served.ClusterName != cluster.Name:
		w.Withheld = true
		return errors.Join(append(problems, errors.New("status.served.network: is not for this network"))...)
	}
	w.Network = &model.Network{
		Name: n.network.Name, Cluster: model.Key{Namespace: tunnel.Namespace, Name: cluster.Name},
		Narrowed: served.Narrowed,
		EgressID: stillHeld(n.egress, served.EgressID, cluster, now), APIServerID: stillHeld(
			n.own, served.APIServerTunnelID, cluster, now,
		),
	}
	problems = append(problems, addAddresses(d, w.Network, served, n.network.Spec)...)
	problems = append(problems, addTargets(d, w.Network, served, n.network.Spec)...)
	for i, address := range served.APIServers {
		endpoint, err := model.ParseEndpoint(address)
		if err != nil {
			problems = append(problems, fmt.Errorf("status.served.network.apiServers[%d]: %w", i, err))
			continue
		}
		w.Network.APIServers = append(w.Network.APIServers, endpoint)
	}
	return errors.Join(problems...)
}

// stillHeld returns a recorded id if its Tunnel still holds it and admits nodes, otherwise an empty string.
func stillHeld(tunnel *v1alpha1.Tunnel, id string, cluster *metav1.PartialObjectMetadata, now time.Time) string {
	if tunnel == nil || tunnel.HeldID() != id || tunnel.Spec.Network != "" || !admits(cluster, tunnel, now) {
		return ""
	}
	return id
}

// addAddresses adds the recorded CIDRs, DNS suffixes and ports that the spec still has. Without a port that both have,
// there are no addresses: an empty list of ports means all.
func addAddresses(
	d model.TunnelDomain, to *model.Network, served *v1alpha1.ServedNetwork, spec v1alpha1.RemoteNetworkSpec,
) (problems []error) {
	ports, ok := commonPorts(served.Ports, spec.Ports)
	if !ok {
		return nil
	}
	to.Ports = ports
	for i, text := range served.CIDRs {
		cidr, err := model.ValidateCIDR(text)
		switch {
		case err != nil:
			problems = append(problems, fmt.Errorf("status.served.network.cidrs[%d]: %w", i, err))
		case contains(spec.CIDRs, cidr):
			to.CIDRs = append(to.CIDRs, cidr)
		}
	}
	for i, suffix := range served.DNSSuffixes {
		if err := d.ValidateSuffix(suffix); err != nil {
			problems = append(problems, fmt.Errorf("status.served.network.dnsSuffixes[%d]: %w", i, err))
		} else if slices.Contains(spec.DNSSuffixes, suffix) {
			to.Suffixes = append(to.Suffixes, suffix)
		}
	}
	return problems
}

// contains reports whether a CIDR is in a list of texts, or part of one that is: a network may be given a wider one.
func contains(all []string, cidr netip.Prefix) bool {
	return slices.ContainsFunc(all, func(text string) bool {
		one, err := model.ValidateCIDR(text)
		return err == nil && one.Bits() <= cidr.Bits() && one.Contains(cidr.Addr())
	})
}

// commonPorts returns the ports that are in both lists, each of which means all ports if it is empty. It returns false
// if there are none.
func commonPorts(recorded, wanted []v1alpha1.NetworkPort) (common []model.PortRange, ok bool) {
	a, b := portRanges(recorded), portRanges(wanted)
	switch {
	case len(recorded) == 0 && len(wanted) == 0:
		return nil, true
	case len(recorded) == 0:
		return b, len(b) > 0
	case len(wanted) == 0:
		return a, len(a) > 0
	}
	for _, x := range a {
		for _, y := range b {
			if both := (model.PortRange{First: max(x.First, y.First), Last: min(x.Last, y.Last)}); both.First <= both.Last {
				common = append(common, both)
			}
		}
	}
	return common, len(common) > 0
}

// portRanges returns the valid ranges.
func portRanges(ports []v1alpha1.NetworkPort) (all []model.PortRange) {
	for _, p := range ports {
		if allowed, ok := decision.PortRange(p); ok {
			all = append(all, allowed)
		}
	}
	return all
}

// addTargets adds the recorded targets that the spec still has with the same address.
func addTargets(
	d model.TunnelDomain, to *model.Network, served *v1alpha1.ServedNetwork, spec v1alpha1.RemoteNetworkSpec,
) (problems []error) {
	wanted := map[string]model.Endpoint{}
	for _, t := range spec.Targets {
		if name, err := d.TargetName(t.Name, to.Name, to.Cluster); err == nil {
			wanted[name] = decision.TargetAddress(t)
		}
	}
	for i, t := range served.Targets {
		address, err := model.ParseEndpoint(t.Address)
		if err != nil {
			problems = append(problems, fmt.Errorf("status.served.network.targets[%d]: %w", i, err))
		} else if wanted[t.Name] == address {
			to.Targets = append(to.Targets, model.Target{Name: t.Name, Address: address})
		}
	}
	return problems
}

// claims returns what only one network of a Cluster may have, in the form of package decision.
func claims(n *model.Network) (all []string) {
	if n == nil {
		return nil
	}
	for _, cidr := range n.CIDRs {
		all = append(all, decision.CIDRClaim(n.Cluster, cidr))
	}
	for _, suffix := range n.Suffixes {
		all = append(all, decision.SuffixClaim(n.Cluster, suffix))
	}
	return all
}

// servedNetwork returns the record of a network without the parts that other networks have too.
func (r *records) servedNetwork(w model.WorkloadCluster, unique func(string) bool) (model.WorkloadCluster, error) {
	n := *w.Network
	n.CIDRs = slices.DeleteFunc(
		slices.Clone(n.CIDRs), func(cidr netip.Prefix) bool { return !unique(decision.CIDRClaim(n.Cluster, cidr)) },
	)
	n.Suffixes = slices.DeleteFunc(
		slices.Clone(n.Suffixes), func(suffix string) bool { return !unique(decision.SuffixClaim(n.Cluster, suffix)) },
	)
	n.Targets = slices.DeleteFunc(slices.Clone(n.Targets), func(t model.Target) bool { return !unique(t.Name) })
	left := len(n.CIDRs) + len(n.Suffixes) + len(n.Targets)
	if left == len(w.Network.CIDRs)+len(w.Network.Suffixes)+len(w.Network.Targets) {
		return w, nil
	}
	shared := r.sharing(w.Key)
	w.Network = &n
	return w, fmt.Errorf("a part of the network is also recorded for another Tunnel: %s", shared)
}
