package security

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/certs"
	enrolv1 "github.com/fairlead/fairlead/pkg/enrol/v1"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/test/lab/netns"
	"github.com/fairlead/fairlead/test/outsider"
	"github.com/fairlead/fairlead/test/world"
)

const (
	// controlLeaves is how many leaves the tenant has: one token is good for 32.
	controlLeaves = 24
	// controlPatience bounds one call of the victim. A call usually takes milliseconds.
	controlPatience = 5 * time.Second
)

// control attacks the control channel with the leaves and the token of a tunnel of its own.
type control struct {
	*installation
	greedy *world.Member
	site   *netns.Site // of the tenant: behind the victim's address it would use up a quota that both share
	victim outsider.Outsider
	is     model.Subject
	leaves []leaf
	roots  outsider.Stolen
}

// leaf is an identity of the tenant, which may use it from anywhere.
type leaf struct {
	outsider.Outsider
	is model.Subject
}

// controlAttacks is the area of the control channel: connections, requests, enrolment, renewal.
func controlAttacks(t *testing.T, in *installation) {
	stolen := world.Steal(t, in.edgeVictim)
	c := &control{installation: in, victim: in.Outsider(stolen), is: stolen.Subject, roots: stolen}
	c.greedy, c.site = in.Member(t, "greedy", nil), newSite(t, in, "greedy")
	defer func() { must(t, c.greedy.Delete(context.WithoutCancel(t.Context()))) }()
	c.enrolAll(t)
	attack(t, "a tenant opens as many control connections as it can with 24 leaves",
		"connections per certificate and tunnel id, equal shares (TestATenantThatFillsTheChannelKeepsNoOtherOut)",
		c.connections, nil)
	attack(t, "a tenant asks for its configuration again and again on 96 ADS streams",
		"four streams per edge, requests per stream and tunnel id, nothing built under a lock "+
			"(TestAnEdgeIsSentNoMoreThanItsRate, TestAChangeIsPublishedWhileEdgesWaitForTheirResources)", c.requests, nil)
	attack(t, "a source without a certificate opens a hundred times the connections that it may have",
		"connections per address, half reserved for addresses of edges (TestAddressesOfEdgesHaveHalfOfThePlaces)",
		c.strangers, nil)
	attack(t, "a tenant enrols and renews as often as it can with one token and one leaf",
		"certificates per token, node and tunnel id (TestTheCertificatesOfOneTunnelAreBounded)", c.certificates, nil)
	attack(t, "an edge's leaf names another node, other types, and thousands of names",
		"the certificate decides (TestWhatAnEdgeSaysIsNeitherKeptNorQuotedAtLength)", c.claims, nil)
}

// enrolAll enrols the tenant's leaves.
func (c *control) enrolAll(t *testing.T) {
	t.Helper()
	c.greedy.BootstrapFile(t) // waits for the token
	token := c.token(t)
	for range controlLeaves {
		key, err := certs.NewKey()
		must(t, err)
		der, err := certs.NewCSR(key)
		must(t, err)
		answer, err := c.enrol(t.Context(), token, der)
		must(t, err)
		identity, err := certs.NewIdentity(answer.GetChain(), key)
		must(t, err)
		is, err := world.Domain.ParseSubject(identity.Leaf().Subject.CommonName, identity.Leaf().DNSNames)
		must(t, err)
		certificate := identity.TLSCertificate()
		who := c.stranger()
		who.Certificate = &certificate
		c.leaves = append(c.leaves, leaf{who, is})
	}
}

func (c *control) token(t *testing.T) string {
	t.Helper()
	secret, err := c.greedy.Secret(t.Context(), v1alpha1.BootstrapSecretSuffix)
	must(t, err)
	return string(secret.Data[v1alpha1.BootstrapTokenKey])
}

func (c *control) enrol(ctx context.Context, token string, csr []byte) (*enrolv1.Certificate, error) {
	return with(c.stranger(), ctx, func(ctx context.Context, conn *grpc.ClientConn) (*enrolv1.Certificate, error) {
		request := &enrolv1.EnrolEdgeRequest{Token: token, Csr: csr, Host: "tenant"}
		return enrolv1.NewEnrolmentClient(conn).EnrolEdge(ctx, request)
	})
}

// stranger shows no certificate.
func (c *control) stranger() outsider.Outsider {
	return outsider.Outsider{From: c.site.Namespace, Domain: world.Domain, Roots: c.roots.Roots}
}

func renew(ctx context.Context, who outsider.Outsider) error {
	_, err := with(who, ctx, func(ctx context.Context, conn *grpc.ClientConn) (*enrolv1.Certificate, error) {
		key, err := certs.NewKey()
		if err != nil {
			return nil, err
		}
		der, err := certs.NewCSR(key)
		if err != nil {
			return nil, err
		}
		return enrolv1.NewEnrolmentClient(conn).Renew(ctx, &enrolv1.RenewRequest{Csr: der})
	})
	return err
}

// with makes one call on a new connection.
func with[R any](
	who outsider.Outsider, ctx context.Context, call func(context.Context, *grpc.ClientConn) (R, error),
) (R, error) {
	ctx, cancel := context.WithTimeout(ctx, controlPatience)
	defer cancel()
	conn, err := who.Control()
	if err != nil {
		var none R
		return none, err
	}
	defer func() { _ = conn.Close() }()
	return call(ctx, conn)
}

// unharmed checks that the victim's edge connects, gets its configuration and renews, each at the first try.
func (c *control) unharmed(t *testing.T) {
	t.Helper()
	for range 4 {
		begin := time.Now()
		if names, err := c.victim.Fetch(t.Context(), c.is.NodeID()); err != nil || len(names) == 0 {
			t.Errorf("the victim's edge gets %q, %v", names, err)
		}
		measured("control_victim_fetch_s", time.Since(begin).Seconds())
	}
	if err := renew(t.Context(), c.victim); err != nil {
		t.Errorf("the victim's edge renews: %v", err)
	}
	must(t, c.installation.victim.Works(t.Context()))
}
