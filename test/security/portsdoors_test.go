package security

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	admissionv1 "k8s.io/api/admission/v1"

	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/test/lab/netns"
	"github.com/fairlead/fairlead/test/outsider"
	"github.com/fairlead/fairlead/test/world"
)

// tryPublic tries the port that faces the internet: each name with each identity, each method of the control channel,
// and tunnels.
func tryPublic(t *testing.T, in *installation, p port) {
	gateway := "gateway-0"
	if p.in == in.Network.Gateways[1] {
		gateway = "gateway-1"
	}
	identities := in.identities(t)
	control, replica := world.Domain.Control(), world.Domain.GatewayReplica(gateway)
	knocks := func(t *testing.T, name string, want func(identity) string) {
		for _, caller := range identities {
			if got := startTLS(t, in.Network.Workload, p.address.String(), name, caller.certificate); got != want(caller) {
				t.Errorf("the name %q with the identity %q: %s, want %s", name, caller.name, got, want(caller))
			}
		}
	}
	always := func(what string) func(identity) string { return func(identity) string { return what } }
	attack(
		t,
		"every identity opens TLS on the public port with SNI of clients, of tunnels, unknown or without SNI",
		"the public port knows no other names",
		func(t *testing.T) {
			for _, name := range []string{
				in.victim.Hostname, world.Domain.TunnelID(in.idOf(t, in.victim)), world.Domain.Controller(), "kubernetes",
				"localhost", "*." + string(world.Domain),
				strings.Repeat("a", 63) + "." + string(world.Domain), "", // a client sends no SNI for an IP address
			} {
				knocks(t, name, always("closed"))
			}
		},
		func(t *testing.T) { knocks(t, control, always("open")) },
	)
	attack(
		t,
		"every identity except an edge's opens TLS with a gateway's name",
		"the gateway asks for an edge's certificate of the installation's CA",
		func(t *testing.T) {
			knocks(t, replica, func(caller identity) string {
				if caller.subject.Role == model.RoleEdge {
					return "open"
				}
				return "alert"
			})
		},
		func(t *testing.T) {
			if got := startTLS(t, in.Network.Workload, p.address.String(), control, nil); got != "open" {
				t.Errorf("without that demand it is %s", got)
			}
		},
	)
	attack(
		t,
		"every identity calls every method of the control channel through the public port",
		"the role in the certificate of each call",
		func(t *testing.T) {
			tryCalls(t, in, "public", func(caller identity) (*grpc.ClientConn, error) {
				return in.outsider(t, in.Network.Workload, p.address.String(), caller).Control()
			}, true)
		},
		nil,
	)
	in.tryTunnels(t, gateway, p)
}

// tryTunnels requests a tunnel with each identity that has a certificate, for each tunnel.
func (in *installation) tryTunnels(t *testing.T, gateway string, p port) {
	as := func(t *testing.T, caller identity, id string) (outsider.Outsider, outsider.Claim) {
		return in.outsider(t, in.Network.Workload, p.address.String(), caller),
			outsider.Claim{Node: caller.subject.NodeID(), ID: world.Domain.TunnelID(id)}
	}
	handshake := func(t *testing.T, caller identity, id string) int {
		who, claim := as(t, caller, id)
		code, err := who.Handshake(t.Context(), gateway, claim)
		if err != nil {
			return 0 // TLS fails or the connection ends
		}
		return code
	}
	attack(
		t,
		"an edge, or a holder of a gateway's key, opens a reverse tunnel with another tunnel ID",
		"the gateway compares the claim with the certificate",
		func(t *testing.T) {
			for _, caller := range in.identities(t) {
				for name, id := range map[string]string{
					"edge": in.idOf(t, in.tenant), "other edge": in.idOf(t, in.victim),
					"unknown": model.NewID(),
				} {
					if caller.subject.Node == "" || caller.name == name {
						continue
					}
					if code := handshake(t, caller, id); code != 0 && code < 400 {
						t.Errorf("the identity %q got the tunnel of %q: %d", caller.name, name, code)
					}
				}
			}
		},
		func(t *testing.T) {
			for _, caller := range in.identities(t) {
				if caller.name == "edge" {
					who, claim := as(t, caller, in.idOf(t, in.tenant))
					if err := who.Open(t.Context(), gateway, claim); err != nil {
						t.Errorf("its own tunnel: %v", err)
					}
				}
			}
		},
	)
}

// tryAPIServer tries the port of clients that send an SNI. It routes by the name alone; the apiserver behind it
// authenticates clients.
func tryAPIServer(t *testing.T, in *installation, p port) {
	attack(
		t,
		"every identity opens TLS on the gateway's apiserver port with SNI of no tunnel",
		"only hostnames of tunnels lead anywhere",
		func(t *testing.T) {
			for _, caller := range in.identities(t) {
				for _, name := range []string{"", "kubernetes", "localhost", world.Domain.Control(), world.Domain.GatewayReplica(
					"gateway-0"), world.Hostname("nobody"), world.Domain.TunnelID(in.idOf(t, in.victim))} {
					if got := startTLS(t, in.Network.Management, p.address.String(), name, caller.certificate); got != "closed" {
						t.Errorf("the name %q with the identity %q: %s", name, caller.name, got)
					}
				}
			}
		},
		func(t *testing.T) {
			if got := startTLS(t, in.Network.Management, p.address.String(), in.victim.Hostname, nil); got != "open" {
				t.Errorf("the hostname of a tunnel: %s", got)
			}
		},
	)
	in.notFromWorkload(t, p)
}

// notFromWorkload tries a port of clients from the network of edges.
func (in *installation) notFromWorkload(t *testing.T, p port) {
	attack(
		t,
		fmt.Sprintf("a host in the workload network connects to the clients' port %d of a gateway", p.address.Port()),
		"it listens only in the management network",
		func(t *testing.T) {
			dialFails(t, in.Network.Workload, p.address)
			for i := range in.Gateways {
				dialFails(t, in.Network.Workload, netip.AddrPortFrom(netns.PublicAddress(i), p.address.Port()))
			}
		},
		func(t *testing.T) {
			conn, err := in.Network.Management.DialContext(t.Context(), "tcp", p.address.String())
			must(t, err)
			_ = conn.Close()
		},
	)
}

// tryConnect tries the port of clients that send CONNECT, with each identity's token.
func tryConnect(t *testing.T, in *installation, p port) {
	ask := func(t *testing.T, line, token string) int {
		ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
		defer cancel()
		conn, err := in.Network.Management.DialContext(ctx, "tcp", p.address.String())
		must(t, err)
		defer func() { _ = conn.Close() }()
		_ = conn.SetDeadline(time.Now().Add(15 * time.Second))
		_, err = fmt.Fprintf(conn, "%s HTTP/1.1\r\nHost: x:6443\r\nProxy-Authorization: Bearer %s\r\n\r\n", line, token)
		must(t, err)
		response, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: http.MethodConnect})
		if err != nil {
			return 0
		}
		_ = response.Body.Close()
		return response.StatusCode
	}
	attack(
		t,
		"every identity requests addresses of no tunnel, with and without CONNECT",
		"only hostnames of tunnels lead anywhere",
		func(t *testing.T) {
			for name, token := range in.tokens(t) {
				for _, line := range []string{
					"CONNECT 127.0.0.1:8080", "CONNECT 10.111.1.10:6443", "CONNECT control." + string(world.Domain) + ":443",
					"CONNECT kubernetes:6443", "CONNECT " + world.Hostname("nobody") + ":6443",
					"GET /", "GET http://127.0.0.1:8080/readyz", "GET /config_dump", "CONNECT " + world.Domain.TunnelID(
						in.idOf(t, in.victim)) + ":6443",
				} {
					if code := ask(t, line, token); code >= 200 && code < 400 {
						t.Errorf("%q with the identity %q is answered with %d", line, name, code)
					}
				}
			}
		},
		func(t *testing.T) {
			if code := ask(t, "CONNECT "+in.victim.Hostname+":6443", ""); code != http.StatusOK {
				t.Errorf("the hostname of a tunnel is answered with %d", code)
			}
		},
	)
	in.notFromWorkload(t, p)
}

// tryInspection requests everything at the port of inspection, which is for users who may forward a port of the Pod. No
// answer contains a key.
func tryInspection(t *testing.T, in *installation, _ port) {
	that(
		t,
		"inspection on its loopback address shows no key and no token of any identity",
		func(t *testing.T) {
			for _, args := range [][]string{
				{"fairlead", "config", "gateway-0", "-o", "json"}, {"fairlead", "status", "-o", "json"}, {
					"fairlead", "config",
					"--node=" + in.identities(t)[0].subject.Node, "-o", "json",
				},
			} {
				out, _ := in.Exec(t.Context(), args[1:]...)
				if secretText.MatchString(out) {
					t.Errorf("%v shows a key or a token", args)
				}
			}
		},
	)
}

// tryWebhook sends reviews and other requests to the webhook without a certificate.
func tryWebhook(t *testing.T, in *installation, p port) {
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, // an attacker verifies nothing
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return p.in.DialContext(ctx, network, p.address.String())
		},
	}}
	send := func(t *testing.T, path, body, token string) (int, string) {
		request, err := http.NewRequestWithContext(
			t.Context(), http.MethodPost, "https://"+p.address.String()+path, strings.NewReader(body),
		)
		must(t, err)
		request.Header.Set("Content-Type", "application/json")
		request.Header.Set("Authorization", "Bearer "+token)
		response, err := client.Do(request)
		must(t, err)
		defer func() { _ = response.Body.Close() }()
		text, err := io.ReadAll(io.LimitReader(response.Body, 1<<20))
		must(t, err)
		return response.StatusCode, string(text)
	}
	that(
		t,
		"the webhook answers malformed requests of every identity without a patch or a secret",
		func(t *testing.T) {
			for name, token := range in.tokens(t) {
				for _, body := range []string{
					"", "{", "[]", `{"request":null}`,
					`{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"uid":"1","object":{"metadata":{}}}}`,
					strings.Repeat("[", 100_000),
				} {
					code, text := send(t, "/kubeconfigs", body, token)
					var review admissionv1.AdmissionReview
					if err := json.Unmarshal([]byte(text), &review); code == http.StatusOK &&
						(err != nil || review.Response == nil || len(review.Response.Patch) > 0) ||
						secretText.MatchString(text) {
						t.Errorf("%.60q of the identity %q is answered with %d %.200q", body, name, code, text)
					}
				}
				for _, path := range []string{"/", "/metrics", "/debug/pprof/", "/convert"} {
					if code, _ := send(t, path, "", token); code != http.StatusNotFound {
						t.Errorf("%s is answered with %d", path, code)
					}
				}
			}
		},
	)
}
