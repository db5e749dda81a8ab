package fleet

import (
	"context"
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/lab/netns"
	"github.com/fairlead/fairlead/test/lab/proc"
	"github.com/fairlead/fairlead/test/synthetic"
)

// Simulation is the synthetic edges of one process. The caller must close it.
type Simulation struct {
	Roots *x509.CertPool // contains only the installation's CA
	API   *synthetic.API
	// Fleets are the edges' connections to each gateway, and Fleet is the first of them, which is the only one by default.
	Fleets     []*synthetic.Fleet
	Fleet      *synthetic.Fleet
	ca         *certs.CA
	key        *ecdsa.PrivateKey // of all leaves
	management *netns.Namespace
	options    Options
}

// newSimulation returns a simulation without edges. The options must have the number of gateways.
func newSimulation(ca *certs.CA, management, workload *netns.Namespace, o Options) (_ *Simulation, err error) {
	s := &Simulation{Roots: x509.NewCertPool(), ca: ca, management: management, options: o}
	defer func() {
		if err != nil {
			s.Close()
		}
	}()
	s.Roots.AppendCertsFromPEM(ca.CertPEM())
	if s.key, err = certs.NewKey(); err != nil {
		return nil, err
	}
	serving := o.Serving
	if serving == nil {
		if serving, err = s.serving(); err != nil {
			return nil, err
		}
	}
	s.API = synthetic.NewAPI(func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return serving, nil })
	slots := make(chan struct{}, connecting)
	for i := range o.Gateways {
		public := netns.HostPort(netns.PublicAddress(i).String(), netns.PublicPort)
		one, err := synthetic.New(synthetic.Options{
			Domain: Domain, Gateway: netns.GatewayReplica(i), Roots: s.Roots, API: s.API, Tunnels: o.Tunnels,
			Dial: func(ctx context.Context) (net.Conn, error) {
				slots <- struct{}{}
				defer func() { <-slots }()
				return workload.DialContext(ctx, "tcp", public)
			},
		})
		if err != nil {
			return nil, err
		}
		s.Fleets = append(s.Fleets, one)
	}
	s.Fleet = s.Fleets[0]
	return s, nil
}

// Close closes all tunnels.
func (s *Simulation) Close() {
	for _, f := range s.Fleets {
		_ = f.Close()
	}
	if s.API != nil {
		_ = s.API.Close()
	}
}

// serving issues a certificate for the workload apiservers.
func (s *Simulation) serving() (*tls.Certificate, error) {
	now := time.Now()
	chain, err := s.ca.Issue(s.key.Public(), certs.Leaf{
		CommonName: "kubernetes", DNSNames: []string{"kubernetes"}, Server: true,
		NotBefore: now.Add(-time.Minute), NotAfter: now.Add(lifetime),
	})
	if err != nil {
		return nil, err
	}
	return s.certificate(chain)
}

// certificate returns a chain with the key of all leaves.
func (s *Simulation) certificate(chain []byte) (*tls.Certificate, error) {
	identity, err := certs.NewIdentity(chain, s.key)
	if err != nil {
		return nil, err
	}
	certificate := identity.TLSCertificate()
	return &certificate, nil
}

// Renewed adds an edge with the identity of another one and a leaf that was issued later. It does not dial yet.
func (s *Simulation) Renewed(edge *synthetic.Edge, chain []byte) (*synthetic.Edge, error) {
	certificate, err := s.certificate(chain)
	if err != nil {
		return nil, err
	}
	return s.Fleet.Add(synthetic.Spec{Node: edge.Node, ID: edge.ID, Certificate: certificate}), nil
}

// CSR returns a request for a certificate of the key that all edges have.
func (s *Simulation) CSR() ([]byte, error) { return certs.NewCSR(s.key) }

// Edge adds an edge of a tunnel, for the first gateway. It does not dial yet.
func (s *Simulation) Edge(id string) (*synthetic.Edge, error) {
	spec, err := s.spec(id)
	if err != nil {
		return nil, err
	}
	return s.Fleet.Add(spec), nil
}

// Edges adds an edge of a tunnel for each gateway that the tunnel is assigned to. They have one identity. They do not
// dial yet.
func (s *Simulation) Edges(id string) (all []*synthetic.Edge, err error) {
	spec, err := s.spec(id)
	if err != nil {
		return nil, err
	}
	for _, i := range s.Assigned(id) {
		all = append(all, s.Fleets[i].Add(spec))
	}
	return all, nil
}

// Assigned returns the numbers of the gateways that a tunnel is assigned to.
func (s *Simulation) Assigned(id string) []int {
	return lab.Assigned(id, s.options.GatewaysPerTunnel, s.options.Gateways)
}

// spec returns a new edge of a tunnel.
func (s *Simulation) spec(id string) (synthetic.Spec, error) {
	return synthetic.NewSpec(s.ca, s.key, Domain, id, lifetime)
}

// Follow opens the control channel of an edge: a connection to the xds-server without a gateway. Its source address is
// the one with the given number, because an xds-server limits each address.
func (s *Simulation) Follow(ctx context.Context, e *synthetic.Edge, number int) (*synthetic.Control, error) {
	source := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 200, byte(number >> 8), byte(number)}), 40_000)
	return e.Follow(ctx, net.TCPAddrFromAddrPort(source), func(ctx context.Context) (net.Conn, error) {
		return s.management.DialContext(ctx, "tcp", netns.HostPort(netns.ManagementAddress.String(), netns.XDSPort))
	})
}

// FollowAll opens the control channels of edges, several at the same time, with source addresses from the given number
// on. It returns those that are open. With an error too, the caller closes them.
func (s *Simulation) FollowAll(
	ctx context.Context, edges []*synthetic.Edge, first int,
) ([]*synthetic.Control, error) {
	var (
		mu   sync.Mutex
		open []*synthetic.Control
	)
	group, bounded := errgroup.WithContext(ctx)
	group.SetLimit(following)
	for i, e := range edges {
		group.Go(func() error {
			var c *synthetic.Control
			// A busy xds-server closes connections, and edges retry.
			if err := proc.Wait(bounded, followTime, func(ctx context.Context) (err error) {
				ctx, cancel := context.WithTimeout(ctx, followAttempt)
				defer cancel()
				c, err = s.Follow(ctx, e, first+i)
				return err
			}); err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			open = append(open, c)
			return nil
		})
	}
	err := group.Wait()
	return open, err
}
