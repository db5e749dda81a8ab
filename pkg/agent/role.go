package agent

import (
	"context"
	"errors"
	"fmt"
	"os"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"

	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/enrol"
	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/model"
)

// EdgeCredential is what an edge enrols with. All of it comes from one Cluster.
type EdgeCredential struct {
	Token string // the bootstrap token
	ID    string // Tunnel.spec.id; empty: not known
	CA    []byte // PEM, of the control channel
}

// Edge is the role in a workload network.
type Edge struct {
	Domain  model.TunnelDomain
	Gateway model.Endpoint // the gateways' public port
	// Credential reads the credential, at each use.
	Credential func() (EdgeCredential, error)
}

// Enrol implements Role.
func (e Edge) Enrol(ctx context.Context) (certs.Identity, []byte, error) {
	credential, err := e.Credential()
	if err != nil {
		return certs.Identity{}, nil, err
	}
	if credential.Token == "" {
		return certs.Identity{}, nil, errors.New("enrolling edge: there is no bootstrap token")
	}
	host, err := os.Hostname()
	if err != nil {
		host = "" // only a label
	}
	return enrol.Client{Address: e.Gateway, Domain: e.Domain, Trust: certs.Bundle(credential.CA)}.EnrolEdge(ctx, credential.Token, host)
}

// Expected implements Role.
func (e Edge) Expected() (id string, ca []byte, err error) {
	credential, err := e.Credential()
	return credential.ID, credential.CA, err
}

// Control implements Role.
func (e Edge) Control() (model.TunnelDomain, model.Endpoint) { return e.Domain, e.Gateway }

// Bootstrap implements Role.
func (e Edge) Bootstrap(subject model.Subject) (*bootstrapv3.Bootstrap, error) {
	if subject.Role != model.RoleEdge {
		return nil, fmt.Errorf("making bootstrap of an edge: the certificate is that of a %s", subject.Role)
	}
	return envoy.EdgeBootstrap(envoy.EdgeConfig{Domain: e.Domain, Node: subject.Node, ID: subject.ID, Gateway: e.Gateway}), nil
}

// Gateway is the role beside the management cluster.
type Gateway struct {
	Domain    model.TunnelDomain
	Name      string // gateway-<i>
	XDSServer model.Endpoint
	Bind      envoy.GatewayBind
	// Credential reads what the gateway enrols with, and the CA (PEM) of the control channel.
	Credential func() (credential enrol.GatewayCredential, ca []byte, err error)
}

// Enrol implements Role.
func (g Gateway) Enrol(ctx context.Context) (certs.Identity, []byte, error) {
	credential, ca, err := g.Credential()
	if err != nil {
		return certs.Identity{}, nil, err
	}
	return enrol.Client{Address: g.XDSServer, Domain: g.Domain, Trust: certs.Bundle(ca)}.EnrolGateway(ctx, g.Name, credential)
}

// Expected implements Role.
func (g Gateway) Expected() (id string, ca []byte, err error) {
	_, ca, err = g.Credential()
	return "", ca, err
}

// Control implements Role.
func (g Gateway) Control() (model.TunnelDomain, model.Endpoint) { return g.Domain, g.XDSServer }

// Bootstrap implements Role.
func (g Gateway) Bootstrap(subject model.Subject) (*bootstrapv3.Bootstrap, error) {
	if subject.Role != model.RoleGateway || subject.Node != g.Name {
		return nil, fmt.Errorf("making bootstrap of %s: the certificate is that of the %s %s", g.Name, subject.Role, subject.Node)
	}
	return envoy.GatewayBootstrap(envoy.GatewayConfig{Domain: g.Domain, Name: g.Name, XDSServer: g.XDSServer, Bind: g.Bind}), nil
}
