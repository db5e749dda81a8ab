package edge

import (
	"net"
	"testing"

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
