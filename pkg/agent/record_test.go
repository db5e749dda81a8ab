package agent

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/pkg/envoy/record"
	"github.com/fairlead/fairlead/pkg/model"
)

// TestTheAddressOfAConnectionIsThatOfItsSocket: an apiserver names another address in a header that proxies add. If
// that address were on record, a revocation would not find the connection.
func TestTheAddressOfAConnectionIsThatOfItsSocket(t *testing.T) {
	c := newWorld(t)
	gateway := newGateway(c)
	c.serve()
	gateway.agent()
	gateway.ready()
	config := &tls.Config{
		ServerName:         domain.Egress(),
		InsecureSkipVerify: true, // the gateway's leaf has no such name
		Certificates: []tls.Certificate{
			c.fresh(model.Subject{Role: model.RoleEgress, Node: "kas-1", ID: model.NewID()}).TLSCertificate(),
		},
	}
	var conn net.Conn
	envoytest.Eventually(t, "the gateway accepts connections", func() (err error) {
		conn, err = tls.Dial("tcp", c.bind.Public.String(), config)
		return err
	})
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(envoytest.Patience))
	_, err := fmt.Fprint(conn, "CONNECT 10.0.0.1:443 HTTP/1.1\r\nHost: 10.0.0.1:443\r\nX-Forwarded-For: 192.0.2.9\r\n\r\n")
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: http.MethodConnect})
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	log := filepath.Join(gateway.child.StateDir, record.TunnelLog)
	envoytest.Eventually(t, "the connection is on record", func() error {
		for line := range strings.Lines(gateway.read(log)) {
			if !strings.Contains(line, `"owner":"egress"`) {
				continue
			}
			if !strings.Contains(line, `"peer":"`+conn.LocalAddr().String()+`"`) {
				t.Fatalf("the record has another address than %s: %s", conn.LocalAddr(), line)
			}
			return nil
		}
		return errors.New("it is not")
	})
	gateway.state("the record is complete", func(s state) error {
		if s.Tunnels == nil || s.Tunnels.BadLines != 0 || s.Tunnels.Incomplete != "" {
			return fmt.Errorf("it is not: %+v", s.Tunnels)
		}
		return nil
	})
}
