package metrics

import (
	"fmt"
	"slices"
	"strings"
)

// Document returns the content of docs/metrics.md.
func Document() string {
	var b strings.Builder
	b.WriteString(introduction)
	for _, part := range []struct {
		title, text string
		all         []Metric
	}{
		{"Every program", "", everywhere},
		{"xds-server", "Each replica counts what it does itself; sums go over all of them. Figures of edges and gateways are on the server that they are connected to.", xdsServer},
		{"controller", "The one that leads has the figures of the fleet; the others publish fairlead_controller_leader alone of these.", controller},
		{"Both agents", "", agents},
		{"gateway-agent", "", gateways},
		{"edge-agent", "", edges},
		{"Of Envoy and of libraries", "Agents pass on those statistics of their Envoy that say something and of which there are as many whatever it carries: families that begin with " +
			"`envoy_server_`, `envoy_listener_`, `envoy_listener_manager_`, `envoy_cluster_manager_`, `envoy_tcp_`, `envoy_http_`, `envoy_reverse_tunnel_`, `envoy_overload_` and a few more, 3000 series at most. " +
			"Those that rules and dashboard use are listed here, and of what Go, client_golang and controller-runtime publish likewise.", Foreign()},
	} {
		fmt.Fprintf(&b, "\n## %s\n\n", part.title)
		if part.text != "" {
			fmt.Fprintf(&b, "%s\n\n", part.text)
		}
		b.WriteString("| name | type | labels | program | meaning |\n|---|---|---|---|---|\n")
		for _, m := range part.all {
			fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", m.Name, m.Kind, strings.Join(m.Labels, ", "), programs(m.Of), meaning(m))
		}
	}
	return b.String()
}

func programs(of []Program) string {
	if slices.Equal(of, all) {
		return "all"
	}
	var names []string
	for _, p := range of {
		names = append(names, string(p))
	}
	return strings.Join(names, ", ")
}

func meaning(m Metric) string {
	if m.PerCluster {
		return m.Help + " Only with `--per-cluster-metrics`: a series for each workload cluster at most."
	}
	return m.Help
}

const introduction = "# Metrics\n\n" + `<!-- Written by ` + "`make update-golden`" + ` from the list in internal/metrics: change it there. -->

Every program serves figures for Prometheus at ` + "`/metrics`" + ` of the address that ` + "`--metrics-listen`" + ` gives; without it none does. It is plain HTTP: there are
no secrets and no names of workload clusters in it (unless ` + "`--per-cluster-metrics`" + ` asks for them), and a NetworkPolicy says who may connect. See
[rationale.md](rationale.md#why-are-metrics-served-in-plain-http).

In Kubernetes the component [deploy/monitoring](../deploy/monitoring) turns them on, at port 9090 of each Pod, with PodMonitors, rules and a dashboard:

` + "```yaml" + `
# kustomization.yaml
resources: [../kubernetes]
components: [../monitoring]
` + "```" + `

An edge stands in another network. What of it matters is known on the management side, from what it reports; who has a Prometheus there scrapes the agent too.

What there may be much of is counted, not listed: no series is of one workload cluster, edge or machine, unless ` + "`--per-cluster-metrics`" + ` of a program says so;
then there are as many as the program knows workload clusters. Series by gateway and by worker are as many as those. No rule and no panel of the
dashboard needs them. What gateways have by tunnel_id gets its name from an xds-server:

` + "```promql" + `
max by (tunnel_id) (fairlead_gateway_cluster_round_trip_seconds) * on (tunnel_id) group_left (namespace, name) max by (tunnel_id, namespace, name) (fairlead_xds_cluster_info)
` + "```" + `

What a scrape costs with 10,000 workload clusters, each with an edge and a tunnel to each of two gateways (8,000 at the gateway, which are as many connections as one process of the test may
have); CPU of both ends, on one core of a machine that was busy with other things, so rather too much (` + "`go test -run NONE -bench Scrape ./pkg/report ./pkg/agent`" + `):

| program | ` + "`--per-cluster-metrics`" + ` | answer, unpacked | CPU | memory that is used meanwhile |
|---|---|---|---|---|
| xds-server | no | 17 KB | 18 ms | 0.4 MB |
| xds-server | yes | 3.9 MB | 0.5 s | 33 MB |
| gateway-agent, without its Envoy | no | 10 KB | 17 ms | 3 MB |
| gateway-agent, without its Envoy | yes | 1.3 MB | 0.2 s | 27 MB |

[Runbooks](runbooks.md) say what alerts mean. Times are in seconds, also Unix times; counters begin at 0 with each start.
`
