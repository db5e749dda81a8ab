package scale

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"regexp"
	"strconv"
	"time"

	"github.com/fairlead/fairlead/internal/retry"
	"github.com/fairlead/fairlead/test/lab/netns"
	"github.com/fairlead/fairlead/test/lab/proc"
)

// component is a process that is measured.
type component struct {
	name string
	pid  func() (int, error)
}

func (w *world) components() []component {
	of := func(p func() *proc.Process) func() (int, error) {
		return func() (int, error) { return p().PID(), nil }
	}
	return []component{
		{"xds-server", of(w.XDSServers[0].Process)},
		{"controller", of(w.Controller.Process)},
		{"gateway-agent", of(w.Gateways[0].Process)},
		{"gateway", w.Gateways[0].EnvoyPID},
	}
}

// memory adds the resident memory of all components.
func (w *world) memory(r *results, when string) error {
	for _, c := range w.components() {
		pid, err := c.pid()
		if err != nil {
			return err
		}
		rss, err := proc.RSS(pid)
		if err != nil {
			return err
		}
		r.of(c.name, "memory "+when, "MB", float64(rss)/1e6)
	}
	return nil
}

// files adds the number of open files of all components.
func (w *world) files(r *results) error {
	for _, c := range w.components() {
		pid, err := c.pid()
		if err != nil {
			return err
		}
		n, err := proc.Files(pid)
		if err != nil {
			return err
		}
		r.of(c.name, "open files", "", float64(n))
	}
	return nil
}

// memoryOf returns the resident memory of a component in MB.
func (w *world) memoryOf(name string) (float64, error) {
	for _, c := range w.components() {
		if c.name != name {
			continue
		}
		pid, err := c.pid()
		if err != nil {
			return 0, err
		}
		rss, err := proc.RSS(pid)
		return float64(rss) / 1e6, err
	}
	return 0, fmt.Errorf("measuring %s: there is none", name)
}

// spent returns the CPU time that each component has used so far.
func (w *world) spent() (map[string]time.Duration, error) {
	all := map[string]time.Duration{}
	for _, c := range w.components() {
		pid, err := c.pid()
		if err != nil {
			return nil, err
		}
		if all[c.name], err = proc.CPU(pid); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// rest returns the part of a processor that each component uses while it has nothing to do.
func (w *world) rest(ctx context.Context, r *results) (map[string]float64, error) {
	before, err := w.spent()
	if err != nil {
		return nil, err
	}
	began := time.Now()
	// several pings of each tunnel
	if err := retry.Sleep(ctx, time.Duration(r.out.Rounds(20, 5))*time.Second); err != nil {
		return nil, err
	}
	took := time.Since(began)
	after, err := w.spent()
	if err != nil {
		return nil, err
	}
	share := map[string]float64{}
	for _, c := range w.components() {
		share[c.name] = (after[c.name] - before[c.name]).Seconds() / took.Seconds()
		r.of(c.name, "CPU for a second at rest", "ms", share[c.name]*1e3)
	}
	return share, nil
}

// usage runs do, which repeats an operation the given number of times. It adds the CPU time of each component in excess
// of its idle use, and the bytes that the gateway receives from the xds-server.
func (w *world) usage(
	ctx context.Context, r *results, what string, times int, rest map[string]float64, do func() error,
) error {
	before, err := w.spent()
	if err != nil {
		return err
	}
	began := time.Now()
	received, err := w.received(ctx)
	if err != nil {
		return err
	}
	if err := do(); err != nil {
		return err
	}
	more, err := w.received(ctx)
	if err != nil {
		return err
	}
	took := time.Since(began)
	after, err := w.spent()
	if err != nil {
		return err
	}
	for _, c := range w.components() {
		of := (after[c.name] - before[c.name]).Seconds() - rest[c.name]*took.Seconds()
		r.of(c.name, "CPU for "+what, "ms", max(of, 0)*1e3/float64(times))
	}
	r.of("gateway", "bytes for "+what, "bytes", float64(more-received)/float64(times))
	return nil
}

var bytesReceived = regexp.MustCompile(`bytes_received:([0-9]+)`)

// received returns how many bytes the gateway-agent has received from xds-servers on the open connections.
func (w *world) received(ctx context.Context) (int, error) {
	out, err := w.Network.Gateways[0].Command(ctx, "ss", "-tinH", "state", "established", "dst",
		fmt.Sprintf(":%d", netns.XDSPort)).
		Output()
	if err != nil {
		return 0, fmt.Errorf("looking at the gateway's connections: %w", err)
	}
	sum := 0
	for _, m := range bytesReceived.FindAllSubmatch(out, -1) {
		n, err := strconv.Atoi(string(m[1]))
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return sum, nil
}

// failureStats matches the statistics of a gateway's Envoy that explain why connections fail.
var failureStats = regexp.MustCompile(
	`(?m)^(listener\..*(pre_cx_timeout|no_filter_chain_match|overflow|ssl.*error|connection_error)` +
		`|tcp\.apiserver\..*|.*handshakes.*|.*reverse_tunnel.*` +
		`|cluster\..*(connect_fail|connect_timeout|attempts_exceeded|overflow)): [1-9].*$`,
)

// explain prints why connections may have failed.
func (w *world) explain(r *results) {
	socket := filepath.Join(w.Gateways[0].StateDir, "admin.sock")
	client := &http.Client{
		Timeout: patience,
		Transport: &http.Transport{
			DisableKeepAlives: true,
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return (&net.Dialer{}).DialContext(ctx, "unix", socket)
			},
		},
	}
	response, err := client.Get("http://admin/stats?usedonly")
	if err != nil {
		r.out.Printf("%6d  no statistics: %v", r.size, err)
		return
	}
	defer response.Body.Close()
	body, _ := io.ReadAll(response.Body)
	for _, line := range failureStats.FindAll(body, 60) {
		r.out.Printf("%6d  %s", r.size, line)
	}
}
