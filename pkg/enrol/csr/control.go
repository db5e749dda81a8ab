package csr

import (
	"context"
	"errors"

	"github.com/fairlead/fairlead/pkg/certs"
	enrolserver "github.com/fairlead/fairlead/pkg/enrol/server"
	"github.com/fairlead/fairlead/pkg/model"
)

// Control returns a Renew function for certs.Rotation with which the xds-server renews its own identity: a new key, a
// leaf from the issuer, and the current trust bundle. It returns an error while the trust bundle is unknown.
func Control(issuer enrolserver.Issuer, bundle func() []byte) func(context.Context) (certs.Identity, []byte, error) {
	return func(ctx context.Context) (certs.Identity, []byte, error) {
		trust := bundle()
		if len(trust) == 0 {
			return certs.Identity{}, nil, errors.New("the trust bundle is not available yet")
		}
		key, err := certs.NewKey()
		if err != nil {
			return certs.Identity{}, nil, err
		}
		csr, err := certs.NewCSR(key)
		if err != nil {
			return certs.Identity{}, nil, err
		}
		chain, err := issuer.Issue(ctx, enrolserver.IssueRequest{Subject: model.ControlSubject(), CSR: csr})
		if err != nil {
			return certs.Identity{}, nil, err
		}
		identity, err := certs.NewIdentity(chain, key)
		return identity, trust, err
	}
}
