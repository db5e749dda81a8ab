package kubeconfigs

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"sync"
	"time"

	"k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/controller/objects"
	"github.com/fairlead/fairlead/pkg/controller/reconciler"
)

const (
	// probeTimeout bounds one handshake. A server that takes longer is unusable for Cluster API, which gives a probe 5 s.
	probeTimeout = 3 * time.Second
	// maxProbes bounds the concurrent probes of previous endpoints. A probe beyond it is tried again later.
	maxProbes = 32
	// probeFresh is how long a result is valid: shorter than all intervals at which it is used.
	probeFresh = 10 * time.Second
)

// previousEndpoints probes the servers through which managers of Cluster API may still be connected. It probes outside
// the workers, because an unresponsive server takes long and there may be thousands.
type previousEndpoints struct {
	now    func() time.Time
	notify func(client.ObjectKey) // called when a result is available
	rule   dialRule
	slots  chan struct{}

	mu    sync.Mutex
	known map[client.ObjectKey]*previousEndpoint // of the kubeconfigs that are not switched yet
}

// previousEndpoint is the probe state of one server.
type previousEndpoint struct {
	server      string
	asking      bool
	askedAt     time.Time // of the last result
	works       bool
	lastWorking time.Time // when it answered last, or when it was first probed
}

func newPreviousEndpoints(now func() time.Time, wake func(client.ObjectKey), rule dialRule) *previousEndpoints {
	return &previousEndpoints{
		now: now, notify: wake, rule: rule, slots: make(chan struct{}, maxProbes),
		known: map[client.ObjectKey]*previousEndpoint{},
	}
}

// ask returns whether a server answers, if that is known, and starts a probe if the result is old. expected
// means that no Tunnel has named the address.
func (w *previousEndpoints) ask(o objects.Group, server string, expected bool) (works, known bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	way := w.known[o.Key]
	if way == nil || way.server != server {
		way = &previousEndpoint{server: server}
		w.known[o.Key] = way
	}
	if !way.asking && reconciler.Remaining(way.askedAt, probeFresh, w.now()) == 0 {
		leg := serverLeg(o, server)
		select {
		case w.slots <- struct{}{}:
			way.asking = true
			go w.probe(o.Key, way, leg, expected)
		default: // the next reconciliation tries again
		}
	}
	return way.works, !way.askedAt.IsZero()
}

// probe probes one server and notifies.
func (w *previousEndpoints) probe(key client.ObjectKey, way *previousEndpoint, leg tlsLeg, expected bool) {
	ctx, cancel := context.WithTimeout(context.Background(), probeTimeout)
	defer cancel()
	works := answers(leg.handshake(ctx, w.rule.dialer(ctx, expected)))
	<-w.slots
	w.mu.Lock()
	way.asking, way.askedAt, way.works = false, w.now(), works
	if works {
		way.lastWorking = way.askedAt
	}
	w.mu.Unlock()
	w.notify(key)
}

// lastWorking returns when the server of a key answered last, or, if it never has, when it was first probed. The first
// call sets that to began. The result is never later than now.
func (w *previousEndpoints) lastWorking(key client.ObjectKey, began time.Time) time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	now, way := w.now(), w.known[key]
	if began.After(now) { // the clock was corrected
		began = now
	}
	switch {
	case way == nil:
		return began
	case way.lastWorking.IsZero():
		way.lastWorking = began
	case way.lastWorking.After(now):
		way.lastWorking = now
	}
	return way.lastWorking
}

func (w *previousEndpoints) forget(key client.ObjectKey) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.known, key)
}

// tlsLeg is one TLS connection of a client.
type tlsLeg struct {
	address, name string // name: to be verified, and sent as SNI
	roots         []byte // in PEM; empty: the system's
	unverified    bool   // the kubeconfig disables verification
	protocols     []string
}

// proxyLeg returns the connection to an https proxy.
type proxyLeg struct{ tlsLeg }

// serverLeg returns the connection to the server of a previous endpoint. It verifies nothing: the name and CA that its
// clients verify are not on record, and established connections survive any certificate.
func serverLeg(o objects.Group, server string) tlsLeg {
	leg := tlsLeg{unverified: true}
	if o.Kubeconfig != nil {
		leg.name = o.Kubeconfig.Annotations[v1alpha1.OriginalTLSServerNameAnnotation]
	}
	if u, err := url.Parse(server); err == nil {
		leg.address = net.JoinHostPort(u.Hostname(), portOf(u))
		if leg.name == "" {
			leg.name = u.Hostname()
		}
	}
	return leg
}

// answers reports from the result of a handshake whether a TLS server answers. A server that rejects the handshake, for
// example its name, does.
func answers(err error) bool {
	var unverified *tls.CertificateVerificationError
	var alert *net.OpError
	if errors.Is(err, errNotAllowed) {
		return true // unknown, so it may work
	}
	return err == nil || errors.As(err, &unverified) || (errors.As(err, &alert) && alert.Op == "remote error")
}

// trust verifies as clients of an entry do.
func (l *tlsLeg) trust(entry *api.Cluster) {
	l.roots, l.unverified = entry.CertificateAuthorityData, entry.InsecureSkipTLSVerify
}

func portOf(u *url.URL) string {
	if u.Port() == "" {
		return "443"
	}
	return u.Port()
}

// errHTTP2 is returned for a proxy that negotiates HTTP/2: Go's client continues with HTTP/1.1 there, and fails.
var errHTTP2 = errors.New("it negotiates HTTP/2, which client-go offers but cannot use with a proxy")

// handshake opens the connection and closes it. It sends no client certificate.
func (l tlsLeg) handshake(ctx context.Context, dialer *net.Dialer) error {
	config := &tls.Config{ServerName: l.name, NextProtos: l.protocols, MinVersion: tls.VersionTLS12}
	if len(l.roots) > 0 {
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(l.roots) {
			return errors.New("cannot read the CA of the kubeconfig")
		}
	}
	config.InsecureSkipVerify = l.unverified // as the kubeconfig's clients do; nothing is sent
	connection, err := (&tls.Dialer{NetDialer: dialer, Config: config}).DialContext(ctx, "tcp", l.address)
	if err != nil {
		return fmt.Errorf("opening TLS connection: %w", err)
	}
	defer connection.Close()
	if c, ok := connection.(*tls.Conn); ok && c.ConnectionState().NegotiatedProtocol == "h2" {
		return errHTTP2
	}
	return nil
}
