package identity

import (
	"context"
	"errors"
	"time"

	"github.com/fairlead/fairlead/internal/retry"
	"github.com/fairlead/fairlead/pkg/certs"
	enrolclient "github.com/fairlead/fairlead/pkg/enrol/client"
)

// reclaims are the waits between attempts to use a rejected identity again, because a revocation can be reverted. The
// edge is not notified of that, and its token may be exhausted by then.
var reclaims = retry.Backoff{Min: 2 * time.Minute, Max: 20 * time.Minute}

// reclaimTime is how long after the end of its leaf an identity is requested again: the server does not renew a leaf
// that ended longer ago.
const reclaimTime = 90 * 24 * time.Hour

var errNotReclaimed = errors.New("no rejected identity to reclaim, or not yet")

// rejected is an identity that the xds-server no longer serves.
type rejected struct {
	identity certs.Identity
	trust    certs.Bundle
	next     time.Time // time of the next attempt
	asked    int
}

// Reject removes the identity from the store, because the xds-server no longer serves it. Renew requests it again
// later, because a revocation can be reverted. Reject must not be called while Renew runs.
func (i *Renewer) Reject() {
	if identity, err := i.store.Identity(); err == nil {
		i.rejected = &rejected{identity: identity, trust: i.store.Bundle(), next: i.Now().Add(reclaims.Wait(0))}
	}
	i.store.Clear()
}

// reclaim requests the last rejected identity again, if its next attempt is due.
func (i *Renewer) reclaim(ctx context.Context) (certs.Identity, []byte, error) {
	b, now := i.rejected, i.Now()
	if b == nil || now.Before(b.next) {
		return certs.Identity{}, nil, errNotReclaimed
	}
	domain, dialer := i.role.Control()
	subject, err := ParseSubject(domain, b.identity)
	if err == nil {
		err = i.checkCredential(subject)
	}
	if err != nil || now.After(b.identity.NotAfter().Add(reclaimTime)) {
		i.rejected = nil // the credential is now another Cluster's, or it is too late
		return certs.Identity{}, nil, errNotReclaimed
	}
	b.asked++
	b.next = now.Add(reclaims.Wait(b.asked))
	identity, bundle, err := enrolclient.Client{Dialer: dialer, Domain: domain, Trust: b.trust}.Renew(ctx, b.identity)
	if err != nil {
		return certs.Identity{}, nil, err
	}
	i.rejected = nil
	i.log.Info("rejected identity is served again", "node", subject.Node)
	return identity, bundle, nil
}
