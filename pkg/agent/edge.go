package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/dial"
	"github.com/fairlead/fairlead/pkg/enrol"
	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/envoy/policy"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/report"
)

// EdgeCredential is what an edge enrols with. All of it comes from one Cluster.
type EdgeCredential struct {
	Token string // the bootstrap token
	ID    string // Tunnel.spec.id; empty: not known
	CA    []byte // PEM, of the control channel
}

// Edge is one enrolment in a workload network: this machine as an edge of one Cluster.
type Edge struct {
	Domain model.TunnelDomain
	Way    *dial.Way // to the gateways' public port, behind which the control channel is
	// Gateways are what Envoy dials instead of the address that the installation gives to all edges; empty: that one. Where
	// a proxy is in the way Envoy dials the agent, whatever is here.
	Gateways   []model.Endpoint
	APIServers []model.Endpoint // dialled before those that the Tunnel names
	// Targets are the only apiservers that Envoy may dial, beside APIServers; empty: what the Tunnel names.
	Targets []model.Endpoint
	// Credential reads the credential, at each use.
	Credential func() (EdgeCredential, error)
}

// edgeRole is an Edge at work.
type edgeRole struct {
	Edge
	log     *slog.Logger
	dial    envoy.EdgeDial // as announced
	near    nearness
	targets targets
	sight   *sight // of the apiservers
	status  *status

	foreign foreignToken
	asking  enrol.Asking // of enrol, which one loop calls
}

// enrol implements role.
func (e *edgeRole) enrol(ctx context.Context) (certs.Identity, []byte, error) {
	credential, err := e.Credential()
	if err != nil {
		return certs.Identity{}, nil, err
	}
	if credential.Token == "" {
		return certs.Identity{}, nil, errors.New("enrolling edge: there is no bootstrap token")
	}
	if err := e.foreign.refuse(credential); err != nil {
		return certs.Identity{}, nil, err
	}
	host, err := os.Hostname()
	if err != nil {
		host = "" // only a label
	}
	identity, bundle, err := enrol.Client{Way: e.Way, Domain: e.Domain, Trust: certs.Bundle(credential.CA), Asking: &e.asking}.EnrolEdge(ctx, credential.Token, host)
	if err == nil {
		err = e.verify(identity, credential)
	}
	return identity, bundle, err
}

// verify returns an error for an identity of another tunnel than the credential says: half of a bootstrap file is that of
// another Cluster. The token is remembered, to use up no more of it.
func (e *edgeRole) verify(identity certs.Identity, credential EdgeCredential) error {
	subject, err := parseSubject(e.Domain, identity)
	if err != nil || credential.ID == "" || subject.ID == credential.ID {
		return err
	}
	if err := e.foreign.remember(credential.Token, subject.ID); err != nil {
		e.log.Warn("a token of another tunnel not written down, so the next start will use up more of it", "error", err)
	}
	return e.foreign.refuse(credential)
}

// cure implements role.
func (*edgeRole) cure() string {
	return "put the present content of the Cluster's Secret <cluster>-edge-bootstrap in place of the bootstrap file: it is read at each attempt"
}

// expected implements role.
func (e *edgeRole) expected() (id string, ca []byte, err error) {
	credential, err := e.Credential()
	return credential.ID, credential.CA, err
}

// control implements role.
func (e *edgeRole) control() (model.TunnelDomain, *dial.Way) { return e.Domain, e.Way }

// owns implements role.
func (e *edgeRole) owns(subject model.Subject) error {
	if subject.Role != model.RoleEdge {
		return fmt.Errorf("using identity of an edge: the certificate is that of a %s", subject.Role)
	}
	return nil
}

// node implements role.
func (e *edgeRole) node(subject model.Subject) *corev3.Node {
	announced := e.dial
	announced.Version = envoy.Current
	announced.Near = e.near.look(e.Way.RoundTrip(), e.log)
	return withVersion(&corev3.Node{Id: subject.NodeID(), Cluster: e.Domain.TunnelID(subject.ID), Metadata: announced.Metadata()})
}

// check implements role. It sees everything that Envoy gets, so it knows the apiservers.
func (e *edgeRole) check(subject model.Subject) func(string, *anypb.Any) error {
	allowed := policy.Of(policy.Scope{Domain: e.Domain, Subject: subject})
	return func(_ string, resource *anypb.Any) error {
		if err := allowed.Check(resource); err != nil {
			return err
		}
		if err := e.targets.check(resource); err != nil {
			return err
		}
		if apiservers := envoy.APIServers(resource); len(apiservers) > 0 {
			e.sight.look(apiservers)
		}
		return nil
	}
}

// over implements role.
func (e *edgeRole) over() { e.sight.look(nil) }

// report implements role.
func (e *edgeRole) report(ctx context.Context, conn grpc.ClientConnInterface, dump report.Dump) error {
	return report.SendEdge(ctx, conn, report.EdgeSource{Report: e.status.report, Changed: e.status.changed, Dump: dump, See: e.sight.see}, e.log)
}
