package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/enrol"
	"github.com/fairlead/fairlead/pkg/model"
)

// identities decides how the next identity is got: by the key of the current one, or by the role's credential.
type identities struct {
	role  Role
	store *certs.Store
	log   *slog.Logger
}

// forgetForeign drops an identity that is not for this role and domain: the folder served another purpose before.
func (i *identities) forgetForeign() {
	current, err := i.store.Identity()
	if err != nil {
		return
	}
	domain, _ := i.role.Control()
	subject, err := parseSubject(domain, current)
	if err == nil {
		_, err = i.role.Bootstrap(subject)
	}
	if err != nil {
		i.log.Warn("the certificate in the state folder is not for this agent, enrolling anew", "error", err)
		i.store.Forget()
	}
}

// renew is one attempt at a new identity. An expired leaf is tried too, because the server renews by key for some time
// after the end. To enrol anew is the last resort: it makes this machine another node, which cuts the tunnels that it
// has, and it takes a credential that may be used up by now, or is then for the others. No error that may pass is a
// reason, a refusal neither: see beyondRenewal.
func (i *identities) renew(ctx context.Context) (certs.Identity, []byte, error) {
	current, err := i.store.Identity()
	if err != nil {
		return i.role.Enrol(ctx)
	}
	domain, address := i.role.Control()
	client := enrol.Client{Address: address, Domain: domain, Trust: i.store}
	identity, bundle, renewErr := client.Renew(ctx, current)
	if renewErr == nil || !beyondRenewal(renewErr, time.Now().After(current.NotAfter())) {
		return identity, bundle, renewErr
	}
	identity, bundle, err = i.role.Enrol(ctx)
	if err != nil {
		return certs.Identity{}, nil, fmt.Errorf("%w (before that: %v)", err, renewErr) //nolint:errorlint // the last way decides how soon to try again
	}
	return identity, bundle, nil
}

// beyondRenewal says whether an error of enrol.Client.Renew means that the leaf will never be renewed. Of one that it does
// not take any more a server says so only by ending the connection, which means nothing before the leaf has expired.
func beyondRenewal(err error, expired bool) bool {
	return errors.Is(err, enrol.ErrNotRenewable) || (expired && errors.Is(err, enrol.ErrNoAnswer))
}

func parseSubject(domain model.TunnelDomain, identity certs.Identity) (model.Subject, error) {
	return domain.ParseSubject(identity.Leaf().Subject.CommonName, identity.Leaf().DNSNames)
}
