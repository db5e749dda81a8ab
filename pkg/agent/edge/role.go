// Package edge is the part of an agent that is specific to an edge. Input: its bootstrap file and flags. Output: a
// Role, which enrols, checks what Envoy may be given and may dial, probes apiservers, and reports. It also has the
// folder through which `edge-agent join` adds a tunnel to a running agent, and stores addresses of the gateways that
// the xds-server announces. It knows neither Envoy's process nor where identities are stored.
package edge

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/fairlead/fairlead/pkg/agent/status"
	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/dial"
	enrolclient "github.com/fairlead/fairlead/pkg/enrol/client"
	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/envoy/policy"
	"github.com/fairlead/fairlead/pkg/model"
	reportagent "github.com/fairlead/fairlead/pkg/report/agent"
)

// Credential is what an edge enrols with. All of it is from one Cluster.
type Credential struct {
	Token string // the bootstrap token; empty: none
	// PodToken is the token of the Pod's ServiceAccount, with the audience of the tunnel; empty: none. It is used first.
	PodToken string
	ID       string // Tunnel.spec.id; empty: not known
	CA       []byte // PEM, of the control channel
}

// Config is one enrolment in a workload network: it makes this machine an edge of one Cluster.
type Config struct {
	Domain model.TunnelDomain
	Dialer *dial.Dialer // to the gateways' public port, which includes the control channel
	// Gateways are the addresses that Envoy dials instead of the address that the installation gives to all edges;
	// empty: that address. With a proxy, Envoy dials the agent regardless of this field.
	Gateways   []model.Endpoint
	APIServers []model.Endpoint // dialled before the apiservers of the Tunnel
	// Targets are the only apiservers that Envoy may dial, besides APIServers; empty: the Tunnel decides.
	Targets []model.Endpoint
	// Credential reads the credential. It is called at each use.
	Credential func() (Credential, error)
}

// Role implements the role of an edge.
type Role struct {
	Config
	log     *slog.Logger
	forward net.Listener   // for Envoy, if there is a proxy; otherwise nil
	dial    envoy.EdgeDial // as announced to the xds-server
	near    nearness
	targets targets
	prober  *prober // of the apiservers
	status  *status.Status

	foreign   foreignToken
	announced *announced // nil: the edge dials only the addresses that it was given
	// used by Enrol, which one loop calls
	asking, podAsking enrolclient.Asking
}

// NewRole returns a Role with its state in dir, which records its apiservers in a status. If there is a proxy to the
// gateways, it listens for Envoy.
func NewRole(e Config, dir string, s *status.Status, log *slog.Logger) (*Role, error) {
	r := &Role{
		Config: e, log: log, status: s, prober: newProber(s, log),
		foreign: foreignToken{path: filepath.Join(dir, foreignFile)}, near: nearness{path: filepath.Join(dir, nearFile)},
		dial: envoy.EdgeDial{Gateways: e.Gateways, APIServers: e.APIServers},
	}
	if e.Dialer.Proxied() {
		listener, at, err := listenForward(dir, log)
		if err != nil {
			return nil, err
		}
		r.forward, r.dial.Gateways = listener, []model.Endpoint{at}
	}
	if len(r.dial.Gateways) == 0 && len(e.Targets) == 0 {
		r.announced = &announced{path: filepath.Join(dir, announcedFile), domain: e.Domain, dialer: e.Dialer, log: log}
		r.announced.load()
	}
	if len(e.Targets) > 0 {
		r.targets = targets{
			apiservers: slices.Concat(e.Targets, e.APIServers), gateways: slices.Concat(r.dial.Gateways, e.Dialer.Addresses),
		}
	}
	return r, nil
}

// Run probes the apiservers and forwards Envoy's connections through a proxy until ctx ends.
func (e *Role) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return e.prober.run(ctx) })
	if e.forward != nil {
		group.Go(func() error { return e.Dialer.Forward(ctx, e.forward, e.log) })
	}
	return group.Wait()
}

// HasTunnel reports whether Envoy has been given a tunnel, so that its apiservers are probed.
func (e *Role) HasTunnel() bool { return e.prober.hasAPIServers() }

// Enrol implements identity.Role.
func (e *Role) Enrol(ctx context.Context) (certs.Identity, []byte, error) {
	credential, err := e.Credential()
	if err != nil {
		return certs.Identity{}, nil, err
	}
	if credential.PodToken == "" {
		return e.enrolByToken(ctx, credential)
	}
	identity, bundle, err := e.enrolPod(ctx, credential)
	if err == nil || credential.Token == "" || !errors.Is(err, certs.ErrRefused) {
		return identity, bundle, err
	}
	// The first edge of a workload cluster enrols by its bootstrap token: the keys that verify ServiceAccount tokens are
	// read through its tunnel.
	identity, bundle, tokenErr := e.enrolByToken(ctx, credential)
	if tokenErr != nil {
		//nolint:errorlint // the last way decides how soon to try again
		return certs.Identity{}, nil, fmt.Errorf("%w (before that: %v)", tokenErr, err)
	}
	e.log.Info("enrolled by the bootstrap token, because the ServiceAccount token was rejected", "error", err)
	return identity, bundle, nil
}

// enrolPod enrols by the ServiceAccount token of the Pod.
func (e *Role) enrolPod(ctx context.Context, credential Credential) (certs.Identity, []byte, error) {
	identity, bundle, err := e.client(credential, &e.podAsking).EnrolPod(ctx, credential.PodToken, hostname())
	if err != nil {
		return certs.Identity{}, nil, err
	}
	subject, err := e.Domain.ParseSubject(identity.Leaf().Subject.CommonName, identity.Leaf().DNSNames)
	if err == nil && credential.ID != "" && subject.ID != credential.ID {
		err = fmt.Errorf(
			"enrolling edge: %w: the ServiceAccount token is for the tunnel %s, the bootstrap file for %s", certs.ErrRefused,
			subject.ID, credential.ID,
		)
	}
	return identity, bundle, err
}

// enrolByToken enrols by the bootstrap token.
func (e *Role) enrolByToken(ctx context.Context, credential Credential) (certs.Identity, []byte, error) {
	if credential.Token == "" {
		return certs.Identity{}, nil, errors.New("enrolling edge: it has no bootstrap token")
	}
	if err := e.foreign.reject(credential); err != nil {
		return certs.Identity{}, nil, err
	}
	identity, bundle, err := e.client(credential, &e.asking).EnrolEdge(ctx, credential.Token, hostname())
	if err == nil {
		err = e.verify(identity, credential)
	}
	return identity, bundle, err
}

func (e *Role) client(credential Credential, asking *enrolclient.Asking) enrolclient.Client {
	return enrolclient.Client{Dialer: e.Dialer, Domain: e.Domain, Trust: certs.Bundle(credential.CA), Asking: asking}
}

// hostname returns the machine's own name, which is only a label, or an empty string.
func hostname() string {
	host, err := os.Hostname()
	if err != nil {
		return ""
	}
	return host
}

// verify returns an error for an identity of another tunnel than the credential names, which happens if a bootstrap
// file is mixed from two Clusters. It stores the token, so that it is not used again.
func (e *Role) verify(identity certs.Identity, credential Credential) error {
	subject, err := e.Domain.ParseSubject(identity.Leaf().Subject.CommonName, identity.Leaf().DNSNames)
	if err != nil || credential.ID == "" || subject.ID == credential.ID {
		return err
	}
	if err := e.foreign.remember(credential.Token, subject.ID); err != nil {
		e.log.Warn(
			"cannot persist that the token belongs to another tunnel: the next start uses the token again", "error", err,
		)
	}
	return e.foreign.reject(credential)
}

// Cure implements identity.Role.
func (*Role) Cure() string {
	return "replace the bootstrap file with the current content of the Cluster's Secret <cluster>-edge-bootstrap: it is " +
		"read at each attempt"
}

// Expected implements identity.Role.
func (e *Role) Expected() (id string, ca []byte, err error) {
	credential, err := e.Credential()
	return credential.ID, credential.CA, err
}

// Control implements identity.Role.
func (e *Role) Control() (model.TunnelDomain, *dial.Dialer) { return e.Domain, e.Dialer }

// Owns implements identity.Role.
func (e *Role) Owns(subject model.Subject) error {
	if subject.Role != model.RoleEdge {
		return fmt.Errorf("using identity of an edge: the certificate has the role %s", subject.Role)
	}
	return nil
}

// Node implements the role of an agent.
func (e *Role) Node(subject model.Subject) *corev3.Node {
	announced := e.dial
	announced.Version = envoy.Current
	announced.Near = e.near.update(e.Dialer.RoundTrip(), e.log)
	return &corev3.Node{Id: subject.NodeID(), Cluster: e.Domain.TunnelID(subject.ID), Metadata: announced.Metadata()}
}

// Check implements the role of an agent. It gets every resource of Envoy, so it also records the apiservers, and the
// addresses of the gateways.
func (e *Role) Check(subject model.Subject) func(string, *anypb.Any) error {
	allowed := policy.Of(policy.Scope{Domain: e.Domain, Subject: subject})
	return func(_ string, resource *anypb.Any) error {
		if err := allowed.Check(resource); err != nil {
			return err
		}
		if err := e.targets.check(resource); err != nil {
			return err
		}
		if apiservers := envoy.APIServers(resource); len(apiservers) > 0 {
			e.prober.setAPIServers(apiservers)
		}
		if gateways := envoy.Gateways(resource); e.announced != nil && len(gateways) > 0 {
			e.announced.add(gateways)
		}
		return nil
	}
}

// Over implements the role of an agent.
func (e *Role) Over() { e.prober.setAPIServers(nil) }

// Report implements the role of an agent.
func (e *Role) Report(ctx context.Context, conn grpc.ClientConnInterface, dump reportagent.Dump) error {
	return reportagent.SendEdge(
		ctx, conn,
		reportagent.EdgeSource{Report: e.status.Report, Changed: e.status.Changed, Dump: dump, See: e.prober.probeNow}, e.log,
	)
}
