package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/fairlead/fairlead/internal/disk"
	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/dial"
	enrolclient "github.com/fairlead/fairlead/pkg/enrol/client"
	"github.com/fairlead/fairlead/pkg/model"
)

// enrolledCAFile holds the CA of the credential that the identity belongs to.
const enrolledCAFile = "enrolled-ca.pem"

// credentialRole is what identities need to know of an edge or a gateway.
type credentialRole interface {
	// enrol tries once to get a first identity, and the trust bundle (PEM) to go with it. It reads its credential anew at
	// each call, because somebody may have replaced it. An error that wraps certs.ErrRefused is the server's last word.
	Enrol(ctx context.Context) (certs.Identity, []byte, error)
	// cure is what a person can do when enrolment is refused.
	Cure() string
	// expected is what the credential is for now: the id of a tunnel, empty if it does not say, and the CA (PEM) of the
	// control channel. It is read anew at each call.
	Expected() (id string, ca []byte, err error)
	// control is the domain whose names the control channel has, and the way there.
	Control() (model.TunnelDomain, *dial.Way)
	// owns returns an error for a subject that is not of this role.
	Owns(subject model.Subject) error
}

// identities decides how the next identity is got: by the key of the current one, or by the role's credential.
type identities struct {
	role  credentialRole
	store *certs.Store
	log   *slog.Logger

	enrolledCA string // path of enrolledCAFile

	rejected *rejected // nil: none
}

// newIdentities returns those of the role whose identity is in a folder.
func newIdentities(role credentialRole, store *certs.Store, dir string, log *slog.Logger) *identities {
	return &identities{role: role, store: store, log: log, enrolledCA: filepath.Join(dir, enrolledCAFile)}
}

// forgetForeign drops an identity that is not for this role, domain and credential: the folder served another purpose
// before, or the machine was given another Cluster's credential.
func (i *identities) forgetForeign() {
	current, err := i.store.Identity()
	if err != nil {
		return
	}
	domain, _ := i.role.Control()
	subject, err := parseSubject(domain, current)
	if err == nil {
		err = i.role.Owns(subject)
	}
	if err == nil {
		err = i.checkCredential(subject)
	}
	if err != nil {
		i.log.Warn("the certificate in the state folder is not for this agent, enrolling anew", "error", err)
		i.store.Forget()
		return
	}
	i.rememberCA()
}

// checkCredential returns an error if the identity in the store is another tunnel's or another installation's than the
// credential. Where the credential can't be read, or does not say, the identity stays: it does without.
func (i *identities) checkCredential(subject model.Subject) error {
	id, ca, err := i.role.Expected()
	if err != nil {
		return nil //nolint:nilerr // enrolling says it, once that is needed
	}
	if id != "" && id != subject.ID {
		return fmt.Errorf("it is of the tunnel %s, the credential of %s", subject.ID, id)
	}
	// That the CA beside the credential did not sign the identity means nothing by itself: CAs are rotated, and the
	// credential stays on the machine as it was. Nor does the bundle in the store tell, which always fits its identity. So
	// only a CA that was changed since the identity was got counts, and only if the store trusts none of it: a newer
	// credential of the same installation has a CA that the store has too. Without the record nothing was changed.
	recorded, err := os.ReadFile(i.enrolledCA)
	if err != nil || bytes.Equal(recorded, ca) {
		return nil //nolint:nilerr // as above
	}
	if _, err := certs.Bundle(ca).Roots(); err != nil || i.store.Bundle().Overlaps(ca) {
		return nil //nolint:nilerr // a CA that can't be read is no reason to give up one that works
	}
	return errors.New("it is of another CA than the credential")
}

// rememberCA records the CA that the identity belongs to. Without the record a CA that changes is noticed later: when the
// leaf has expired.
func (i *identities) rememberCA() {
	_, ca, err := i.role.Expected()
	if err != nil {
		return
	}
	if recorded, err := os.ReadFile(i.enrolledCA); err == nil && bytes.Equal(recorded, ca) {
		return
	}
	if err := disk.Replace(i.enrolledCA, ca); err != nil {
		i.log.Warn("CA of the credential not recorded", "error", err)
	}
}

// enrol gets an identity by the credential. It uses none of that up for an identity that could not be kept.
func (i *identities) enrol(ctx context.Context) (certs.Identity, []byte, error) {
	if err := i.store.Probe(); err != nil {
		return certs.Identity{}, nil, err
	}
	identity, bundle, err := i.role.Enrol(ctx)
	if errors.Is(err, certs.ErrRefused) {
		return certs.Identity{}, nil, fmt.Errorf("%w: %s", err, i.role.Cure())
	}
	if err == nil {
		i.rejected = nil
		i.rememberCA()
	}
	return identity, bundle, err
}

// renew is one attempt at a new identity. An expired leaf is tried too, because the server renews by key for some time
// after the end. To enrol anew is the last resort: it makes this machine another node, which cuts the tunnels that it
// has, and it takes a credential that may be used up by now, or is then for the others. No error that may pass is a
// reason, a refusal neither: only that this leaf will never be renewed.
func (i *identities) renew(ctx context.Context) (certs.Identity, []byte, error) {
	current, err := i.store.Identity()
	if err != nil {
		if identity, bundle, err := i.reclaim(ctx); err == nil {
			return identity, bundle, nil
		}
		return i.enrol(ctx)
	}
	domain, way := i.role.Control()
	if subject, err := parseSubject(domain, current); err == nil && i.checkCredential(subject) != nil {
		i.log.Warn("the credential is not that of the certificate any more, enrolling anew", "node", subject.Node)
		return i.enrol(ctx)
	}
	client := enrolclient.Client{Way: way, Domain: domain, Trust: i.store}
	identity, bundle, renewErr := client.Renew(ctx, current)
	if renewErr == nil || !errors.Is(renewErr, enrolclient.ErrNotRenewable) {
		return identity, bundle, renewErr
	}
	identity, bundle, err = i.enrol(ctx)
	if err != nil {
		return certs.Identity{}, nil, fmt.Errorf("%w (before that: %v)", err, renewErr) //nolint:errorlint // the last way decides how soon to try again
	}
	return identity, bundle, nil
}

// parseSubject is the subject of an identity of an installation.
func parseSubject(domain model.TunnelDomain, identity certs.Identity) (model.Subject, error) {
	return domain.ParseSubject(identity.Leaf().Subject.CommonName, identity.Leaf().DNSNames)
}
