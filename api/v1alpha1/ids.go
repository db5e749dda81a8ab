package v1alpha1

// HeldID returns the id that this Tunnel holds: the controller has recorded it in the status, so no other Tunnel holds
// it. It returns "" while the id is not decided, and if another Tunnel holds it. Code that acts on an id must use
// HeldID and not spec.id, which is only a claim.
func (t *Tunnel) HeldID() string {
	if t.Status.ID != t.Spec.ID {
		return ""
	}
	return t.Spec.ID
}

// ClaimedID returns the id that this Tunnel claims: spec.id. It is for deciding which Tunnel holds an id, for
// comparisons and for messages.
func (t *Tunnel) ClaimedID() string { return t.Spec.ID }

// ClaimID sets the id that this Tunnel claims.
func (t *Tunnel) ClaimID(id string) { t.Spec.ID = id }

// OfCluster reports whether this is the Tunnel of the Cluster with its name: neither that of a RemoteNetwork nor that
// of the apiservers of a Cluster.
func (t *Tunnel) OfCluster() bool { return t.Spec.Network == "" && t.Spec.EgressOf == "" }

// ClusterName returns the name of the Cluster that this Tunnel is for, in the same namespace. It returns "" for the
// Tunnel of a network whose decision is not on record.
func (t *Tunnel) ClusterName() string {
	switch {
	case t.OfCluster():
		return t.Name
	case t.Spec.EgressOf != "":
		return t.Spec.EgressOf
	case t.Status.Served != nil && t.Status.Served.Network != nil:
		return t.Status.Served.Network.ClusterName
	}
	return ""
}
