package metrics

// quick are the buckets of what takes milliseconds, and of what should and doesn't; seconds.
var quick = []float64{0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30}

// changes are those of a change on its way to an Envoy, which may be away or on the other side of a bad line; seconds.
var changes = []float64{0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300}

var (
	all       = []Program{XDSServer, Controller, GatewayAgent, EdgeAgent}
	server    = []Program{XDSServer}
	leader    = []Program{Controller}
	agent     = []Program{GatewayAgent, EdgeAgent}
	atGateway = []Program{GatewayAgent}
	atEdge    = []Program{EdgeAgent}
)

// everywhere is what each program has.
var everywhere = []Metric{
	{Name: "fairlead_build_info", Kind: Gauge, Labels: []string{"program", "version"}, Of: all, Help: "Always 1; the version is what the Go toolchain stamped into the program."},
}

// xdsServer is what an xds-server counts. Every replica counts what it does itself: sums go over all of them.
var xdsServer = []Metric{
	{Name: "fairlead_xds_streams", Kind: Gauge, Labels: []string{"role"}, Of: server, Help: "ADS streams that are open: one for each gateway and each enrolment of an edge."},
	{Name: "fairlead_xds_published", Kind: Gauge, Of: server, Help: "1 as soon as all objects have been read and gateways are known: before that nobody is served."},
	{Name: "fairlead_xds_gateways", Kind: Gauge, Of: server, Help: "Gateways that the installation has, by the replicas of their StatefulSet."},
	{Name: "fairlead_xds_tunnels", Kind: Gauge, Labels: []string{"state"}, Of: server, Help: "Workload clusters by whether they are served, prepared (served soon) or withheld (paused, or without what it takes)."},
	{Name: "fairlead_xds_resources", Kind: Gauge, Labels: []string{"type"}, Of: server, Help: "Resources that all gateways share."},
	{Name: "fairlead_xds_resources_sent_total", Kind: Counter, Labels: []string{"role", "type"}, Of: server, Help: "Resources that were sent, each time to each Envoy."},
	{Name: "fairlead_xds_answers_total", Kind: Counter, Labels: []string{"role", "type", "answer"}, Of: server, Help: "Answers of Envoys to what was sent: ack or nack."},
	{Name: "fairlead_xds_refusing_nodes", Kind: Gauge, Labels: []string{"role"}, Of: server, Help: "Nodes connected here whose last answer about some type was a NACK: they run what they had before."},
	{Name: "fairlead_xds_waiting_nodes", Kind: Gauge, Labels: []string{"role"}, Of: server, Help: "Nodes connected here that have not answered for 30 s what was sent to them."},
	{Name: "fairlead_xds_change_ack_seconds", Kind: Histogram, Labels: []string{"role"}, Buckets: changes, Of: server, Help: "Time from when a change of an object was seen to the ACK of an Envoy; the oldest change counts where several go together."},
	{Name: "fairlead_xds_refused_total", Kind: Counter, Labels: []string{"reason"}, Of: server, Help: "ADS streams that were refused or cut off, by gRPC code."},
	{Name: "fairlead_xds_paused_requests_total", Kind: Counter, Of: server, Help: "Requests on ADS streams of edges that had to wait because their stream or tunnel sent too many. An Envoy does not reach this limit."},
	{Name: "fairlead_xds_over_limit_total", Kind: Counter, Of: server, Help: "ADS streams of edges that were refused or ended because the edge or its tunnel had too many streams or requests."},
	{Name: "fairlead_xds_denied", Kind: Gauge, Labels: []string{"what"}, Of: server, Help: "Who is let in no more: revoked edges, ended tunnels."},
	{Name: "fairlead_xds_left_out_total", Kind: Counter, Labels: []string{"type"}, Of: server, Help: "Resources that did not pass the server's own check and were left out, each time they were built."},
	{Name: "fairlead_xds_cluster_info", Kind: Gauge, Labels: []string{"namespace", "name", "tunnel_id"}, Of: server, PerCluster: true, Help: "Always 1, of each workload cluster that is served: gives a name to what gateways and edges have by tunnel_id."},
	{Name: "fairlead_xds_cluster_refused_since_timestamp_seconds", Kind: Gauge, Labels: []string{"namespace", "name"}, Of: server, PerCluster: true, Help: "Since when an Envoy that is connected here refuses (NACK) something of a workload cluster (Unix time), the first of them; absent while none does."},

	{Name: "fairlead_channel_connections", Kind: Gauge, Labels: []string{"class"}, Of: server, Help: "Connections to the control channel, by what the caller is: strangers show no certificate (yet)."},
	{Name: "fairlead_channel_turned_away_total", Kind: Counter, Of: server, Help: "Connections that were closed because there were too many, in all or of one address or certificate."},
	{Name: "fairlead_channel_displaced_total", Kind: Counter, Labels: []string{"class"}, Of: server, Help: "Connections that gave way to another because all places were taken: strangers to a network that had fewer or to a known address, edges to a tunnel that had fewer. They are also turned away."},
	{Name: "fairlead_channel_calls_total", Kind: Counter, Labels: []string{"method", "code"}, Of: server, Help: "Calls that began, by gRPC code: OK were let through to their service; others were refused before, for a certificate that is not accepted, a method that the caller may not call (PermissionDenied, Unauthenticated) or too many calls (ResourceExhausted)."},

	{Name: "fairlead_enrol_requests_total", Kind: Counter, Labels: []string{"request", "result"}, Of: server, Help: "Requests for certificates: by edges and gateways that enrol, and renewals. Refused are wrong, expired or used up credentials; limited are those who came too often; unavailable is everything that passes."},
	{Name: "fairlead_enrol_seconds", Kind: Histogram, Labels: []string{"request"}, Buckets: quick, Of: server, Help: "How long those requests took to their answer."},
	{Name: "fairlead_signing_requests_total", Kind: Counter, Labels: []string{"role", "result"}, Of: server, Help: "CertificateSigningRequests made for leaves of a role: signed, denied by the controller, or unanswered."},
	{Name: "fairlead_signing_seconds", Kind: Histogram, Labels: []string{"role"}, Buckets: quick, Of: server, Help: "Time from a CertificateSigningRequest to its answer."},
	{Name: "fairlead_boot_reports_total", Kind: Counter, Labels: []string{"state", "result"}, Of: server, Help: "Reports of machines about their boot, by what they say (running, succeeded, failed) and whether they were taken."},

	{Name: "fairlead_report_streams", Kind: Gauge, Labels: []string{"role"}, Of: server, Help: "Edges and gateways that report to this server now."},
	{Name: "fairlead_report_watchers", Kind: Gauge, Of: server, Help: "Controllers that watch what is reported: 1 where one leads."},
	{Name: "fairlead_report_edges", Kind: Gauge, Labels: []string{"state"}, Of: server, Help: "Edges that this server remembers: connected, or away (for up to an hour)."},
	{Name: "fairlead_report_edge_apiservers", Kind: Gauge, Labels: []string{"health"}, Of: server, Help: "Connected edges by how they find their apiserver: healthy, unhealthy or unknown."},
	{Name: "fairlead_report_troubled_edges", Kind: Gauge, Of: server, Help: "Connected edges that report something wrong: fairlead check says what."},
	{Name: "fairlead_report_gateway_connected", Kind: Gauge, Labels: []string{"gateway"}, Of: server, Help: "1 on the server that a gateway reports to."},
	{Name: "fairlead_report_gateway_ready", Kind: Gauge, Labels: []string{"gateway"}, Of: server, Help: "1 if a gateway that reports here takes clients."},
	{Name: "fairlead_report_gateway_tunnels", Kind: Gauge, Labels: []string{"gateway"}, Of: server, Help: "Live tunnels of a gateway that reports here."},
	{Name: "fairlead_report_gateway_edges", Kind: Gauge, Labels: []string{"gateway"}, Of: server, Help: "Edges that have tunnels to a gateway that reports here."},
	{Name: "fairlead_report_edges_without_tunnel", Kind: Gauge, Of: server, Help: "Connected edges of this server that have no tunnel to any of the gateways that report here; meaningful where all gateways do."},
	{Name: "fairlead_report_cluster_tunnels", Kind: Gauge, Labels: []string{"namespace", "name"}, Of: server, PerCluster: true, Help: "Live tunnels of a workload cluster to the gateways that report here; 0 over all servers: it has none."},
	{Name: "fairlead_report_cluster_edges", Kind: Gauge, Labels: []string{"namespace", "name"}, Of: server, PerCluster: true, Help: "Connected edges of a workload cluster that report here."},
	{Name: "fairlead_report_cluster_apiserver_leaf_expiry_timestamp_seconds", Kind: Gauge, Labels: []string{"namespace", "name"}, Of: server, PerCluster: true, Help: "When the serving certificate of a workload cluster's apiserver ends (Unix time), the first that connected edges report here; absent while none is known."},
	{Name: "fairlead_report_boot_machines", Kind: Gauge, Of: server, Help: "Machines whose boot reports this server keeps, of 20,000 at most."},
	{Name: "fairlead_report_boot_bytes", Kind: Gauge, Of: server, Help: "What those reports take, of 64 MiB at most."},

	{Name: "fairlead_source_synced", Kind: Gauge, Of: server, Help: "1 as soon as all objects of the management cluster have been read once."},
	{Name: "fairlead_source_watch_errors_total", Kind: Counter, Labels: []string{"resource"}, Of: server, Help: "Watches and lists of the management cluster that failed: while this grows changes are seen late."},
	{Name: "fairlead_source_queue", Kind: Gauge, Of: server, Help: "Workload clusters that have to be looked at."},
	{Name: "fairlead_server_leaf_expiry_timestamp_seconds", Kind: Gauge, Of: server, Help: "When the server's own certificate ends (Unix time); absent while it has none."},
	{Name: "fairlead_server_ca_expiry_timestamp_seconds", Kind: Gauge, Of: server, Help: "When the first CA of the trust bundle ends (Unix time)."},
}

// controller is what the controllers count; the one that leads has the figures of the fleet.
var controller = []Metric{
	{Name: "fairlead_controller_leader", Kind: Gauge, Of: leader, Help: "1 on the replica that leads: it alone writes status and signs."},
	{Name: "fairlead_controller_tunnels", Kind: Gauge, Of: leader, Help: "Tunnels that there are."},
	{Name: "fairlead_controller_tunnel_conditions", Kind: Gauge, Labels: []string{"condition", "status", "reason"}, Of: leader, Help: "Tunnels by condition, status and reason."},
	{Name: "fairlead_controller_edges", Kind: Gauge, Labels: []string{"state"}, Of: leader, Help: "Edges in the status of Tunnels: connected (has tunnels), away, expired (away for longer than its certificate lives), revoked."},
	{Name: "fairlead_controller_leaf_expiry_timestamp_seconds", Kind: Gauge, Of: leader, Help: "When the next leaf of an edge that is connected ends (Unix time). A leaf of 24 h is renewed 8 h before."},
	{Name: "fairlead_controller_kubeconfig_writes_total", Kind: Counter, Labels: []string{"result"}, Of: leader, Help: "Kubeconfig Secrets that were written: ok or error."},
	{Name: "fairlead_controller_status_queue", Kind: Gauge, Labels: []string{"urgency"}, Of: leader, Help: "Tunnels whose status waits to be written, by urgency: worse, flipped, minor, seen."},
	{Name: "fairlead_controller_status_writes_total", Kind: Counter, Of: leader, Help: "Writes of the live state of Tunnels, of which --status-writes allows so many a second."},
	{Name: "fairlead_controller_signatures_total", Kind: Counter, Labels: []string{"role", "result"}, Of: leader, Help: "CertificateSigningRequests that were answered: signed, denied, or error (tried again)."},
	{Name: "fairlead_controller_rollout_phase", Kind: Gauge, Labels: []string{"phase"}, Of: leader, Help: "1 for the phase in which the rollout of a change of what all nodes run is: none, first, rest, stopped."},
	{Name: "fairlead_controller_ca_phase", Kind: Gauge, Labels: []string{"phase"}, Of: leader, Help: "1 for the phase in which the rotation of the CA is: steady, introduce, move, retire."},
	{Name: "fairlead_controller_ca_expiry_timestamp_seconds", Kind: Gauge, Labels: []string{"ca"}, Of: leader, Help: "When a CA ends (Unix time): the one that signs for edges, and the first of the others in a rotation."},
	{Name: "fairlead_controller_ca_problem", Kind: Gauge, Of: leader, Help: "1 while something is wrong with the Secret of the CA: fairlead ca status says what. Until then nothing changes."},
	{Name: "fairlead_controller_tunnel_ready", Kind: Gauge, Labels: []string{"namespace", "name"}, Of: leader, PerCluster: true, Help: "1 if the condition Ready of a Tunnel is True."},
	{Name: "fairlead_controller_tunnel_edges", Kind: Gauge, Labels: []string{"namespace", "name"}, Of: leader, PerCluster: true, Help: "Edges of a Tunnel that are connected."},
	{Name: "fairlead_controller_tunnel_leaf_expiry_timestamp_seconds", Kind: Gauge, Labels: []string{"namespace", "name"}, Of: leader, PerCluster: true, Help: "When the first leaf of a Tunnel's connected edges ends (Unix time); absent while none is."},
}

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
