package tunnels

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/eventually"
	"github.com/fairlead/fairlead/pkg/model"
)

// outsider dials the gateway with an edge's own key, and sends the given headers.
func (l *lab) outsider(t *testing.T, headers string) (*http.Response, net.Conn) {
	t.Helper()
	dir := t.TempDir()
	l.credentials(t, dir, model.Subject{Role: model.RoleEdge, Node: "edge-3", ID: idC})
	certificate, err := tls.LoadX509KeyPair(filepath.Join(dir, "leaf.pem"), filepath.Join(dir, "key.pem"))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(l.ca.CertPEM())
	raw, err := net.Dial("tcp", l.address())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = raw.Close() })
	_ = raw.SetDeadline(time.Now().Add(envoytest.Patience))
	conn := tls.Client(
		raw,
		&tls.Config{
			RootCAs:      roots,
			ServerName:   domain.GatewayReplica("gateway-0"),
			Certificates: []tls.Certificate{certificate},
			MinVersion:   tls.VersionTLS13,
		},
	)
	_, err = fmt.Fprintf(
		conn,
		"GET /reverse_connections/request HTTP/1.1\r\nHost: gateway\r\nx-envoy-reverse-tunnel-node-id: CN=edge-3\r\n"+
			"x-envoy-reverse-tunnel-cluster-id: %s\r\n%s\r\n",
		domain.TunnelID(idC),
		headers,
	)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return nil, raw
	}
	return response, raw
}

func tenant(s string) string { return "x-envoy-reverse-tunnel-tenant-id: " + s + "\r\n" }

// TestHeadersOfAnEdgeAreNotInTheRecord sends headers to a real Envoy that an edge can send with its own key.
func TestHeadersOfAnEdgeAreNotInTheRecord(t *testing.T) {
	needsRight(t)
	l := newLab(t, "127.0.0.1", "127.0.0.1", false)
	table, _ := l.table(t)
	path := filepath.Join(l.dir, "tunnels.log")
	waitForTunnels(t, table, map[string]int{"edge-1": 2, "edge-2": 2})
	tunnels, outer := 0, t
	for name, tt := range map[string]struct {
		headers string
		status  int // 0: the connection is closed
	}{
		"20 KiB in the tenant id": {tenant(strings.Repeat("t", 20<<10)), 200},
		"50 KiB in the tenant id": {tenant(strings.Repeat("t", 50<<10)), 200},
		"50 KiB in the worker's name": {tenant("fairlead") + "x-envoy-reverse-tunnel-worker-id: " + strings.Repeat("w",
			50<<10) + "\r\n", 200},
		"more than Envoy takes":   {tenant(strings.Repeat("t", 70<<10)), 431},
		"bytes that are no UTF-8": {tenant("a\x80\xff\xc3"), 200},
		"quotes and a record": {tenant(`","owner":"relay","peer":"192.0.2.9:1","local":"192.0.2.1:443"}` +
			`{"owner":"tunnel"`), 200},
		"a control character": {tenant("a\x01b"), 400},
		"a second header each": {
			tenant("fairlead") + tenant("again") + "x-envoy-reverse-tunnel-node-id: CN=edge-1\r\n" +
				"x-envoy-reverse-tunnel-cluster-id: " + domain.TunnelID(idA) + "\r\n",
			200,
		},
		"another party's address": {
			tenant("fairlead") + "x-forwarded-for: 192.0.2.9\r\nx-envoy-external-address: 192.0.2.9\r\n" +
				"forwarded: for=192.0.2.9\r\n",
			200,
		},
	} {
		t.Run(name, func(t *testing.T) {
			before := len(read(t, path))
			response, conn := l.outsider(outer, tt.headers)
			if got := statusOf(response); got != tt.status {
				t.Fatalf("Envoy answers %d, want %d", got, tt.status)
			}
			if tt.status == http.StatusOK {
				tunnels++
			}
			eventually.True(t, envoytest.Patience, "the tunnel is in the table", func() error {
				if n, _, _ := table.Counts(model.EdgeRef{Node: "edge-3", ID: idC}); n != tunnels {
					return fmt.Errorf("%d are, want %d", n, tunnels)
				}
				return nil
			})
			for range 100 { // Envoy has an event for each, of 5 bytes
				_, _ = conn.Write([]byte("RPING"))
				time.Sleep(time.Millisecond) // prevents that Envoy reads them as one
			}
			peer := conn.LocalAddr().String()
			grown := read(t, path)[before:]
			if len(grown) > 512 {
				t.Errorf("the log has grown by %d bytes: %.600s", len(grown), grown)
			}
			for line := range strings.Lines(grown) {
				var fields map[string]any
				if err := json.Unmarshal([]byte(line), &fields); err != nil || len(fields) != 9 || fields["peer"] != peer ||
					fields["owner"] != "tunnel" ||
					fields["node"] != "CN=edge-3" {
					t.Errorf("%v: %s", err, line)
				}
			}
		})
	}
	if table.Stats().BadLines != 0 {
		t.Errorf("%d lines can't be read", table.Stats().BadLines)
	}
	table.Deny(model.Denied{Edges: []model.EdgeRef{{Node: "edge-3", ID: idC}}})
	eventually.True(t, envoytest.Patience, "its tunnels are closed", func() error {
		if n, _, _ := table.Counts(model.EdgeRef{Node: "edge-3", ID: idC}); n != 0 || int(table.Stats().Cut) < tunnels {
			return fmt.Errorf("%d are left, %d are cut", n, table.Stats().Cut)
		}
		return nil
	})
}

// TestARecordOfAllMetadataIsInvalid shows why records have named fields: with the whole metadata an edge's header
// makes a line that is longer than any record, and the tunnel is not in the table. The table then reports that the
// record is incomplete.
func TestARecordOfAllMetadataIsInvalid(t *testing.T) {
	needsRight(t)
	l := (&lab{Address: "127.0.0.1", Dials: "127.0.0.1", Workers: 1, Count: 2, Whole: true}).start(t)
	table, _ := l.table(t)
	path := filepath.Join(l.dir, "tunnels.log")
	response, _ := l.outsider(t, tenant(strings.Repeat("t", 50<<10)))
	if statusOf(response) != http.StatusOK {
		t.Fatalf("Envoy answers %d", statusOf(response))
	}
	eventually.True(t, envoytest.Patience, "the line is read", func() error {
		if len(read(t, path)) < 50<<10 || table.Stats().BadLines == 0 {
			return fmt.Errorf("%d bytes are written, %d bad lines are read", len(read(t, path)), table.Stats().BadLines)
		}
		return nil
	})
	if n, _, _ := table.Counts(model.EdgeRef{Node: "edge-3", ID: idC}); n != 0 {
		t.Errorf("%d tunnels are in the table: named fields are not necessary", n)
	}
	table.mu.Lock()
	defer table.mu.Unlock()
	if table.ledger.Gap() == "" {
		t.Error("the record has no gap")
	}
}

func statusOf(r *http.Response) int {
	if r == nil {
		return 0
	}
	return r.StatusCode
}

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
