package lab

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/fairlead/fairlead/test/lab/netns"
)

// controllerMetrics returns where a controller serves metrics, the first one always.
func (l *Lab) controllerMetrics(i int) string {
	switch {
	case i == 0:
		return "127.0.0.1:8082"
	case !l.options.Metrics:
		return "0"
	}
	return netns.HostPort("127.0.0.1", 8280+i)
}

// Target is a program that serves metrics.
type Target struct {
	Job, Name string           // the program, and which one it is
	Namespace *netns.Namespace // of its address
	Address   string
}

// Targets returns all programs that serve metrics, including these edges, in a lab with Options.Metrics.
func (l *Lab) Targets(edges ...*Agent) []Target {
	var all []Target
	for i, c := range l.Controllers {
		all = append(all, Target{
			Job: "controller", Name: c.Process().Name, Namespace: l.Network.Management, Address: l.controllerMetrics(i),
		})
	}
	for i := range l.XDSServers {
		all = append(all, Target{
			Job: "xds-server", Name: xdsServer(i), Namespace: l.Network.Management,
			Address: xdsServerMetrics(i),
		})
	}
	for _, g := range l.Gateways {
		all = append(all, g.target("gateway-agent"))
	}
	for _, e := range edges {
		all = append(all, e.target("edge-agent"))
	}
	return all
}

func (a *Agent) target(job string) Target {
	p := a.Process()
	return Target{Job: job, Name: p.Name, Namespace: p.Namespace, Address: metricsBeside(a.Health)}
}

func (l *Lab) metricsFlag(address string) []string {
	if !l.options.Metrics {
		return nil
	}
	return []string{"--metrics-listen=" + address}
}

func xdsServerMetrics(i int) string { return netns.HostPort("127.0.0.1", 9480+i) }

// metricsBeside returns the metrics address of the program with this health address. Agents share network namespaces,
// so it differs for each.
func metricsBeside(health string) string {
	address, port, err := net.SplitHostPort(health)
	if err != nil {
		return "0"
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		return "0"
	}
	return fmt.Sprintf("%s:%d", address, n+1500)
}

// scrapePatience bounds one reading of metrics.
const scrapePatience = 5 * time.Second

// Goroutines returns the number of goroutines of a program, which must serve metrics.
func (t Target) Goroutines(ctx context.Context) (uint64, error) { return t.Value(ctx, "go_goroutines") }

// Heap returns the bytes of heap that the Envoy of an agent uses.
func (t Target) Heap(ctx context.Context) (uint64, error) {
	return t.Value(ctx, "envoy_server_memory_allocated")
}

// Value returns the value of a metric without labels, which must not be negative.
func (t Target) Value(ctx context.Context, name string) (uint64, error) {
	found := false
	var value float64
	err := t.each(ctx, func(of string, is float64) {
		if strings.TrimSuffix(of, "{}") == name {
			found, value = true, is
		}
	})
	if err == nil && !found {
		err = fmt.Errorf("reading the metrics of %s: there is no %s", t.Name, name)
	}
	return uint64(value), err
}

// Sum returns the sum of a metric over all of its labels that contain a text; 0: there are none.
func (t Target) Sum(ctx context.Context, name, label string) (sum float64, err error) {
	err = t.each(ctx, func(of string, is float64) {
		if labels, ok := strings.CutPrefix(of, name+"{"); ok && strings.Contains(labels, label) {
			sum += is
		}
	})
	return sum, err
}

// each passes each metric with its labels, and its value.
func (t Target) each(ctx context.Context, metric func(of string, is float64)) error {
	ctx, cancel := context.WithTimeout(ctx, scrapePatience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+t.Address+"/metrics", http.NoBody)
	if err != nil {
		return err
	}
	transport := &http.Transport{DialContext: t.Namespace.DialContext, DisableKeepAlives: true}
	answer, err := transport.RoundTrip(request)
	if err != nil {
		return fmt.Errorf("reading the metrics of %s: %w", t.Name, err)
	}
	defer func() { _ = answer.Body.Close() }()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		return fmt.Errorf("reading the metrics of %s: %w", t.Name, err)
	}
	for line := range strings.Lines(string(body)) {
		line = strings.TrimSpace(line)
		if i := strings.LastIndexByte(line, ' '); i > 0 && !strings.HasPrefix(line, "#") {
			value, err := strconv.ParseFloat(line[i+1:], 64)
			if err != nil {
				return fmt.Errorf("reading the metrics of %s: %w", t.Name, err)
			}
			metric(line[:i], value)
		}
	}
	return nil
}
