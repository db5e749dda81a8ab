package agent

import (
	"context"
	"errors"
	"time"

	"github.com/fairlead/fairlead/internal/retry"
	"github.com/fairlead/fairlead/pkg/certs"
	enrolclient "github.com/fairlead/fairlead/pkg/enrol/client"
)

// A revocation can be taken back. Nobody tells the edge, and its token may be used up by then: so it asks from time to time
// whether an identity that was over is served again.
var revivals = retry.Backoff{Min: 2 * time.Minute, Max: 20 * time.Minute}

// mourning is how long after the end of its leaf an identity is asked for: nobody renews one that ended longer ago.
const mourning = 90 * 24 * time.Hour

var errNotRevived = errors.New("there is no identity to be asked for again, or not yet")

// buried is an identity that was over.
type buried struct {
	identity certs.Identity
	trust    certs.Bundle
	next     time.Time // when to ask again
	asked    int
}

// bury takes the identity out of the store. It must not be called while renew runs.
func (i *identities) bury() {
	if identity, err := i.store.Identity(); err == nil {
		i.buried = &buried{identity: identity, trust: i.store.Bundle(), next: time.Now().Add(revivals.Wait(0))}
	}
	i.store.Forget()
}

// revive asks for the identity that was buried last, if it is time to.
func (i *identities) revive(ctx context.Context) (certs.Identity, []byte, error) {
	b, now := i.buried, time.Now()
	if b == nil || now.Before(b.next) {
		return certs.Identity{}, nil, errNotRevived
	}
	domain, way := i.role.Control()
	subject, err := parseSubject(domain, b.identity)
	if err == nil {
		err = i.checkCredential(subject)
	}
	if err != nil || now.After(b.identity.NotAfter().Add(mourning)) {
		i.buried = nil // the credential is another Cluster's by now, or it is too late
		return certs.Identity{}, nil, errNotRevived
	}
	b.asked++
	b.next = now.Add(revivals.Wait(b.asked))
	identity, bundle, err := enrolclient.Client{Way: way, Domain: domain, Trust: b.trust}.Renew(ctx, b.identity)
	if err != nil {
		return certs.Identity{}, nil, err
	}
	i.buried = nil
	i.log.Info("the identity that was over is served again", "node", subject.Node)
	return identity, bundle, nil
}
