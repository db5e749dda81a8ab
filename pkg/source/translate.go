package source

import (
	"errors"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/model"
)

// translation is the translation of the objects of one workload cluster.
type translation struct {
	cluster  model.WorkloadCluster
	admitted bool          // its edges are admitted, regardless of the record of ended tunnels
	expires  time.Duration // when it must be translated again, because it depends on the time; zero: never
	problem  error         // why the record is not fully served
}

// translate returns what the controller has granted to a Tunnel, as recorded in its status. What the spec requests and
// the record lacks is not granted. What the spec, the Cluster or the clock withdraws is withdrawn immediately: a
// revoked edge, an extra name, a mode without a tunnel, a Cluster that does not exist or has another UID, the end of
// the time for which a Tunnel waits.
func translate(
	d model.TunnelDomain, cluster *metav1.PartialObjectMetadata, tunnel *v1alpha1.Tunnel, beside neighbours, now time.Time,
) translation {
	key := model.Key{Namespace: tunnel.Namespace, Name: tunnel.Name}
	w := model.WorkloadCluster{Key: key, ID: tunnel.HeldID(), Withheld: true}
	if w.ID == "" {
		return translation{cluster: w} // the id may be another Tunnel's, so nothing of this Tunnel applies
	}
	revoked, _ := model.ValidateRevoked(tunnel.Spec.RevokedEdges)
	w.Revoked, w.Recorded = recordedLast(revoked, tunnel.Status.Edges)
	served := tunnel.Status.Served
	if served == nil || !admits(cluster, tunnel, now) {
		return translation{cluster: w}
	}
	t := translation{cluster: w}
	if until, waits := tunnel.PreparedUntil(); waits {
		t.expires = until.Sub(now)
	}
	if !tunnel.OfCluster() {
		t.cluster.Withheld = false
		if served.EnrolmentOnly {
			t.cluster.Prepared, t.cluster.Egress = true, tunnel.Spec.EgressOf != ""
			if !t.cluster.Egress {
				t.cluster.Network = &model.Network{Name: tunnel.Spec.Network} // it has no name of its own
			}
			return t
		}
		t.admitted = tunnel.DeletionTimestamp.IsZero()
		t.problem = addNetwork(d, &t.cluster, cluster, tunnel, beside, now)
		return t
	}
	w.Hostname, w.Prepared, w.Withheld = tunnel.Status.Hostname, served.EnrolmentOnly, false
	if !w.Prepared {
		t.problem = addServed(d, &w, tunnel)
		t.admitted = tunnel.DeletionTimestamp.IsZero()
	}
	if err := validate(d, w); err != nil {
		t.problem, t.admitted = errors.Join(t.problem, err), false
		return t
	}
	t.cluster = w
	return t
}

// recordedLast returns the revoked edges in their order, but those that the status has after the others, which may be
// names that no edge has had. recorded is how many the status has.
func recordedLast(revoked []string, edges []v1alpha1.EdgeStatus) (all []string, recorded int) {
	if len(revoked) == 0 {
		return nil, 0
	}
	enrolled := map[string]bool{}
	for i := range edges {
		enrolled[edges[i].NodeID] = true
	}
	var last []string
	first := slices.DeleteFunc(revoked, func(node string) bool {
		if !enrolled[model.NodeID(node)] {
			return false
		}
		last = append(last, node)
		return true
	})
	return append(first, last...), len(last)
}

// admits reports whether edges of a Tunnel may enrol, according to its Cluster, its spec and the clock: the Tunnel
// belongs to the existing Cluster, or waits for one. Pausing or deleting either object changes nothing until it no
// longer exists.
func admits(cluster *metav1.PartialObjectMetadata, tunnel *v1alpha1.Tunnel, now time.Time) bool {
	served := tunnel.Status.Served
	switch {
	case tunnel.HeldID() == "" || !tunnel.Spec.Kubeconfig.Mode.Tunnelled():
		return false
	case cluster != nil && (tunnel.Spec.Network != "" || metav1.IsControlledBy(tunnel, cluster)):
		// What was granted for an earlier Cluster does not apply.
		return served == nil || served.EnrolmentOnly || served.ClusterUID == cluster.UID
	}
	return served != nil && served.EnrolmentOnly && tunnel.Prepared(now)
}

// addServed adds what is recorded and still wanted. The error lists what cannot be served.
func addServed(d model.TunnelDomain, w *model.WorkloadCluster, tunnel *v1alpha1.Tunnel) error {
	var problems []error
	granted := slices.DeleteFunc(slices.Clone(tunnel.Status.Names), func(name string) bool {
		wanted := slices.Contains(tunnel.Spec.ExtraNames, name) || name == tunnel.Status.Kubeconfig.EndpointName
		return name == w.Hostname || !wanted
	})
	good, bad := d.ValidateExtraNames(granted)
	for _, err := range bad {
		problems = append(problems, fmt.Errorf("status.names: %q: %s", err.Value, err.Problem))
	}
	w.ExtraNames = good
	for i, address := range tunnel.Status.Served.APIServers {
		endpoint, err := model.ParseEndpoint(address)
		switch {
		case err != nil:
			problems = append(problems, fmt.Errorf("status.served.apiServers[%d]: %w", i, err))
		case w.APIServer == model.Endpoint{}:
			w.APIServer = endpoint
		default:
			w.Others = append(w.Others, endpoint)
		}
	}
	return errors.Join(append(problems, addLimits(w, tunnel)...)...)
}

// addLimits adds the recorded limits. The errors list what cannot be served.
func addLimits(w *model.WorkloadCluster, tunnel *v1alpha1.Tunnel) (problems []error) {
	limits := tunnel.Status.Served.Limits
	var badLimits []*model.FieldError
	w.Limits, badLimits = model.ValidateLimits(model.Limits{
		Connections: limits.Connections, Pending: limits.PendingConnections, Bandwidth: limits.Bandwidth,
	})
	for _, err := range badLimits {
		problems = append(problems, fmt.Errorf("status.served.limits: %q: %s", err.Value, err.Problem))
	}
	return problems
}

// validate returns why a workload cluster cannot be served at all. It checks each name and address of the record,
// because a controller of another installation or version may have written it.
func validate(d model.TunnelDomain, w model.WorkloadCluster) error {
	if own, err := d.Hostname(w.Key); err != nil || w.Hostname != own {
		return fmt.Errorf("status.hostname: %q is not the hostname of %s below the tunnel domain %s: "+
			"run controller and xds-server with the same --tunnel-domain", w.Hostname, w.Key, d)
	}
	if w.Prepared {
		return nil // it has no apiserver yet
	}
	return w.Validate()
}
