package summary

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/diagnose/collect"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/observed"
)

// build returns the row of a Tunnel; cluster may be nil.
func build(cluster *clusterv1.Cluster, t *v1alpha1.Tunnel, in Input, now time.Time) Row {
	r := Row{
		Namespace: t.Namespace, Cluster: t.Name, ID: t.ClaimedID(), Hostname: t.Status.Hostname, Names: t.Status.Names,
		Created: t.CreationTimestamp.Time,
		Mode:    string(cmp.Or(t.Status.Kubeconfig.Mode, t.Spec.Kubeconfig.Mode, v1alpha1.KubeconfigModeAuto)),
		Server:  t.Status.Kubeconfig.Server, ProxyURL: t.Status.Kubeconfig.ProxyURL, Conditions: t.Status.Conditions,
		Paused:   meta.IsStatusConditionTrue(t.Status.Conditions, v1alpha1.ConditionPaused) || isPaused(cluster),
		Deleting: !t.DeletionTimestamp.IsZero() || cluster != nil && !cluster.DeletionTimestamp.IsZero(),
	}
	r.LastChange = lastChange(t.Status.Conditions)
	r.addEdges(t, in.Live, now)
	r.addExpiries(t, in.Kubeconfigs[types.NamespacedName{Namespace: t.Namespace, Name: t.Name}])
	r.judge(cluster, t, now)
	return r
}

func isPaused(c *clusterv1.Cluster) bool {
	if c == nil {
		return false
	}
	_, annotated := c.Annotations[clusterv1.PausedAnnotation]
	return annotated || c.Spec.Paused != nil && *c.Spec.Paused
}

// lastChange returns when the status of one of the conditions changed last.
func lastChange(conditions []metav1.Condition) (last time.Time) {
	for i := range conditions {
		if at := conditions[i].LastTransitionTime.Time; at.After(last) {
			last = at
		}
	}
	return last
}

// addEdges adds the edges and their tunnels.
func (r *Links) addEdges(t *v1alpha1.Tunnel, from *Live, now time.Time) {
	var live []collect.Tunnel
	if from != nil && t.HeldID() != "" {
		live = from.Tunnels[t.HeldID()]
	}
	gateways := map[string]*observed.Gateway{}
	for _, e := range observed.Recorded(t, now) {
		for j := range e.Gateways {
			g := &e.Gateways[j]
			g.RTT = median(live, g.Name, e.Node)
			sum := gateways[g.Name]
			if sum == nil {
				sum = &observed.Gateway{Name: g.Name, RTT: median(live, g.Name, "")}
				gateways[g.Name] = sum
			}
			sum.Tunnels += g.Tunnels
			sum.WorkersWithout += g.WorkersWithout
		}
		r.Tunnels += e.Tunnels()
		if e.HasTunnel() {
			r.Connected++
		}
		if e.LetIn() {
			r.LetIn++
		}
		if from != nil {
			e.Ways = from.Ways[model.EdgeRef{Node: e.Node, ID: t.HeldID()}]
		}
		r.Edges = append(r.Edges, e)
	}
	for _, g := range gateways {
		r.Gateways = append(r.Gateways, *g)
	}
	slices.SortFunc(r.Gateways, func(a, b observed.Gateway) int { return compareNames(a.Name, b.Name) })
	r.RTT = median(live, "", "")
	if from != nil {
		r.Routes = from.routes(r.Gateways)
	}
}

// addExpiries adds the ends of certificates: of the apiserver, the earliest that any edge observes, and of the edges
// that are let in, which are none with a mode without a tunnel.
func (r *Row) addExpiries(t *v1alpha1.Tunnel, kubeconfig time.Time) {
	var server time.Time
	for i := range r.Edges {
		e := &r.Edges[i]
		if e.APIServer != nil {
			server = observed.Sooner(server, e.APIServer.CertificateEnd)
		}
		if !e.Revoked() && t.Spec.Kubeconfig.Mode.Tunnelled() {
			r.Expiries = append(r.Expiries, Expiry{"edge " + e.Node, e.NotAfter})
		}
	}
	if !server.IsZero() {
		r.Expiries = append(r.Expiries, Expiry{"apiserver", server})
	}
	if !kubeconfig.IsZero() {
		r.Expiries = append(r.Expiries, Expiry{"kubeconfig", kubeconfig})
	}
	for _, c := range t.Status.Kubeconfig.Copies {
		if c.CertificateNotAfter != nil {
			// UTC: a local time may be in the year 10000, which JSON cannot encode.
			r.Expiries = append(r.Expiries, Expiry{"copy " + c.Namespace + "/" + c.Name, c.CertificateNotAfter.UTC()})
		}
	}
	slices.SortStableFunc(r.Expiries, func(a, b Expiry) int { return a.NotAfter.Compare(b.NotAfter) })
}

// median returns the median of the known round-trip times of one gateway and node, or of all.
func median(live []collect.Tunnel, gateway, node string) observed.Millis {
	var all []time.Duration
	for _, l := range live {
		if l.RTT > 0 && (gateway == "" || l.Gateway == gateway) && (node == "" || l.Node == node) {
			all = append(all, l.RTT)
		}
	}
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	return observed.Millis(float64(all[(len(all)-1)/2]) / float64(time.Millisecond))
}

// compareNames sorts gateway-2 before gateway-10.
func compareNames(a, b string) int {
	return cmp.Or(
		strings.Compare(strings.TrimRight(a, "0123456789"), strings.TrimRight(b, "0123456789")), cmp.Compare(len(a), len(b)),
		strings.Compare(a, b),
	)
}
