package identity

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/status"

	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/lab/netns"
	"github.com/fairlead/fairlead/test/outsider"
	"github.com/fairlead/fairlead/test/traffic"
	"github.com/fairlead/fairlead/test/world"
)

// methods are all methods that the control channel serves, and some that it does not.
var methods = []string{
	"/fairlead.enrol.v1.Enrolment/EnrolEdge", "/fairlead.enrol.v1.Enrolment/EnrolGateway",
	"/fairlead.enrol.v1.Enrolment/Renew",
	"/fairlead.report.v1.Report/Edge", "/fairlead.report.v1.Report/Gateway", "/fairlead.report.v1.Report/Watch",
	"/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources",
	"/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources",
	"/envoy.service.secret.v3.SecretDiscoveryService/StreamSecrets",
	"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", "/no.such.Service/Method",
}

// tries is how often each kind of sender sends each kind of garbage to each method.
const tries = 20

// garbage proves that any input on the port that faces the internet is rejected.
func (d *doors) garbage(t *testing.T) {
	site, err := d.AddSite(t.Context(), "vandal")
	must(t, err)
	m := d.Member(t, "quito", nil)
	edge := d.Edge(t, lab.EdgeSpec{Name: "edge-quito"}, m)
	stolen := world.Steal(t, edge)
	l := traffic.Start(t, 50, 1, "/whoami", m.Paths()...)
	defer l.Stop()
	before, pids := l.Count(), d.pids(t)

	senders := map[string]outsider.Outsider{
		"without a certificate": {From: site.Namespace, Domain: domain, Roots: stolen.Roots},
		"with an edge's certificate": {
			From:        site.Namespace,
			Domain:      domain,
			Roots:       stolen.Roots,
			Certificate: &stolen.Certificate,
		},
		"with a certificate of another CA": {
			From:        site.Namespace,
			Domain:      domain,
			Roots:       stolen.Roots,
			Certificate: ptr(forgery(t, stolen.Subject)),
		},
	}
	for name, sender := range senders {
		that(
			t, "the control channel rejects random messages "+name+" to every method",
			func(t *testing.T) { d.fuzz(t, sender, 4<<10) },
		)
		that(t, "oversize messages "+name+" are rejected unread", func(t *testing.T) { d.oversize(t, sender) })
	}
	that(t, "the public port does not answer bytes without TLS, or unknown names", func(t *testing.T) { d.noise(t, site) })
	that(t, "a thousand silent connections do not block other clients", func(t *testing.T) { d.silence(t, site, m) })
	that(t, "no process ended, no request failed and no stream broke during the attacks", func(t *testing.T) {
		must(t, errors.Join(l.Unbroken(before), d.XDSServerReady(t.Context()), edge.Ready(t.Context())))
		for name, pid := range d.pids(t) {
			if pid != pids[name] {
				t.Errorf("%s was %d, is %d", name, pids[name], pid)
			}
		}
	})
}

func ptr[T any](value T) *T { return &value }

// pids returns the processes that face the internet.
func (d *doors) pids(t *testing.T) map[string]int {
	t.Helper()
	pids := map[string]int{"xds-server": d.XDSServers[0].Process().PID(), "controller": d.Controller.Process().PID()}
	for i, gateway := range d.Gateways {
		envoy, err := gateway.EnvoyPID()
		must(t, err)
		pids["gateway-agent "+strconv.Itoa(i)], pids["gateway Envoy "+strconv.Itoa(i)] = gateway.Process().PID(), envoy
	}
	return pids
}

// raw is a gRPC codec that sends bytes unchanged.
type raw struct{}

func (raw) Name() string { return "proto" }

func (raw) Marshal(v any) ([]byte, error) { return *v.(*[]byte), nil }

func (raw) Unmarshal(data []byte, v any) error {
	*v.(*[]byte) = data
	return nil
}

var _ encoding.Codec = raw{}

// send sends one message to a method, and returns the answer.
func send(ctx context.Context, conn *grpc.ClientConn, method string, message []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	stream, err := conn.NewStream(
		ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method, grpc.ForceCodec(raw{}),
	)
	if err != nil {
		return nil, err
	}
	if err := stream.SendMsg(&message); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	_ = stream.CloseSend()
	var answer []byte
	return answer, stream.RecvMsg(&answer)
}

// good reports whether garbage was answered with content.
func good(answer []byte, err error) bool { return err == nil && len(answer) > 0 }

// fuzz sends random bytes, and random bytes that begin like a message.
func (d *doors) fuzz(t *testing.T, who outsider.Outsider, size int) {
	conn, err := who.Control()
	must(t, err)
	defer func() { _ = conn.Close() }()
	sent := 0
	for _, method := range methods {
		for i := range tries {
			message := make([]byte, 1+i*size/tries)
			_, _ = rand.Read(message)
			if i%2 == 1 {
				// A bytes field with the right length, so that decoding proceeds to its content.
				message = append([]byte{byte(1+i%5)<<3 | 2, byte(min(len(message), 100))}, message[:min(len(message), 100)]...)
			}
			if answer, err := send(t.Context(), conn, method, message); good(answer, err) {
				t.Errorf("%s answers %d bytes of garbage with %d bytes", method, len(message), len(answer))
			} else if status.Code(err) == codes.Internal && !strings.Contains(err.Error(), "failed to unmarshal") {
				// gRPC uses this code for messages that it cannot decode.
				t.Errorf("%s answers %d bytes of garbage with %v", method, len(message), err)
			}
			sent++
		}
	}
	garbageSent.add(sent)
}

// garbageSent counts the messages of all senders.
var garbageSent counter

type counter struct {
	sync.Mutex
	n int
}

func (c *counter) add(n int) {
	c.Lock()
	defer c.Unlock()
	c.n += n
	measured("garbage_messages", float64(c.n))
}

func (d *doors) oversize(t *testing.T, who outsider.Outsider) {
	conn, err := who.Control()
	must(t, err)
	defer func() { _ = conn.Close() }()
	message := make([]byte, 16<<20)
	for _, method := range methods[:7] {
		if answer, err := send(t.Context(), conn, method, message); err == nil {
			t.Errorf("%s answers 16 MiB with %d bytes", method, len(answer))
		}
	}
	garbageSent.add(7)
}

// noise sends data that is not TLS, and TLS for unknown names.
func (d *doors) noise(t *testing.T, site *netns.Site) {
	address := public(netns.PublicAddress(0))
	for i := range 14 {
		conn, err := site.DialContext(t.Context(), "tcp", address)
		must(t, err)
		_ = conn.SetDeadline(time.Now().Add(time.Second))
		message := make([]byte, 1<<i)
		_, _ = rand.Read(message)
		_, _ = conn.Write(message)
		if answer, _ := io.ReadAll(io.LimitReader(conn, 100)); len(answer) > 7 { // a TLS alert has 7 bytes
			t.Errorf("%d bytes of noise are answered with %q", len(message), answer)
		}
		_ = conn.Close()
	}
	for _, name := range []string{
		"", "example.test", string(domain), world.Hostname("quito"), "gateway-9." + string(domain),
	} {
		conn, err := site.DialContext(t.Context(), "tcp", address)
		must(t, err)
		_ = conn.SetDeadline(time.Now().Add(time.Second))
		if err := tls.Client(conn, &tls.Config{ServerName: name, InsecureSkipVerify: true}).HandshakeContext(
			t.Context()); err == nil {
			t.Errorf("the public port answers for the name %q", name)
		}
		_ = conn.Close()
	}
}

// silence opens connections that send nothing, to the gateway and, after half a handshake, to the control channel.
func (d *doors) silence(t *testing.T, site *netns.Site, m *world.Member) {
	var open []net.Conn
	defer func() {
		for _, conn := range open {
			_ = conn.Close()
		}
	}()
	for i := range 1000 {
		conn, err := site.DialContext(t.Context(), "tcp", public(netns.PublicAddress(0)))
		if err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
		open = append(open, conn)
		if i%2 == 0 { // a ClientHello for the control channel, and then nothing
			go func() {
				_ = tls.Client(silentConn{conn}, &tls.Config{ServerName: domain.Control(), InsecureSkipVerify: true}).
					HandshakeContext(t.Context())
			}()
		}
	}
	name := "arrives"
	arrives := d.Member(t, name, nil)
	d.StartEdge(t, lab.EdgeSpec{Name: "edge-" + name}, arrives)
	measured("join_beside_silence_s", world.Took(t, patience, arrives.Works).Seconds())
	must(t, m.Works(t.Context()))
}

// silentConn is a connection whose reads return nothing until patience has passed.
type silentConn struct{ net.Conn }

func (m silentConn) Read([]byte) (int, error) {
	<-time.After(patience)
	return 0, fmt.Errorf("nothing was heard")
}
