package edge

import (
	"errors"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairlead/fairlead/pkg/agent/status"
	"github.com/fairlead/fairlead/pkg/dial"
	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/model"
)

// TestConcurrentProbesShareOneResult proves that an apiserver is probed at most once a second, however often a probe is
// requested, and that a requested probe is reported.
func TestConcurrentProbesShareOneResult(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	var connections atomic.Int32
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			connections.Add(1)
			_ = conn.Close()
		}
	}()
	st := status.New(status.Process)
	s := newProber(st, slog.New(slog.DiscardHandler))
	if _, err := s.probeNow(t.Context()); !errors.Is(err, errNoAPIServer) {
		t.Errorf("without an apiserver: got %v", err)
	}
	s.setAPIServers([]model.Endpoint{endpoint(t, listener.Addr())})
	began := time.Now()
	var asking sync.WaitGroup
	for range 50 {
		asking.Go(func() {
			for range 20 {
				if a, err := s.probeNow(t.Context()); err != nil || a.GetHealthy() ||
					!strings.Contains(a.GetMessage(), "closed during the TLS handshake") {
					t.Errorf("got %v, %v", a, err)
				}
			}
		})
	}
	asking.Wait()
	if n, most := connections.Load(), 1+int32(time.Since(began)/minInterval); n < 1 || n > most {
		t.Errorf("%d looks in %s", n, time.Since(began))
	}
	select {
	case <-s.notified:
	default:
		t.Error("run is not told")
	}
}

// TestAnEdgeOfANetworkProbesItsOwnListeners: the apiserver of a network is behind the listeners of its edges.
func TestAnEdgeOfANetworkProbesItsOwnListeners(t *testing.T) {
	listen := []model.Endpoint{{Host: "10.1.0.2", Port: 6443}}
	e, err := NewRole(Config{
		Domain: domain, Dialer: &dial.Dialer{Addresses: []model.Endpoint{atFront}}, Listen: listen,
	}, t.TempDir(), status.New(status.Process), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	installation := model.Installation{
		Domain: domain, Public: atFront, Gateways: []model.Gateway{{Name: name}},
	}
	wc := model.WorkloadCluster{ID: edgeSubject.ID, Network: &model.Network{Name: "oslo", EgressID: model.NewID()}}
	check := e.Check(edgeSubject)
	listened := 0
	for _, l := range envoy.EdgeListeners(installation, wc, edgeSubject.Node, envoy.EdgeDial{
		Version: envoy.Current, Listen: listen,
	}) {
		resource := pack(t, l)
		if envoy.IsLocalListener(resource) {
			listened++
		} else if e.prober.hasAPIServers() != (listened > 0) {
			t.Errorf("%s makes the edge probe an apiserver", l.GetName())
		}
		if err := check("", resource); err != nil {
			t.Error(err)
		}
	}
	if listened != 1 || !e.prober.probes(listen) {
		t.Errorf("of %d listeners it probes %v", listened, e.prober.apiservers)
	}
}
