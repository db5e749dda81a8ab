package decision

import (
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/fairlead/fairlead/pkg/model"
)

// Candidate is the unvalidated input from the objects of one workload cluster.
type Candidate struct {
	Key        model.Key
	ClusterUID types.UID // of the Cluster; empty if there is none
	Created    time.Time // creation time of the Tunnel
	ID         string
	ExtraNames []string
	// EndpointName is the DNS name of the Cluster's endpoint, to be served like an extra name if no other Tunnel has
	// it. Usually empty.
	EndpointName string
	APIServer    model.Endpoint
	Others       []model.Endpoint
	Limits       model.Limits
	Revoked      []string
	Held         []string // recorded DNS names and id; unclaimed ones are only reserved
	Prepared     bool     // waits for its Cluster
	Unserved     bool     // claims only its id, and must not be served
	// Network is set for the Tunnel of a RemoteNetwork. It has no ExtraNames, EndpointName, APIServer and Others.
	Network *NetworkFacts
	// Egress is true for the Tunnel of the apiservers of a Cluster, which claims only its id.
	Egress bool
}

// Resolution is the decision about a Candidate.
type Resolution struct {
	ClusterUID types.UID             // of the Candidate
	HoldsID    bool                  // the candidate holds its id, whether or not anything is served
	Cluster    model.WorkloadCluster // what to serve, with only the names that it holds; withheld if Fatal is set
	Fatal      *model.FieldError     // why nothing can be served
	Refused    []*model.FieldError   // what is left out: extra names, further apiservers, revoked edges, limits
	Affected   []model.Key           // other candidates whose Resolution may have changed, in order
}

// Resolve validates a candidate, replaces its earlier claims by its current ones, and returns what to serve. A
// candidate that does not hold its hostname and its id is not served. An extra name that it does not hold is left out,
// and so is an invalid limit, further apiserver or revoked edge.
func (n *Names) Resolve(d model.TunnelDomain, c Candidate) Resolution {
	w := model.WorkloadCluster{Key: c.Key, ID: c.ID, APIServer: c.APIServer, Prepared: c.Prepared}
	var badOthers, badRevoked, badLimits []*model.FieldError
	w.Revoked, badRevoked = model.ValidateRevoked(c.Revoked)
	w.Limits, badLimits = model.ValidateLimits(c.Limits)
	switch {
	case c.Unserved:
		return n.withhold(d, c, Resolution{Cluster: w, Refused: badRevoked})
	case c.Network != nil || c.Egress:
		return n.resolveNetwork(d, c, Resolution{
			ClusterUID: c.ClusterUID, Cluster: w, Refused: slices.Concat(badRevoked, badLimits),
		})
	}
	hostname, err := d.Hostname(c.Key)
	if err != nil {
		return n.withhold(d, c, Resolution{Cluster: w, Fatal: asFieldError(err), Refused: badRevoked})
	}
	w.Hostname = hostname
	if err := w.Validate(); err != nil {
		return n.withhold(d, c, Resolution{Cluster: w, Fatal: asFieldError(err), Refused: badRevoked})
	}
	w.Others, badOthers = model.ValidateOthers(c.Others)
	good, bad := d.ValidateExtraNames(c.ExtraNames)
	claimed := good
	if model.ValidateDNSName(c.EndpointName) == nil && !d.Contains(c.EndpointName) &&
		!slices.Contains(good, c.EndpointName) {
		claimed = append(slices.Clone(good), c.EndpointName)
	}
	id := d.TunnelID(c.ID)
	base := slices.Compact([]string{hostname, id}) // in a namespace named "id" they may be equal
	owner, affected := n.claim(claimant{key: c.Key, created: c.Created, base: base, extra: claimed, held: held(d, c)})
	r := Resolution{
		ClusterUID: c.ClusterUID, Cluster: w, HoldsID: owner[id] == c.Key, Affected: affected,
		Refused: slices.Concat(bad, badOthers, badRevoked, badLimits),
	}
	switch {
	case owner[hostname] != c.Key:
		r.Fatal = taken(
			"metadata.name", c.Key.Name, fmt.Sprintf("gives the tunnel hostname %s", hostname), owner[hostname],
			"rename one of the two Clusters",
		)
	case owner[id] != c.Key:
		r.Fatal = taken("spec.id", c.ID, "", owner[id], "delete this Tunnel and let the controller choose another id")
	}
	if r.Fatal != nil {
		r.Cluster = withheld(w)
		return r
	}
	r.addNames(c, owner)
	// The user did not ask for this name, so it is not reported as rejected: without it mode auto chooses another
	// mode.
	if len(claimed) > len(good) && owner[c.EndpointName] == c.Key {
		r.Cluster.ExtraNames = append(r.Cluster.ExtraNames, c.EndpointName)
	}
	return r
}

// addNames adds the extra names that the candidate holds to what is served, and the names that others hold to what is
// refused. owner maps each valid name to its holder.
func (r *Resolution) addNames(c Candidate, owner map[string]model.Key) {
	for i, name := range c.ExtraNames {
		switch holder, claimed := owner[name]; {
		case !claimed || slices.Contains(r.Cluster.ExtraNames, name):
		case holder == c.Key:
			r.Cluster.ExtraNames = append(r.Cluster.ExtraNames, name)
		default:
			r.Refused = append(r.Refused, taken(model.ExtraNameField(i), name, "", holder, "remove it from one of the two"))
		}
	}
}

// Decide is like Resolve, for a caller that records the result: from now on the candidate holds the names that it
// owns.
func (n *Names) Decide(d model.TunnelDomain, c Candidate) Resolution {
	r := n.Resolve(d, c)
	n.grant(c.Key)
	return r
}

// withhold completes the resolution of a candidate that is not served. The candidate keeps its id: edges have
// certificates for it, and an error in another field must not give the id to another Tunnel.
func (n *Names) withhold(d model.TunnelDomain, c Candidate, r Resolution) Resolution {
	r.Cluster = withheld(r.Cluster)
	if model.ValidateID(c.ID) != nil {
		r.Affected = n.Release(c.Key)
		return r
	}
	id := d.TunnelID(c.ID)
	owner, affected := n.claim(claimant{key: c.Key, created: c.Created, base: []string{id}, held: held(d, c)})
	r.HoldsID, r.Affected = owner[id] == c.Key, affected
	return r
}

// withheld returns w marked as not served. Its revoked edges stay revoked: an error in another field must not make a
// stolen certificate valid again.
func withheld(w model.WorkloadCluster) model.WorkloadCluster {
	w.Withheld, w.Prepared = true, false
	return w
}

// held returns the names, in the form of claims, that a candidate is on record for.
func held(d model.TunnelDomain, c Candidate) map[string]bool {
	all := make(map[string]bool, len(c.Held))
	for _, name := range c.Held {
		if name == c.ID { // a DNS name contains a dot, an id does not
			name = d.TunnelID(c.ID)
		}
		all[name] = true
	}
	return all
}

func taken(field, value, what string, by model.Key, cure string) *model.FieldError {
	problem := fmt.Sprintf("which the Tunnel %s has", by)
	if what != "" {
		problem = what + ", " + problem
	} else {
		problem = "is a name " + problem
	}
	return &model.FieldError{Field: field, Value: value, Problem: problem, Cure: cure, Kind: model.Taken}
}

// asFieldError converts an error of this package. Every error about a field is a *model.FieldError already.
func asFieldError(err error) *model.FieldError {
	if fe, ok := err.(*model.FieldError); ok { //nolint:errorlint // built in this package, never wrapped
		return fe
	}
	return &model.FieldError{Field: "spec", Problem: err.Error(), Cure: "correct it"}
}
