package decision

import (
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/fairlead/fairlead/pkg/model"
)

// Candidate is what the objects of one workload cluster say, before anything is checked.
type Candidate struct {
	Key        model.Key
	ClusterUID types.UID // of the Cluster; empty: there is none
	Created    time.Time // of the Tunnel
	ID         string
	ExtraNames []string
	// EndpointName is the DNS name of the Cluster's endpoint, to be served like an extra name if nobody else has it; usually empty.
	EndpointName string
	APIServer    model.Endpoint
	Others       []model.Endpoint
	Limits       model.Limits
	Revoked      []string
	Held         []string // the DNS names and the id that are on record as served by it; those it no longer claims don't count
	Prepared     bool     // it waits for its Cluster
	Unserved     bool     // it claims its id alone, and is not to be served
}

// Resolution is what becomes of a Candidate.
type Resolution struct {
	ClusterUID types.UID             // of the Candidate
	HoldsID    bool                  // the id is its own, whether or not anything is served
	Cluster    model.WorkloadCluster // to be served, if Fatal is nil: only with the names that it has a right to; else it is withheld
	Fatal      *model.FieldError     // why nothing can be served
	Refused    []*model.FieldError   // what is left out: extra names, further apiservers, revoked edges
	Affected   []model.Key           // other candidates whose own Resolution may have changed by this one, in order
}

// Resolve checks a candidate, records the names that it claims in place of those that it claimed before, and returns
// what is to be served. A candidate that has no right to its hostname or its id is not served; one that has no right
// to an extra name is served without it, and so is one with a further apiserver or a revoked edge that can be none.
func (n *Names) Resolve(d model.TunnelDomain, c Candidate) Resolution {
	w := model.WorkloadCluster{Key: c.Key, ID: c.ID, APIServer: c.APIServer, Prepared: c.Prepared}
	var badOthers, badRevoked, badLimits []*model.FieldError
	w.Revoked, badRevoked = model.ValidateRevoked(c.Revoked)
	w.Limits, badLimits = model.ValidateLimits(c.Limits)
	if c.Unserved {
		return n.withhold(d, c, Resolution{Cluster: w, Refused: badRevoked})
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
	if model.ValidateDNSName(c.EndpointName) == nil && !d.Contains(c.EndpointName) && !slices.Contains(good, c.EndpointName) {
		claimed = append(slices.Clone(good), c.EndpointName)
	}
	id := d.TunnelID(c.ID)
	base := slices.Compact([]string{hostname, id}) // in a namespace of the name id they may be one
	owner, affected := n.claim(claimant{key: c.Key, created: c.Created, base: base, extra: claimed, held: held(d, c)})
	r := Resolution{
		ClusterUID: c.ClusterUID, Cluster: w, HoldsID: owner[id] == c.Key, Affected: affected,
		Refused: slices.Concat(bad, badOthers, badRevoked, badLimits),
	}
	switch {
	case owner[hostname] != c.Key:
		r.Fatal = taken("metadata.name", c.Key.Name, fmt.Sprintf("gives the tunnel hostname %s", hostname), owner[hostname], "rename one of the two Clusters")
	case owner[id] != c.Key:
		r.Fatal = taken("spec.id", c.ID, "", owner[id], "delete this Tunnel and let the controller choose another id")
	}
	if r.Fatal != nil {
		r.Cluster = withheld(w)
		return r
	}
	for i, name := range c.ExtraNames {
		switch holder, claimed := owner[name]; {
		case !claimed || slices.Contains(r.Cluster.ExtraNames, name):
		case holder == c.Key:
			r.Cluster.ExtraNames = append(r.Cluster.ExtraNames, name)
		default:
			r.Refused = append(r.Refused, taken(model.ExtraNameField(i), name, "", holder, "remove it from one of the two"))
		}
	}
	// Nobody has asked for this one by name, so it is not refused: without it another mode is chosen.
	if len(claimed) > len(good) && owner[c.EndpointName] == c.Key {
		r.Cluster.ExtraNames = append(r.Cluster.ExtraNames, c.EndpointName)
	}
	return r
}

// Decide is Resolve for a caller that is going to record the result: the names that the candidate keeps are held by it from now on.
func (n *Names) Decide(d model.TunnelDomain, c Candidate) Resolution {
	r := n.Resolve(d, c)
	n.grant(c.Key)
	return r
}

// withhold completes the resolution of a candidate of which nothing is served. It keeps its id all the same: edges have certificates for
// it, and a mistake in another field does not give the id to another Tunnel.
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

// withheld is a workload cluster that is not served. What it revokes stays revoked: a stolen certificate does not become
// good again by a mistake in another field.
func withheld(w model.WorkloadCluster) model.WorkloadCluster {
	w.Withheld, w.Prepared = true, false
	return w
}

// held are the names, as they are claimed, that a candidate is on record for.
func held(d model.TunnelDomain, c Candidate) map[string]bool {
	all := make(map[string]bool, len(c.Held))
	for _, name := range c.Held {
		if name == c.ID { // a DNS name has a dot, and an id has none
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
	return &model.FieldError{Field: field, Value: value, Problem: problem, Cure: cure, Taken: true}
}

// asFieldError unwraps the errors of this package, which all are of that type where a field is at fault.
func asFieldError(err error) *model.FieldError {
	if fe, ok := err.(*model.FieldError); ok { //nolint:errorlint // built in this package, never wrapped
		return fe
	}
	return &model.FieldError{Field: "spec", Problem: err.Error(), Cure: "correct it"}
}
