package tunnels

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/eventually"
	"github.com/fairlead/fairlead/internal/freeport"
	"github.com/fairlead/fairlead/internal/logtest"
	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/envoy/multiplex"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/tunnels/ledger"
	"github.com/fairlead/fairlead/pkg/tunnels/logfile"
)

// cutTime is how long a connection of a denied node may stay open.
const cutTime = 5 * time.Second

// used is the record of a request on a connection of a node.
func used(owner string, w wire, connection int, node, id string) string {
	name := domain.TunnelID(id)
	if owner == ownerEgress {
		name = domain.EgressID(id)
	}
	return fmt.Sprintf(
		`{"connection":%d,"event":%q,"id":%q,"local":%q,"node":"CN=%s","owner":%q,"peer":%q,`+
			`"time":"2026-01-01T12:00:00.000Z"}`+"\n", connection, eventRequest, name, w.local, node, owner, w.remote,
	)
}

// connects waits until exactly these nodes have connections.
func connects(t *testing.T, table *Table, want map[model.EdgeRef]int) {
	t.Helper()
	eventually.True(t, patience, "the connections are right", func() error {
		if diff := cmp.Diff(want, table.Connections()); diff != "" {
			return fmt.Errorf("(-want +got)\n%s", diff)
		}
		return nil
	})
}

func TestConnectionsOfDeniedNodesAreClosed(t *testing.T) {
	needsRight(t)
	e := newEcho(t, "tcp", "127.0.0.1:0")
	b := newBed(t, t.TempDir())
	b.run(t)
	next := 0
	connect := func(owner, node, id string) wire {
		w := e.dial(t, e.Addr().String())
		next++
		b.write(t, used(owner, w, next, node, id), used(owner, w, next, node, id)) // each request has a record
		return w
	}
	revoked := []wire{connect(ownerEgress, "kas-1", idA), connect(ownerEgress, "kas-1", idA)}
	ended := []wire{connect(ownerForward, "edge-1", idB), connect(ownerForward, "edge-2", idB)}
	spared := []wire{connect(ownerEgress, "kas-2", idA), connect(ownerForward, "kas-1", idC)}
	left := map[model.EdgeRef]int{{Node: "kas-2", ID: idA}: 1, {Node: "kas-1", ID: idC}: 1}
	connects(t, b.Table, map[model.EdgeRef]int{
		{Node: "kas-1", ID: idA}: 2, {Node: "edge-1", ID: idB}: 1, {Node: "edge-2", ID: idB}: 1,
		{Node: "kas-2", ID: idA}: 1, {Node: "kas-1", ID: idC}: 1,
	})
	if s := b.Stats(); s.Egress != 3 || s.Forward != 3 || s.Tunnels != 0 {
		t.Errorf("counts are %+v", s)
	}
	b.Deny(model.Denied{Edges: []model.EdgeRef{{Node: "kas-1", ID: idA}}, IDs: []string{idB}})
	began := time.Now()
	isCut(t, append(revoked, ended...)...)
	if took := time.Since(began); took > cutTime {
		t.Errorf("that took %s", took)
	}
	// One that appears later is closed too.
	isCut(t, connect(ownerEgress, "kas-1", idA))
	connects(t, b.Table, left)
	for _, w := range spared {
		if err := w.answers(); err != nil {
			t.Errorf("a connection of another node is closed: %v", err)
		}
	}
	if s := b.Stats(); s.Cut != 5 || b.log.Count("denied connection closed", "owner=egress") != 3 {
		t.Errorf("counts are %+v", s)
	}
}

// TestAConnectionIsGoneWithItsSocket: Envoy does not record the end. The next connection from the same address may be
// of another node, and must not be closed for the first one.
func TestAConnectionIsGoneWithItsSocket(t *testing.T) {
	needsRight(t)
	e := newEcho(t, "tcp", "127.0.0.1:0")
	b := newBed(t, t.TempDir())
	b.checkEvery = time.Hour
	b.run(t)
	first := e.dial(t, e.Addr().String())
	ref := model.EdgeRef{Node: "kas-1", ID: idA}
	b.write(t, used(ownerEgress, first, 1, ref.Node, ref.ID))
	connects(t, b.Table, map[model.EdgeRef]int{ref: 1})
	_ = first.Conn.(*net.TCPConn).SetLinger(0) // no TIME_WAIT, so that the address can be used again
	_ = first.Close()
	_ = first.server.Close()
	again := dialFrom(t, first.remote, e.Addr().String())
	server := <-e.accepted
	t.Cleanup(func() { _ = server.Close() })
	second := wire{again, server, first.remote, first.local}
	b.Deny(model.Denied{Edges: []model.EdgeRef{ref}})
	connects(t, b.Table, map[model.EdgeRef]int{})
	if err := second.answers(); err != nil {
		t.Errorf("the next connection from that address is closed: %v", err)
	}
	other := model.EdgeRef{Node: "kas-2", ID: idA}
	b.write(t, used(ownerEgress, second, 2, other.Node, other.ID))
	connects(t, b.Table, map[model.EdgeRef]int{other: 1})
	if err := second.answers(); err != nil {
		t.Error(err)
	}
}

func TestTheNextAgentHasTheConnections(t *testing.T) {
	needsRight(t)
	e := newEcho(t, "tcp", "127.0.0.1:0")
	dir := t.TempDir()
	b := newBed(t, dir)
	b.maxLog = 100 // so that the state file has it, and the log does not
	stop := b.run(t)
	kept, closed := e.dial(t, e.Addr().String()), e.dial(t, e.Addr().String())
	b.write(t, used(ownerForward, kept, 7, "edge-1", idA), used(ownerEgress, closed, 8, "kas-1", idB))
	eventually.True(t, patience, "the state is saved", func() error {
		data, err := os.ReadFile(b.statePath())
		if err == nil && !strings.Contains(string(data), "kas-1") {
			err = errors.New("without the connection")
		}
		return err
	})
	stop()
	_ = closed.Close()
	_ = closed.server.Close()
	b = newBed(t, dir)
	b.run(t)
	connects(t, b.Table, map[model.EdgeRef]int{{Node: "edge-1", ID: idA}: 1})
	b.Deny(model.Denied{IDs: []string{idA}})
	isCut(t, kept)
}

// claims claims a connection, with limits that it does not reach.
func (b *bed) claims(subject model.Subject, w wire) bool {
	_, _, permitted := b.Claim(subject, w.remote, w.local, ledger.MaxOwned, ledger.MaxOwned)
	return permitted
}

// TestClaimsBeyondALimitAreNotRecorded: connections of edges and of apiservers with the same names count separately.
func TestClaimsBeyondALimitAreNotRecorded(t *testing.T) {
	b := newBed(t, t.TempDir())
	const mostOfNode, mostOfID = 2, 3
	kas := func(node string) model.Subject { return model.Subject{Role: model.RoleEgress, Node: node, ID: idA} }
	edge := model.Subject{Role: model.RoleEdge, Node: "kas-1", ID: idA}
	for i, c := range []struct {
		subject      model.Subject
		ofNode, ofID int
	}{
		{kas("kas-1"), 0, 0},
		{kas("kas-1"), 1, 1},
		{kas("kas-1"), 2, 2},
		{edge, 0, 0},
		{kas("kas-2"), 0, 2},
		{kas("kas-2"), 1, 3},
		{kas("kas-3"), 0, 3},
		{edge, 1, 1},
	} {
		at := netip.AddrPortFrom(netip.MustParseAddr("192.0.2.9"), uint16(1+i))
		ofNode, ofID, permitted := b.Claim(c.subject, at, netip.MustParseAddrPort("192.0.2.1:443"), mostOfNode, mostOfID)
		if ofNode != c.ofNode || ofID != c.ofID || !permitted {
			t.Errorf("claim %d: there are %d and %d, want %d and %d", i, ofNode, ofID, c.ofNode, c.ofID)
		}
	}
	connects(t, b.Table, map[model.EdgeRef]int{{Node: "kas-1", ID: idA}: 4, {Node: "kas-2", ID: idA}: 1})
}

// TestEachRequestOfANodeIsPassedOn, with its own time, also of a log that is read in several parts.
func TestEachRequestOfANodeIsPassedOn(t *testing.T) {
	b := newBed(t, t.TempDir())
	got := map[string]int{}
	b.config.Request = func(p Placed) {
		got[p.Owner+" "+p.Node]++
		if p.ID != idA || p.From != netip.MustParseAddr("192.0.2.9") || p.Since.Year() != 2026 || p.Key == "" {
			t.Errorf("a request is %+v", p)
		}
	}
	w := wire{remote: netip.MustParseAddrPort("192.0.2.9:5"), local: netip.MustParseAddrPort("192.0.2.1:443")}
	b.claims(model.Subject{Role: model.RoleEgress, Node: "kas-1", ID: idA}, w)
	const many = 2 * logfile.MaxRead / 200
	b.write(
		t, used(ownerForward, w, 2, "edge-1", idA), ofPeer(w, "gateway-1"), setup(1, "edge-1"),
		strings.Repeat(used(ownerEgress, w, 1, "kas-1", idA), many),
	)
	b.poll(noon)
	if diff := cmp.Diff(map[string]int{"egress kas-1": many, "forward edge-1": 1}, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// TestEndedConnectionsDoNotCountForLong: a node that opens and closes many has its limit for those that are open.
func TestEndedConnectionsDoNotCountForLong(t *testing.T) {
	needsRight(t)
	e := newEcho(t, "tcp", "127.0.0.1:0")
	b := newBed(t, t.TempDir())
	b.checkEvery = 10 * time.Second // and a tenth of it at a limit
	b.run(t)
	b.has(t, map[string]string{}) // after the check at the start
	kas, most := model.Subject{Role: model.RoleEgress, Node: "kas-1", ID: idA}, 4
	for range most {
		w := e.dial(t, e.Addr().String())
		if ofNode, _, _ := b.Claim(kas, w.remote, w.local, most, most); ofNode >= most {
			t.Fatalf("there are %d", ofNode)
		}
		_ = w.Conn.(*net.TCPConn).SetLinger(0)
		_, _ = w.Close(), w.server.Close()
	}
	began := time.Now()
	eventually.True(t, patience, "another one is admitted", func() error {
		w := e.dial(t, e.Addr().String())
		ofNode, _, _ := b.Claim(kas, w.remote, w.local, most, most)
		if ofNode >= most {
			return fmt.Errorf("there are %d", ofNode)
		}
		return nil
	})
	if took := time.Since(began); took > b.checkEvery/2 {
		t.Errorf("that took %s", took)
	}
}

// TestAConnectionHasAnOwnerBeforeItsFirstRequest: it is counted, proven and closed like one that has carried some.
func TestAConnectionHasAnOwnerBeforeItsFirstRequest(t *testing.T) {
	needsRight(t)
	e := newEcho(t, "tcp", "127.0.0.1:0")
	b := accounted(t, e, good)
	kas := model.Subject{Role: model.RoleEgress, Node: "kas-1", ID: idA}
	edge := model.Subject{Role: model.RoleEdge, Node: "edge-1", ID: idB}
	ofKAS, ofEdge := model.EdgeRef{Node: "kas-1", ID: idA}, model.EdgeRef{Node: "edge-1", ID: idB}
	quiet, carries, spared := e.dial(t, e.Addr().String()), e.dial(t, e.Addr().String()), e.dial(t, e.Addr().String())
	for _, w := range []wire{quiet, carries} {
		if !b.claims(kas, w) {
			t.Fatal("it is rejected")
		}
	}
	if !b.claims(edge, spared) {
		t.Fatal("it is rejected")
	}
	isClosed(t, e.dial(t, e.Addr().String())) // which has no owner for too long
	b.completes(t)
	b.write(t, used(ownerEgress, carries, 1, "kas-1", idA))
	time.Sleep(5 * pollInterval)
	connects(t, b.Table, map[model.EdgeRef]int{ofKAS: 2, ofEdge: 1})
	if s := b.Stats(); s.Egress != 2 || s.Forward != 1 {
		t.Errorf("counts are %+v", s)
	}
	if p := b.Prove(t.Context(), ofKAS); p.Open != 2 || p.Incomplete != "" {
		t.Errorf("the proof is %+v", p)
	}
	b.Deny(model.Denied{Edges: []model.EdgeRef{ofKAS}})
	isCut(t, quiet, carries)
	if b.claims(kas, quiet) {
		t.Error("a connection of a denied node is accepted")
	}
	connects(t, b.Table, map[model.EdgeRef]int{ofEdge: 1})
	if err := spared.answers(); err != nil {
		t.Errorf("a connection of another node is closed: %v", err)
	}
}

// TestAClaimReplacesAnEarlierConnection with the same addresses, of which Envoy records no end.
func TestAClaimReplacesAnEarlierConnection(t *testing.T) {
	b := newBed(t, t.TempDir())
	w := wire{remote: netip.MustParseAddrPort("192.0.2.9:5"), local: netip.MustParseAddrPort("192.0.2.1:443")}
	all := map[string]model.EdgeRef{"kas-1": {Node: "kas-1", ID: idA}, "kas-2": {Node: "kas-2", ID: idA}}
	for _, node := range []string{"kas-1", "kas-2", "kas-1"} {
		b.claims(model.Subject{Role: model.RoleEgress, Node: node, ID: idA}, w)
		connects(t, b.Table, map[model.EdgeRef]int{all[node]: 1})
	}
}

// TestConnectionsBehindALoadBalancerAreNotClaimed: their addresses may be those of a PROXY header. The same node may
// not be denied.
func TestConnectionsBehindALoadBalancerAreNotClaimed(t *testing.T) {
	b := newBed(t, t.TempDir())
	b.config.Envoy = func() (int, error) { return 0, nil }
	kas := model.Subject{Role: model.RoleEgress, Node: "kas-1", ID: idA}
	at := wire{remote: netip.MustParseAddrPort("192.0.2.9:5"), local: netip.MustParseAddrPort("192.0.2.1:443")}
	if !b.claims(kas, at) || len(b.Connections()) > 0 {
		t.Errorf("there are %v", b.Connections())
	}
	b.Deny(model.Denied{IDs: []string{idA}})
	if b.claims(kas, at) {
		t.Error("a connection of a denied node is accepted")
	}
}

// TestAConnectionWithoutDataEndsBeforeItIsUnknown. Envoy takes helloTimeout of package envoy before its idle timeout
// begins, and some seconds to end an HTTP/2 connection.
func TestAConnectionWithoutDataEndsBeforeItIsUnknown(t *testing.T) {
	const hello, ends = 5 * time.Second, 6 * time.Second
	if unknown := ledger.Comparisons * accountInterval; unknown < multiplex.UnusedAfter+max(hello, ends) {
		t.Errorf("a connection of a node without requests is unknown after %s", unknown)
	}
}

func TestAConnectionOfANodeIsAccountedFor(t *testing.T) {
	e := newEcho(t, "tcp", "127.0.0.1:0")
	b := accounted(t, e, good)
	w := e.dial(t, e.Addr().String())
	b.write(t, used(ownerEgress, w, 1, "kas-1", idA))
	isClosed(t, e.dial(t, e.Addr().String())) // which has no record
	b.completes(t)
	if err := w.answers(); err != nil {
		t.Errorf("it is closed: %v", err)
	}
	ref := model.EdgeRef{Node: "kas-1", ID: idA}
	if p := b.Prove(t.Context(), ref); p.Open != 1 || p.Incomplete != "" {
		t.Errorf("the proof is %+v", p)
	}
	b.Deny(model.Denied{Edges: []model.EdgeRef{ref}})
	isClosed(t, w)
	eventually.True(t, patience, "it is proven", func() error {
		if p := b.Prove(t.Context(), ref); p.Open != 0 || p.Closed != 1 || !p.Denied {
			return fmt.Errorf("%+v", p)
		}
		return nil
	})
}

// ofPeer is the record of a forwarded client on a connection of another gateway, whose leaf has two names.
func ofPeer(w wire, node string) string {
	names := domain.GatewayReplica(node) + "," + domain.Gateway()
	return strings.Replace(used(ownerPeer, w, 1, node, idA), domain.TunnelID(idA), names, 1)
}

// TestAConnectionOfAnotherGatewayIsAccountedFor: it stays open, and it is no connection of an edge.
func TestAConnectionOfAnotherGatewayIsAccountedFor(t *testing.T) {
	e := newEcho(t, "tcp", "127.0.0.1:0")
	b := accounted(t, e, good)
	w := e.dial(t, e.Addr().String())
	b.write(t, ofPeer(w, "gateway-1"))
	isClosed(t, e.dial(t, e.Addr().String())) // which has no record
	b.completes(t)
	if err := w.answers(); err != nil {
		t.Errorf("it is closed: %v", err)
	}
	if all, places := b.Connections(), b.ConnectionPlaces(); len(all)+len(places) != 0 {
		t.Errorf("edges have the connections %v, at %v", all, places)
	}
}

// TestARecordOfAnotherRoleIsAGap: a wrong record must not let a connection pass as one of a node that is not denied.
func TestARecordOfAnotherRoleIsAGap(t *testing.T) {
	w := wire{remote: netip.MustParseAddrPort("192.0.2.9:5"), local: netip.MustParseAddrPort("192.0.2.1:443")}
	egress := used(ownerEgress, w, 1, "kas-1", idA)
	for name, text := range map[string]string{
		"an edge's name":      strings.Replace(egress, domain.EgressID(idA), domain.TunnelID(idA), 1),
		"no name":             strings.Replace(egress, `"`+domain.EgressID(idA)+`"`, "null", 1),
		"no node":             strings.Replace(egress, `"CN=kas-1"`, "null", 1),
		"no gateway's name":   ofPeer(w, "kas-1"),
		"an event of a relay": strings.Replace(egress, ownerEgress, "relay", 1),
		"an apiserver's name": strings.Replace(used(ownerForward, w, 1, "edge-1", idA), domain.TunnelID(idA),
			domain.EgressID(idA), 1),
	} {
		b := newBed(t, t.TempDir())
		b.run(t)
		b.write(t, text)
		eventually.True(t, patience, name+" is a bad line", func() error {
			if s := b.Stats(); s.BadLines != 1 || s.Egress+s.Forward != 0 {
				return fmt.Errorf("%+v", s)
			}
			return nil
		})
	}
}

// TestARealEnvoyRecordsConnectionsOfNodes has real Envoy write the records, and both ends of a connection end in time.
func TestARealEnvoyRecordsConnectionsOfNodes(t *testing.T) {
	needsRight(t)
	envoytest.Path(t)
	ca, err := certs.NewCA("test", time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	l := &lab{ca: ca, dir: envoytest.Dir(t), log: &logtest.Journal{}}
	l.credentials(t, l.dir, model.Subject{Role: model.RoleGateway, Node: "gateway-0"})
	type port struct {
		Owner string
		Port  int
	}
	ports := []port{{ownerEgress, freeport.TCP(t)}, {ownerForward, freeport.TCP(t)}}
	l.gateway = envoytest.Start(
		t, l.dir, render(t, "requests.yaml", map[string]any{"Ports": ports}), "--file-flush-interval-msec", "200",
	)
	table := New(Config{
		Domain: domain, Log: filepath.Join(l.dir, "tunnels.log"), Logger: slog.New(slog.NewTextHandler(l.log, nil)),
		Reopen: func(ctx context.Context) error {
			_, err := l.gateway.Admin(ctx, http.MethodPost, "/reopen_logs")
			return err
		},
	})
	(&bed{Table: table}).run(t)
	open := func(at int, s model.Subject) *tls.Conn {
		dir := t.TempDir()
		l.credentials(t, dir, s)
		leaf, err := tls.LoadX509KeyPair(filepath.Join(dir, "leaf.pem"), filepath.Join(dir, "key.pem"))
		if err != nil {
			t.Fatal(err)
		}
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(ca.CertPEM())
		config := &tls.Config{
			Certificates: []tls.Certificate{leaf}, RootCAs: roots, ServerName: domain.Gateway(), MinVersion: tls.VersionTLS13,
		}
		conn, err := tls.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", ports[at].Port), config)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		request(t, conn)
		return conn
	}
	revoked := open(0, model.Subject{Role: model.RoleEgress, Node: "kas-1", ID: idA})
	spared := open(0, model.Subject{Role: model.RoleEgress, Node: "kas-2", ID: idA})
	ended := open(1, model.Subject{Role: model.RoleEdge, Node: "edge-1", ID: idB})
	connects(t, table, map[model.EdgeRef]int{
		{Node: "kas-1", ID: idA}: 1, {Node: "kas-2", ID: idA}: 1, {Node: "edge-1", ID: idB}: 1,
	})
	request(t, spared) // the same connection
	table.Deny(model.Denied{Edges: []model.EdgeRef{{Node: "kas-1", ID: idA}}, IDs: []string{idB}})
	began := time.Now()
	for _, conn := range []net.Conn{revoked, ended} {
		_ = conn.SetReadDeadline(time.Now().Add(2 * cutTime))
		if _, err := conn.Read(make([]byte, 1)); err == nil || isTimeout(err) {
			t.Fatalf("a connection of a denied node ends with %v", err)
		}
	}
	if took := time.Since(began); took > cutTime {
		t.Errorf("the connections ended after %s", took)
	}
	connects(t, table, map[model.EdgeRef]int{{Node: "kas-2", ID: idA}: 1})
	envoytest.Eventually(t, "Envoy has closed its side", func() error {
		stats, err := l.gateway.Admin(t.Context(), "GET", "/stats?filter=http.(egress|forward).downstream_cx_active")
		if err == nil && (!strings.Contains(stats, "egress.downstream_cx_active: 1") ||
			!strings.Contains(stats, "forward.downstream_cx_active: 0")) {
			err = errors.New(stats)
		}
		return err
	})
	request(t, spared)
	if s := table.Stats(); s.BadLines != 0 {
		t.Errorf("%d lines cannot be read", s.BadLines)
	}
}

func request(t *testing.T, conn net.Conn) {
	t.Helper()
	_ = conn.SetDeadline(time.Now().Add(envoytest.Patience))
	if _, err := fmt.Fprint(conn, "GET / HTTP/1.1\r\nhost: a\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
}
