// Package edge is the part of an agent that is specific to an edge, and to the Envoy beside an apiserver, which
// enrols and reports like an edge. Input: its bootstrap file and flags. Output: a Role, which enrols, checks what
// Envoy may be given and may dial, probes apiservers, and reports; and Lanes, which are open while Envoy has clients.
// It also has the folder through which `edge-agent join` adds a tunnel to a running agent, and stores addresses of
// the gateways that the xds-server announces. It knows neither Envoy's process nor where identities are stored.
package edge

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/fairlead/fairlead/pkg/agent/status"
	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/dial"
	enrolclient "github.com/fairlead/fairlead/pkg/enrol/client"
	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/envoy/network"
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

// Config is one enrolment: it makes this machine an edge of one Cluster or network, or its Envoy the way of an
// apiserver to networks.
type Config struct {
	Role   model.Role // model.RoleEdge or, beside an apiserver, model.RoleEgress; empty: model.RoleEdge
	Domain model.TunnelDomain
	Dialer *dial.Dialer // to the gateways' public port, which includes the control channel
	// Gateways are the addresses that Envoy dials instead of the address that the installation gives to all edges;
	// empty: that address. With a proxy, Envoy dials the agent regardless of this field.
	Gateways   []model.Endpoint
	APIServers []model.Endpoint // dialled before the apiservers of the Tunnel
	// Allowed are the only destinations that Envoy may dial besides APIServers; empty: the Tunnel decides.
	Allowed network.Allowed
	// Listen are the addresses at which Envoy accepts connections of machines in its network to their apiserver.
	Listen []model.Endpoint
	// Socket is the path of the Unix socket at which Envoy accepts connections of the apiserver beside it. Only for
	// model.RoleEgress.
	Socket string
	// Credential reads the credential. It is called at each use.
	Credential func() (Credential, error)
}

// DNSName returns the name in the certificate of an enrolment with a tunnel id.
func (e Config) DNSName(id string) string {
	return e.Domain.DNSNames(model.Subject{Role: cmp.Or(e.Role, model.RoleEdge), ID: id})[0]
}

// Role implements the role of an edge.
type Role struct {
	Config
	log     *slog.Logger
	forward net.Listener   // for Envoy, if there is a proxy; otherwise nil
	dial    envoy.EdgeDial // as announced to the xds-server
	near    *nearness
	targets targets
	served  atomic.Bool // Envoy has been given a listener
	prober  *prober     // of the apiservers
	status  *status.Status

	foreign   foreignToken
	announced *announced // nil: the edge dials only the addresses that it was given
	// used by Enrol, which one loop calls
	asking, podAsking enrolclient.Asking
}

// NewRole returns a Role with its state in dir, which records its apiservers in a status. If there is a proxy to the
// gateways, it listens for Envoy.
func NewRole(e Config, dir string, s *status.Status, log *slog.Logger) (*Role, error) {
	e.Role = cmp.Or(e.Role, model.RoleEdge)
	r := &Role{
		Config: e, log: log, status: s, prober: newProber(s, log),
		foreign: foreignToken{path: filepath.Join(dir, foreignFile)},
		near:    &nearness{path: mark(filepath.Join(dir, nearFile))},
		dial:    envoy.EdgeDial{Gateways: e.Gateways},
	}
	if e.Role == model.RoleEgress {
		if err := makeSocketFolder(e.Socket); err != nil {
			return nil, err
		}
		r.dial.Socket = e.Socket
	} else {
		r.dial.APIServers, r.dial.Listen = e.APIServers, e.Listen
	}
	if e.Dialer.Proxied() {
		listener, at, err := listenForward(dir, log)
		if err != nil {
			return nil, err
		}
		r.forward, r.dial.Gateways = listener, []model.Endpoint{at}
	}
	restricted := e.Role == model.RoleEdge && e.Allowed.Restricts()
	if len(r.dial.Gateways) == 0 && !restricted {
		r.announced = &announced{path: filepath.Join(dir, announcedFile), domain: e.Domain, dialer: e.Dialer, log: log}
		r.announced.load()
	}
	if restricted {
		r.targets = targets{
			restricted: true, allowed: e.Allowed, apiservers: e.APIServers,
			gateways: slices.Concat(r.dial.Gateways, e.Dialer.Addresses),
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

// HasTunnel reports whether Envoy has been given a tunnel, or the listener of an apiserver.
func (e *Role) HasTunnel() bool { return e.served.Load() }

// Ready returns why Envoy does not accept connections of the apiserver beside it; nil: it does, or there is none.
func (e *Role) Ready() error {
	if e.Role != model.RoleEgress {
		return nil
	}
	conn, err := net.DialTimeout("unix", e.Socket, socketTimeout)
	if err != nil {
		return fmt.Errorf("Envoy does not accept connections of the apiserver: %w", err) //nolint:staticcheck // a name
	}
	return conn.Close()
}

// socketTimeout is how long Envoy may take to accept a connection at a Unix socket: the kernel does it immediately.
const socketTimeout = time.Second

// makeSocketFolder makes the folder of a Unix socket, for the user of the agent alone. It leaves a folder that exists
// as it is, because in a Pod it is shared with the apiserver.
func makeSocketFolder(socket string) error {
	if err := envoy.CheckSocket(socket); err != nil {
		return fmt.Errorf("checking socket of the apiserver: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(socket), 0o700); err != nil {
		return fmt.Errorf("creating folder of the apiserver's socket: %w", err)
	}
	return nil
}

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
	if err != nil || (subject.Role == e.Role && (credential.ID == "" || subject.ID == credential.ID)) {
		return err
	}
	if err := e.foreign.remember(credential.Token, claim(subject, e.Role)); err != nil {
		e.log.Warn(
			"cannot persist that the token belongs to another tunnel: the next start uses the token again", "error", err,
		)
	}
	return e.foreign.reject(credential)
}

// Cure implements identity.Role.
func (e *Role) Cure() string {
	secret := "the Cluster's Secret <cluster>-edge-bootstrap, or of the network's <network>.network-edge-bootstrap"
	if e.Role == model.RoleEgress {
		secret = "the Cluster's Secret <cluster>.egress-edge-bootstrap"
	}
	return "replace the bootstrap file with the current content of " + secret + ": it is read at each attempt"
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
	if subject.Role != e.Role {
		return fmt.Errorf(
			"using identity of the role %s: the certificate has the role %s", e.Role, subject.Role,
		)
	}
	return nil
}

// Node implements the role of an agent.
func (e *Role) Node(subject model.Subject) *corev3.Node {
	announced := e.dial
	announced.Version = envoy.Current
	announced.Near = e.near.update(e.Dialer.RoundTrip(), time.Now(), e.log)
	return &corev3.Node{Id: subject.NodeID(), Cluster: e.Domain.DNSNames(subject)[0], Metadata: announced.Metadata()}
}

// Check implements the role of an agent. It gets every resource of Envoy, so it also records the apiservers, and the
// addresses of the gateways.
func (e *Role) Check(subject model.Subject) func(string, *anypb.Any) error {
	allowed := policy.Of(policy.Scope{Domain: e.Domain, Subject: subject, Dial: e.dial})
	return func(_ string, resource *anypb.Any) error {
		if err := allowed.Check(resource); err != nil {
			return err
		}
		if err := e.targets.check(resource); err != nil {
			return err
		}
		if resource.MessageIs(&listenerv3.Listener{}) {
			e.served.Store(true)
		}
		if apiservers := envoy.APIServers(resource); len(apiservers) > 0 {
			e.prober.setAPIServers(apiservers)
		}
		if envoy.IsLocalListener(resource) { // of a network, whose apiserver is behind its listeners
			e.prober.setAPIServers(e.dial.Listen)
		}
		if gateways := envoy.Gateways(resource); e.announced != nil && len(gateways) > 0 {
			e.announced.add(gateways)
		}
		return nil
	}
}

// Over implements the role of an agent.
func (e *Role) Over() {
	e.served.Store(false)
	e.prober.setAPIServers(nil)
}

// Report implements the role of an agent.
func (e *Role) Report(ctx context.Context, conn grpc.ClientConnInterface, dump reportagent.Dump) error {
	return reportagent.SendEdge(
		ctx, conn,
		reportagent.EdgeSource{Report: e.status.Report, Changed: e.status.Changed, Dump: dump, See: e.prober.probeNow}, e.log,
	)
}
