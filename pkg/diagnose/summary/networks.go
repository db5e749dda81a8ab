package summary

import (
	"cmp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/fairlead/fairlead/api/v1alpha1"
)

// networks are the RemoteNetworks of a fleet by Cluster, and the Tunnels that belong to them.
type networks struct {
	of      map[types.NamespacedName][]*v1alpha1.RemoteNetwork
	tunnels map[types.NamespacedName]*v1alpha1.Tunnel // of networks and of apiservers
}

func networksOf(in Input) networks {
	n := networks{
		of: map[types.NamespacedName][]*v1alpha1.RemoteNetwork{}, tunnels: map[types.NamespacedName]*v1alpha1.Tunnel{},
	}
	if len(in.Networks) == 0 {
		return n
	}
	for i := range in.Networks {
		one := &in.Networks[i]
		key := types.NamespacedName{Namespace: one.Namespace, Name: one.Spec.ClusterName}
		n.of[key] = append(n.of[key], one)
	}
	for i := range in.Tunnels {
		if t := &in.Tunnels[i]; !t.OfCluster() {
			n.tunnels[types.NamespacedName{Namespace: t.Namespace, Name: t.Name}] = t
		}
	}
	return n
}

func (n networks) has(cluster types.NamespacedName) bool { return len(n.of[cluster]) > 0 }

// tunnelOf returns the Tunnel with a name if it has the use that is expected; nil: there is none.
func (n networks) tunnelOf(namespace, name string, is func(*v1alpha1.Tunnel) bool) *v1alpha1.Tunnel {
	t := n.tunnels[types.NamespacedName{Namespace: namespace, Name: name}]
	if t == nil || !is(t) {
		return nil
	}
	return t
}

// addNetworks adds the rows of the networks and of the apiservers of a Cluster, and their faults to its own. Without a
// network clients still reach the apiserver, so these faults are warnings of the Cluster.
func (r *Row) addNetworks(n networks, in Input, now time.Time) {
	all := n.of[types.NamespacedName{Namespace: r.Namespace, Name: r.Cluster}]
	if len(all) == 0 {
		return
	}
	for _, one := range all {
		of := func(t *v1alpha1.Tunnel) bool { return t.Spec.Network == one.Name }
		t := n.tunnelOf(one.Namespace, one.Name+v1alpha1.NetworkTunnelSuffix, of)
		r.Networks = append(r.Networks, buildNetwork(one, t, in.Live, now))
	}
	slices.SortFunc(r.Networks, func(a, b Row) int { return cmp.Compare(a.Network, b.Network) })
	of := func(t *v1alpha1.Tunnel) bool { return t.Spec.EgressOf == r.Cluster }
	egress := buildEgress(r, n.tunnelOf(r.Namespace, r.Cluster+v1alpha1.EgressTunnelSuffix, of), in.Live, now)
	r.Egress = &egress
	for _, below := range r.Below() {
		if below.Health == OK {
			continue
		}
		first, weight, of := below.Warnings[0], below.Health, "its apiservers"
		if weight == Broken {
			weight = Warning
		}
		if below.Mode == ModeNetwork {
			of = "network " + below.Network
		}
		r.note(weight, first.Reason, first.Since, "%s: %s", of, first.Text)
	}
	r.conclude()
}

// withoutOptIn returns the row of a Cluster that has networks and no tunnel to its apiserver.
func withoutOptIn(c *clusterv1.Cluster) Row {
	r := Row{
		Namespace: c.Namespace, Cluster: c.Name, Created: c.CreationTimestamp.Time, Paused: isPaused(c),
		Deleting: !c.DeletionTimestamp.IsZero(),
	}
	r.conclude()
	return r
}

// withoutCluster returns a row for each Cluster that does not exist although networks name it.
func (n networks) withoutCluster(exists func(types.NamespacedName) bool) (rows []Row) {
	for key := range n.of {
		if !exists(key) {
			r := Row{Namespace: key.Namespace, Cluster: key.Name}
			r.conclude()
			rows = append(rows, r)
		}
	}
	return rows
}

// buildNetwork returns the row of a network; t may be nil.
func buildNetwork(n *v1alpha1.RemoteNetwork, t *v1alpha1.Tunnel, live *Live, now time.Time) Row {
	r := Row{
		Namespace: n.Namespace, Cluster: n.Spec.ClusterName, Network: n.Name, CIDRs: n.Spec.CIDRs, Mode: ModeNetwork,
		Names: n.Status.Targets, Created: n.CreationTimestamp.Time, Conditions: n.Status.Conditions,
		LastChange: lastChange(n.Status.Conditions), Deleting: !n.DeletionTimestamp.IsZero(),
	}
	r.addTunnel(t, live, now)
	if r.Deleting {
		r.note(Warning, ReasonDeleting, time.Time{}, "it is being deleted: it is no longer served, and finalizers keep it")
	}
	if r.judgeAccepted("RemoteNetwork", n, now) {
		r.judgeUse(n.CreationTimestamp.Time, now)
	}
	r.judgeEdges(now)
	r.judgeExpiries(now)
	r.conclude()
	return r
}

// buildEgress returns the row of the apiservers of a Cluster; t may be nil.
func buildEgress(cluster *Row, t *v1alpha1.Tunnel, live *Live, now time.Time) Row {
	r := Row{Namespace: cluster.Namespace, Cluster: cluster.Cluster, Mode: ModeEgress, Created: cluster.Created}
	if t == nil {
		r.note(
			Waiting, v1alpha1.ReasonNoEgress, time.Time{}, "the Tunnel %s%s does not exist yet", r.Cluster,
			v1alpha1.EgressTunnelSuffix,
		)
		r.conclude()
		return r
	}
	r.Created, r.Conditions = t.CreationTimestamp.Time, t.Status.Conditions
	r.LastChange, r.Deleting = lastChange(r.Conditions), !t.DeletionTimestamp.IsZero()
	r.addTunnel(t, live, now)
	if r.judgeAccepted("Tunnel", t, now) {
		r.judgeUse(t.CreationTimestamp.Time, now)
	}
	r.judgeEdges(now)
	r.judgeExpiries(now)
	r.conclude()
	return r
}

// addTunnel adds what the Tunnel of a network or of apiservers has on record; it may be nil.
func (r *Row) addTunnel(t *v1alpha1.Tunnel, live *Live, now time.Time) {
	if t == nil {
		return
	}
	r.ID = t.HeldID()
	r.Paused = meta.IsStatusConditionTrue(t.Status.Conditions, v1alpha1.ConditionPaused)
	r.addEdges(t, live, now)
	r.addExpiries(t, time.Time{})
}

// judgeUse judges the conditions of a network or of apiservers.
func (r *Row) judgeUse(created, now time.Time) {
	fresh := now.Sub(created) < newFor
	for _, kind := range []string{v1alpha1.ConditionAccepted, v1alpha1.ConditionTunnelReady} {
		c := meta.FindStatusCondition(r.Conditions, kind)
		switch {
		case c == nil:
		case c.Status == metav1.ConditionUnknown && now.Sub(created) < controllerTime:
			r.note(Waiting, c.Reason, c.LastTransitionTime.Time, "%s: %s", kind, c.Message)
		case c.Status == metav1.ConditionUnknown:
			r.note(Unknown, c.Reason, c.LastTransitionTime.Time, "%s: %s", kind, c.Message)
		case c.Status == metav1.ConditionTrue && c.Reason == v1alpha1.ReasonPartlyConnected,
			c.Status == metav1.ConditionFalse && v1alpha1.ServedInPart(c.Reason):
			r.note(Warning, c.Reason, c.LastTransitionTime.Time, "%s", c.Message)
		case c.Status == metav1.ConditionTrue:
		case kind == v1alpha1.ConditionAccepted:
			r.note(Broken, c.Reason, c.LastTransitionTime.Time, "%s", c.Message)
			return // the rest follows from it
		case len(r.Edges) == 0 && (fresh || r.Mode == ModeEgress): // not every Cluster needs egress
			r.note(Waiting, c.Reason, c.LastTransitionTime.Time, "%s: %s", c.Message, r.cure())
		default:
			r.note(Broken, c.Reason, c.LastTransitionTime.Time, "%s: %s", c.Message, r.cure())
		}
	}
}

// cure returns what to do when a network has no edge, or no apiserver is connected.
func (r *Row) cure() string {
	switch tunnel := r.Network + v1alpha1.NetworkTunnelSuffix; {
	case r.Mode == ModeEgress && len(r.Edges) == 0:
		return "`fairlead network egress -n " + r.Namespace + " " + r.Cluster + "` prints what they need"
	case r.Mode == ModeEgress:
		return "see the logs of the containers beside the apiservers"
	case len(r.Edges) == 0:
		return "`fairlead network join -n " + r.Namespace + " " + r.Network + "` prints the command that starts an edge"
	default:
		return "see the logs of the edges that `fairlead edge list -n " + r.Namespace + " " + tunnel + "` shows"
	}
}
