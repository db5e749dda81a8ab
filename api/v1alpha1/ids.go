package v1alpha1

// HeldID is the id that this Tunnel has: the controller has recorded it as its own, so no other Tunnel has it. It is empty while
// the id is not decided, and where another Tunnel has it. Everything that acts on an id uses this and not spec.id, which says
// only what the Tunnel claims.
func (t *Tunnel) HeldID() string {
	if t.Status.ID != t.Spec.ID {
		return ""
	}
	return t.Spec.ID
}

// ClaimedID is the id that this Tunnel claims: spec.id. It is for the decision whose the id is, for comparisons and for messages.
func (t *Tunnel) ClaimedID() string { return t.Spec.ID }

// ClaimID sets the id that this Tunnel claims.
func (t *Tunnel) ClaimID(id string) { t.Spec.ID = id }
