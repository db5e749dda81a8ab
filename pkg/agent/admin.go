package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// adminTimeout is for questions to Envoy's main thread, which is busy for a while when it gets much configuration.
	adminTimeout = 3 * time.Second
	// maxAdminAnswer is far more than any answer that is read here.
	maxAdminAnswer = 1 << 20
)

// admin is Envoy's admin interface on a Unix socket.
type admin struct{ socket string }

// get returns the answer to a question, and an error unless its status is 200.
func (a admin) get(ctx context.Context, path string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, adminTimeout)
	defer cancel()
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", a.socket)
	}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://envoy"+path, http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("asking Envoy for %s: %w", path, err)
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return nil, fmt.Errorf("asking Envoy for %s: %w", path, err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxAdminAnswer))
	if err != nil {
		return nil, fmt.Errorf("asking Envoy for %s: %w", path, err)
	}
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("asking Envoy for %s: status %d: %.100s", path, response.StatusCode, body)
	}
	return body, nil
}

// ready is nil when Envoy has its configuration and accepts connections.
func (a admin) ready(ctx context.Context) error {
	_, err := a.get(ctx, "/ready")
	return err
}

// configPath is the -c that Envoy was started with.
func (a admin) configPath(ctx context.Context) (string, error) {
	body, err := a.get(ctx, "/server_info")
	if err != nil {
		return "", err
	}
	var info struct {
		CommandLineOptions struct {
			ConfigPath string `json:"config_path"`
		} `json:"command_line_options"`
	}
	if err := json.Unmarshal(body, &info); err != nil {
		return "", fmt.Errorf("reading Envoy's server info: %w", err)
	}
	return info.CommandLineOptions.ConfigPath, nil
}

// pid is the process that listens on the socket. The kernel knows it even when Envoy does not answer: for the side that
// connects, SO_PEERCRED are the credentials of who called listen(2), see unix(7). Nobody listening is an error.
func (a admin) pid() (int, error) {
	conn, err := net.DialTimeout("unix", a.socket, adminTimeout)
	if err != nil {
		return 0, fmt.Errorf("looking for a running Envoy: %w", err)
	}
	defer conn.Close()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0, fmt.Errorf("looking for a running Envoy: %w", err)
	}
	var peer *unix.Ucred
	var peerErr error
	if err := raw.Control(func(fd uintptr) { peer, peerErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil {
		return 0, fmt.Errorf("looking for a running Envoy: %w", err)
	}
	if peerErr != nil {
		return 0, fmt.Errorf("looking for a running Envoy: %w", peerErr)
	}
	return int(peer.Pid), nil
}
