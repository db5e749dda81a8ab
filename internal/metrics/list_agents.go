package metrics

// agents is what both agents count.
var agents = []Metric{
	{Name: "fairlead_agent_ready", Kind: Gauge, Of: agent, Help: "1 if Envoy carries tunnels for all that the agent is enrolled for, as /readyz says."},
	{Name: "fairlead_agent_memberships", Kind: Gauge, Of: agent, Help: "Enrolments that the agent is to have: an edge has one for each bootstrap file."},
	{Name: "fairlead_agent_enrolled", Kind: Gauge, Of: agent, Help: "Enrolments that have a certificate."},
	{Name: "fairlead_agent_connected", Kind: Gauge, Of: agent, Help: "Enrolments with an open ADS stream to an xds-server."},
	{Name: "fairlead_agent_cached", Kind: Gauge, Of: agent, Help: "Enrolments whose Envoy runs with configuration from disk, because no xds-server was reached since the start."},
	{Name: "fairlead_agent_leaf_expiry_timestamp_seconds", Kind: Gauge, Of: agent, Help: "When the first certificate of the agent ends (Unix time); absent while it has none."},
	{Name: "fairlead_agent_troubles", Kind: Gauge, Labels: []string{"about"}, Of: agent, Help: "Enrolments for which something is wrong, by what that is about; /status has the words."},
	{Name: "fairlead_agent_configuration_refused", Kind: Gauge, Of: agent, Help: "Enrolments of whose newest configuration something is refused, by Envoy, by the agent's own check or after crashes."},
	{Name: "fairlead_agent_configuration_answers_total", Kind: Counter, Labels: []string{"answer"}, Of: agent, Help: "Answers to xds-servers about configuration: ack or nack."},
	{Name: "fairlead_agent_last_report_timestamp_seconds", Kind: Gauge, Of: agent, Help: "When the agent sent its last report (Unix time); it sends one when something has changed. Absent before the first."},
	{Name: "fairlead_agent_envoy_running", Kind: Gauge, Of: agent, Help: "1 while Envoy runs."},
	{Name: "fairlead_agent_envoy_exits_total", Kind: Counter, Of: agent, Help: "How many times Envoy ended by itself and was started again."},
	{Name: "fairlead_agent_envoy_answers", Kind: Gauge, Of: agent, Help: "0 while Envoy's main thread or one of its workers has not answered the agent for 5 s."},
	{Name: "fairlead_agent_envoy_replaced_total", Kind: Counter, Of: agent, Help: "How many times the agent killed an Envoy that hung, to have a new one start."},
	{Name: "fairlead_agent_envoy_scraped", Kind: Gauge, Of: agent, Help: "1 if Envoy's own statistics are in this answer."},
	{Name: "fairlead_agent_envoy_series_dropped", Kind: Gauge, Of: agent, Help: "Series of Envoy that were left out of this answer because there were too many."},
}

// gateways is what a gateway-agent counts besides.
var gateways = []Metric{
	{Name: "fairlead_gateway_tunnels", Kind: Gauge, Labels: []string{"worker"}, Of: atGateway, Help: "Live tunnels, by Envoy's worker."},
	{Name: "fairlead_gateway_edges", Kind: Gauge, Of: atGateway, Help: "Edges that have tunnels here."},
	{Name: "fairlead_gateway_workload_clusters", Kind: Gauge, Of: atGateway, Help: "Names of workload clusters that Envoy serves."},
	{Name: "fairlead_gateway_dark_workload_clusters", Kind: Gauge, Of: atGateway, Help: "Of those the ones that have had no tunnel for a while: their clients are told so at once."},
	{Name: "fairlead_gateway_cut_total", Kind: Counter, Of: atGateway, Help: "Connections that were cut because their edge is revoked or their tunnel has ended."},
	{Name: "fairlead_gateway_cut_failures_total", Kind: Counter, Of: atGateway, Help: "Attempts to cut a connection that did not work: a revoked edge may still be connected."},
	{Name: "fairlead_gateway_holes", Kind: Gauge, Of: atGateway, Help: "Workers without a tunnel of an edge that has others: clients that land there are reset."},
	{Name: "fairlead_gateway_moved_total", Kind: Counter, Of: atGateway, Help: "Tunnels that were ended to have them dialled again, for another worker."},
	{Name: "fairlead_gateway_given_up_total", Kind: Counter, Of: atGateway, Help: "Holes that this did not close."},
	{Name: "fairlead_gateway_unknown_connections", Kind: Gauge, Of: atGateway, Help: "Connections to the public port without a recorded owner."},
	{Name: "fairlead_gateway_record_incomplete", Kind: Gauge, Of: atGateway, Help: "Whether the record does not account for each connection to the public port."},
	{Name: "fairlead_gateway_unknown_closed_total", Kind: Counter, Of: atGateway, Help: "Connections that were closed because they had no recorded owner."},
	{Name: "fairlead_gateway_bad_events_total", Kind: Counter, Of: atGateway, Help: "Lines of Envoy's log of tunnels that could not be read."},
	{Name: "fairlead_gateway_admitted_total", Kind: Counter, Labels: []string{"what"}, Of: atGateway, Help: "Connections to the public port that the agent admitted before TLS (connection), and tunnels that it admitted after TLS (tunnel)."},
	{Name: "fairlead_gateway_refused_total", Kind: Counter, Labels: []string{"reason"}, Of: atGateway, Help: "Connections that the agent refused before TLS (source, network, capacity), and tunnels that it refused after TLS (edge, edge_rate, tunnel_id, tunnel_id_rate)."},
	{Name: "fairlead_gateway_known_sources", Kind: Gauge, Of: atGateway, Help: "Sources from which an edge opened a tunnel within 24 h: half of the handshakes are reserved for them."},
	{Name: "fairlead_gateway_closed_total", Kind: Counter, Labels: []string{"reason"}, Of: atGateway, Help: "Connections that the agent closed: tunnels beyond the limit of their edge or tunnel id (excess), and connections of a source that has too many and says nothing on them (silent)."},
	{Name: "fairlead_gateway_cluster_tunnels", Kind: Gauge, Labels: []string{"tunnel_id"}, Of: atGateway, PerCluster: true, Help: "Live tunnels of a workload cluster."},
	{Name: "fairlead_gateway_cluster_round_trip_seconds", Kind: Gauge, Labels: []string{"tunnel_id"}, Of: atGateway, PerCluster: true, Help: "The longest round trip of a workload cluster's tunnels, as the kernel has it now: where a load balancer ends connections of edges, that to it; absent while none is known."},
}

// edges is what an edge-agent counts besides.
var edges = []Metric{
	{Name: "fairlead_edge_apiservers", Kind: Gauge, Labels: []string{"health"}, Of: atEdge, Help: "Enrolments by how the agent finds their apiserver: healthy, unhealthy or unknown."},
	{Name: "fairlead_edge_apiserver_leaf_expiry_timestamp_seconds", Kind: Gauge, Of: atEdge, Help: "When the first serving certificate of the apiservers ends (Unix time); absent while none is known."},
	{Name: "fairlead_edge_tunnels", Kind: Gauge, Labels: []string{"gateway"}, Of: atEdge, Help: "Connections that are tunnels to a gateway, of all enrolments."},
	{Name: "fairlead_edge_apiserver_healthy", Kind: Gauge, Labels: []string{"tunnel_id"}, Of: atEdge, PerCluster: true, Help: "1 if the agent finds the apiserver of a workload cluster healthy."},
}
