package lab

import (
	"fmt"
	"net"
	"strconv"

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
