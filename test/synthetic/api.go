package synthetic

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"sync"
	"time"
)

// API is the in-memory apiserver of all workload clusters of a fleet. It answers the requests of probes and of Cluster
// API's cache of a workload cluster: /version, /livez and /readyz, discovery, and a few Nodes. /whoami returns the node
// name of the edge that carried the request. With ?watch=true any other answer stays open until the client disconnects.
// All other requests are forbidden.
type API struct {
	server *http.Server
	door   *door
	done   chan struct{}
}

// edgeKey is the key of the edge in the context of a request.
type edgeKey struct{}

// NewAPI returns an API with the certificates that the function returns for a ClientHello.
func NewAPI(certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)) *API {
	a := &API{door: &door{conns: make(chan net.Conn), closed: make(chan struct{})}, done: make(chan struct{})}
	a.server = &http.Server{
		Handler: http.HandlerFunc(
			answer,
		), TLSConfig: &tls.Config{
			GetCertificate: certificate, MinVersion: tls.VersionTLS12,
			ClientAuth: tls.RequestClientCert,
		},
		ReadHeaderTimeout: answerTime, ErrorLog: log.New(io.Discard, "", 0),
		ConnContext: func(ctx context.Context, conn net.Conn) context.Context {
			if secure, ok := conn.(*tls.Conn); ok {
				conn = secure.NetConn()
			}
			if s, ok := conn.(*stream); ok {
				return context.WithValue(ctx, edgeKey{}, s.edge)
			}
			return ctx
		},
	}
	go func() {
		defer close(a.done)
		_ = a.server.ServeTLS(a.door, "", "")
	}()
	return a
}

// Serve also serves a listener, until Close, so that clients can reach the apiserver without an edge.
func (a *API) Serve(listener net.Listener) {
	go func() { _ = a.server.ServeTLS(listener, "", "") }()
}

// Close closes all connections.
func (a *API) Close() error {
	err := a.server.Close()
	<-a.done
	return err
}

func answer(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	switch {
	case kubernetes(w, r):
	case r.URL.Query().Get("watch") == "true":
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	case r.URL.Path == "/version":
		_ = json.NewEncoder(w).Encode(map[string]string{"major": "1", "minor": "34", "gitVersion": "v1.34.0"})
	case r.URL.Path == "/livez" || r.URL.Path == "/readyz":
		_, _ = io.WriteString(w, "ok")
	case r.URL.Path == "/whoami":
		if e, ok := r.Context().Value(edgeKey{}).(*Edge); ok {
			fmt.Fprintf(w, "%q\n", e.Node)
		}
	default:
		w.WriteHeader(http.StatusForbidden)
		_ = json.NewEncoder(w).
			Encode(map[string]any{
				"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden",
				"code": http.StatusForbidden,
			})
	}
}

// copied is the size of the buffers between a stream and the apiserver. They are small, because most of them are idle.
const copied = 4 << 10

// take serves a CONNECT stream as a connection of the apiserver, and returns when the stream ends.
func (a *API) take(w http.ResponseWriter, r *http.Request, e *Edge) {
	ours, theirs := net.Pipe() // a pipe has deadlines, unlike a stream
	defer ours.Close()
	select {
	case a.door.conns <- &stream{Conn: theirs, edge: e}:
	case <-a.door.closed:
		return
	}
	go func() {
		_, _ = io.CopyBuffer(onlyWriter{ours}, r.Body, make([]byte, copied))
		_ = ours.Close()
	}()
	control, buffer := http.NewResponseController(w), make([]byte, copied)
	for {
		n, err := ours.Read(buffer)
		if n > 0 {
			if _, err := w.Write(buffer[:n]); err != nil {
				return
			}
			if control.Flush() != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// onlyWriter hides the methods that io.Copy would use instead of the buffer.
type onlyWriter struct{ io.Writer }

// stream is a connection of the apiserver.
type stream struct {
	net.Conn
	edge *Edge
}

// door is the listener of the apiserver.
type door struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

var errClosed = errors.New("the apiserver is closed")

// Accept implements net.Listener.
func (d *door) Accept() (net.Conn, error) {
	select {
	case conn := <-d.conns:
		return conn, nil
	case <-d.closed:
		return nil, errClosed
	}
}

// Close implements net.Listener.
func (d *door) Close() error {
	d.once.Do(func() { close(d.closed) })
	return nil
}

// Addr implements net.Listener.
func (d *door) Addr() net.Addr { return &net.UnixAddr{Name: "synthetic"} }

// Patience bounds the wait of a fleet's clients for an answer.
const Patience = 10 * time.Second
