package kubeconfig

import (
	"bufio"
	"crypto/tls"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"

	"github.com/fairlead/fairlead/pkg/certs"
)

const portForward = "portforward.k8s.io"

// newAuthority returns the CA of a workload cluster.
func newAuthority(t *testing.T) *certs.CA {
	t.Helper()
	ca, err := certs.NewCA("kubernetes", time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

// serving returns the TLS configuration of a server with a certificate of a CA.
func serving(t *testing.T, ca *certs.CA, names ...string) *tls.Config {
	t.Helper()
	key, err := certs.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := ca.Issue(
		key.Public(),
		certs.Leaf{
			CommonName: names[0],
			DNSNames:   names,
			Server:     true,
			NotBefore:  time.Now(),
			NotAfter:   time.Now().Add(time.Hour),
		},
	)
	if err != nil {
		t.Fatal(err)
	}
	identity, err := certs.NewIdentity(leaf, key)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Config{Certificates: []tls.Certificate{identity.TLSCertificate()}, MinVersion: tls.VersionTLS12}
}

// newAPIServer starts a server that answers GET / and upgrades port-forwards both ways. It returns its address.
func newAPIServer(t *testing.T, config *tls.Config) string {
	t.Helper()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.EqualFold(r.Header.Get("Upgrade"), "websocket"):
			upgrader := websocket.Upgrader{Subprotocols: []string{"SPDY/3.1+" + portForward}}
			if conn, err := upgrader.Upgrade(w, r, nil); err == nil {
				_, _, _ = conn.ReadMessage() // until the client disconnects
				_ = conn.Close()
			}
		case httpstream.IsUpgradeRequest(r):
			if _, err := httpstream.Handshake(r, w, []string{portForward}); err != nil {
				return
			}
			conn := spdy.NewResponseUpgrader().
				UpgradeResponse(w, r, func(httpstream.Stream, <-chan struct{}) error { return nil })
			if conn != nil {
				<-conn.CloseChan()
			}
		default:
			w.WriteHeader(http.StatusOK)
		}
	}))
	server.TLS = config
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	t.Cleanup(server.CloseClientConnections)
	return server.Listener.Addr().String()
}

// proxyServer is a small real proxy that forwards every connection to one address. If it has credentials, clients must
// send them.
type proxyServer struct {
	to          string
	credentials *Credentials
	uses        atomic.Int32
}

// start listens and serves each connection. It returns the address.
func (p *proxyServer) start(t *testing.T, config *tls.Config, serve func(net.Conn)) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if config != nil {
		listener = tls.NewListener(listener, config)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go serve(conn)
		}
	}()
	return listener.Addr().String()
}

// forward joins a client with the destination.
func (p *proxyServer) forward(client io.ReadWriteCloser) {
	defer client.Close()
	p.uses.Add(1)
	server, err := net.Dial("tcp", p.to)
	if err != nil {
		return
	}
	defer server.Close()
	go func() {
		_, _ = io.Copy(server, client)
		_ = server.Close()
	}()
	_, _ = io.Copy(client, server)
}

// tcp serves a TCP tunnel.
func (p *proxyServer) tcp(client net.Conn) { p.forward(client) }

// connect serves an HTTP proxy.
func (p *proxyServer) connect(client net.Conn) {
	request, err := http.ReadRequest(bufio.NewReader(client))
	if err != nil || request.Method != http.MethodConnect {
		_ = client.Close()
		return
	}
	if c := p.credentials; c != nil &&
		request.Header.Get(
			"Proxy-Authorization",
		) != "Basic "+base64.StdEncoding.EncodeToString(
			[]byte(c.Username+":"+c.Password),
		) {
		_, _ = io.WriteString(client, "HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
		_ = client.Close()
		return
	}
	_, _ = io.WriteString(client, "HTTP/1.1 200 OK\r\n\r\n")
	p.forward(client)
}

// socks5 serves a SOCKS5 proxy: RFC 1928, with the usernames and passwords of RFC 1929.
func (p *proxyServer) socks5(client net.Conn) {
	if err := p.greet(client); err != nil {
		_ = client.Close()
		return
	}
	p.forward(client)
}

func (p *proxyServer) greet(client net.Conn) error {
	read := func(n int) []byte {
		b := make([]byte, n)
		if _, err := io.ReadFull(client, b); err != nil {
			return make([]byte, n)
		}
		return b
	}
	methods := read(int(read(2)[1]))
	method := byte(0)
	if p.credentials != nil {
		method = 2
	}
	if !strings.ContainsRune(string(methods), rune(method)) {
		_, _ = client.Write([]byte{5, 0xff})
		return errors.New("no method that will do")
	}
	if _, err := client.Write([]byte{5, method}); err != nil {
		return err
	}
	if p.credentials != nil {
		user := read(int(read(2)[1]))
		password := read(int(read(1)[0]))
		if string(user) != p.credentials.Username || string(password) != p.credentials.Password {
			_, _ = client.Write([]byte{1, 1})
			return errors.New("wrong credentials")
		}
		_, _ = client.Write([]byte{1, 0})
	}
	head := read(4)
	switch head[3] {
	case 1:
		read(net.IPv4len)
	case 3:
		read(int(read(1)[0]))
	default:
		return errors.New("an address of a kind that this proxy doesn't know")
	}
	_ = binary.BigEndian.Uint16(read(2))
	_, err := client.Write([]byte{5, 0, 0, 1, 0, 0, 0, 0, 0, 0})
	return err
}
