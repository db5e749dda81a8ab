// Package networks says what is wrong with the RemoteNetworks of a Cluster. Its input is RemoteNetworks with their
// Tunnels, an HTTP client of an apiserver, and what edges observe behind their listeners; its output is faults, each
// with the likely cause and the cure. It does not know in which order faults count, nor tunnels and edges of networks,
// which are those of workload clusters: pkg/diagnose/check does.
package networks

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/observed"
)

// Network is a RemoteNetwork and its Tunnel; nil: the Tunnel does not exist.
type Network struct {
	Object *v1alpha1.RemoteNetwork
	Tunnel *v1alpha1.Tunnel
	Edges  []observed.Edge // that are let in, as the xds-servers observe them
}

// Fault is one fault of a network. All texts are for people.
type Fault struct {
	Warning             bool // requests succeed
	Detail, Cause, Cure string
}

func broken(detail, cause, cure string) *Fault {
	return &Fault{Detail: detail, Cause: cause, Cure: cure}
}

func warning(detail, cause, cure string) *Fault {
	return &Fault{Warning: true, Detail: detail, Cause: cause, Cure: cure}
}

// served returns what is granted to the network; nil: nothing.
func (n Network) served() *v1alpha1.ServedNetwork {
	if n.Tunnel == nil || n.Tunnel.Status.Served == nil {
		return nil
	}
	return n.Tunnel.Status.Served.Network
}

// Of returns the index of the network to which gateways route an address: the one with the longest prefix; -1: none.
func Of(address netip.Addr, all []Network) int {
	at, longest := -1, -1
	for i, n := range all {
		if n.served() == nil {
			continue
		}
		for _, text := range n.served().CIDRs {
			if p, err := netip.ParsePrefix(text); err == nil && p.Contains(address) && p.Bits() > longest {
				at, longest = i, p.Bits()
			}
		}
	}
	return at
}

// ofName returns the index of the network to which gateways route a name: the one with the longest suffix; -1: none.
func ofName(name string, all []Network) int {
	at, longest := -1, ""
	for i, n := range all {
		if n.served() == nil {
			continue
		}
		for _, suffix := range n.served().DNSSuffixes {
			if (name == suffix || strings.HasSuffix(name, "."+suffix)) && len(suffix) > len(longest) {
				at, longest = i, suffix
			}
		}
	}
	return at
}

// Judge returns the fault of a RemoteNetwork that is paused or being deleted, or of which the controller serves not
// everything; nil: it has none of these.
func Judge(n *v1alpha1.RemoteNetwork, accepted *metav1.Condition) *Fault {
	_, paused := n.Annotations[clusterv1.PausedAnnotation]
	switch {
	case !n.DeletionTimestamp.IsZero():
		return warning(
			"it was deleted at "+n.DeletionTimestamp.UTC().Format(time.RFC3339)+" and waits for finalizers: "+
				strings.Join(n.Finalizers, ", "),
			"the RemoteNetwork was deleted: it is no longer served, and finalizers keep the object",
			"wait; if the deletion does not end, see the log of the controller of each finalizer",
		)
	case paused:
		return warning(
			"it is paused", "the RemoteNetwork was paused: its tunnel remains as it is, and nothing is repaired",
			fmt.Sprintf(
				"to unpause it: kubectl -n %s annotate remotenetwork %s %s-", n.Namespace, n.Name, clusterv1.PausedAnnotation,
			),
		)
	case accepted != nil && accepted.Status == metav1.ConditionFalse:
		return refused(n, accepted)
	}
	return nil
}

// refused returns the fault of a network that is not served, or only in part. The message of the condition
// names the field and the cure.
func refused(n *v1alpha1.RemoteNetwork, c *metav1.Condition) *Fault {
	detail := "it is not accepted (" + c.Reason + "): " + c.Message
	edit := fmt.Sprintf("kubectl -n %s edit remotenetwork %s", n.Namespace, n.Name)
	switch c.Reason {
	case v1alpha1.ReasonAmbiguousNetwork:
		return broken(
			detail, "two networks of the Cluster have the same CIDR, DNS suffix or target: the older one keeps it",
			"remove it from one of the two RemoteNetworks: "+edit,
		)
	case v1alpha1.ReasonNetworkHasGateway:
		return broken(
			detail, "the CIDR contains a gateway, or the target is one, which edges dial outside of the network",
			"give smaller CIDRs, without the gateway, or remove the target: "+edit,
		)
	case v1alpha1.ReasonNetworkOverlap:
		return broken(
			detail, "a part of the Cluster's Pods or Services would lead into the network by accident",
			"give the whole Pod or Service CIDR, or a CIDR beside it: "+edit,
		)
	case v1alpha1.ReasonNeverDialled:
		return broken(
			detail, "it has only addresses that no edge dials: loopback, link-local, multicast or metadata addresses",
			"remove it: "+edit,
		)
	case v1alpha1.ReasonTooManyNetworks:
		return broken(
			detail, "the Cluster has more RemoteNetworks than are served, and this one is not among the oldest",
			"delete those that are not needed, or give their CIDRs to one whose edges reach them too",
		)
	}
	return broken(detail, "the controller rejects a part of the network", "correct what the message names: "+edit)
}

// Orphans returns the fault of RemoteNetworks that name a Cluster which does not exist; nil: there are none.
func Orphans(cluster client.ObjectKey, names []string) *Fault {
	if len(names) == 0 {
		return nil
	}
	return broken(
		fmt.Sprintf(
			"Cluster %s not found in namespace %s, and spec.clusterName of RemoteNetwork %s names it", cluster.Name,
			cluster.Namespace, strings.Join(names, ", "),
		),
		"the RemoteNetwork names a Cluster that does not exist in its namespace",
		"create the Cluster, or delete the RemoteNetwork and create it with the right spec.clusterName and namespace",
	)
}
