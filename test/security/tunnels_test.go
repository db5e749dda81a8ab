package security

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/pkg/envoy/record"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/outsider"
	"github.com/fairlead/fairlead/test/world"
)

const (
	// recordSize exceeds what one tunnel adds to a gateway's log: its setup, its first use and its end.
	recordSize = 3 * 512
	// closedWithin bounds the time until a connection is closed: after a revocation, or when a handshake is not
	// continued.
	closedWithin = 20 * time.Second
)

// tunnelAttacks try to keep an edge's tunnel beyond its revocation, with everything that the edge can send with its own
// key.
func tunnelAttacks(t *testing.T, in *installation) {
	m := in.Member(t, "ledger", nil)
	edge := in.Edge(t, lab.EdgeSpec{Name: "edge-ledger"}, m)
	stolen := world.Steal(t, edge)
	log := filepath.Join(in.Gateways[0].StateDir, record.TunnelLog)

	attack(
		t,
		"an edge sends another tenant ID, of 20 KiB, in its handshake",
		"the tenant id in Envoy's validation",
		func(t *testing.T) {
			response, conn := in.openTunnel(t, stolen, strings.Repeat("t", 20<<10), "")
			if response != http.StatusForbidden {
				t.Errorf("Envoy answers %d", response)
			}
			_ = conn.Close()
		},
		nil,
	)
	attack(t, "an edge keeps a silent connection after TLS", "handshake_timeout of Envoy", func(t *testing.T) {
		conn, err := in.Outsider(stolen).TLS(t.Context(), in.Outsider(stolen).Domain.GatewayReplica("gateway-0"))
		must(t, err)
		defer func() { _ = conn.Close() }()
		mustClose(t, conn)
	}, nil)
	attack(t, "an edge floods a gateway's log with pings and 50 KiB of headers",
		"records name each field; pings are no records (without: TestARecordOfAllMetadataIsInvalid)", func(t *testing.T) {
			before := size(t, log)
			_, conn := in.openTunnel(t, stolen, model.TenantID, strings.Repeat("w", 50<<10))
			defer func() { _ = conn.Close() }()
			for range 2000 {
				if _, err := conn.NetConn().Write([]byte("RPING")); err != nil {
					break // Envoy has closed it
				}
			}
			time.Sleep(time.Second) // Envoy writes its log within 200 ms; it may contain at most one record more
			if grown := size(t, log) - before; grown > 4*recordSize {
				t.Errorf("the log has grown by %d bytes", grown)
			}
		}, nil)
	attack(t, "a gateway cannot read a line of its record, and an edge is revoked",
		"an incomplete record is reported (without: TestLostEventsMakeTheRecordIncomplete)", func(t *testing.T) {
			// A connection in its handshake may be a tunnel whose log record is unreadable.
			silent, err := in.Outsider(stolen).TLS(t.Context(), in.Outsider(stolen).Domain.GatewayReplica("gateway-0"))
			must(t, err)
			defer func() { _ = silent.Close() }()
			file, err := os.OpenFile(log, os.O_APPEND|os.O_WRONLY, 0)
			must(t, err)
			_, err = file.WriteString(`{"owner":"tunnel","event":"tunnel_setup"` + "\n")
			must(t, errors.Join(err, file.Close()))
			out, err := in.Exec(
				t.Context(), "edge", "revoke", "edge-that-is-lost", "--namespace", world.Namespace, "--cluster", m.Name,
				"--timeout=2s", in.Inspection(),
			)
			if err == nil || !strings.Contains(out, "gateway-0: incomplete: ") {
				t.Errorf("it claims success: %v: %s", err, out)
			}
		}, nil)
	attack(t, "an edge keeps a tunnel with 50 KiB of headers beyond its revocation",
		"the record of owners (without: TestARecordOfAllMetadataIsInvalid)", func(t *testing.T) {
			response, conn := in.openTunnel(t, stolen, model.TenantID, strings.Repeat("w", 50<<10))
			defer func() { _ = conn.Close() }()
			if response != http.StatusOK {
				t.Fatalf("Envoy answers %d", response)
			}
			out, err := in.Exec(t.Context(), "edge", "revoke", stolen.Subject.Node, in.Inspection())
			if err != nil || !strings.Contains(out, "gateway-0: closed ") || strings.Contains(out, "gateway-0: closed 0") ||
				!strings.Contains(out, "gateway-1: closed ") {
				t.Fatalf("%v: %s", err, out)
			}
			// the proof is complete: the connection is closed already
			_ = conn.NetConn().SetReadDeadline(time.Now().Add(time.Second))
			if _, err := conn.NetConn().Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("the tunnel lives: %v", err)
			}
		}, nil)
	world.StopEdge(t, edge)
	must(t, m.Delete(t.Context()))
}

// openTunnel requests a tunnel from gateway-0 with a stolen key. It returns Envoy's answer and the connection, which is
// then the tunnel.
func (in *installation) openTunnel(t *testing.T, stolen outsider.Stolen, tenant, worker string) (int, *tls.Conn) {
	t.Helper()
	o := in.Outsider(stolen)
	conn, err := o.TLS(t.Context(), o.Domain.GatewayReplica("gateway-0"))
	must(t, err)
	_ = conn.SetDeadline(time.Now().Add(closedWithin))
	_, err = fmt.Fprintf(
		conn,
		"GET /reverse_connections/request HTTP/1.1\r\nHost: gateway\r\nx-envoy-reverse-tunnel-node-id: %s\r\n"+
			"x-envoy-reverse-tunnel-cluster-id: %s\r\nx-envoy-reverse-tunnel-tenant-id: "+
			"%s\r\nx-envoy-reverse-tunnel-worker-id: %s\r\n\r\n",
		stolen.Subject.NodeID(),
		o.Domain.TunnelID(stolen.Subject.ID),
		tenant,
		worker,
	)
	must(t, err)
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	must(t, err)
	_ = response.Body.Close()
	return response.StatusCode, conn
}

// mustClose fails the test unless the other end closes a connection.
func mustClose(t *testing.T, conn *tls.Conn) {
	t.Helper()
	_ = conn.SetReadDeadline(time.Now().Add(closedWithin))
	if _, err := conn.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the gateway keeps it: %v", err)
	}
}

func size(t *testing.T, path string) int64 {
	t.Helper()
	info, err := os.Stat(path)
	must(t, err)
	return info.Size()
}
