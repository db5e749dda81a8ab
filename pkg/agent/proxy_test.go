package agent

import (
	"encoding/base64"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead/fairlead/pkg/model"
)

// forwardProxy is an HTTP proxy that requires a password, and is the only path to the gateway.
type forwardProxy struct {
	url     string
	to      string // the only authority that it accepts
	target  string // the address of that authority
	tunnels atomic.Int32
	refused atomic.Int32
}

func newForwardProxy(t *testing.T, to model.Endpoint, target model.Endpoint) *forwardProxy {
	t.Helper()
	p := &forwardProxy{to: to.String(), target: target.String()}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p.url = "http://edge:secret@" + listener.Addr().String()
	server := &http.Server{Handler: p}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
	return p
}

// ServeHTTP implements http.Handler.
func (p *forwardProxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	want := "Basic " + base64.StdEncoding.EncodeToString([]byte("edge:secret"))
	if r.Method != http.MethodConnect || r.Host != p.to || r.Header.Get("Proxy-Authorization") != want {
		p.refused.Add(1)
		http.Error(w, "no", http.StatusProxyAuthRequired)
		return
	}
	to, err := net.DialTimeout("tcp", p.target, 5*time.Second)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer to.Close()
	from, _, err := w.(http.Hijacker).Hijack()
	if err != nil {
		return
	}
	defer from.Close()
	p.tunnels.Add(1)
	_, _ = io.WriteString(from, "HTTP/1.1 200 OK\r\n\r\n")
	var both sync.WaitGroup
	both.Go(func() { _, _ = io.Copy(to, from); _ = to.Close() })
	both.Go(func() { _, _ = io.Copy(from, to); _ = from.Close() })
	both.Wait()
}

func TestAnEdgeBehindAProxy(t *testing.T) {
	gateway, edge, a := newPair(t)
	at := model.Endpoint{Host: "gateways.example.com", Port: 443} // only the proxy resolves it
	proxy := newForwardProxy(t, at, gateway.bind.Public)
	edge.child.Edges[0].To, edge.child.Edges[0].Proxy = []model.Endpoint{at}, proxy.url
	stop := gateway.serve()
	gateway.agent()
	first := edge.agent()
	edge.works(a)
	edge.ready()
	if n := proxy.tunnels.Load(); n < 3 { // the control channel and tunnels
		t.Errorf("only %d connections went by the proxy", n)
	}
	stop()
	first.end(t, syscall.SIGTERM)
	edge.agent()
	edge.works(a) // Envoy has the agent's address from before
	gateway.serve()
	edge.works(a)
	if n := proxy.refused.Load(); n != 0 {
		t.Errorf("the proxy refused %d requests", n)
	}
	if log := edge.read(edge.log); strings.Contains(log, "secret") {
		t.Error("the log has the password of the proxy")
	}
}
