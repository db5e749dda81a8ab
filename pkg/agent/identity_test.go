package agent

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/freeport"
	"github.com/fairlead/fairlead/pkg/agent/edge"
	"github.com/fairlead/fairlead/pkg/agent/gateway"
	"github.com/fairlead/fairlead/pkg/agent/identity"
	"github.com/fairlead/fairlead/pkg/agent/status"
	"github.com/fairlead/fairlead/pkg/certs"
	enrolclient "github.com/fairlead/fairlead/pkg/enrol/client"
	enrolserver "github.com/fairlead/fairlead/pkg/enrol/server"
	"github.com/fairlead/fairlead/pkg/model"
)

// edgeRole returns the role of an edge with the given token.
func (c *control) edgeRole(token string) *edge.Role {
	return c.edgeWith(func() (edge.Credential, error) { return edge.Credential{Token: token, CA: c.ca.CertPEM()}, nil })
}

func (c *control) edgeWith(credential func() (edge.Credential, error)) *edge.Role {
	return c.edgeIn(c.t.TempDir(), status.New(status.Process), credential)
}

func (c *control) edgeIn(dir string, s *status.Status, credential func() (edge.Credential, error)) *edge.Role {
	c.t.Helper()
	e, err := edge.NewRole(
		edge.Config{Domain: domain, Dialer: way(c.address), Credential: credential}, dir, s, slog.New(slog.DiscardHandler),
	)
	if err != nil {
		c.t.Fatal(err)
	}
	return e
}

func TestHowAnIdentityIsObtained(t *testing.T) {
	hour := time.Hour
	tests := map[string]struct {
		begin, end time.Duration // of the leaf on disk, relative to now; 0: there is none
		down       bool          // the control channel is down
		ended      bool          // the tunnel is recorded as ended
		starts     bool          // the server is starting
		err        error         // of the signer
		badToken   bool
		wantTokens int
		refused    bool
		wantErr    string
	}{
		"nothing on disk: by token":              {wantTokens: 1},
		"a valid leaf: by its key":               {begin: -hour, end: hour},
		"a leaf that expired today: by its key":  {begin: -2 * hour, end: -hour},
		"a leaf that expired long ago: by token": {begin: -100 * hour, end: -50 * hour, wantTokens: 1},
		"a leaf that expired long ago, and an expired token": {
			begin:      -100 * hour,
			end:        -50 * hour,
			badToken:   true,
			wantTokens: 1,
			refused:    true,
			wantErr:    "used up",
		},
		"a valid leaf of a tunnel that has ended: by token": {
			begin:      -hour,
			end:        hour,
			ended:      true,
			wantTokens: 1,
			refused:    true,
			wantErr:    "used up",
		},
		"a valid leaf that the signer denies: the token is kept": {
			begin:   -hour,
			end:     hour,
			err:     enrolserver.ErrDenied,
			refused: true,
			wantErr: "denied",
		},
		"an expired leaf that the signer denies": {
			begin:   -2 * hour,
			end:     -hour,
			err:     enrolserver.ErrDenied,
			refused: true,
			wantErr: "denied",
		},
		"a valid leaf and a server that starts": {
			begin:   -hour,
			end:     hour,
			starts:  true,
			wantErr: "does not know the tunnels yet",
		},
		"an expired leaf and a server that starts": {
			begin:   -2 * hour,
			end:     -hour,
			starts:  true,
			wantErr: "does not know the tunnels yet",
		},
		"a valid leaf and no control channel: the token is kept": {
			begin:   -hour,
			end:     hour,
			down:    true,
			wantErr: "renewing certificate of edge-a",
		},
		"an expired leaf and no control channel": {
			begin:   -2 * hour,
			end:     -hour,
			down:    true,
			wantErr: "connection refused",
		},
		"nothing on disk and an expired token": {
			badToken:   true,
			wantTokens: 1,
			refused:    true,
			wantErr:    "used up",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			c := newControl(t)
			if !tc.down {
				c.serve()
			}
			if tc.ended {
				c.end(edgeSubject.ID)
			}
			c.set(func() { c.starts, c.err = tc.starts, tc.err })
			token := map[bool]string{false: c.token, true: "fl1.over"}[tc.badToken]
			i := testIdentities(t, c.edgeRole(token))
			if tc.end != 0 {
				c.save(i.store, c.identity(edgeSubject, time.Now().Add(tc.begin), time.Now().Add(tc.end)))
			}
			got, bundle, err := i.Renew(t.Context())
			switch {
			case tc.wantErr == "" && (err != nil || string(bundle) != string(c.ca.CertPEM())):
				t.Errorf("got the error %v", err)
			case tc.wantErr == "":
				if subject, err := identity.ParseSubject(domain, got); err != nil || subject.ID != edgeSubject.ID {
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

// TestACredentialMayBeReplacedBetweenTwoRotations: a newer bootstrap file of the same installation is delivered after
// the first rotation, and the agent does not restart.
func TestACredentialMayBeReplacedBetweenTwoRotations(t *testing.T) {
	c := newControl(t) // it is down, so a renewal by key fails, and so would an enrolment
	first, second, third := c.ca.CertPEM(), newControl(t).ca.CertPEM(), newControl(t).ca.CertPEM()
	ca := first
	i := testIdentities(t, c.edgeWith(func() (edge.Credential, error) {
		return edge.Credential{Token: c.token, CA: ca}, nil
	}))
	leaf := c.fresh(edgeSubject)
	c.save(i.store, leaf)
	i.RemoveForeign()
	for _, trusted := range [][]byte{slices.Concat(first, second), third} {
		ca = second
		if err := i.store.Save(leaf, trusted); err != nil {
			t.Fatal(err)
		}
		if _, _, err := i.Renew(t.Context()); err == nil || !strings.Contains(err.Error(), "renewing certificate") {
			t.Errorf("got %v, want an attempt by key", err)
		}
	}
}

func TestNoRenewalChangesTheSubject(t *testing.T) {
	for name, signed := range map[string]model.Subject{
		"another node":   {Role: model.RoleEdge, Node: "edge-b", ID: edgeSubject.ID},
		"another tunnel": {Role: model.RoleEdge, Node: edgeSubject.Node, ID: model.NewID()},
		"another role":   {Role: model.RoleEgress, Node: edgeSubject.Node, ID: edgeSubject.ID},
		"a gateway":      gateway0,
	} {
		t.Run(name, func(t *testing.T) {
			c := newControl(t)
			c.serve()
			i := testIdentities(t, c.edgeRole(c.token))
			c.save(i.store, c.fresh(edgeSubject))
			c.set(func() { c.signs = &signed })
			_, _, err := i.Renew(t.Context())
			if !errors.Is(err, certs.ErrRefused) || !strings.Contains(err.Error(), "were edge-a, edge and") {
				t.Errorf("got %v", err)
			}
			if tokens, _ := c.counts(); tokens != 0 {
				t.Error("it enrolled again")
			}
			c.set(func() { c.signs = nil })
			if _, _, err := i.Renew(t.Context()); err != nil {
				t.Errorf("with its own subject: %v", err)
			}
		})
	}
}

// TestAPodEnrolsWithItsRole: a Pod knows its role, even if it has no bootstrap token that would be compared.
func TestAPodEnrolsWithItsRole(t *testing.T) {
	c := newControl(t)
	c.serve()
	c.set(func() { c.signs = &gateway0 })
	i := testIdentities(t, c.edgeWith(func() (edge.Credential, error) {
		return edge.Credential{PodToken: "a.b.c", CA: c.ca.CertPEM()}, nil
	}))
	if _, _, err := i.Renew(t.Context()); err == nil || !strings.Contains(err.Error(), "has the role gateway") {
		t.Errorf("got %v", err)
	}
}

func TestAForeignIdentityIsRemoved(t *testing.T) {
	tests := map[string]struct {
		in      func(*control) role
		subject model.Subject
		keep    bool
	}{
		"an edge's leaf for an edge": {in: edgeOf(domain), subject: edgeSubject, keep: true},
		"a gateway's leaf for an edge": {
			in:      edgeOf(domain),
			subject: model.Subject{Role: model.RoleGateway, Node: name},
		},
		"a leaf of another domain": {in: edgeOf("tunnels.example.org"), subject: edgeSubject},
		"this gateway's leaf for a gateway": {
			in:      gatewayOf,
			subject: model.Subject{Role: model.RoleGateway, Node: name},
			keep:    true,
		},
		"another gateway's leaf for a gateway": {
			in:      gatewayOf,
			subject: model.Subject{Role: model.RoleGateway, Node: "gateway-1"},
		},
		"an edge's leaf for a gateway":          {in: gatewayOf, subject: edgeSubject},
		"the xds-server's own leaf for an edge": {in: edgeOf(domain), subject: model.ControlSubject()},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			c := newControl(t)
			i := testIdentities(t, tc.in(c))
			c.save(i.store, c.fresh(tc.subject))
			i.RemoveForeign()
			if _, err := i.store.Identity(); (err == nil) != tc.keep {
				t.Errorf("the store says %v; is it kept: want %v", err, tc.keep)
			}
		})
	}
}

func TestAnEdgeWithoutATokenReportsIt(t *testing.T) {
	c := newControl(t)
	_, _, err := testIdentities(t, c.edgeRole("")).Renew(context.Background())
	if err == nil || !strings.Contains(err.Error(), "no bootstrap token") {
		t.Errorf("got %v", err)
	}
}

func TestATokenOfAnotherTunnelIsRejectedAndNotUsedUp(t *testing.T) {
	c := newControl(t)
	c.serve()
	wanted := model.NewID()
	credential := edge.Credential{ID: wanted, Token: c.token, CA: c.ca.CertPEM()}
	e := c.edgeWith(func() (edge.Credential, error) { return credential, nil })
	i := testIdentities(t, e)
	for range 3 {
		_, _, err := i.Renew(t.Context())
		if !errors.Is(err, certs.ErrRefused) || !strings.Contains(err.Error(), wanted) ||
			!strings.Contains(err.Error(), edgeSubject.ID) {
			t.Errorf("got %v", err)
		}
	}
	if tokens, _ := c.counts(); tokens != 1 {
		t.Errorf("the token was shown %d times", tokens)
	}
	credential.Token = c.tunnel("c2", wanted, freeport.Endpoint(t))
	if _, _, err := i.Renew(t.Context()); err != nil {
		t.Errorf("with the right token: %v", err)
	}
}

func edgeOf(d model.TunnelDomain) func(*control) role {
	return func(c *control) role {
		e := c.edgeRole(c.token)
		e.Domain = d
		return e
	}
}

func gatewayOf(c *control) role {
	return &gateway.Role{
		Config: gateway.Config{
			Domain: domain,
			Name:   name,
			Dialer: way(c.address),
			Bind:   c.bind,
			Credential: func() (enrolclient.GatewayCredential, []byte, error) {
				return enrolclient.GatewayCredential{Token: c.token}, c.ca.CertPEM(), nil
			},
		},
	}
}

// renewer is a Renewer with its folder.
type renewer struct {
	*identity.Renewer
	store *certs.Store
	dir   string
}

// testIdentities returns a Renewer in a folder of its own.
func testIdentities(t *testing.T, role role) renewer {
	t.Helper()
	return identitiesIn(t, filepath.Join(t.TempDir(), "state"), role)
}

func identitiesIn(t *testing.T, dir string, role role) renewer {
	t.Helper()
	store, err := certs.OpenStore(dir)
	if err != nil {
		t.Fatal(err)
	}
	return renewer{identity.NewRenewer(role, store, dir, slog.New(slog.DiscardHandler)), store, dir}
}

func (c *control) save(store *certs.Store, identity certs.Identity) {
	c.t.Helper()
	if err := store.Save(identity, c.ca.CertPEM()); err != nil {
		c.t.Fatal(err)
	}
}
