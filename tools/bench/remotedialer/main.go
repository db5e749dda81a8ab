// Command remotedialer is rancher/remotedialer as a pair of programs for benchmarks. The server accepts TCP connections
// and dials one address through the client's session. The client opens the session over TLS.
//
//	remotedialer server CERT KEY LISTEN-TUNNEL LISTEN-CLIENTS TARGET
//	remotedialer client CA TUNNEL-ADDRESS
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/gorilla/websocket"
	"github.com/rancher/remotedialer"
)

const edge = "edge"

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "remotedialer:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) == 6 && args[0] == "server":
		return server(args[1], args[2], args[3], args[4], args[5])
	case len(args) == 3 && args[0] == "client":
		return client(args[1], args[2])
	default:
		return fmt.Errorf(
			"usage: remotedialer server CERT KEY LISTEN-TUNNEL LISTEN-CLIENTS TARGET | client CA TUNNEL-ADDRESS",
		)
	}
}

func server(cert, key, tunnel, clients, target string) error {
	handler := remotedialer.New(
		func(*http.Request) (string, bool, error) { return edge, true, nil }, remotedialer.DefaultErrorWriter,
	)
	listener, err := net.Listen("tcp", clients)
	if err != nil {
		return err
	}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go pass(handler, conn, target)
		}
	}()
	return http.ListenAndServeTLS(tunnel, cert, key, handler)
}

func pass(handler *remotedialer.Server, from net.Conn, target string) {
	defer from.Close()
	to, err := handler.Dialer(edge)(context.Background(), "tcp", target)
	if err != nil {
		return
	}
	defer to.Close()
	go func() {
		_, _ = io.Copy(to, from)
		_ = to.Close()
	}()
	_, _ = io.Copy(from, to)
}

func client(ca, address string) error {
	data, err := os.ReadFile(ca)
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(data)
	dialer := &websocket.Dialer{TLSClientConfig: &tls.Config{RootCAs: roots}, HandshakeTimeout: 10 * time.Second}
	return remotedialer.ClientConnect(
		context.Background(), "wss://"+address, nil, dialer, func(string, string) bool { return true }, nil,
	)
}
