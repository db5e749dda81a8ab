package agent

import (
	"testing"
	"time"

	"github.com/fairlead/fairlead/pkg/agent/edge"
	"github.com/fairlead/fairlead/pkg/agent/identity"
	"github.com/fairlead/fairlead/pkg/certs"
	enrolserver "github.com/fairlead/fairlead/pkg/enrol/server"
)

func TestARejectedIdentityIsRequestedAgain(t *testing.T) {
	c := newControl(t)
	c.serve()
	i := testIdentities(t, c.edgeRole("fl1.over"))
	now := time.Now()
	i.Now = func() time.Time { return now }
	c.save(i.store, c.fresh(edgeSubject))
	i.Reject()
	denied := func(err error) { c.set(func() { c.err = err }) }
	renews := func(wantConnections int) (certs.Identity, error) {
		t.Helper()
		before := c.connected()
		got, _, err := i.Renew(t.Context())
		if n := c.connected() - before; n != wantConnections {
			t.Fatalf("it made %d connections, want %d", n, wantConnections)
		}
		return got, err
	}
	const byToken, byKey = 1, 1

	denied(enrolserver.ErrDenied) // it is revoked
	if _, err := renews(byToken); err == nil {
		t.Fatal("it has got an identity")
	}
	now = now.Add(2 * time.Minute) // the first wait at most
	if _, err := renews(byKey + byToken); err == nil {
		t.Fatal("it has got an identity that is revoked")
	}
	denied(nil)
	if _, err := renews(byToken); err == nil {
		t.Fatal("it has got an identity before its time")
	}
	now = now.Add(20 * time.Minute) // the longest wait
	got, err := renews(byKey)
	if err != nil {
		t.Fatal(err)
	}
	if subject, err := identity.ParseSubject(domain, got); err != nil || subject != edgeSubject {
		t.Errorf("it is %+v, %v", subject, err)
	}
	now = now.Add(time.Hour)
	if _, err := renews(byToken); err == nil { // it is no longer requested
		t.Error("it has got another identity")
	}
}

func TestWhichIdentitiesAreNotRequestedAgain(t *testing.T) {
	tests := map[string]struct {
		since time.Duration // since the end of its leaf
		good  bool          // the token is valid
		other bool          // the credential belongs to another tunnel
	}{
		"what has ended too long ago":     {since: 90*24*time.Hour + time.Minute},
		"what another one came in for":    {since: -time.Hour, good: true},
		"what the credential is not for":  {since: -time.Hour, other: true},
		"what was never there to be over": {},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			c := newControl(t)
			c.serve()
			role := c.edgeRole(map[bool]string{true: c.token, false: "fl1.over"}[tc.good])
			if tc.other {
				role = c.edgeWith(func() (edge.Credential, error) {
					return edge.Credential{Token: "fl1.over", ID: "bbbbbbbbbbbbbbbbbbbbbbbb", CA: c.ca.CertPEM()}, nil
				})
			}
			i := testIdentities(t, role)
			if tc.since != 0 {
				end := time.Now().Add(-tc.since)
				c.save(i.store, c.identity(edgeSubject, end.Add(-2*time.Hour), end))
			}
			i.Reject()
			later := 20 * time.Minute
			if tc.good {
				later = 0 // before the rejected identity is requested
			}
			for range 2 {
				now := time.Now().Add(later)
				i.Now = func() time.Time { return now }
				if _, _, err := i.Renew(t.Context()); (err == nil) != tc.good {
					t.Errorf("got %v", err)
				}
				later = time.Hour
			}
			if byToken, _ := c.counts(); byToken != 2 || c.connected() != 2 {
				t.Errorf("there were %d connections, %d of them by token; want 2 by token", c.connected(), byToken)
			}
		})
	}
}
