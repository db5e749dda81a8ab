package envoy_test

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/envoy/record"
	"github.com/fairlead/fairlead/pkg/model"
)

// TestADeniedEdgeOpensNoTunnel changes the list while reverse tunnels, streams and handshakes are open.
func TestADeniedEdgeOpensNoTunnel(t *testing.T) {
	workload := newAuthority(t)
	hostname := "c1.prod." + string(domain)
	server := newEchoServer(t, workload, hostname)
	c1 := cluster(t, "c1", server.endpoint(t))
	in := newInstallation(t, 1, c1)
	in.workload = workload
	in.startEdge(t, c1)
	g := in.gateways[0]
	stream := in.openStream(t, g, hostname)

	subject := func(id string) model.Subject {
		return model.Subject{Role: model.RoleEdge, Node: model.NewNodeName(), ID: id}
	}
	revoked, other, ended := subject(c1.ID), subject(c1.ID), subject(model.NewID())
	namesake := model.Subject{Role: model.RoleEdge, Node: revoked.Node, ID: model.NewID()}
	identities := map[model.Subject]certs.Identity{}
	open := func(s model.Subject) (int, error) {
		if _, ok := identities[s]; !ok {
			identities[s] = in.ca.issue(t, s)
		}
		return handshake(t, in, identities[s], claimOf(s))
	}
	for _, s := range []model.Subject{revoked, other, ended, namesake} {
		if got, err := open(s); err != nil || got != http.StatusOK {
			t.Fatalf("before anybody is denied: got %d, %v, want 200", got, err)
		}
	}
	// One edge is in the middle of its handshake.
	waiting := dialPublic(t, in, in.ca.issue(t, other))
	if err := waiting.HandshakeContext(t.Context()); err != nil {
		t.Fatal(err)
	}

	g.deny(t, in, model.Denied{
		Edges: []model.EdgeRef{
			{Node: "edge-somebody", ID: c1.ID},
			{Node: revoked.Node, ID: revoked.ID},
			{Node: other.Node, ID: ended.ID},
		},
		IDs: []string{ended.ID},
	})
	for name, s := range map[string]model.Subject{
		"a revoked edge":                      revoked,
		"the edge of a tunnel that has ended": ended,
	} {
		envoytest.Eventually(t, name+" is denied", func() error {
			got, err := open(s)
			if err == nil {
				return fmt.Errorf("it got %d", got)
			}
			return nil
		})
	}
	for name, s := range map[string]model.Subject{
		"another edge of the same workload cluster":     other,
		"another tunnel's edge with the same node name": namesake,
	} {
		if got, err := open(s); err != nil || got != http.StatusOK {
			t.Errorf("%s: got %d, %v, want 200", name, got, err)
		}
	}
	if got, err := sendHandshake(waiting, claimOf(other)); err != nil || got != http.StatusOK {
		t.Errorf("an edge that had begun its handshake: got %d, %v, want 200", got, err)
	}
	stream.check(t)

	g.deny(t, in, model.Denied{})
	envoytest.Eventually(t, "no edge is denied", func() error {
		_, err := open(revoked)
		return err
	})
	stream.check(t)
	checkUpdates(t, g)
}

// claimOf returns the claim of an honest edge.
func claimOf(s model.Subject) claim { return claim{s.NodeID(), domain.TunnelID(s.ID)} }

// checkUpdates checks how Envoy applied the lists: filter chains of one listener, and no new listener.
func checkUpdates(t *testing.T, g *gateway) {
	t.Helper()
	stats, err := g.Admin(
		t.Context(), http.MethodGet,
		"/stats?format=json&filter=^listener_manager.listener_(added|in_place_updated|removed|create_failure)$",
	)
	if err != nil {
		t.Fatal(err)
	}
	var all struct {
		Stats []struct {
			Name  string
			Value int
		}
	}
	if err := json.Unmarshal([]byte(stats), &all); err != nil {
		t.Fatal(err)
	}
	got := map[string]int{}
	for _, s := range all.Stats {
		got[strings.TrimPrefix(s.Name, "listener_manager.listener_")] = s.Value
	}
	if diff := cmp.Diff(map[string]int{"added": 5, "in_place_updated": 2, "removed": 0, "create_failure": 0},
		got); diff != "" {
		t.Error(diff)
	}
}

func TestEqualListsGiveEqualListeners(t *testing.T) {
	listener := func(d model.Denied) []byte {
		return marshal(t, envoy.GatewayListeners(model.Installation{Domain: domain}, "gateway-0", envoy.GatewayBind{}, d)[0])
	}
	one, two := model.NewID(), model.NewID()
	a, b := model.EdgeRef{Node: "a", ID: one}, model.EdgeRef{Node: "b", ID: one}
	want := listener(model.Denied{Edges: []model.EdgeRef{a, b}, IDs: []string{one, two}})
	got := listener(model.Denied{Edges: []model.EdgeRef{b, a, b}, IDs: []string{two, one, one}})
	if !bytes.Equal(want, got) {
		t.Error(cmp.Diff(string(want), string(got)))
	}
	if none := listener(model.Denied{}); bytes.Contains(none, []byte("policies")) ||
		!bytes.Contains(none, []byte("network.rbac")) {
		t.Errorf("with nobody denied there is no filter, or one with a policy:\n%s", none)
	}
}

// TestTunnelLog reads the records of a reverse tunnel that is set up, used and closed, as the gateway's agent does.
func TestTunnelLog(t *testing.T) {
	workload := newAuthority(t)
	hostname := "c1.prod." + string(domain)
	api := newAPIServer(t, "api", workload, hostname)
	c1 := cluster(t, "c1", endpoint(t, api.Listener.Addr().String()))
	in := newInstallation(t, 1, c1)
	in.workload = workload
	edge := in.startEdge(t, c1)
	works(t, in.getBySNI, in.gateways[0], hostname, "api "+hostname)
	edge.Kill()
	for _, event := range []string{"tunnel_setup", "socket_handoff", "tunnel_closed"} {
		envoytest.Eventually(t, event+" is logged", func() error {
			data, err := os.ReadFile(in.gateways[0].log)
			if err != nil {
				return err
			}
			for line := range bytes.Lines(data) {
				if checkEvent(t, line, event, c1, in.gateways[0].bind.Public) {
					return nil
				}
			}
			return fmt.Errorf("not among %q", data)
		})
	}
}

// checkEvent reports whether a line is about an event of a reverse tunnel, and fails the test if it is malformed.
func checkEvent(t *testing.T, line []byte, want string, wc model.WorkloadCluster, public model.Endpoint) bool {
	t.Helper()
	var got struct {
		Time                                        time.Time
		Owner, Event, Node, ID, Worker, Peer, Local string
	}
	if err := json.Unmarshal(line, &got); err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	if got.Event != want {
		return false
	}
	_, err := model.ParseEndpoint(got.Peer)
	_, node := model.ParseNodeID(got.Node)
	owned := got.Owner == record.OwnerTunnel && node && got.ID == domain.TunnelID(wc.ID)
	if err != nil || got.Local != public.String() || !owned || time.Since(got.Time) > time.Minute {
		t.Errorf("%q does not tell the tunnel", line)
	}
	return true
}

// newEchoServer returns a TLS server that echoes all data.
func newEchoServer(t *testing.T, ca authority, hostname string) *countingListener {
	t.Helper()
	config := serverConfig(ca.leaf(t, certs.Leaf{CommonName: "echo", DNSNames: []string{hostname}, Server: true}))
	return newCountingListener(t, "tcp", "127.0.0.1:0", func(raw net.Conn) {
		conn := tls.Server(raw, config)
		defer conn.Close()
		_, _ = io.Copy(conn, conn)
	})
}

// stream is a connection of a client to an echo server.
type stream struct{ *tls.Conn }

func (in *installation) openStream(t *testing.T, g *gateway, hostname string) stream {
	t.Helper()
	var s stream
	envoytest.Eventually(t, "a stream opens", func() error {
		raw, err := net.DialTimeout("tcp", g.bind.APIServer.String(), time.Second)
		if err != nil {
			return err
		}
		s = stream{tls.Client(raw, &tls.Config{RootCAs: in.workload.roots(), ServerName: hostname})}
		_ = s.SetDeadline(time.Now().Add(3 * envoytest.Patience))
		return s.HandshakeContext(t.Context())
	})
	t.Cleanup(func() { _ = s.Close() })
	s.check(t)
	return s
}

// check sends data and fails the test unless it is echoed.
func (s stream) check(t *testing.T) {
	t.Helper()
	const word = "still here"
	got := make([]byte, len(word))
	_, err := io.WriteString(s, word)
	if err == nil {
		_, err = io.ReadFull(s, got)
	}
	if err != nil || string(got) != word {
		t.Fatalf("the stream says %q, %v", got, err)
	}
}
