// Package identity obtains and keeps the identity of one enrolment of an agent: its key, its certificate and the CAs
// that it trusts. Input: a role with a credential, and a state folder. Output: the next identity, obtained with the
// key of the current one or, as a last resort, with the credential. It also serves identities to Envoy by SDS. It does
// not know what an identity is used for, nor how the xds-server decides.
package identity

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/fairlead/fairlead/internal/disk"
	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/dial"
	enrolclient "github.com/fairlead/fairlead/pkg/enrol/client"
	"github.com/fairlead/fairlead/pkg/model"
)

// enrolledCAFile holds the CA of the credential that the identity belongs to.
const enrolledCAFile = "enrolled-ca.pem"

// Role is what differs between the enrolment of an edge and that of a gateway.
type Role interface {
	// Enrol tries once to get a first identity and its trust bundle (PEM). It reads the credential at each call, because
	// the file may have been replaced. An error that wraps certs.ErrRefused is final for this credential.
	Enrol(ctx context.Context) (certs.Identity, []byte, error)
	// Cure returns what an operator can do if enrolment is rejected.
	Cure() string
	// Expected returns the id of the tunnel that the credential is for, empty if it has none, and the CA (PEM) of the
	// control channel. It reads the credential at each call.
	Expected() (id string, ca []byte, err error)
	// Control returns the domain of the control channel's names, and how to dial it.
	Control() (model.TunnelDomain, *dial.Dialer)
	// Owns returns an error for a subject that is not of this role.
	Owns(subject model.Subject) error
}

// Renewer decides how the next identity is obtained: by the key of the current one, or by the credential of the role.
type Renewer struct {
	Now   func() time.Time          // the clock; time.Now by default
	Admit func(model.Subject) error // returns why a new subject may not be used; nil: each may

	role  Role
	store *certs.Store
	log   *slog.Logger

	enrolledCA string // path of enrolledCAFile
	unrecorded []byte // CA of the credential of an identity that is not on disk yet; empty: none

	rejected *rejected // nil: none
}

// NewRenewer returns a Renewer for the role whose identity is in dir. Its methods must not be called concurrently.
func NewRenewer(role Role, store *certs.Store, dir string, log *slog.Logger) *Renewer {
	return &Renewer{role: role, store: store, log: log, Now: time.Now, enrolledCA: filepath.Join(dir, enrolledCAFile)}
}

// RemoveForeign removes an identity of another role, domain or credential from the store: the folder served another
// purpose before, or the machine received the credential of another Cluster.
func (i *Renewer) RemoveForeign() {
	current, err := i.store.Identity()
	if err != nil {
		return
	}
	domain, _ := i.role.Control()
	subject, err := ParseSubject(domain, current)
	if err == nil {
		err = i.role.Owns(subject)
	}
	if err == nil {
		err = i.checkCredential(subject)
	}
	if err != nil {
		i.log.Warn("certificate in the state folder is not for this agent, enrolling again", "error", err)
		i.store.Clear()
		return
	}
	i.rememberCA()
}

// checkCredential returns an error if the identity in the store belongs to another tunnel or installation than the
// credential. If the credential can't be read, or does not name them, it returns nil: the identity works without it.
func (i *Renewer) checkCredential(subject model.Subject) error {
	id, ca, err := i.role.Expected()
	if err != nil {
		return nil //nolint:nilerr // enrolling reports it when the credential is needed
	}
	if id != "" && id != subject.ID {
		return fmt.Errorf("it belongs to the tunnel %s, the credential to %s", subject.ID, id)
	}
	// That the CA beside the credential did not sign the identity proves nothing: CAs are rotated, and the credential
	// on the machine stays the same. The bundle in the store always fits its identity. So only a CA that was changed
	// after the identity was obtained counts, and only if the store trusts none of it: a newer credential of the same
	// installation has a CA that the store trusts too. Without the record, nothing was changed.
	recorded, err := os.ReadFile(i.enrolledCA)
	if err != nil || bytes.Equal(recorded, ca) {
		return nil //nolint:nilerr // as above
	}
	if _, err := certs.Bundle(ca).Roots(); err != nil || i.store.Bundle().Overlaps(ca) {
		return nil //nolint:nilerr // a CA that can't be read is no reason to give up one that works
	}
	return errors.New("another CA than that of the credential issued it")
}

// rememberCA records the CA of the identity's credential. Without the record, a changed CA is noticed only when the
// leaf has expired.
func (i *Renewer) rememberCA() {
	_, ca, err := i.role.Expected()
	if err != nil {
		return
	}
	i.recordCA(ca)
}

func (i *Renewer) recordCA(ca []byte) {
	if recorded, err := os.ReadFile(i.enrolledCA); err == nil && bytes.Equal(recorded, ca) {
		return
	}
	if err := disk.Replace(i.enrolledCA, ca); err != nil {
		i.log.Warn("cannot persist CA of the credential", "error", err)
	}
}

// Written must be called when the identity that Renew has returned is on disk.
func (i *Renewer) Written() {
	if len(i.unrecorded) > 0 {
		i.recordCA(i.unrecorded)
		i.unrecorded = nil
	}
}

// enrol obtains an identity with the credential. It does not use the credential if the store cannot be written. It does
// not record the CA: an agent that ends before the identity is on disk starts with the old one, and must notice that
// its CA is another one.
func (i *Renewer) enrol(ctx context.Context) (certs.Identity, []byte, error) {
	if err := i.store.Probe(); err != nil {
		return certs.Identity{}, nil, err
	}
	_, ca, _ := i.role.Expected() // before: if the credential is replaced meanwhile, the record is outdated, not too new
	identity, bundle, err := i.role.Enrol(ctx)
	if errors.Is(err, certs.ErrRefused) {
		return certs.Identity{}, nil, fmt.Errorf("%w: %s", err, i.role.Cure())
	}
	if err == nil {
		err = i.admit(identity)
	}
	if err != nil {
		return certs.Identity{}, nil, err
	}
	i.rejected, i.unrecorded = nil, ca
	return identity, bundle, nil
}

// admit returns an error for a new identity that is not of this role, or that Admit rejects. The xds-server may be of
// another installation than those of the agent's other identities, and chooses the names.
func (i *Renewer) admit(identity certs.Identity) error {
	domain, _ := i.role.Control()
	subject, err := ParseSubject(domain, identity)
	if err == nil {
		err = i.role.Owns(subject)
	}
	if err == nil && i.Admit != nil {
		err = i.Admit(subject)
	}
	return err
}

// Renew makes one attempt to obtain a new identity. It also tries to renew an expired leaf, because the server renews
// by key for some time after the end. To enrol again is the last resort: it makes this machine another node, which
// closes its tunnels, and it uses up a credential that may be exhausted or needed by other edges. A temporary error or
// a rejection is not a reason for it; it is done only if this leaf can never be renewed.
func (i *Renewer) Renew(ctx context.Context) (certs.Identity, []byte, error) {
	current, err := i.store.Identity()
	if err != nil {
		if identity, bundle, err := i.reclaim(ctx); err == nil {
			return identity, bundle, nil
		}
		return i.enrol(ctx)
	}
	domain, dialer := i.role.Control()
	if subject, err := ParseSubject(domain, current); err == nil {
		if i.checkCredential(subject) != nil {
			i.log.Warn("credential does not match the certificate, enrolling again", "node", subject.Node)
			return i.enrol(ctx)
		}
		// The credential may have been replaced by a newer one of this installation. After the next rotation the bundle
		// in the store may no longer show that.
		if len(i.unrecorded) == 0 {
			i.rememberCA()
		}
	}
	client := enrolclient.Client{Dialer: dialer, Domain: domain, Trust: i.store}
	identity, bundle, renewErr := client.Renew(ctx, current)
	if renewErr == nil || !errors.Is(renewErr, enrolclient.ErrNotRenewable) {
		return identity, bundle, renewErr
	}
	identity, bundle, err = i.enrol(ctx)
	if err != nil {
		//nolint:errorlint // the last way decides how soon to try again
		return certs.Identity{}, nil, fmt.Errorf("%w (before that: %v)", err, renewErr)
	}
	return identity, bundle, nil
}

// ParseSubject returns the subject of an identity of an installation.
func ParseSubject(domain model.TunnelDomain, identity certs.Identity) (model.Subject, error) {
	return domain.ParseSubject(identity.Leaf().Subject.CommonName, identity.Leaf().DNSNames)
}
