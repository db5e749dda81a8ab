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
)

const (
	// probeTimeout bounds one handshake: what takes longer is of no use to Cluster API, which gives a probe 5 s.
	probeTimeout = 3 * time.Second
	// maxProbes bounds how many old ways are dialled at a time. What finds no place is asked again.
	maxProbes = 32
	// probeFresh is how long an answer is good: shorter than all intervals at which it is wanted.
	probeFresh = 10 * time.Second
)

// previousEndpoints finds out whether servers answer by which managers of Cluster API may still be connected. It
// dials beside the workers, because one that does not answer takes its time, and there may be thousands.
type previousEndpoints struct {
	now   func() time.Time
	wake  func(client.ObjectKey) // called when there is an answer
	rule  dialRule
	slots chan struct{}

	mu    sync.Mutex
	known map[client.ObjectKey]*previousEndpoint // of the kubeconfigs that are not switched yet
}

// previousEndpoint is one of them.
type previousEndpoint struct {
	server      string
	asking      bool
	askedAt     time.Time // of the last answer
	works       bool
	lastWorking time.Time // when it answered last, or when it was first asked after
}

func newPreviousEndpoints(now func() time.Time, wake func(client.ObjectKey), rule dialRule) *previousEndpoints {
	return &previousEndpoints{
		now: now, wake: wake, rule: rule, slots: make(chan struct{}, maxProbes),
		known: map[client.ObjectKey]*previousEndpoint{},
	}
}

// ask returns whether a server answers, as far as it is known, and finds it out anew where that is old. expected: it
// is no address that a Tunnel has named.
func (w *previousEndpoints) ask(o objects.Group, server string, expected bool) (works, known bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	way := w.known[o.Key]
	if way == nil || way.server != server {
		way = &previousEndpoint{server: server}
		w.known[o.Key] = way
	}
	if !way.asking && w.now().Sub(way.askedAt) >= probeFresh {
		leg := serverLeg(o, server)
		select {
		case w.slots <- struct{}{}:
			way.asking = true
			go w.probe(o.Key, way, leg, expected)
		default: // the next look asks again
		}
	}
	return way.works, !way.askedAt.IsZero()
}

// probe dials one server and tells.
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
	w.wake(key)
}

// lastWorking is when the server of a key answered last; began, the first time, where it never has.
func (w *previousEndpoints) lastWorking(key client.ObjectKey, began time.Time) time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	way := w.known[key]
	if way == nil {
		return began
	}
	if way.lastWorking.IsZero() {
		way.lastWorking = began
	}
	return way.lastWorking
}

func (w *previousEndpoints) forget(key client.ObjectKey) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.known, key)
}

// tlsLeg is one TLS connection that a client makes.
type tlsLeg struct {
	address, name string // name: to be verified, and sent as SNI
	roots         []byte // in PEM; none: those of the system
	unverified    bool   // the kubeconfig wants nothing verified
	protocols     []string
}

// proxyLeg is the one to an https proxy.
type proxyLeg struct{ tlsLeg }

// serverLeg is the one to the server of a way that a kubeconfig had. Nothing is verified: the name and CA that
// its clients verify are not on record, and established connections survive any certificate.
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

// answers reports from the result of a handshake whether a TLS server answers: one that refuses, say the name, does.
func answers(err error) bool {
	var unverified *tls.CertificateVerificationError
	var alert *net.OpError
	if errors.Is(err, errNotAllowed) {
		return true // it is not known, so it may work
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

// errHTTP2 is what a proxy does that negotiates HTTP/2: Go's client goes on with HTTP/1.1 there, and fails.
var errHTTP2 = errors.New("it negotiates HTTP/2, which client-go offers but cannot use with a proxy")

// handshake makes the connection and closes it. It sends no client certificate.
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
