package server_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pires/go-proxyproto"

	"github.com/fairlead/fairlead/internal/eventually"
	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/dial"
	"github.com/fairlead/fairlead/pkg/enrol"
	enrolclient "github.com/fairlead/fairlead/pkg/enrol/client"
	"github.com/fairlead/fairlead/pkg/model"
)

// public returns a client that connects from an address through a gateway's public port: Envoy writes a PROXY header
// and copies bytes.
func public(t testing.TB, client enrolclient.Client, from string) enrolclient.Client {
	t.Helper()
	source, err := net.ResolveTCPAddr("tcp", from)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := client.Dialer.Addresses[0].String()
	var copies sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	copies.Go(func() {
		for {
			near, err := listener.Accept()
			if err != nil {
				return
			}
			copies.Go(func() { pass(ctx, near, server, source) })
		}
	})
	t.Cleanup(func() { cancel(); _ = listener.Close(); copies.Wait() })
	address, err := model.ParseEndpoint(listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	client.Dialer = &dial.Dialer{Addresses: []model.Endpoint{address}}
	return client
}

func pass(ctx context.Context, near net.Conn, to string, source *net.TCPAddr) {
	defer near.Close()
	far, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	defer far.Close()
	defer context.AfterFunc(ctx, func() { _ = near.Close(); _ = far.Close() })()
	if _, err := proxyproto.HeaderProxyFromAddrs(2, source, &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 443}).WriteTo(
		far); err != nil {
		return
	}
	go func() { _, _ = io.Copy(far, near); _ = far.Close() }()
	_, _ = io.Copy(near, far)
}

// limited reports whether an error is a rate limit. It fails the test if the error has no retry delay.
func limited(t testing.TB, err error) bool {
	t.Helper()
	var limit *enrolclient.LimitError
	if !errors.As(err, &limit) {
		return false
	}
	if errors.Is(err, certs.ErrRefused) || errors.Is(err, enrolclient.ErrNotRenewable) || limit.RetryAfter() <= 0 {
		t.Errorf("got %v, after %s", err, limit.RetryAfter())
	}
	return true
}

func TestAFloodFromOneAddressDelaysNoOtherCaller(t *testing.T) {
	m := newManagement(t)
	direct := m.serve()
	attacker := public(t, direct, "203.0.113.66:1000")
	ctx, stop := context.WithCancel(t.Context())
	var (
		flood            sync.WaitGroup
		attempts, silent atomic.Int64
	)
	for range 16 {
		flood.Go(func() {
			for ctx.Err() == nil {
				_, _, err := attacker.EnrolEdge(ctx, "fl1.guess", "")
				attempts.Add(1)
				if err == nil {
					t.Error("a guess was right")
				}
				if limited(t, err) {
					silent.Add(1)
				}
			}
		})
	}
	eventually.True(t, 30*time.Second, "a flood that is limited", func() error {
		if n := silent.Load(); n < 20 {
			return fmt.Errorf("%d were", n)
		}
		return nil
	})
	var longest time.Duration
	for i := range 20 {
		other := public(t, direct, fmt.Sprintf("198.51.100.%d:5000", i))
		begin := time.Now()
		if err := enrolEdge(t, other, m.edge); err != nil {
			t.Errorf("from another address: %v", err)
		}
		longest = max(longest, time.Since(begin))
	}
	stop()
	flood.Wait()
	t.Logf("%d attempts, %d of them limited; the longest of 20 enrolments from elsewhere took %s; %d lines logged",
		attempts.Load(), silent.Load(), longest, m.log.Count("enrolment rejected"))
	if longest > 5*time.Second {
		t.Errorf("an enrolment took %s", longest)
	}
	if n := m.log.Count("enrolment rejected"); n > 40 {
		t.Errorf("the flood filled the log with %d lines", n)
	}
}

func TestAValidCredentialIsNotLimitedByOthersBehindItsAddress(t *testing.T) {
	m := newManagement(t)
	client := public(t, m.serve(), "203.0.113.66:1000")
	for !limited(t, enrolEdge(t, client, "fl1.guess")) {
		if t.Failed() {
			return
		}
	}
	for name, err := range map[string]error{
		"a token":       enrolEdge(t, client, m.edge),
		"a certificate": renew(t, client, m.identity("edge-a", domain.TunnelID(id))),
	} {
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestLimits(t *testing.T) {
	tests := map[string]struct {
		try   func(t *testing.T, m *management, client enrolclient.Client) error
		burst int
	}{
		"rejected attempts of one address": {
			burst: 20,
			try: func(t *testing.T, _ *management, client enrolclient.Client) error {
				return enrolEdge(t, client, "fl1.unknown")
			},
		},
		"certificates for one token": {burst: 64, try: func(t *testing.T, m *management, client enrolclient.Client) error {
			return enrolEdge(t, client, m.edge)
		}},
		"renewals of one node": {burst: 30, try: func(t *testing.T, m *management, client enrolclient.Client) error {
			return renew(t, client, m.identity("edge-a", domain.TunnelID(id)))
		}},
		"first certificates of one gateway": {
			burst: 10,
			try: func(t *testing.T, m *management, client enrolclient.Client) error {
				return enrolGateway(t, client, "gateway-7", enrolclient.GatewayCredential{Token: m.gate})
			},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			m := newManagement(t)
			m.set(func() { m.life = 24 * time.Hour })
			client := m.serve()
			for i := range tc.burst {
				if err := tc.try(t, m, client); limited(t, err) {
					t.Fatalf("number %d is limited: %v", i, err)
				}
			}
			for range 1000 { // on a slow machine some more are accepted meanwhile
				if limited(t, tc.try(t, m, client)) {
					return
				}
			}
			t.Error("there is no limit")
		})
	}
}

func TestServiceAccountTokensAreNotReviewedWithoutLimit(t *testing.T) {
	m := newManagement(t)
	client := m.serve()
	for i := range 60 {
		_ = enrolGateway(t, client, fmt.Sprintf("gateway-%d", i), enrolclient.GatewayCredential{ServiceAccountToken: "a.b.c"})
	}
	if m.reviews == 0 || m.reviews > 25 {
		t.Errorf("60 attempts led to %d questions to the apiserver", m.reviews)
	}
}

func TestOneCallerHoldsABoundedNumberOfRequests(t *testing.T) {
	const each = 32
	m := newManagement(t)
	client := m.serve()
	hold := make(chan struct{})
	m.set(func() { m.hold = hold })
	greedy, other := m.identity("edge-a", domain.TunnelID(id)), m.identity("edge-b", domain.TunnelID(id))
	results, others := make(chan error), make(chan error, 1)
	for range each {
		go func() {
			_, _, err := client.Renew(t.Context(), greedy)
			results <- err
		}()
	}
	refused := 0
	for range 2 { // two of them after the burst of one node, which is 30
		if err := <-results; !limited(t, err) {
			t.Errorf("got %v, want a limit", err)
		}
		refused++
	}
	go func() {
		_, _, err := client.Renew(t.Context(), other)
		others <- err
	}()
	close(hold)
	for range each - refused {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
	if err := <-others; err != nil {
		t.Errorf("another node: %v", err)
	}
}

func TestAClientOfThePublicPortIsNotAGateway(t *testing.T) {
	m := newManagement(t)
	direct := m.serve()
	outside := public(t, direct, "203.0.113.5:1234")
	gateway := m.identity("gateway-3", domain.GatewayReplica("gateway-3"), domain.Gateway())
	for name, try := range map[string]func(client enrolclient.Client) error{
		"the gateway token": func(c enrolclient.Client) error {
			return enrolGateway(t, c, "gateway-3", enrolclient.GatewayCredential{Token: m.gate})
		},
		"a gateway's certificate": func(c enrolclient.Client) error { return renew(t, c, gateway) },
		"its ServiceAccount token": func(c enrolclient.Client) error {
			return enrolGateway(t, c, "gateway-3",
				enrolclient.GatewayCredential{ServiceAccountToken: "service.account.token-of-gateway-3"})
		},
	} {
		if err := try(direct); err != nil {
			t.Errorf("%s, inside: %v", name, err)
		}
		if err := try(outside); !errors.Is(err, certs.ErrRefused) || errors.Is(err, enrolclient.ErrNotRenewable) {
			t.Errorf("%s, through the public port: %v", name, err)
		}
	}
	if err := enrolEdge(t, outside, m.edge); err != nil {
		t.Errorf("an edge through the public port: %v", err)
	}
	if m.log.Count("address=203.0.113.5:1234") == 0 {
		t.Error("the real address is not in the log")
	}
}

// BenchmarkEnrol enrols an edge over TLS, with a signer that answers at once.
func BenchmarkEnrol(b *testing.B) {
	m := newManagement(b)
	client := m.serve()
	i := 0
	for b.Loop() {
		if i++; i%50 == 0 { // one token is limited
			token, err := enrol.RandomToken()
			if err != nil {
				b.Fatal(err)
			}
			m.set(func() { m.edge = token })
		}
		if _, _, err := client.EnrolEdge(b.Context(), m.edge, "host"); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkRenew renews the leaves of many nodes.
func BenchmarkRenew(b *testing.B) {
	m := newManagement(b)
	client := m.serve()
	nodes := make([]certs.Identity, 1000)
	for i := range nodes {
		nodes[i] = m.identity(fmt.Sprintf("edge-%d", i), domain.TunnelID(id))
	}
	i := 0
	for b.Loop() {
		if _, _, err := client.Renew(b.Context(), nodes[i%len(nodes)]); err != nil {
			b.Fatal(err)
		}
		i++
	}
}
