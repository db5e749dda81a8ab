package e2e

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/lab/netns"
	"github.com/fairlead/fairlead/test/promise"
)

// namesOfNoTunnel returns names that a client could send but that must not lead anywhere: names of Envoy clusters that
// are not tunnels, and internal names of tunnels.
func (w *world) namesOfNoTunnel(t *testing.T) []string {
	t.Helper()
	self := subjectOf(t, w.berlin.edge.StateDir)
	names := append(
		envoy.StaticClusters(model.RoleGateway), "control_channel", "no_such_tunnel", "peer_gateway-0", "gateway-0",
		"apiserver", "kubernetes",
	)
	return append(
		names, domain.TunnelID(self.ID), self.Node, domain.Control(), domain.Gateway(), domain.GatewayReplica("gateway-0"),
		"no."+string(domain),
	)
}

// routesToNoTunnel proves that the gateway's two routes lead only to tunnels.
func (w *world) routesToNoTunnel(t *testing.T) {
	for _, name := range w.namesOfNoTunnel(t) {
		promise.That(t, "the gateway routes nothing for SNI "+shortName(name), func(t *testing.T) {
			if err := w.helloAt(t.Context(), w.Network.Management, hostPort(netns.GatewayName, netns.APIServerPort),
				name); err == nil {
				t.Error("the TLS handshake was answered")
			}
		})
		promise.That(t, "the gateway routes nothing for authority "+shortName(name), func(t *testing.T) {
			status, err := w.connectTo(t.Context(), name)
			// Envoy itself rejects some of these names as invalid authorities.
			if must(t, err); status != http.StatusNotFound && status != http.StatusBadRequest {
				t.Errorf("status %d, want 404 or 400", status)
			}
		})
	}
	promise.That(t, "the gateway closes a connection without SNI", func(t *testing.T) {
		if err := w.helloAt(t.Context(), w.Network.Management, hostPort(netns.GatewayName, netns.APIServerPort),
			""); err == nil {
			t.Error("the TLS handshake was answered")
		}
	})
	w.routesToTunnels(t)
}

// routesToTunnels proves that the tests above would have detected an answer, and what clients observe when a tunnel is
// down.
func (w *world) routesToTunnels(t *testing.T) {
	down := w.bareCluster(t, lab.ClusterSpec{Name: "down"})
	_, err := down.WaitKubeconfig(t.Context())
	must(t, err)
	promise.That(t, "the SNI of an open tunnel routes to its apiserver", func(t *testing.T) {
		must(
			t,
			w.helloAt(t.Context(), w.Network.Management, hostPort(netns.GatewayName, netns.APIServerPort), hostname("berlin")),
		)
	})
	promise.That(t, "the gateway resets a connection to a closed tunnel within two seconds", func(t *testing.T) {
		start := time.Now()
		if err := w.helloAt(t.Context(), w.Network.Management, hostPort(netns.GatewayName, netns.APIServerPort), hostname(
			"down")); err == nil {
			t.Error("the TLS handshake was answered")
		}
		if took := time.Since(start); took > 2*time.Second {
			t.Errorf("it took %s, and a worker of Cluster API with it", took)
		}
	})
	for name, tc := range map[string]struct {
		cluster string
		want    int
	}{
		"CONNECT to an open tunnel returns 200":    {"tokyo", http.StatusOK},
		"CONNECT to a closed tunnel returns 503":   {"down", http.StatusServiceUnavailable},
		"CONNECT to an unknown tunnel returns 404": {"unknown", http.StatusNotFound},
	} {
		promise.That(t, name, func(t *testing.T) {
			status, err := w.connectTo(t.Context(), hostname(tc.cluster))
			if must(t, err); status != tc.want {
				t.Errorf("status %d, want %d", status, tc.want)
			}
		})
	}
	must(t, down.Delete(t.Context()))
}

// helloAt starts a TLS handshake with an SNI. It returns nil if a server answers with any certificate.
func (w *world) helloAt(ctx context.Context, from *netns.Namespace, address, name string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	conn, err := from.DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	answered := false
	client := tls.Client(
		conn,
		&tls.Config{ServerName: name, InsecureSkipVerify: true, VerifyConnection: func(tls.ConnectionState) error {
			answered = true
			return nil
		}},
	)
	if err := client.HandshakeContext(ctx); err != nil && !answered {
		return err
	}
	return nil
}

// connectTo sends a CONNECT for a name to the gateway, and returns the status of the answer.
func (w *world) connectTo(ctx context.Context, name string) (int, error) {
	conn, err := w.Network.Management.DialContext(ctx, "tcp", hostPort(netns.GatewayName, netns.ConnectPort))
	if err != nil {
		return 0, err
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err := fmt.Fprintf(conn, "CONNECT %[1]s:6443 HTTP/1.1\r\nHost: %[1]s:6443\r\n\r\n", name); err != nil {
		return 0, err
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: http.MethodConnect})
	if err != nil {
		return 0, err
	}
	return response.StatusCode, response.Body.Close()
}

// shortName removes the tests' long domain from a name.
func shortName(name string) string {
	if len(name) > len(domain) && name[len(name)-len(domain):] == string(domain) {
		return name[:len(name)-len(domain)] + "…"
	}
	return name
}

// publicPort proves that the port that faces the internet gives no access to any apiserver.
func (w *world) publicPort(t *testing.T) {
	public := hostPort(netns.PublicName, netns.PublicPort)
	for _, name := range []string{
		hostname("berlin"), hostname("paris"), hostname("tokyo"), berlinExtraName, "kubernetes",
		"localhost", "", domain.TunnelID(subjectOf(t, w.berlin.edge.StateDir).ID),
	} {
		promise.That(t, "the public port routes nothing for SNI \""+shortName(name)+"\"", func(t *testing.T) {
			if err := w.helloAt(t.Context(), w.Network.Workload, public, name); err == nil {
				t.Error("the TLS handshake was answered")
			}
		})
	}
	promise.That(t, "the public port does not act as an HTTP proxy", func(t *testing.T) {
		conn, err := w.Network.Workload.DialContext(t.Context(), "tcp", public)
		must(t, err)
		defer func() { _ = conn.Close() }()
		_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
		_, err = fmt.Fprintf(conn, "CONNECT %[1]s:6443 HTTP/1.1\r\nHost: %[1]s:6443\r\n\r\n", hostname("tokyo"))
		must(t, err)
		if answer, _ := io.ReadAll(conn); len(answer) > 0 {
			t.Errorf("it answers %q", answer)
		}
	})
	promise.That(t, "the control channel does not route an edge to an apiserver", w.controlIsNoAPIServer)
}

func (w *world) controlIsNoAPIServer(t *testing.T) {
	berlin, roots := identityOf(t, w.berlin.edge.StateDir)
	for _, path := range []string{"/", "/version", "/api", "/readyz", "/api/v1/namespaces/shops/secrets"} {
		conn, err := w.dialPublic(t.Context(), roots, domain.Control(), &berlin)
		must(t, err)
		_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
		_, err = fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: kubernetes\r\nConnection: close\r\n\r\n", path)
		must(t, err)
		response, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err == nil && response.StatusCode < http.StatusBadRequest {
			t.Errorf("GET %s is answered with %s", path, response.Status)
		}
		_ = conn.Close()
	}
}
