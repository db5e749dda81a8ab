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

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/pkg/model"
)

// askNetwork opens a connection as the apiserver of a tunnel and returns an error if it gets no answer at all.
func (c *control) askNetwork(node, id string) error {
	conn, err := tls.Dial("tcp", c.bind.Public.String(), &tls.Config{
		ServerName:         domain.Egress(),
		InsecureSkipVerify: true, // the gateway's leaf has no such name
		Certificates: []tls.Certificate{
			c.fresh(model.Subject{Role: model.RoleEgress, Node: node, ID: id}).TLSCertificate(),
		},
	})
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
