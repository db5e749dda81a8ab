package path

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"sync/atomic"
	"time"
)

// client sends HTTP/1.1 over TLS to the apiserver through a subject. It keeps connections open and reuses them, for one
// request at a time.
type client struct {
	transport *http.Transport
}

func newClient(p *place, s *subject) (*client, error) {
	config, err := clientTLS(p)
	if err != nil {
		return nil, err
	}
	return &client{&http.Transport{
		DialContext:         func(ctx context.Context, _, _ string) (net.Conn, error) { return s.dial(ctx) },
		TLSClientConfig:     config,
		TLSHandshakeTimeout: patience, ResponseHeaderTimeout: patience,
		MaxIdleConnsPerHost: 1 << 12,
		ReadBufferSize:      64 << 10,
	}}, nil
}

func clientTLS(p *place) (*tls.Config, error) {
	roots, err := pool(p.dir)
	if err != nil {
		return nil, err
	}
	pair, err := tls.LoadX509KeyPair(filepath.Join(p.dir, "client.crt"), filepath.Join(p.dir, "client.key"))
	if err != nil {
		return nil, err
	}
	return &tls.Config{
		RootCAs:      roots,
		ServerName:   serverName,
		Certificates: []tls.Certificate{pair},
		MinVersion:   tls.VersionTLS12,
		NextProtos:   []string{"http/1.1"},
	}, nil
}

func (c *client) close() { c.transport.CloseIdleConnections() }

// open sends a request and returns the body of the answer.
func (c *client) open(ctx context.Context, path string) (io.ReadCloser, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+serverName+path, nil)
	if err != nil {
		return nil, err
	}
	response, err := c.transport.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		_ = response.Body.Close()
		return nil, fmt.Errorf("GET %s: %s", path, response.Status)
	}
	return response.Body, nil
}

// get sends a request and reads the whole answer.
func (c *client) get(ctx context.Context, path string) error {
	body, err := c.open(ctx, path)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, body)
	_ = body.Close()
	return err
}

// stream downloads and counts bytes until the context ends.
func (c *client) stream(ctx context.Context, bytes *atomic.Int64) error {
	const endless = "/bytes/1000000000000"
	buffer := make([]byte, 128<<10)
	for ctx.Err() == nil {
		body, err := c.open(ctx, endless)
		if err != nil {
			return err
		}
		for err == nil {
			var n int
			n, err = body.Read(buffer)
			bytes.Add(int64(n))
		}
		_ = body.Close()
		if ctx.Err() == nil {
			return err
		}
	}
	return nil
}

// latencies sends small requests, one after the other, and returns how long each took, in ms. The first request, which
// opens the connection, is not counted.
func (c *client) latencies(ctx context.Context, span time.Duration) ([]float64, error) {
	if err := c.get(ctx, "/small"); err != nil {
		return nil, err
	}
	var all []float64
	for end := time.Now().Add(span); time.Now().Before(end); {
		begin := time.Now()
		if err := c.get(ctx, "/small"); err != nil {
			return nil, err
		}
		all = append(all, time.Since(begin).Seconds()*1000)
	}
	return all, nil
}
