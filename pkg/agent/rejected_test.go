package agent

import (
	"testing"
	"time"

	"github.com/fairlead/fairlead/pkg/agent/edge"
	enrolserver "github.com/fairlead/fairlead/pkg/enrol/server"
)

func TestAnIdentityThatWasOverIsAskedForAgain(t *testing.T) {
	c := newControl(t)
	c.serve()
	i := testIdentities(t, c.edgeRole("fl1.over"))
	c.save(i.store, c.fresh(edgeSubject))
	i.reject()
	denied := func(err error) { c.set(func() { c.err = err }) }

	denied(enrolserver.ErrDenied) // it is revoked
	if _, _, err := i.renew(t.Context()); err == nil {
		t.Fatal("it has got an identity")
	}
	if b := i.rejected; b == nil || b.asked != 0 || time.Until(b.next) > reclaims.Min {
		t.Fatalf("it was asked for at once, or never will be: %+v", b)
	}
	i.rejected.next = time.Now()
	if _, _, err := i.renew(t.Context()); err == nil {
		t.Fatal("it has got an identity that is revoked")
	}
	if b := i.rejected; b == nil || b.asked != 1 || !b.next.After(time.Now()) {
		t.Fatalf("it is not asked for again later: %+v", b)
	}

	denied(nil)
	if _, _, err := i.renew(t.Context()); err == nil {
		t.Fatal("it was asked for before its time")
	}
	i.rejected.next = time.Now()
	identity, _, err := i.renew(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if subject, err := parseSubject(domain, identity); err != nil || subject != edgeSubject {
		t.Errorf("it is %+v, %v", subject, err)
	}
	if i.rejected != nil {
		t.Error("it is asked for still")
	}
}

func TestWhatIsNotAskedForAgain(t *testing.T) {
	tests := map[string]struct {
		since time.Duration // that its leaf has ended
		good  bool          // the token
		other bool          // the credential is another tunnel's
	}{
		"what has ended too long ago":     {since: reclaimTime + time.Minute},
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
			i.reject()
			if i.rejected != nil && !tc.good {
				i.rejected.next = time.Now()
			}
			if _, _, err := i.renew(t.Context()); (err == nil) != tc.good {
				t.Errorf("got %v", err)
			}
			if i.rejected != nil {
				t.Error("it is asked for still")
			}
		})
	}
}
