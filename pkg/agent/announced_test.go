package agent

import (
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/pkg/model"
)

// oldAddress forwards connections to an address until it is removed.
type oldAddress struct {
	net.Listener
	mu   sync.Mutex
	open []net.Conn
}

// newOldAddress returns an address that forwards to another one.
func newOldAddress(t *testing.T, to model.Endpoint) *oldAddress {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	a := &oldAddress{Listener: l}
	t.Cleanup(a.remove)
	go func() {
		for {
			from, err := l.Accept()
			if err != nil {
				return
			}
			go a.forward(from, to)
		}
	}()
	return a
}

func (a *oldAddress) forward(from net.Conn, address model.Endpoint) {
	defer from.Close()
	to, err := net.DialTimeout("tcp", address.String(), time.Second)
	if err != nil {
		return
	}
	defer to.Close()
	a.mu.Lock()
	a.open = append(a.open, from, to)
	a.mu.Unlock()
	go func() {
		defer to.Close()
		_, _ = io.Copy(to, from)
	}()
	_, _ = io.Copy(from, to)
}

// remove refuses new connections and closes the open ones.
func (a *oldAddress) remove() {
	_ = a.Close()
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, conn := range a.open {
		_ = conn.Close()
	}
}

// TestAConnectedEdgeKeepsANewAddressOfTheGateways moves an installation to another public address. The edge's bootstrap
// file has the old one throughout.
func TestAConnectedEdgeKeepsANewAddressOfTheGateways(t *testing.T) {
	gateway, edge, a := newPair(t)
	old := newOldAddress(t, edge.bind.Public)
	edge.public = endpoint(t, old.Addr())
	edge.child.Edges[0].To = []model.Endpoint{edge.public}
	stop := gateway.serve()
	gateway.agent()
	first := edge.agent()
	edge.works(a)

	stop()
	edge.public = edge.bind.Public // both addresses answer
	gateway.serve()
	envoytest.Eventually(t, "the edge has stored the new address", func() error {
		var found []string
		for _, folder := range []string{"", "*", "*/*"} {
			names, err := filepath.Glob(filepath.Join(edge.child.StateDir, folder, "gateways.json"))
			if err != nil {
				return err
			}
			found = append(found, names...)
		}
		if len(found) != 1 || !strings.Contains(edge.read(found[0]), edge.public.String()) {
			return fmt.Errorf("it is not in %v", found)
		}
		return nil
	})

	old.remove()
	first.end(t, syscall.SIGTERM) // Envoy too
	edge.agent()
	edge.works(a)
	edge.state("the restarted edge is connected to the xds-server", func(s state) error {
		if m := s.Memberships[0]; !m.Connected || m.Cached {
			return errors.New("it is not: " + m.LastError)
		}
		return nil
	})
}
