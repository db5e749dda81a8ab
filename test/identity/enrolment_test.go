package identity

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fairlead/fairlead/api/v1alpha1"
	enrolv1 "github.com/fairlead/fairlead/pkg/enrol/v1"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/outsider"
	"github.com/fairlead/fairlead/test/world"
)

// enrolment proves what a token allows, and what it does not.
func (d *doors) enrolment(t *testing.T) {
	bern, riga := d.Member(t, "bern", nil), d.Member(t, "riga", nil)
	token, other := tokenOf(t, bern), tokenOf(t, riga)
	d.tokens = watchTokens(d.whole, bern)
	stranger := d.Outsider(outsider.Stolen{Roots: d.Roots(t)})
	stranger.Certificate = nil

	that(t, "only the hash of a token is recorded", func(t *testing.T) { d.onlyHash(t, bern, token) })
	that(
		t, "a certificate has only the names that its token allows, whatever the CSR requests",
		func(t *testing.T) { d.greedyCSR(t, stranger, bern, token) },
	)
	that(t, "a token of another workload cluster yields the names of that workload cluster", func(t *testing.T) {
		leaf, err := enrol(t.Context(), stranger, other, csrFor(t, domain.TunnelID(idOf(t, bern))))
		must(t, err)
		checkNames(t, leaf, idOf(t, riga))
	})
	that(
		t,
		"an edge with a token of another workload cluster reports it and carries no traffic",
		func(t *testing.T) {
			mixed := strings.Replace(string(bern.BootstrapFile(t)), tokenOf(t, bern), tokenOf(t, riga), 1)
			edge, err := d.RunEdge(lab.EdgeSpec{Name: "edge-mixed", Bootstraps: [][]byte{[]byte(mixed)}})
			must(t, err)
			eventually(t, d.LogContains("edge-mixed", "to the tunnel"))
			must(t, riga.Unreachable(t.Context()))
			world.StopEdge(t, edge)
		},
	)
	that(t, "an edge's token yields no gateway certificate", func(t *testing.T) { refusedGateway(t, stranger, other) })
	that(
		t, "each use of a token is counted, with its time", func(t *testing.T) { d.counted(t, bern, token, 1) },
	)
	that(
		t, "a token is rejected after its permitted number of uses",
		func(t *testing.T) { d.usedUp(t, stranger, bern, token) },
	)
	that(t, "the controller replaces a token in the bootstrap Secret after half of its uses", func(t *testing.T) {
		if now := tokenOf(t, bern); now == token {
			t.Error("the Secret still has the token that is used up")
		}
	})
	that(t, "an edge with a used-up token reports why it has no certificate", func(t *testing.T) {
		stale := strings.Replace(string(bern.BootstrapFile(t)), tokenOf(t, bern), token, 1)
		edge, err := d.RunEdge(lab.EdgeSpec{Name: "edge-late", Bootstraps: [][]byte{[]byte(stale)}})
		must(t, err)
		eventually(t, d.LogContains("edge-late", "unknown, has expired or is used up"))
		world.StopEdge(t, edge)
	})
	that(t, "the xds-server logs a rejected enrolment with its reason and source address", func(t *testing.T) {
		eventually(t, d.LogContains("xds-server", "unknown, has expired or is used up", d.Network.WorkloadAddress().String()))
	})
	that(
		t, "an address that guesses tokens is rate limited without effect on others", func(t *testing.T) {
			d.guessing(t, riga)
		},
	)
}

// tokenOf returns the current token of a member's bootstrap Secret.
func tokenOf(t *testing.T, m *world.Member) string {
	t.Helper()
	m.BootstrapFile(t) // waits for the Secret
	secret, err := m.Secret(t.Context(), v1alpha1.BootstrapSecretSuffix)
	must(t, err)
	return string(secret.Data[v1alpha1.BootstrapTokenKey])
}

func idOf(t *testing.T, m *world.Member) string {
	t.Helper()
	tunnel, err := m.Tunnel(t.Context())
	must(t, err)
	return tunnel.Spec.ID
}

// enrol exchanges a token for a leaf, like a modified agent.
func enrol(ctx context.Context, who outsider.Outsider, token string, csr []byte) (*x509.Certificate, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	conn, err := who.Control()
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	answer, err := enrolv1.NewEnrolmentClient(conn).
		EnrolEdge(ctx, &enrolv1.EnrolEdgeRequest{Token: token, Csr: csr, Host: "stranger"})
	if err != nil {
		return nil, err
	}
	return parseLeaf(answer.GetChain())
}

func parseLeaf(chain []byte) (*x509.Certificate, error) {
	block, _ := pem.Decode(chain)
	if block == nil {
		return nil, errors.New("the answer holds no certificate")
	}
	return x509.ParseCertificate(block.Bytes)
}

// csrFor returns a request for names, for a CA certificate, and for every other extension.
func csrFor(t *testing.T, names ...string) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject: pkix.Name{
			CommonName:   "gateway-0",
			Organization: []string{"system:masters"},
		}, DNSNames: names, EmailAddresses: []string{"root@example.test"},
		ExtraExtensions: []pkix.Extension{
			{Id: []int{2, 5, 29, 19}, Critical: true, Value: []byte{0x30, 0x03, 0x01, 0x01, 0xff}},
		}, // basic constraints: CA
	}, key)
	must(t, err)
	return csr
}

func (d *doors) onlyHash(t *testing.T, m *world.Member, token string) {
	tunnel, err := m.Tunnel(t.Context())
	must(t, err)
	sum := sha256.Sum256([]byte(token))
	hash := hex.EncodeToString(sum[:])
	found := false
	for _, record := range tunnel.Status.Tokens {
		found = found || record.SHA256 == hash
		if left := time.Until(record.ExpiresAt.Time); left <= 0 || left > tokenLifetime {
			t.Errorf("a token expires in %s", left)
		}
		if record.MaxUses != tokenUses {
			t.Errorf("a token is good for %d uses", record.MaxUses)
		}
	}
	if !found {
		t.Errorf("the hash of the token is not on record: %+v", tunnel.Status.Tokens)
	}
	if strings.Contains(fmt.Sprintf("%+v", tunnel), token) {
		t.Error("the token itself is in the Tunnel")
	}
}

func (d *doors) greedyCSR(t *testing.T, who outsider.Outsider, m *world.Member, token string) {
	leaf, err := enrol(
		t.Context(),
		who,
		token,
		csrFor(
			t, domain.Gateway(), domain.GatewayReplica("gateway-0"), domain.Control(), "kubernetes", world.Hostname("riga"),
		),
	)
	must(t, err)
	checkNames(t, leaf, idOf(t, m))
}

// checkNames fails the test if a leaf contains more than the id of a tunnel and an edge's random node name.
func checkNames(t *testing.T, leaf *x509.Certificate, id string) {
	t.Helper()
	subject, err := domain.ParseSubject(leaf.Subject.CommonName, leaf.DNSNames)
	if err != nil || subject.Role != model.RoleEdge || subject.ID != id || leaf.IsCA || len(leaf.Subject.Names) != 1 ||
		len(leaf.EmailAddresses) > 0 {
		t.Errorf("got %s %v, CA %v (%v); want an edge of %s", leaf.Subject, leaf.DNSNames, leaf.IsCA, err, id)
	}
}

func refusedGateway(t *testing.T, who outsider.Outsider, token string) {
	conn, err := who.Control()
	must(t, err)
	defer func() { _ = conn.Close() }()
	_, err = enrolv1.NewEnrolmentClient(conn).EnrolGateway(t.Context(), &enrolv1.EnrolGatewayRequest{
		Credential: &enrolv1.EnrolGatewayRequest_Token{Token: token}, Csr: csrFor(t), Gateway: "gateway-0",
	})
	if code := status.Code(err); code != codes.PermissionDenied && code != codes.Unauthenticated {
		t.Errorf("the answer is %v, want a refusal", err)
	}
}

// record returns the Tunnel's record of a token.
func record(ctx context.Context, m *world.Member, token string) (v1alpha1.TokenStatus, error) {
	tunnel, err := m.Tunnel(ctx)
	if err != nil {
		return v1alpha1.TokenStatus{}, err
	}
	sum := sha256.Sum256([]byte(token))
	for _, r := range tunnel.Status.Tokens {
		if r.SHA256 == hex.EncodeToString(sum[:]) {
			return r, nil
		}
	}
	return v1alpha1.TokenStatus{}, errors.New("the token is not on record")
}

func (d *doors) counted(t *testing.T, m *world.Member, token string, uses int32) {
	eventually(t, func(ctx context.Context) error {
		r, err := record(ctx, m, token)
		if err != nil {
			return err
		}
		if r.Uses != uses || r.LastUsedAt == nil || time.Since(r.LastUsedAt.Time) > 3*patience {
			return fmt.Errorf("on record are %d uses, the last at %v; want %d", r.Uses, r.LastUsedAt, uses)
		}
		return nil
	})
}

// usedUp uses a token until it has no uses left, each time with a new key, like an attacker that has read the token.
func (d *doors) usedUp(t *testing.T, who outsider.Outsider, m *world.Member, token string) {
	nodes := map[string]bool{}
	for use := range tokenUses - 1 {
		csr := csrFor(t)
		leaf, err := enrol(t.Context(), who, token, csr)
		must(t, err)
		nodes[leaf.Subject.CommonName] = true
		if use == 0 { // a repeated request, as after a lost answer, is the same edge and does not use the token again
			again, err := enrol(t.Context(), who, token, csr)
			must(t, err)
			nodes[again.Subject.CommonName] = true
		}
	}
	if len(nodes) != tokenUses-1 {
		t.Errorf("%d uses gave %d node names", tokenUses-1, len(nodes))
	}
	csr := csrFor(t)
	for range 2 {
		_, err := enrol(t.Context(), who, token, csr)
		if code := status.Code(err); (code != codes.PermissionDenied && code != codes.Unauthenticated) ||
			!strings.Contains(err.Error(), "used up") {
			t.Errorf("one use more is answered with %v, want a refusal with the reason", err)
		}
	}
	_, err := enrol(t.Context(), who, "fl1.never-was-one", csr)
	_, again := enrol(t.Context(), who, token, csr)
	if err == nil || again == nil || err.Error() != again.Error() {
		t.Errorf(
			"an unknown token gets %v, a used-up one %v: the answer reveals whether a token exists", err, again,
		)
	}
}

// guessing tries tokens from its own site until it is rejected for its rate.
func (d *doors) guessing(t *testing.T, riga *world.Member) {
	site, err := d.AddSite(t.Context(), "guesser")
	must(t, err)
	guesser := outsider.Outsider{From: site.Namespace, Domain: domain, Roots: d.Roots(t)}
	csr := csrFor(t)
	for tries := 1; ; tries++ {
		_, err := enrol(t.Context(), guesser, fmt.Sprintf("fl1.%043d", tries), csr)
		if status.Code(err) == codes.ResourceExhausted {
			measured("guesses_until_limited", float64(tries))
			if !strings.Contains(err.Error(), "too many") {
				t.Errorf("the reason is %v", err)
			}
			break
		}
		if tries == 1000 {
			t.Fatalf("after %d tries the answer is still %v", tries, err)
		}
	}
	meanwhile := world.Steal(t, d.Edge(t, lab.EdgeSpec{Name: "edge-riga"}, riga))
	if meanwhile.Subject.ID != idOf(t, riga) {
		t.Errorf("the edge that enrolled meanwhile is of %s", meanwhile.Subject.ID)
	}
	// An edge with a valid token at the same address is admitted, if necessary after a wait.
	neighbour := d.StartEdge(t, lab.EdgeSpec{Name: "edge-neighbour", Site: site.Namespace}, riga)
	measured("limited_edge_joins_s", world.Took(t, 2*patience, neighbour.Ready).Seconds())
	world.StopEdge(t, neighbour)
}
