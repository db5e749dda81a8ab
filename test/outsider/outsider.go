// Package outsider sends requests to an installation like an attacker: with a stolen identity, a forged one, or none.
// Its input is certificates and claims. Its output is the answers of the gateways and the control channel. It knows no
// test framework.
package outsider

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/fairlead/fairlead/internal/retry"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/test/lab/netns"
)

// patience bounds every exchange.
const patience = 5 * time.Second

// Outsider is a client at a place in a network.
type Outsider struct {
	From    *netns.Namespace
	Address string // of the gateways' public port; empty: resolve its name
	Domain  model.TunnelDomain
	Roots   *x509.CertPool
	// Certificate is the client certificate; nil for none.
	Certificate *tls.Certificate
}

// TLS opens a TLS connection to the public port with a server name.
func (o Outsider) TLS(ctx context.Context, name string) (*tls.Conn, error) {
	conn, err := o.From.DialContext(ctx, "tcp", o.PublicAddress())
	if err != nil {
		return nil, err
	}
	client := tls.Client(conn, o.config(name))
	if err := client.HandshakeContext(ctx); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return client, nil
}

// PublicAddress returns the address of the gateways' public port.
func (o Outsider) PublicAddress() string {
	if o.Address != "" {
		return o.Address
	}
	return net.JoinHostPort(netns.PublicName, strconv.Itoa(netns.PublicPort))
}

func (o Outsider) config(name string) *tls.Config {
	config := &tls.Config{RootCAs: o.Roots, ServerName: name, MinVersion: tls.VersionTLS13}
	if o.Certificate != nil {
		config.Certificates = []tls.Certificate{*o.Certificate}
	}
	return config
}

// Claim is the content of a tunnel handshake.
type Claim struct{ Node, ID string } // node id and tunnel id

// Handshake requests a tunnel from a gateway like Envoy. It returns the HTTP status of the answer, or an error if there
// is no answer.
func (o Outsider) Handshake(ctx context.Context, gateway string, c Claim) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	conn, err := o.TLS(ctx, o.Domain.GatewayReplica(gateway))
	if err != nil {
		return 0, err
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(patience))
	_, err = fmt.Fprintf(
		conn,
		"GET /reverse_connections/request HTTP/1.1\r\nHost: gateway\r\nConnection: Upgrade\r\nUpgrade: reverse-tunnel\r\n"+
			"x-envoy-reverse-tunnel-node-id: %s\r\nx-envoy-reverse-tunnel-cluster-id: %s\r\nx-envoy-reverse-tunnel-tenant-id: "+
			"%s\r\n\r\n",
		c.Node,
		c.ID,
		model.TenantID,
	)
	if err != nil {
		return 0, err
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return 0, err
	}
	_, _ = io.Copy(io.Discard, response.Body)
	return response.StatusCode, response.Body.Close()
}

// openWithin is enough for the rate at which a gateway admits reverse tunnels of one edge.
const openWithin = 20 * time.Second

// Open requests a tunnel until there is an answer, as an edge does: a gateway closes connections of an edge beyond its
// rate, for example after requests that it has refused. It returns an error for any other answer than 200.
func (o Outsider) Open(ctx context.Context, gateway string, c Claim) error {
	ctx, cancel := context.WithTimeout(ctx, openWithin)
	defer cancel()
	for {
		code, err := o.Handshake(ctx, gateway, c)
		switch {
		case err == nil && code == http.StatusOK:
			return nil
		case err == nil:
			return fmt.Errorf("%s answers %d, want 200", gateway, code)
		}
		if retry.Sleep(ctx, time.Second) != nil {
			return fmt.Errorf("%s does not answer within %s: %w", gateway, openWithin, err)
		}
	}
}

// Control returns a gRPC connection to the control channel, through the public port.
func (o Outsider) Control() (*grpc.ClientConn, error) {
	dial := func(ctx context.Context, _ string) (net.Conn, error) {
		return o.From.DialContext(ctx, "tcp", o.PublicAddress())
	}
	return grpc.NewClient(
		"passthrough:///"+o.PublicAddress(), grpc.WithTransportCredentials(credentials.NewTLS(o.config(o.Domain.Control()))),
		grpc.WithContextDialer(dial),
	)
}
