package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	secretv3 "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/freeport"
	"github.com/fairlead/fairlead/pkg/agent/edge"
	"github.com/fairlead/fairlead/pkg/agent/identity"
	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/xdsproxy"
)

// pair is an agent without an Envoy that is an edge of two installations. Its own one is honest.
type pair struct {
	*Agent
	t                   *testing.T
	own, other          *control
	first, second       *membership // of own and other
	otherID, otherToken string
}

func newAgentOfTwo(t *testing.T) *pair {
	t.Helper()
	t.Parallel() // the test mostly waits
	log := slog.New(slog.DiscardHandler)
	p := &pair{t: t, own: newControl(t), other: newControl(t), otherID: model.NewID()}
	p.otherToken = p.other.tunnel("c2", p.otherID, freeport.Endpoint(t))
	p.own.serve()
	p.other.serve()
	p.Agent = &Agent{log: log, sds: identity.NewSecretServer(), figures: newFigures()}
	p.config.StateDir = t.TempDir()
	var err error
	if p.xds, err = xdsproxy.New(filepath.Join(p.config.StateDir, cacheFolder), log); err != nil {
		t.Fatal(err)
	}
	p.first = p.member(p.own, "first", edgeSubject.ID, p.own.token)
	p.second = p.member(p.other, "second", p.otherID, p.otherToken)
	return p
}

func (p *pair) member(c *control, name, id, token string) *membership {
	p.t.Helper()
	m, err := p.newEdge(edge.Config{
		Domain: domain, Dialer: way(c.address),
		Credential: func() (edge.Credential, error) {
			return edge.Credential{Token: token, ID: id, CA: c.ca.CertPEM()}, nil
		},
	}, filepath.Join(p.joinedRoot(), name), p.log)
	if err != nil {
		p.t.Fatal(err)
	}
	return m
}

// run runs a membership until the test ends, or until end is called.
func (p *pair) run(m *membership) (end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = m.run(ctx) }()
	end = func() { cancel(); <-ended }
	p.t.Cleanup(end)
	return end
}

// connected waits until a membership has its configuration stream, and returns its subject.
func (p *pair) connected(m *membership) model.Subject {
	p.t.Helper()
	var subject model.Subject
	envoytest.Eventually(p.t, "the membership is connected", func() (err error) {
		if subject, err = m.current(); err == nil && !p.xds.State(subject.Node).Connected {
			err = fmt.Errorf("%s is not connected: %+v", subject.Node, m.status.State())
		}
		return err
	})
	return subject
}

// troubled waits until a membership reports this trouble.
func (p *pair) troubled(m *membership, with string) {
	p.t.Helper()
	envoytest.Eventually(p.t, "the membership reports "+with, func() error {
		if got := m.status.State().LastError; !strings.Contains(got, with) {
			return errors.New(got)
		}
		return nil
	})
}

// keeps fails unless Envoy has the secrets of the first membership, which is still connected.
func (p *pair) keeps(want model.Subject) {
	p.t.Helper()
	leaf, err := p.first.store.Identity()
	if err != nil {
		p.t.Fatal(err)
	}
	if got := p.secret("identity_" + want.Node).GetTlsCertificate().GetCertificateChain().GetInlineBytes(); !bytes.Equal(
		got, leaf.ChainPEM(),
	) {
		p.t.Errorf("Envoy has another identity:\n%s", got)
	}
	if got := p.secret("trust_" + want.Node).GetValidationContext().GetTrustedCa().GetInlineBytes(); !bytes.Equal(
		got, p.own.ca.CertPEM(),
	) {
		p.t.Errorf("Envoy trusts another CA:\n%s", got)
	}
	if got := p.connected(p.first); got != want {
		p.t.Errorf("it is %+v, want %+v", got, want)
	}
	if got := p.claims.of(p.first.dir); !slices.Equal(got, []string{want.Node}) {
		p.t.Errorf("it has the names %q, want %s", got, want.Node)
	}
}

// secret returns a secret as an Envoy gets it.
func (p *pair) secret(name string) *tlsv3.Secret {
	p.t.Helper()
	server := grpc.NewServer()
	p.sds.Register(p.t.Context(), server)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		p.t.Fatal(err)
	}
	go func() { _ = server.Serve(listener) }()
	defer server.Stop()
	conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		p.t.Fatal(err)
	}
	defer conn.Close()
	stream, err := secretv3.NewSecretDiscoveryServiceClient(conn).StreamSecrets(p.t.Context())
	if err == nil {
		err = stream.Send(&discoveryv3.DiscoveryRequest{
			TypeUrl: resourcev3.SecretType, ResourceNames: []string{name},
		})
	}
	if err != nil {
		p.t.Fatal(err)
	}
	response, err := stream.Recv()
	if err != nil || len(response.GetResources()) != 1 {
		p.t.Fatalf("the secret %s: %v, %v", name, response, err)
	}
	secret := &tlsv3.Secret{}
	if err := response.GetResources()[0].UnmarshalTo(secret); err != nil {
		p.t.Fatal(err)
	}
	return secret
}

// nameOf is a subject of the other installation with the node name of the first membership.
func (p *pair) nameOf(first model.Subject) model.Subject {
	return model.Subject{Role: model.RoleEdge, Node: first.Node, ID: p.otherID}
}

const nameTaken = "another tunnel of this agent has that node name"

func TestAnotherInstallationEnrolsWithANodeNameInUse(t *testing.T) {
	p := newAgentOfTwo(t)
	p.run(p.first)
	first := p.connected(p.first)
	taken := p.nameOf(first)
	p.other.set(func() { p.other.signs = &taken })
	end := p.run(p.second)
	p.troubled(p.second, nameTaken)
	p.keeps(first)
	if leaf, err := identity.ReadLeaf(p.second.dir); err == nil {
		t.Errorf("the certificate of %s was written", leaf.Subject.CommonName)
	}
	end()
	p.other.set(func() { p.other.signs = nil })
	p.run(p.second)
	if second := p.connected(p.second); second.Node == first.Node {
		t.Errorf("both have the node name %s", first.Node)
	}
	p.keeps(first)
}

func TestAnotherInstallationRenewsWithANodeNameInUse(t *testing.T) {
	p := newAgentOfTwo(t)
	p.run(p.first)
	first := p.connected(p.first)
	p.other.set(func() { p.other.life = 3 * time.Second })
	p.run(p.second)
	second := p.connected(p.second)
	taken := p.nameOf(first)
	p.other.set(func() { p.other.signs = &taken })
	p.troubled(p.second, "its node name, role and tunnel are "+first.Node)
	p.keeps(first)
	if got, err := p.second.current(); got != second {
		t.Errorf("the second membership is %+v, %v, want %+v", got, err, second)
	}
	if leaf, err := identity.ReadLeaf(p.second.dir); err != nil || leaf.Subject.CommonName != second.Node {
		t.Errorf("another certificate was written: %v, %v", leaf, err)
	}
}

// TestTwoIdentitiesOnDiskHaveOneNodeName: an earlier version of the agent has written the second one.
func TestTwoIdentitiesOnDiskHaveOneNodeName(t *testing.T) {
	p := newAgentOfTwo(t)
	p.own.save(p.first.store, p.own.fresh(edgeSubject))
	p.other.save(p.second.store, p.other.fresh(p.nameOf(edgeSubject)))
	if first, second := p.first.recover(), p.second.recover(); len(first) != 1 || len(second) != 0 {
		t.Errorf("the upstreams are %v and %v", first, second)
	}
	endFirst := p.run(p.first)
	p.connected(p.first)
	endSecond := p.run(p.second)
	p.troubled(p.second, nameTaken)
	p.keeps(edgeSubject)

	// The second one is left, which takes nothing from the first one.
	endSecond()
	p.leave(&joined{name: "second", member: p.second}, true)
	p.keeps(edgeSubject)

	// The first one is left, so its name is free.
	endFirst()
	p.leave(&joined{name: "first", member: p.first}, true)
	p.second = p.member(p.other, "second", p.otherID, p.otherToken)
	p.other.save(p.second.store, p.other.fresh(p.nameOf(edgeSubject)))
	p.run(p.second)
	p.connected(p.second)
}

func TestClaims(t *testing.T) {
	var c claims
	for _, node := range []string{"a", "b", "c"} {
		if err := c.claim("x", node); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.claim("x", "a"); err != nil {
		t.Errorf("its own name: %v", err)
	}
	for _, err := range []error{c.claim("y", "a"), c.check("y", "b")} {
		if !errors.Is(err, certs.ErrRefused) || !strings.Contains(err.Error(), nameTaken) {
			t.Errorf("a name of another one: %v", err)
		}
	}
	c.release("y", "a") // it is not its name
	c.release("x", "b")
	if got := c.of("x"); !slices.Equal(got, []string{"a", "c"}) {
		t.Errorf("it has %q", got)
	}
	c.keep("y", "")
	c.keep("x", "c")
	if err := errors.Join(c.claim("y", "a"), c.claim("y", "b")); err != nil {
		t.Errorf("released names: %v", err)
	}
	if got := c.of("x"); !slices.Equal(got, []string{"c"}) {
		t.Errorf("it has %q", got)
	}
}
