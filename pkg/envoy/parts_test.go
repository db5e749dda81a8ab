package envoy_test

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/model"
)

// authority issues the leaves of one installation.
type authority struct{ ca *certs.CA }

func newAuthority(t *testing.T) authority {
	t.Helper()
	ca, err := certs.NewCA("test", time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return authority{ca}
}

// issue returns an identity with a subject's names, as in production.
func (a authority) issue(t *testing.T, s model.Subject) certs.Identity {
	t.Helper()
	return a.leaf(t, certs.Leaf{CommonName: s.Node, DNSNames: domain.DNSNames(s), Server: true, Client: true})
}

// leaf returns an identity that is valid for an hour, unless leaf sets other times.
func (a authority) leaf(t *testing.T, leaf certs.Leaf) certs.Identity {
	t.Helper()
	if leaf.NotAfter.IsZero() {
		leaf.NotBefore, leaf.NotAfter = time.Now().Add(-time.Minute), time.Now().Add(time.Hour)
	}
	key, err := certs.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	chain, err := a.ca.Issue(key.Public(), leaf)
	if err != nil {
		t.Fatal(err)
	}
	identity, err := certs.NewIdentity(chain, key)
	if err != nil {
		t.Fatal(err)
	}
	return identity
}

// countingListener is a listener that counts connections, and passes each to a function.
type countingListener struct {
	net.Listener
	count atomic.Int64
}

// newCountingListener listens until the end of the test.
func newCountingListener(t *testing.T, network, address string, open func(net.Conn)) *countingListener {
	t.Helper()
	l, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	d := &countingListener{Listener: l}
	if open != nil {
		go func() {
			for {
				conn, err := d.Accept()
				if err != nil {
					return
				}
				go open(conn)
			}
		}()
	}
	return d
}

// Accept implements net.Listener.
func (d *countingListener) Accept() (net.Conn, error) {
	conn, err := d.Listener.Accept()
	if err == nil {
		d.count.Add(1)
	}
	return conn, err
}

func (d *countingListener) endpoint(t *testing.T) model.Endpoint {
	t.Helper()
	return endpoint(t, d.Addr().String())
}

// relay forwards connections to an address that may be set later, and records all bytes.
type relay struct {
	*countingListener
	target atomic.Pointer[string]
	gate   sync.RWMutex // locked while connections must wait
	open   sync.Map     // the connections
	mu     sync.Mutex
	seen   bytes.Buffer
}

func newRelay(t *testing.T) *relay {
	t.Helper()
	r := &relay{}
	r.countingListener = newCountingListener(t, "tcp", "127.0.0.1:0", r.pass)
	return r
}

func (r *relay) lead(to string) { r.target.Store(&to) }

// stop makes new connections wait until resume is called.
func (r *relay) stop() { r.gate.Lock() }

func (r *relay) resume() { r.gate.Unlock() }

// wait returns once the relay forwards connections.
func (r *relay) wait() {
	r.gate.RLock()
	defer r.gate.RUnlock()
}

// cut ends all connections. Later ones lead to an address, or end at once if it is empty.
func (r *relay) cut(to string) {
	r.lead(to)
	r.open.Range(func(conn, _ any) bool { return conn.(net.Conn).Close() == nil || true })
}

func (r *relay) pass(from net.Conn) {
	r.open.Store(from, nil)
	defer r.open.Delete(from)
	defer from.Close()
	r.wait()
	target := r.target.Load()
	if target == nil {
		return
	}
	to, err := net.DialTimeout("tcp", *target, time.Second)
	if err != nil {
		return
	}
	defer to.Close()
	go func() {
		_, _ = io.Copy(to, io.TeeReader(from, r))
		_ = to.Close()
	}()
	_, _ = io.Copy(from, io.TeeReader(to, r))
}

// Write records bytes of either direction.
func (r *relay) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.seen.Write(p)
}

// bytes returns all bytes so far.
func (r *relay) bytes() []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	return bytes.Clone(r.seen.Bytes())
}

// newAPIServer returns a fake apiserver: it answers with its name and the SNI of the connection.
func newAPIServer(t *testing.T, name string, ca authority, dnsNames ...string) *httptest.Server {
	t.Helper()
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s %s", name, r.TLS.ServerName)
	}))
	s.TLS = serverConfig(ca.leaf(t, certs.Leaf{CommonName: name, DNSNames: dnsNames, Server: true}))
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

// fastest measures up to three times, until the duration is at most want: a timer in Envoy delays each measurement,
// and a busy machine may delay one.
func fastest(want time.Duration, measure func() time.Duration) (took time.Duration) {
	for range 3 {
		if took = measure(); took <= want {
			break
		}
	}
	return took
}
