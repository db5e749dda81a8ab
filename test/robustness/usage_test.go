package robustness

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/lab/proc"
)

// usage records what every process of ours uses. Right after a fault a process may still be starting, so it is tried
// again.
func (in *installation) usage(ctx context.Context, after bool) error {
	var all []Entry
	err := proc.Wait(ctx, settle, func(ctx context.Context) (err error) {
		all, err = in.measure(ctx)
		return err
	})
	for _, e := range all {
		e.After = after
		in.history.Add(e)
	}
	return err
}

func (in *installation) measure(ctx context.Context) ([]Entry, error) {
	var edges []*lab.Agent
	for _, m := range in.all() {
		m.mu.Lock()
		for _, p := range m.edges {
			edges = append(edges, p.Agent)
		}
		m.mu.Unlock()
	}
	goroutines := map[string]uint64{}
	for _, target := range in.Targets(edges...) {
		n, err := scrape(ctx, target)
		if err != nil {
			return nil, err
		}
		goroutines[target.Name] = n
	}
	var all []Entry
	var errs []error
	add := func(kind, name string, pid int, err error) {
		e := Entry{Kind: KindUsage, Process: kind, Name: name, Goroutines: goroutines[name]}
		if err == nil {
			e.Memory, err = proc.RSS(pid)
		}
		if err == nil {
			var files int
			files, err = proc.Files(pid)
			e.Files = uint64(files)
		}
		all, errs = append(all, e), append(errs, err)
	}
	services := map[string][]*proc.Service{"controller": in.Controllers, "xds-server": in.XDSServers}
	for kind, some := range services {
		for _, s := range some {
			add(kind, s.Process().Name, s.Process().PID(), nil)
		}
	}
	for kind, some := range map[string][]*lab.Agent{"gateway": in.Gateways, "edge": edges} {
		for _, a := range some {
			name := a.Process().Name
			add(kind+"-agent", name, a.Process().PID(), nil)
			pid, err := a.EnvoyPID()
			add(kind+"-envoy", name+"-envoy", pid, err)
		}
	}
	return all, errors.Join(errs...)
}

// scrape returns the number of goroutines of a process.
func scrape(ctx context.Context, target lab.Target) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+target.Address+"/metrics", http.NoBody)
	if err != nil {
		return 0, err
	}
	transport := &http.Transport{DialContext: target.Namespace.DialContext, DisableKeepAlives: true}
	answer, err := transport.RoundTrip(request)
	if err != nil {
		return 0, fmt.Errorf("reading the metrics of %s: %w", target.Name, err)
	}
	defer func() { _ = answer.Body.Close() }()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		return 0, fmt.Errorf("reading the metrics of %s: %w", target.Name, err)
	}
	for line := range strings.Lines(string(body)) {
		if value, ok := strings.CutPrefix(line, "go_goroutines "); ok {
			return strconv.ParseUint(strings.TrimSpace(value), 10, 64)
		}
	}
	return 0, fmt.Errorf("reading the metrics of %s: there are no goroutines", target.Name)
}

// secrets records which logs contain a secret. It does not record the secret.
func (in *installation) secrets() error {
	names := []string{"a private key", "a token of a ServiceAccount", "a bootstrap token"}
	found, err := in.LogsWith(nil, "PRIVATE KEY", "eyJhbGciOi", "fl1.")
	for _, f := range found {
		in.history.Add(Entry{Kind: KindSecret, Name: f.Log, Text: names[f.Text]})
	}
	return err
}
