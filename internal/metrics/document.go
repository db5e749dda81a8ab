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
		{
			"xds-server",
			"Each replica counts its own work, so sum over all of them. Figures of edges and gateways are on the server that " +
				"they\nare connected to.",
			xdsServer,
		},
		{
			"controller",
			"The leader publishes the figures of the fleet. Of these, the other replicas publish only\n" +
				"`fairlead_controller_leader` and `fairlead_controller_leaf_lifetime_seconds`.",
			controller,
		},
		{"Both agents", "", agents},
		{"gateway-agent", "", gateways},
		{"edge-agent", "", edges},
		{
			"Envoy and libraries",
			"Agents pass on the statistics of their Envoy whose number does not grow with the traffic, 3000 series at\n" +
				"most: families that begin with `envoy_server_`, `envoy_listener_`, `envoy_listener_manager_`,\n" +
				"`envoy_cluster_manager_`, `envoy_tcp_`, `envoy_http_`, `envoy_reverse_tunnel_`, `envoy_overload_` and a few\n" +
				"more. This table lists the ones that rules and dashboard use, and likewise the metrics of Go, client_golang " +
				"and\ncontroller-runtime.",
			Foreign(),
		},
	} {
		fmt.Fprintf(&b, "\n## %s\n\n", part.title)
		if part.text != "" {
			fmt.Fprintf(&b, "%s\n\n", part.text)
		}
		b.WriteString("| name | type | labels | program | meaning |\n|---|---|---|---|---|\n")
		for _, m := range part.all {
			fmt.Fprintf(
				&b,
				"| `%s` | %s | %s | %s | %s |\n",
				m.Name,
				m.Kind,
				strings.Join(m.Labels, ", "),
				programs(m.Of),
				meaning(m),
			)
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
		return strings.TrimSuffix(m.Help, ".") + "; only with `--per-cluster-metrics`."
	}
	return m.Help
}

const introduction = "# Metrics\n\n" + `<!-- Written by ` + "`make update-golden`" +
	` from the list in internal/metrics: change it there. -->

For operators: every metric that Fairlead's programs publish, with its labels and its meaning. To scrape them, to use
the alerts and to see what a scrape costs read [Monitoring](monitoring.md). [Runbooks](runbooks.md) explain each alert.

**How many workload clusters are unreachable?** ` + "`fairlead_controller_tunnel_conditions`" + ` counts Tunnels by
the status of ` + "`TunnelReady`" + `, with kind="cluster", and ` + "`fairlead status -A`" + ` names them.

Times are in seconds, also Unix times. Counters begin at 0 with each start.
`
