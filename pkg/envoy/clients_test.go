package envoy_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/freeport"
	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/model"
)

// upgraded has the gateways that run accept what an xds-server sends agents of the current version.
func (in *installation) upgraded(t *testing.T) {
	t.Helper()
	for _, g := range in.gateways {
		g.bind.Version = envoy.Current
		g.deny(t, in, model.Denied{})
	}
}

// TestAClientThatSendsAPartOfItsRequestIsClosed: from its first byte on a request is active, and such a client would
// be held for an hour.
func TestAClientThatSendsAPartOfItsRequestIsClosed(t *testing.T) {
	in := newInstallation(t, 1, cluster(t, "c1", freeport.Endpoint(t)))
	in.upgraded(t)
	for _, part := range []string{"C", "CONNECT a", "CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n"} {
		envoytest.Eventually(t, fmt.Sprintf("a client that has sent %q is closed", part), func() error {
			conn, err := net.DialTimeout("tcp", in.gateways[0].bind.Connect.String(), envoytest.Patience)
			if err != nil {
				return err
			}
			defer conn.Close()
			_ = conn.SetDeadline(time.Now().Add(8 * time.Second)) // four times the timeout
			_, _ = io.WriteString(conn, part)
			if _, err = io.ReadAll(conn); errors.Is(err, os.ErrDeadlineExceeded) {
				return fmt.Errorf("it stays: %w", err)
			}
			return nil
		})
	}
}

// TestTheAccessLogHasTheAddressOfTheSocket: a client and an apiserver name another address in a header that proxies
// add. Neither the gateway nor the edge behind it logs that.
func TestTheAccessLogHasTheAddressOfTheSocket(t *testing.T) {
	workload := newAuthority(t)
	hostname := "c1.prod." + string(domain)
	api := newAPIServer(t, "api", workload, hostname)
	c1 := cluster(t, "c1", endpoint(t, api.Listener.Addr().String()))
	in := newInstallation(t, 1, c1)
	in.workload, in.AccessLog = workload, model.AccessLogAll
	in.upgraded(t)
	edge := in.startDialling(t, c1, envoy.EdgeDial{Version: envoy.Current})
	works(t, in.getByConnect, in.gateways[0], hostname, "api "+hostname)
	self := model.Subject{Role: model.RoleEgress, Node: model.NewNodeName(), ID: model.NewID()}
	for what, dial := range map[string]func() (net.Conn, error){
		`"listener":"connect"`: in.gateways[0].dialConnect,
		`"listener":"egress"`:  in.apiserver(t, self, domain.Egress()).dial,
	} {
		conn, err := dial()
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(envoytest.Patience))
		fmt.Fprintf(conn, "CONNECT %s:6443 HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 192.0.2.9\r\n\r\n", hostname)
		response, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: http.MethodConnect})
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		_ = response.Body.Close()
		_ = conn.Close()
		envoytest.Eventually(t, what+" with the address of the socket is in the log", func() error {
			for line := range strings.Lines(in.gateways[0].Log(t)) {
				if strings.Contains(line, what) && strings.Contains(line, `"client":"`+conn.LocalAddr().String()+`"`) {
					return nil
				}
			}
			return errors.New(in.gateways[0].Log(t))
		})
	}
	envoytest.Eventually(t, "the edge logs both connections", func() error {
		if n := strings.Count(edge.Log(t), `"listener":"tunnel"`); n < 2 {
			return fmt.Errorf("there are %d", n)
		}
		return nil
	})
	for name, log := range map[string]string{"gateway": in.gateways[0].Log(t), "edge": edge.Log(t)} {
		if strings.Contains(log, "192.0.2.9") {
			t.Errorf("the %s logs the address in the header:\n%s", name, log)
		}
	}
}
