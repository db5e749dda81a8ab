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
