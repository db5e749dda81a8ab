package synthetic

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/tls"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/model"
)

const (
	// maintain and backoff are maintainInterval and maxReconnectBackoff of pkg/envoy. Envoy lengthens each by up to
	// half at random.
	maintain = 500 * time.Millisecond
	backoff  = time.Second
)

// Fault is what an edge does wrong with a CONNECT.
type Fault int

// The kinds of faults.
const (
	None        Fault = iota
	CloseTunnel       // closes the tunnel's TCP connection before the answer
	ResetStream       // resets the stream before the answer
	RefuseTLS         // closes the tunnel when the gateway begins TLS in it
)

// Spec describes one edge.
type Spec struct {
	Node string // node name
	ID   string // Tunnel.spec.id
	// Certificate is the edge's leaf. Edges may share a certificate, which costs no memory.
	Certificate *tls.Certificate
	// Fault returns the fault at a moment; nil: no faults. It must be safe for concurrent use.
	Fault func(Moment) Fault
}

// NewSpec returns a new edge of a tunnel id, with a leaf for a key, which several edges may share.
func NewSpec(
	ca *certs.CA, key *ecdsa.PrivateKey, domain model.TunnelDomain, id string, lifetime time.Duration,
) (Spec, error) {
	edge, now := model.Subject{Role: model.RoleEdge, Node: model.NewNodeName(), ID: id}, time.Now()
	chain, err := ca.Issue(key.Public(), certs.Leaf{
		CommonName: edge.Node, DNSNames: domain.DNSNames(edge), Server: true, Client: true,
		NotBefore: now.Add(-time.Minute), NotAfter: now.Add(lifetime),
	})
	if err != nil {
		return Spec{}, err
	}
	identity, err := certs.NewIdentity(chain, key)
	if err != nil {
		return Spec{}, err
	}
	certificate := identity.TLSCertificate()
	return Spec{Node: edge.Node, ID: id, Certificate: &certificate}, nil
}

// Moment is a moment of a possible fault: when the gateway begins TLS in a tunnel, or a stream.
type Moment struct {
	Tunnel int // number of earlier tunnels of this edge
	Stream int // number of earlier streams in this tunnel; -1: TLS begins
}

// Edge is an edge of a fleet.
type Edge struct {
	Spec
	fleet    *Fleet
	sessions tls.ClientSessionCache // nil: none

	mu      sync.Mutex
	up      int // tunnels, including ones that are being dialled
	had     int // tunnels so far
	failed  bool
	waiting bool // a dial is scheduled
	stopped bool
	tunnels map[*tunnel]struct{}
}

// Start dials at once, and keeps the tunnels open until Stop.
func (e *Edge) Start() {
	e.mu.Lock()
	e.stopped = false
	e.mu.Unlock()
	e.maintain()
}

// Stop closes the tunnels of this edge. It does not dial again until Start.
func (e *Edge) Stop() {
	e.mu.Lock()
	e.stopped = true
	e.mu.Unlock()
	e.Cut(func(bool) bool { return true })
}

// Cut closes the tunnels for which chosen returns true, given whether they are in use. It returns how many it closed.
func (e *Edge) Cut(chosen func(used bool) bool) int {
	e.mu.Lock()
	var cut []*tunnel
	for t := range e.tunnels {
		if chosen(t.used.Load()) {
			cut = append(cut, t)
		}
	}
	e.mu.Unlock()
	for _, t := range cut {
		t.end()
	}
	return len(cut)
}

// maintain dials missing tunnels.
func (e *Edge) maintain() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.waiting, e.failed = false, false
	for !e.stopped && e.up < e.fleet.options.Tunnels {
		e.up++
		go e.dial()
	}
}

// missing is called when a tunnel has ended, or could not be opened.
func (e *Edge) missing(failed bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.up--
	e.failed = e.failed || failed
	if e.waiting || e.stopped || e.fleet.ctx.Err() != nil {
		return
	}
	e.waiting = true
	wait := maintain
	if e.failed {
		wait = backoff
	}
	time.AfterFunc(wait+rand.N(wait/2), e.maintain)
}

// dial opens one tunnel.
func (e *Edge) dial() {
	f := e.fleet
	select {
	case f.slots <- struct{}{}:
	case <-f.ctx.Done():
		return
	}
	f.stats.dials.Add(1)
	conn, err := e.open(f.ctx)
	<-f.slots
	if err != nil {
		f.stats.failed.Add(1)
		e.missing(true)
		return
	}
	t := &tunnel{edge: e, conn: conn}
	e.mu.Lock()
	t.nth = e.had
	e.had++
	if e.tunnels == nil {
		e.tunnels = map[*tunnel]struct{}{}
	}
	e.tunnels[t] = struct{}{}
	e.mu.Unlock()
	f.stats.up.Add(1)
	t.idle()
}

// open does the TLS handshake and requests a tunnel. The tunnel then uses the socket below TLS, which has ended.
func (e *Edge) open(ctx context.Context) (*net.TCPConn, error) {
	f := e.fleet
	bounded, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	raw, err := f.options.Dial(bounded)
	if err != nil {
		return nil, err
	}
	conn, ok := raw.(*net.TCPConn)
	if !ok {
		_ = raw.Close()
		return nil, errNotTCP
	}
	if !f.track(conn) {
		_ = conn.Close()
		return nil, context.Canceled
	}
	if err := e.ask(conn); err != nil {
		f.forget(conn)
		_ = conn.Close()
		return nil, err
	}
	return conn, nil
}

func (e *Edge) ask(conn *net.TCPConn) error {
	f := e.fleet
	f.working <- struct{}{}
	defer func() { <-f.working }()
	_ = conn.SetDeadline(time.Now().Add(answerTime))
	config := f.outer.Clone()
	config.ClientSessionCache = e.sessions
	config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return e.Certificate, nil }
	secure := tls.Client(&patient{conn, f.working}, config)
	_, err := fmt.Fprintf(
		secure,
		"GET /reverse_connections/request HTTP/1.1\r\nHost: gateway\r\nx-envoy-reverse-tunnel-node-id: %s\r\n"+
			"x-envoy-reverse-tunnel-cluster-id: %s\r\nx-envoy-reverse-tunnel-tenant-id: %s\r\n\r\n",
		model.NodeID(e.Node),
		f.options.Domain.TunnelID(e.ID),
		model.TenantID,
	)
	if err != nil {
		return fmt.Errorf("asking for a tunnel: %w", err)
	}
	response, err := http.ReadResponse(bufio.NewReaderSize(secure, 512), nil)
	if err != nil {
		return fmt.Errorf("reading the gateway's answer: %w", err)
	}
	_ = response.Body.Close()
	if response.StatusCode != http.StatusOK {
		f.stats.refused.Add(1)
		return fmt.Errorf("the gateway answers %s", strings.TrimSpace(response.Status))
	}
	if secure.ConnectionState().DidResume {
		f.stats.resumed.Add(1)
	}
	return conn.SetDeadline(time.Time{})
}

// patient is a connection whose reader releases its slot of working while it waits.
type patient struct {
	net.Conn
	working chan struct{}
}

// Read implements net.Conn.
func (p *patient) Read(b []byte) (int, error) {
	<-p.working
	n, err := p.Conn.Read(b)
	p.working <- struct{}{}
	return n, err
}
