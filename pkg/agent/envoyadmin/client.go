// Package envoyadmin queries a running Envoy through its admin interface on a Unix socket. Its typed answers are
// whether Envoy is ready, which process it is, its statistics, and its configuration. Each request has a deadline, and
// each answer a size limit. It knows neither what started that Envoy nor how the answers are used.
package envoyadmin

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// Timeout bounds requests that Envoy's main thread answers. The thread is busy for a while when it gets a large
	// configuration.
	Timeout = 3 * time.Second
	// maxAdminAnswer exceeds the size of any answer that is read here.
	maxAdminAnswer = 1 << 20
	// adoptTime bounds how long a running Envoy is asked for its identity. It does not answer while it processes a
	// large configuration.
	adoptTime = 30 * time.Second
	// MarkKey is the field in the metadata of Envoy's node that identifies its bootstrap.
	MarkKey = "bootstrap"
)

// ErrStatus is in the error of a request that Envoy has answered with another status than 200.
var ErrStatus = errors.New("status")

// Client is a client of Envoy's admin interface on a Unix socket.
type Client struct {
	Socket       string
	AdoptTimeout time.Duration // how long WaitInfo retries; 0: 30 s
	Turns        *Turns        // of queries for statistics; nil: at any time
}

func (a Client) get(ctx context.Context, path string) ([]byte, error) {
	return a.ask(ctx, http.MethodGet, path, maxAdminAnswer)
}

// Post requests a change and discards the answer.
func (a Client) Post(ctx context.Context, path string) error {
	_, err := a.ask(ctx, http.MethodPost, path, maxAdminAnswer)
	return err
}

// ask returns the body of an answer, at most that many bytes. It returns an error unless the status is 200.
func (a Client) ask(ctx context.Context, method, path string, most int64) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	response, err := a.open(ctx, method, path)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, most))
	if err != nil {
		return nil, fmt.Errorf("querying Envoy for %.100s: %w", path, err)
	}
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("querying Envoy for %.100s: %w %d: %.100s", path, ErrStatus, response.StatusCode, body)
	}
	return body, nil
}

// open sends a request. The caller must close the body of the answer.
func (a Client) open(ctx context.Context, method, path string) (*http.Response, error) {
	transport := &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", a.Socket)
		},
	}
	request, err := http.NewRequestWithContext(ctx, method, "http://envoy"+path, http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("querying Envoy for %.100s: %w", path, err)
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return nil, fmt.Errorf("querying Envoy for %.100s: %w", path, err)
	}
	return response, nil
}

// Ready returns nil if Envoy has its configuration and accepts connections.
func (a Client) Ready(ctx context.Context) error {
	_, err := a.get(ctx, "/ready")
	return err
}

// Answers returns nil if Envoy's main thread answers, whatever the answer is.
func (a Client) Answers(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	response, err := a.open(ctx, http.MethodGet, "/ready")
	if err != nil {
		return err
	}
	return response.Body.Close()
}

// Info describes a running Envoy.
type Info struct {
	ConfigPath string        // argument of -c
	Uptime     time.Duration // of the process, in whole seconds
	Mark       string        // of its bootstrap
}

// Info queries Envoy for its description.
func (a Client) Info(ctx context.Context) (Info, error) {
	body, err := a.get(ctx, "/server_info")
	if err != nil {
		return Info{}, err
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
		return Info{}, fmt.Errorf("reading Envoy's server info: %w", err)
	}
	uptime, err := time.ParseDuration(answer.Uptime)
	if err != nil {
		return Info{}, fmt.Errorf("reading Envoy's server info: %w", err)
	}
	mark, _ := answer.Node.Metadata[MarkKey].(string) // an Envoy that is not ours has none
	return Info{ConfigPath: answer.CommandLineOptions.ConfigPath, Uptime: uptime, Mark: mark}, nil
}

// WaitInfo calls Info repeatedly until it succeeds, the process or ctx has ended, or AdoptTimeout is over. It calls
// Info at least once even if ctx has ended, because an agent that is told to stop must know which process to stop.
func (a Client) WaitInfo(ctx context.Context, ended <-chan struct{}) (Info, error) {
	again := time.NewTicker(Timeout / 3)
	defer again.Stop()
	for began := time.Now(); ; {
		running, err := a.Info(context.WithoutCancel(ctx))
		if err == nil || NotListening(err) || time.Since(began) > cmp.Or(a.AdoptTimeout, adoptTime) {
			return running, err
		}
		select {
		case <-again.C:
		case <-ended:
			return Info{}, err
		case <-ctx.Done():
			return Info{}, err
		}
	}
}

// PID returns the process that listens on the socket. The kernel returns it even if Envoy does not answer: on the
// connecting side, SO_PEERCRED has the credentials of the process that called listen(2), see unix(7). PID returns an
// error if no process listens.
func (a Client) PID() (int, error) {
	conn, err := net.DialTimeout("unix", a.Socket, Timeout)
	if err != nil {
		return 0, fmt.Errorf("finding running Envoy: %w", err)
	}
	defer conn.Close()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0, fmt.Errorf("finding running Envoy: %w", err)
	}
	var peer *unix.Ucred
	var peerErr error
	if err := raw.Control(func(fd uintptr) {
		peer, peerErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET,
			unix.SO_PEERCRED)
	}); err != nil {
		return 0, fmt.Errorf("finding running Envoy: %w", err)
	}
	if peerErr != nil {
		return 0, fmt.Errorf("finding running Envoy: %w", peerErr)
	}
	return int(peer.Pid), nil
}

// NotListening reports whether an error of PID means that no Envoy runs.
func NotListening(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED)
}
