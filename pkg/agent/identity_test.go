package agent

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/enrol"
	"github.com/fairlead/fairlead/pkg/model"
)

// edge is the role of an edge that has a good token, or the one that is given.
func (c *control) edgeRole(token string) Edge {
	ca := c.ca.CertPEM()
	return Edge{Domain: domain, Gateway: c.address, Credential: func() (EdgeCredential, error) {
		return EdgeCredential{Token: token, CA: ca}, nil
	}}
}

func TestHowAnIdentityIsGot(t *testing.T) {
	hour := time.Hour
	tests := map[string]struct {
		begin, end time.Duration // of the leaf on disk, from now; 0: there is none
		down       bool          // the control channel
		ended      bool          // the tunnel
		starts     bool          // the server
		denied     bool          // by the signer
		badToken   bool
		wantTokens int
		refused    bool
		wantErr    string
	}{
		"nothing on disk: by token":                              {wantTokens: 1},
		"a valid leaf: by its key":                               {begin: -hour, end: hour},
		"a leaf that expired today: by its key":                  {begin: -2 * hour, end: -hour},
		"a leaf that expired long ago: by token":                 {begin: -100 * hour, end: -50 * hour, wantTokens: 1},
		"a leaf that expired long ago, and a token that is over": {begin: -100 * hour, end: -50 * hour, badToken: true, wantTokens: 1, refused: true, wantErr: "used up"},
		"a valid leaf of a tunnel that has ended: by token":      {begin: -hour, end: hour, ended: true, wantTokens: 1},
		"a valid leaf that the signer denies: the token is kept": {begin: -hour, end: hour, denied: true, refused: true, wantErr: "denied"},
		"an expired leaf that the signer denies":                 {begin: -2 * hour, end: -hour, denied: true, refused: true, wantErr: "denied"},
		"a valid leaf and a server that starts":                  {begin: -hour, end: hour, starts: true, wantErr: "does not know the tunnels yet"},
		"an expired leaf and a server that starts":               {begin: -2 * hour, end: -hour, starts: true, wantErr: "does not know the tunnels yet"},
		"a valid leaf and no control channel: the token is kept": {begin: -hour, end: hour, down: true, wantErr: "renewing certificate of edge-a"},
		"an expired leaf and no control channel":                 {begin: -2 * hour, end: -hour, down: true, wantErr: "connection refused"},
		"nothing on disk and a token that is over":               {badToken: true, wantTokens: 1, refused: true, wantErr: "used up"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			c := newControl(t)
			if !tc.down {
				c.serve()
			}
			c.set(func() { c.ended, c.starts = tc.ended, tc.starts })
			if tc.denied {
				c.set(func() { c.err = enrol.ErrDenied })
			}
			i := newIdentities(t, c.edgeRole(c.token))
			if tc.badToken {
				i.role = c.edgeRole("fl1.over")
			}
			if tc.end != 0 {
				c.save(i.store, c.identity(edgeSubject, time.Now().Add(tc.begin), time.Now().Add(tc.end)))
			}
			identity, bundle, err := i.renew(t.Context())
			switch {
			case tc.wantErr == "" && (err != nil || string(bundle) != string(c.ca.CertPEM())):
				t.Errorf("got the error %v", err)
			case tc.wantErr == "":
				if subject, err := parseSubject(domain, identity); err != nil || subject.ID != edgeSubject.ID {
					t.Errorf("got %+v, %v", subject, err)
				}
			case err == nil || !strings.Contains(err.Error(), tc.wantErr) || errors.Is(err, certs.ErrRefused) != tc.refused:
				t.Errorf("got %v, want an error with %q", err, tc.wantErr)
			}
			if tokens, _ := c.counts(); tokens != tc.wantTokens {
				t.Errorf("%d tokens were shown, want %d", tokens, tc.wantTokens)
			}
		})
	}
}

func TestAnIdentityForSomethingElseIsForgotten(t *testing.T) {
	tests := map[string]struct {
		role    func(*control) Role
		subject model.Subject
		keep    bool
	}{
		"an edge's leaf for an edge":            {role: edgeOf(domain), subject: edgeSubject, keep: true},
		"a gateway's leaf for an edge":          {role: edgeOf(domain), subject: model.Subject{Role: model.RoleGateway, Node: name}},
		"a leaf of another domain":              {role: edgeOf("tunnels.example.org"), subject: edgeSubject},
		"this gateway's leaf for a gateway":     {role: gatewayOf, subject: model.Subject{Role: model.RoleGateway, Node: name}, keep: true},
		"another gateway's leaf for a gateway":  {role: gatewayOf, subject: model.Subject{Role: model.RoleGateway, Node: "gateway-1"}},
		"an edge's leaf for a gateway":          {role: gatewayOf, subject: edgeSubject},
		"the xds-server's own leaf for an edge": {role: edgeOf(domain), subject: model.ControlSubject()},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			c := newControl(t)
			i := newIdentities(t, tc.role(c))
			c.save(i.store, c.fresh(tc.subject))
			i.forgetForeign()
			if _, err := i.store.Identity(); (err == nil) != tc.keep {
				t.Errorf("the store says %v; is it kept: want %v", err, tc.keep)
			}
		})
	}
}

func TestAnEdgeWithoutATokenSaysSo(t *testing.T) {
	c := newControl(t)
	_, _, err := newIdentities(t, c.edgeRole("")).renew(context.Background())
	if err == nil || !strings.Contains(err.Error(), "no bootstrap token") {
		t.Errorf("got %v", err)
	}
}

func edgeOf(d model.TunnelDomain) func(*control) Role {
	return func(c *control) Role {
		role := c.edgeRole(c.token)
		role.Domain = d
		return role
	}
}

func gatewayOf(c *control) Role {
	return Gateway{Domain: domain, Name: name, XDSServer: c.address, Bind: c.bind, Credential: func() (enrol.GatewayCredential, []byte, error) {
		return enrol.GatewayCredential{Token: c.token}, c.ca.CertPEM(), nil
	}}
}

func newIdentities(t *testing.T, role Role) *identities {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "state")
	store, err := certs.OpenStore(dir)
	if err != nil {
		t.Fatal(err)
	}
	return &identities{role: role, store: store, log: slog.New(slog.DiscardHandler), enrolledCA: filepath.Join(dir, enrolledCAFile)}
}

func (c *control) save(store *certs.Store, identity certs.Identity) {
	c.t.Helper()
	if err := store.Save(identity, c.ca.CertPEM()); err != nil {
		c.t.Fatal(err)
	}
}
