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
	// controlLeaves is how many leaves the tenant has. One token can be used 32 times.
	controlLeaves = 24
	// controlPatience bounds one call of the victim. A call usually takes milliseconds.
	controlPatience = 5 * time.Second
)

// control attacks the control channel with the leaves and the token of the tenant's own tunnel.
type control struct {
	*installation
	greedy *world.Member
	site   *netns.Site // of the tenant; at the victim's address it would use up a quota that both share
	victim outsider.Outsider
	is     model.Subject
	leaves []leaf
	roots  outsider.Stolen
}

// leaf is an identity of the tenant, which may use it from any address.
type leaf struct {
	outsider.Outsider
	is model.Subject
}

// controlAttacks attacks the control channel: connections, requests, enrolment, renewal.
func controlAttacks(t *testing.T, in *installation) {
	stolen := world.Steal(t, in.edgeVictim)
	c := &control{installation: in, victim: in.Outsider(stolen), is: stolen.Subject, roots: stolen}
	c.greedy, c.site = in.Member(t, "greedy", nil), newSite(t, in, "greedy")
	defer func() { must(t, c.greedy.Delete(context.WithoutCancel(t.Context()))) }()
	c.enrolAll(t)
	attack(t, "a tenant opens as many control connections as possible with 24 leaves",
		"connections per certificate and tunnel id, equal shares (TestATenantThatFillsTheChannelKeepsNoOtherOut)",
		c.connections, nil)
	attack(t, "a tenant requests its configuration repeatedly on 96 ADS streams",
		"four streams per edge, requests per stream and tunnel id, resources of edges built without a lock "+
			"(TestResponsesToAnEdgeAreRateLimited, TestAChangeIsPublishedWhileEdgesWaitForTheirResources)", c.requests, nil)
	attack(t, "a source without a certificate opens a hundred times its permitted connections",
		"connections per address, half reserved for addresses of edges (TestAddressesOfEdgesHaveHalfOfThePlaces)",
		c.anonymousFlood, nil)
	attack(t, "a tenant enrols and renews as often as possible with one token and one leaf",
		"certificates per token, node and tunnel id (TestTheCertificatesOfOneTunnelAreBounded)", c.certificates, nil)
	attack(t, "an edge requests another node's resources, other types and thousands of names",
		"the certificate decides (TestRequestsOfAnEdgeAreNeitherStoredNorLoggedAtLength)", c.claims, nil)
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
		client := c.anonymous()
		client.Certificate = &certificate
		c.leaves = append(c.leaves, leaf{client, is})
	}
}

func (c *control) token(t *testing.T) string {
	t.Helper()
	secret, err := c.greedy.Secret(t.Context(), v1alpha1.BootstrapSecretSuffix)
	must(t, err)
	return string(secret.Data[v1alpha1.BootstrapTokenKey])
}

func (c *control) enrol(ctx context.Context, token string, csr []byte) (*enrolv1.Certificate, error) {
	return with(c.anonymous(), ctx, func(ctx context.Context, conn *grpc.ClientConn) (*enrolv1.Certificate, error) {
		request := &enrolv1.EnrolEdgeRequest{Token: token, Csr: csr, Host: "tenant"}
		return enrolv1.NewEnrolmentClient(conn).EnrolEdge(ctx, request)
	})
}

// anonymous returns an outsider without a certificate.
func (c *control) anonymous() outsider.Outsider {
	return outsider.Outsider{From: c.site.Namespace, Domain: world.Domain, Roots: c.roots.Roots}
}

func renew(ctx context.Context, client outsider.Outsider) error {
	_, err := with(client, ctx, func(ctx context.Context, conn *grpc.ClientConn) (*enrolv1.Certificate, error) {
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
	client outsider.Outsider, ctx context.Context, call func(context.Context, *grpc.ClientConn) (R, error),
) (R, error) {
	ctx, cancel := context.WithTimeout(ctx, controlPatience)
	defer cancel()
	conn, err := client.Control()
	if err != nil {
		var none R
		return none, err
	}
	defer func() { _ = conn.Close() }()
	return call(ctx, conn)
}

// unharmed checks that the victim's edge connects, gets its configuration and renews, each at the first attempt.
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
