package edge

import (
	"net"
	"testing"
	"time"

	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/model"
)

const domain model.TunnelDomain = "tunnels.example.com"

const name = "gateway-0"

var edgeSubject = model.Subject{Role: model.RoleEdge, Node: "edge-a", ID: model.NewID()}

func endpoint(t *testing.T, addr net.Addr) model.Endpoint {
	t.Helper()
	e, err := model.ParseEndpoint(addr.String())
	if err != nil {
		t.Fatal(err)
	}
	return e
}

var time0 = time.Now().Add(-time.Minute)

const life = time.Hour

// identityOf returns an identity that a CA has issued.
func identityOf(t *testing.T, ca *certs.CA, s model.Subject) certs.Identity {
	t.Helper()
	key, err := certs.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	chain, err := ca.Issue(key.Public(), certs.Leaf{
		CommonName: s.Node, DNSNames: domain.DNSNames(s), Client: true, NotBefore: time0, NotAfter: time0.Add(life),
	})
	if err != nil {
		t.Fatal(err)
	}
	identity, err := certs.NewIdentity(chain, key)
	if err != nil {
		t.Fatal(err)
	}
	return identity
}
