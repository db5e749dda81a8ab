package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
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

func (a admin) get(ctx context.Context, path string) ([]byte, error) {
	return a.ask(ctx, http.MethodGet, path)
}

func (a admin) post(ctx context.Context, path string) error {
	_, err := a.ask(ctx, http.MethodPost, path)
	return err
}

// ask returns the answer to a question, and an error unless its status is 200.
func (a admin) ask(ctx context.Context, method, path string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, adminTimeout)
	defer cancel()
	response, err := a.open(ctx, method, path)
	if err != nil {
		return nil, err
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

// open asks a question. Who reads the answer closes it.
func (a admin) open(ctx context.Context, method, path string) (*http.Response, error) {
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", a.socket)
	}}
	request, err := http.NewRequestWithContext(ctx, method, "http://envoy"+path, http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("asking Envoy for %s: %w", path, err)
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return nil, fmt.Errorf("asking Envoy for %s: %w", path, err)
	}
	return response, nil
}

// ready is nil when Envoy has its configuration and accepts connections.
func (a admin) ready(ctx context.Context) error {
	_, err := a.get(ctx, "/ready")
	return err
}

// answers is nil when Envoy's main thread answers, whatever it says.
func (a admin) answers(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, adminTimeout)
	defer cancel()
	response, err := a.open(ctx, http.MethodGet, "/ready")
	if err != nil {
		return err
	}
	return response.Body.Close()
}

// info is what Envoy says of itself.
type info struct {
	configPath string        // its -c
	uptime     time.Duration // of the process, in whole seconds
	mark       string        // of its bootstrap
}

func (a admin) info(ctx context.Context) (info, error) {
	body, err := a.get(ctx, "/server_info")
	if err != nil {
		return info{}, err
	}
	var answer struct {
		Uptime string `json:"uptime_current_epoch"`
		Node   struct {
			Metadata map[string]any `json:"metadata"`
		} `json:"node"`
		CommandLineOptions struct {
			ConfigPath string `json:"config_path"`
		} `json:"command_line_options"`
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return info{}, fmt.Errorf("reading Envoy's server info: %w", err)
	}
	uptime, err := time.ParseDuration(answer.Uptime)
	if err != nil {
		return info{}, fmt.Errorf("reading Envoy's server info: %w", err)
	}
	mark, _ := answer.Node.Metadata[markKey].(string) // there is none in an Envoy that is not ours
	return info{configPath: answer.CommandLineOptions.ConfigPath, uptime: uptime, mark: mark}, nil
}

// patientInfo asks again and again, until the process has ended, ctx has, or adoptTime is over. It asks once even if ctx has
// ended: an agent that is told to stop has to know what to stop.
func (a admin) patientInfo(ctx context.Context, ended <-chan struct{}) (info, error) {
	again := time.NewTicker(adminTimeout / 3)
	defer again.Stop()
	for began := time.Now(); ; {
		running, err := a.info(context.WithoutCancel(ctx))
		if err == nil || nobodyListens(err) || time.Since(began) > adoptTime {
			return running, err
		}
		select {
		case <-again.C:
		case <-ended:
			return info{}, err
		case <-ctx.Done():
			return info{}, err
		}
	}
}

// values returns the gauges and counters whose names match a regular expression, by name.
func (a admin) values(ctx context.Context, names string) (map[string]int, error) {
	body, err := a.get(ctx, "/stats?format=json&filter="+url.QueryEscape(names))
	if err != nil {
		return nil, err
	}
	var answer struct {
		Stats []struct {
			Name  string      `json:"name"`
			Value json.Number `json:"value"`
		} `json:"stats"`
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return nil, fmt.Errorf("reading Envoy's statistics: %w", err)
	}
	values := make(map[string]int, len(answer.Stats))
	for _, s := range answer.Stats {
		n, err := s.Value.Int64()
		if err != nil && strings.TrimSpace(s.Value.String()) != "" {
			return nil, fmt.Errorf("reading Envoy's statistics: %w", err)
		}
		values[s.Name] = int(n)
	}
	return values, nil
}

// sum adds up the gauges and counters whose names match a regular expression.
func (a admin) sum(ctx context.Context, names string) (total int, err error) {
	values, err := a.values(ctx, names)
	for _, n := range values {
		total += n
	}
	return total, err
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
