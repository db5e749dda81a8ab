package agent

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/pkg/model"
)

// dialNetwork opens a connection as the apiserver of a tunnel.
func (c *control) dialNetwork(node, id string, protocols ...string) (*tls.Conn, error) {
	return c.dialPublic(domain.Egress(), model.Subject{Role: model.RoleEgress, Node: node, ID: id}, protocols...)
}

// clientOf opens an HTTP/2 connection of an apiserver. It answers the pings of Envoy.
func (c *control) clientOf(node, id string) *http2.ClientConn { //nolint:staticcheck // that of net/http dials by itself
	c.t.Helper()
	conn, err := c.dialNetwork(node, id, http2.NextProtoTLS)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { _ = conn.Close() })
	client, err := (&http2.Transport{}).NewClientConn(conn) //nolint:staticcheck // see above
	if err != nil {
		c.t.Fatal(err)
	}
	return client
}

// dialForward opens a connection as an edge that forwards to its apiserver.
func (c *control) dialForward(node, id string) (*tls.Conn, error) {
	return c.dialPublic(
		domain.Forward(), model.Subject{Role: model.RoleEdge, Node: node, ID: id}, http2.NextProtoTLS,
	)
}

func (c *control) dialPublic(server string, subject model.Subject, protocols ...string) (*tls.Conn, error) {
	return tls.Dial("tcp", c.bind.Public.String(), &tls.Config{
		ServerName:         server,
		InsecureSkipVerify: true, // the gateway's leaf has no such name
		NextProtos:         protocols,
		Certificates:       []tls.Certificate{c.fresh(subject).TLSCertificate()},
	})
}

// askNetwork opens a connection as the apiserver of a tunnel and returns an error if it gets no answer at all.
func (c *control) askNetwork(node, id string) error {
	conn, err := c.dialNetwork(node, id)
	if err != nil {
		return err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(envoytest.Patience))
	if _, err := fmt.Fprint(conn, "CONNECT 10.0.0.1:443 HTTP/1.1\r\nHost: 10.0.0.1:443\r\n\r\n"); err != nil {
		return err
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: http.MethodConnect})
	if err != nil {
		return err
	}
	return response.Body.Close()
}

// TestARestartedGatewayKeepsItsDenials, while no xds-server answers. Its Envoy is another one too.
func TestARestartedGatewayKeepsItsDenials(t *testing.T) {
	c := newWorld(t)
	gateway, id := newGateway(c), model.NewID()
	c.egress("c1", id)
	stop := c.serve()
	first := gateway.agent()
	gateway.ready()
	c.revoke(id, "kas-1")
	envoytest.Eventually(t, "the denial is kept", func() error {
		if kept := gateway.read(filepath.Join(gateway.child.StateDir, "denials.json")); !strings.Contains(kept, "kas-1") {
			return errors.New(kept)
		}
		return nil
	})
	stop()
	first.end(t, syscall.SIGTERM)

	gateway.agent()
	envoytest.Eventually(t, "an apiserver that is not revoked gets answers", func() error {
		return c.askNetwork("kas-2", id)
	})
	for range 5 {
		if c.askNetwork("kas-1", id) == nil {
			t.Error("the revoked one gets an answer")
		}
	}
}

// TestARevocationClosesConnectionsWithoutRequests: Envoy has no record of these, and would accept requests on them.
func TestARevocationClosesConnectionsWithoutRequests(t *testing.T) {
	c, gateway, id := newWorldOfNetworks(t)
	revoked, other := c.clientOf("kas-1", id), c.clientOf("kas-2", id)
	gateway.state("both are on record", func(s state) error {
		if s.Tunnels == nil || s.Tunnels.Egress != 2 {
			return fmt.Errorf("%+v are", s.Tunnels)
		}
		return nil
	})
	began := time.Now()
	c.revoke(id, "kas-1")
	envoytest.Eventually(t, "the connection ends", func() error {
		if !revoked.State().Closed {
			return errors.New("it is open")
		}
		return nil
	})
	if took := time.Since(began); took > withinBound {
		t.Errorf("that took %s", took)
	}
	if other.State().Closed {
		t.Error("the connection of another node is closed")
	}
}
