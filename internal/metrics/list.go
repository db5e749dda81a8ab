package metrics

// quick holds the buckets, in seconds, for operations that take or should take milliseconds.
var quick = []float64{0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30}

// changes holds the buckets, in seconds, for a change on its way to an Envoy, which may be disconnected or have a slow
// network.
var changes = []float64{0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300}

// recoveries holds the buckets, in seconds, for outages: 5 s and 40 s are the bounds of docs/slo.md.
var recoveries = []float64{0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 60, 300, 3600}

// bounded holds the buckets, in seconds, for what must be done within 5 s or 10 s.
var bounded = []float64{0.01, 0.05, 0.1, 0.25, 0.5, 1, 2, 3, 4, 5, 7.5, 10, 30, 60, 300}

var (
	all       = []Program{XDSServer, Controller, GatewayAgent, EdgeAgent}
	server    = []Program{XDSServer}
	leader    = []Program{Controller}
	agent     = []Program{GatewayAgent, EdgeAgent}
	atGateway = []Program{GatewayAgent}
	atEdge    = []Program{EdgeAgent}
)

// everywhere lists the metrics of every program.
var everywhere = []Metric{
	{
		Name:   "fairlead_build_info",
		Kind:   Gauge,
		Labels: []string{"program", "version"},
		Of:     all,
		Help:   "Always 1; the version is what the Go toolchain stamped into the program.",
	},
}

// xdsServer lists the metrics of the xds-server. Each replica counts its own work, so sums range over all replicas.
var xdsServer = []Metric{
	{
		Name:   "fairlead_xds_streams",
		Kind:   Gauge,
		Labels: []string{"role"},
		Of:     server,
		Help:   "Open ADS streams: one for each gateway and each membership of an edge.",
	},
	{
		Name: "fairlead_xds_published",
		Kind: Gauge,
		Of:   server,
		Help: "1 as soon as all objects have been read and the gateways are known; until then the server serves no agent.",
	},
	{
		Name: "fairlead_xds_gateways",
		Kind: Gauge,
		Of:   server,
		Help: "Gateways of the installation, by the replicas of their StatefulSet.",
	},
	{
		Name:   "fairlead_xds_tunnels",
		Kind:   Gauge,
		Labels: []string{"state"},
		Of:     server,
		Help: "Tunnels of workload clusters, networks and apiservers by state: served, prepared (served soon) or withheld " +
			"(paused, or with a missing precondition).",
	},
	{
		Name:   "fairlead_xds_resources",
		Kind:   Gauge,
		Labels: []string{"type"},
		Of:     server,
		Help:   "Resources that all gateways share.",
	},
	{
		Name:   "fairlead_xds_resources_sent_total",
		Kind:   Counter,
		Labels: []string{"role", "type"},
		Of:     server,
		Help:   "Resources sent, counted for each Envoy.",
	},
	{
		Name:   "fairlead_xds_answers_total",
		Kind:   Counter,
		Labels: []string{"role", "type", "answer"},
		Of:     server,
		Help:   "Answers of Envoys to resources sent: ack or nack.",
	},
	{
		Name:   "fairlead_xds_refusing_nodes",
		Kind:   Gauge,
		Labels: []string{"role"},
		Of:     server,
		Help:   "Nodes connected here that reject a resource: they run its previous version.",
	},
	{
		Name:   "fairlead_xds_waiting_nodes",
		Kind:   Gauge,
		Labels: []string{"role"},
		Of:     server,
		Help:   "Nodes connected here that have not answered a response for 30 s.",
	},
	{
		Name:    "fairlead_xds_change_ack_seconds",
		Kind:    Histogram,
		Labels:  []string{"role"},
		Buckets: changes,
		Of:      server,
		Help: "Time from the observation of a change of an object to the ACK of an Envoy; of several changes together " +
			"the oldest counts.",
	},
	{
		Name:   "fairlead_xds_refused_total",
		Kind:   Counter,
		Labels: []string{"reason"},
		Of:     server,
		Help:   "ADS streams that were rejected or ended by the server, by gRPC code.",
	},
	{
		Name: "fairlead_xds_paused_requests_total",
		Kind: Counter,
		Of:   server,
		Help: "Requests on ADS streams of edges that had to wait because their stream or tunnel sent too many; an Envoy " +
			"does not reach this limit.",
	},
	{
		Name: "fairlead_xds_over_limit_total",
		Kind: Counter,
		Of:   server,
		Help: "ADS streams of edges that were rejected or ended because the edge or its tunnel had too many streams or " +
			"requests.",
	},
	{
		Name:   "fairlead_xds_denied",
		Kind:   Gauge,
		Labels: []string{"what"},
		Of:     server,
		Help:   "Entries of the deny list: revoked edges, ended tunnels.",
	},
	{
		Name:   "fairlead_xds_left_out_total",
		Kind:   Counter,
		Labels: []string{"type"},
		Of:     server,
		Help: "Resources that were left out because they did not pass the server's own check, counted each time they " +
			"were built.",
	},
	{
		Name:       "fairlead_xds_cluster_info",
		Kind:       Gauge,
		Labels:     []string{"namespace", "name", "tunnel_id"},
		Of:         server,
		PerCluster: true,
		Help: "Always 1, for each workload cluster that is served: maps the tunnel_id of gateway and edge metrics " +
			"to a name.",
	},
	{
		Name:       "fairlead_xds_cluster_refused_since_timestamp_seconds",
		Kind:       Gauge,
		Labels:     []string{"namespace", "name"},
		Of:         server,
		PerCluster: true,
		Help: "Time (Unix) of the first NACK that an Envoy connected here still has for a resource of a workload " +
			"cluster; absent if there is none.",
	},

	{
		Name:   "fairlead_channel_connections",
		Kind:   Gauge,
		Labels: []string{"class"},
		Of:     server,
		Help:   "Connections to the control channel, by class of the caller: a stranger has presented no certificate yet.",
	},
	{
		Name: "fairlead_channel_turned_away_total",
		Kind: Counter,
		Of:   server,
		Help: "Connections that were closed because there were too many, in total or of one address or certificate.",
	},
	{
		Name:   "fairlead_channel_displaced_total",
		Kind:   Counter,
		Labels: []string{"class"},
		Of:     server,
		Help: "Connections that were closed for another one because all places were taken: strangers for a network with " +
			"fewer or for a known address, edges for a tunnel with fewer; these are also counted as rejected.",
	},
	{
		Name:   "fairlead_channel_calls_total",
		Kind:   Counter,
		Labels: []string{"method", "code"},
		Of:     server,
		Help: "Calls by gRPC code: OK reached their service; others were rejected before, for a certificate that is not " +
			"accepted, a method that the caller may not call (PermissionDenied, Unauthenticated) or too many calls " +
			"(ResourceExhausted).",
	},

	{
		Name:   "fairlead_enrol_requests_total",
		Kind:   Counter,
		Labels: []string{"request", "result"},
		Of:     server,
		Help: "Requests for certificates (enrolments and renewals): refused means a wrong, expired or used up " +
			"credential, limited too many requests, unavailable a temporary error.",
	},
	{
		Name:    "fairlead_enrol_seconds",
		Kind:    Histogram,
		Labels:  []string{"request"},
		Buckets: quick,
		Of:      server,
		Help:    "Duration of these requests.",
	},
	{
		Name:   "fairlead_signing_requests_total",
		Kind:   Counter,
		Labels: []string{"role", "result"},
		Of:     server,
		Help:   "CertificateSigningRequests created for leaves of a role: signed, denied by the controller, or unanswered.",
	},
	{
		Name:    "fairlead_signing_seconds",
		Kind:    Histogram,
		Labels:  []string{"role"},
		Buckets: quick,
		Of:      server,
		Help:    "Time from a CertificateSigningRequest to its answer.",
	},
	{
		Name:   "fairlead_boot_reports_total",
		Kind:   Counter,
		Labels: []string{"state", "result"},
		Of:     server,
		Help: "Boot reports of machines, by the state that they report (running, succeeded, failed) and by whether they " +
			"were accepted.",
	},

	{
		Name:   "fairlead_report_streams",
		Kind:   Gauge,
		Labels: []string{"role"},
		Of:     server,
		Help:   "Edges and gateways that report to this server.",
	},
	{
		Name: "fairlead_report_watchers",
		Kind: Gauge,
		Of:   server,
		Help: "Controllers that watch the reports: 1 if one leads.",
	},
	{
		Name:   "fairlead_report_edges",
		Kind:   Gauge,
		Labels: []string{"state"},
		Of:     server,
		Help:   "Edges in this server's memory: connected, or away (for up to an hour).",
	},
	{
		Name:   "fairlead_report_edge_apiservers",
		Kind:   Gauge,
		Labels: []string{"health"},
		Of:     server,
		Help:   "Connected edges by the health of their apiserver: healthy, unhealthy or unknown.",
	},
	{
		Name: "fairlead_report_troubled_edges",
		Kind: Gauge,
		Of:   server,
		Help: "Connected edges that report an error; fairlead check names it.",
	},
	{
		Name:   "fairlead_report_gateway_connected",
		Kind:   Gauge,
		Labels: []string{"gateway"},
		Of:     server,
		Help:   "1 on the server that a gateway reports to.",
	},
	{
		Name:   "fairlead_report_gateway_ready",
		Kind:   Gauge,
		Labels: []string{"gateway"},
		Of:     server,
		Help:   "1 if a gateway that reports here accepts clients.",
	},
	{
		Name:   "fairlead_report_gateway_tunnels",
		Kind:   Gauge,
		Labels: []string{"gateway"},
		Of:     server,
		Help:   "Live tunnels of a gateway that reports here.",
	},
	{
		Name:   "fairlead_report_gateway_edges",
		Kind:   Gauge,
		Labels: []string{"gateway"},
		Of:     server,
		Help:   "Edges that have tunnels to a gateway that reports here.",
	},
	{
		Name: "fairlead_report_edges_without_tunnel",
		Kind: Gauge,
		Of:   server,
		Help: "Connected edges of this server without a tunnel to any of the gateways that report here; meaningful if all " +
			"gateways report here.",
	},
	{
		Name:       "fairlead_report_cluster_tunnels",
		Kind:       Gauge,
		Labels:     []string{"namespace", "name"},
		Of:         server,
		PerCluster: true,
		Help: "Live tunnels of a workload cluster to the gateways that report here; a sum of 0 over all servers " +
			"means that it has none.",
	},
	{
		Name:       "fairlead_report_cluster_edges",
		Kind:       Gauge,
		Labels:     []string{"namespace", "name"},
		Of:         server,
		PerCluster: true,
		Help:       "Connected edges of a workload cluster that report here.",
	},
	{
		Name:       "fairlead_report_cluster_apiserver_leaf_expiry_timestamp_seconds",
		Kind:       Gauge,
		Labels:     []string{"namespace", "name"},
		Of:         server,
		PerCluster: true,
		Help: "Expiry (Unix time) of the serving certificate of a workload cluster's apiserver, the earliest that " +
			"connected edges report here; absent if none is known.",
	},
	{
		Name: "fairlead_report_boot_machines",
		Kind: Gauge,
		Of:   server,
		Help: "Machines whose boot reports this server stores, 20,000 at most.",
	},
	{Name: "fairlead_report_boot_bytes", Kind: Gauge, Of: server, Help: "Size of these reports, 64 MiB at most."},

	{
		Name: "fairlead_source_synced",
		Kind: Gauge,
		Of:   server,
		Help: "1 as soon as all objects of the management cluster have been read once.",
	},
	{
		Name:   "fairlead_source_watch_errors_total",
		Kind:   Counter,
		Labels: []string{"resource"},
		Of:     server,
		Help:   "Failed watches and lists of the management cluster; while this grows, changes are observed late.",
	},
	{Name: "fairlead_source_queue", Kind: Gauge, Of: server, Help: "Workload clusters that wait to be rebuilt."},
	{
		Name: "fairlead_server_leaf_expiry_timestamp_seconds",
		Kind: Gauge,
		Of:   server,
		Help: "Expiry (Unix time) of the server's own certificate; absent without one.",
	},
	{
		Name: "fairlead_server_ca_expiry_timestamp_seconds",
		Kind: Gauge,
		Of:   server,
		Help: "Expiry (Unix time) of the first CA in the trust bundle.",
	},
}

// controller lists the metrics of the controllers. Only the leader has the metrics of the fleet.
var controller = []Metric{
	{
		Name: "fairlead_controller_leader",
		Kind: Gauge,
		Of:   leader,
		Help: "1 on the replica that leads: only this one writes status and signs.",
	},
	{
		Name:   "fairlead_controller_tunnels",
		Kind:   Gauge,
		Labels: []string{"kind"},
		Of:     leader,
		Help: "Tunnel objects: of Clusters (cluster), of RemoteNetworks (network), of apiservers that reach these " +
			"(egress).",
	},
	{
		Name:   "fairlead_controller_tunnel_conditions",
		Kind:   Gauge,
		Labels: []string{"kind", "condition", "status", "reason"},
		Of:     leader,
		Help: "Tunnels by kind, condition, status and reason. TunnelReady of a Cluster without an edge on record has " +
			"the reason NoEdge, and of a Tunnel that waits for its Cluster only Accepted counts.",
	},
	{
		Name:   "fairlead_controller_edges",
		Kind:   Gauge,
		Labels: []string{"kind", "state"},
		Of:     leader,
		Help: "Edges in the status of Tunnels, by the kind of these: connected (has tunnels; beside an apiserver: " +
			"reports), away, expired (away for longer than its certificate lives), revoked.",
	},
	{Name: "fairlead_controller_networks", Kind: Gauge, Of: leader, Help: "RemoteNetwork objects."},
	{
		Name:   "fairlead_controller_network_conditions",
		Kind:   Gauge,
		Labels: []string{"condition", "status", "reason"},
		Of:     leader,
		Help: "RemoteNetworks by condition, status and reason; TunnelReady is about their edges, EgressReady about the " +
			"apiservers of their Cluster.",
	},
	{
		Name: "fairlead_controller_leaf_expiry_timestamp_seconds",
		Kind: Gauge,
		Of:   leader,
		Help: "Expiry (Unix time) of the next leaf of a connected edge; a leaf of 24 h is renewed 8 h before.",
	},
	{
		Name: "fairlead_controller_leaf_lifetime_seconds",
		Kind: Gauge,
		Of:   leader,
		Help: "Lifetime of new leaves (--leaf-lifetime of this replica); a leaf is renewed at two thirds of its lifetime.",
	},
	{
		Name:   "fairlead_controller_kubeconfig_writes_total",
		Kind:   Counter,
		Labels: []string{"result"},
		Of:     leader,
		Help:   "Writes of kubeconfig Secrets: ok or error.",
	},
	{
		Name:   "fairlead_controller_status_queue",
		Kind:   Gauge,
		Labels: []string{"urgency"},
		Of:     leader,
		Help:   "Tunnels whose status waits to be written, by urgency: worse, flipped, minor, seen.",
	},
	{
		Name: "fairlead_controller_status_writes_total",
		Kind: Counter,
		Of:   leader,
		Help: "Writes of the live state of Tunnels; --status-writes bounds their rate.",
	},
	{
		Name:    "fairlead_controller_status_delay_seconds",
		Kind:    Histogram,
		Labels:  []string{"urgency"},
		Buckets: bounded,
		Of:      leader,
		Help: "Time from when the leader begins to handle a change of a Tunnel's live state to its write, by urgency: it " +
			"waits for the least time between two writes, for its turn, and for the apiserver.",
	},
	{
		Name: "fairlead_controller_report_age_seconds",
		Kind: Gauge,
		Of:   leader,
		Help: "Age of the oldest report that status is based on: how long the leader has not had the whole state of one of " +
			"the xds-servers; 0 if it follows all of them.",
	},
	{
		Name:    "fairlead_controller_revocation_seconds",
		Kind:    Histogram,
		Buckets: bounded,
		Of:      leader,
		Help: "Time from when the leader sees a revocation in the spec until all gateways have reported, with a complete " +
			"record, that no connection of the edge is open; it includes the reports and up to a second between two writes.",
	},
	{
		Name:   "fairlead_controller_signatures_total",
		Kind:   Counter,
		Labels: []string{"role", "result"},
		Of:     leader,
		Help:   "CertificateSigningRequests that were answered: signed, denied, or error (retried).",
	},
	{
		Name:   "fairlead_controller_rollout_phase",
		Kind:   Gauge,
		Labels: []string{"phase"},
		Of:     leader,
		Help:   "1 for the phase in which the rollout of a change of what all nodes run is: none, first, rest, stopped.",
	},
	{
		Name:   "fairlead_controller_ca_phase",
		Kind:   Gauge,
		Labels: []string{"phase"},
		Of:     leader,
		Help:   "1 for the current phase of the rotation of the CA: steady, introduce, move, retire.",
	},
	{
		Name:   "fairlead_controller_ca_expiry_timestamp_seconds",
		Kind:   Gauge,
		Labels: []string{"ca"},
		Of:     leader,
		Help:   "Expiry (Unix time) of a CA: the one that signs for edges, and the first of the others in a rotation.",
	},
	{
		Name: "fairlead_controller_ca_problem",
		Kind: Gauge,
		Of:   leader,
		Help: "1 while the Secret of the CA cannot be used; fairlead ca status gives the reason, and nothing changes until " +
			"then.",
	},
	{
		Name:       "fairlead_controller_tunnel_ready",
		Kind:       Gauge,
		Labels:     []string{"namespace", "name"},
		Of:         leader,
		PerCluster: true,
		Help: "1 if the condition Ready of a Tunnel is True; the Tunnel of a network has the name <network>.network, that " +
			"of the apiservers of a Cluster <cluster>.egress.",
	},
	{
		Name:       "fairlead_controller_tunnel_edges",
		Kind:       Gauge,
		Labels:     []string{"namespace", "name"},
		Of:         leader,
		PerCluster: true,
		Help:       "Connected edges of a Tunnel, of a network or of a Cluster, and connected nodes beside its apiservers.",
	},
	{
		Name:       "fairlead_controller_tunnel_leaf_expiry_timestamp_seconds",
		Kind:       Gauge,
		Labels:     []string{"namespace", "name"},
		Of:         leader,
		PerCluster: true,
		Help:       "Expiry (Unix time) of the first leaf of a Tunnel's connected edges; absent without one.",
	},
}

// agents lists the metrics that both agents have.
var agents = []Metric{
	{
		Name: "fairlead_agent_ready",
		Kind: Gauge,
		Of:   agent,
		Help: "1 if Envoy is ready and each membership has a certificate and configuration, as /readyz reports. Whether " +
			"reverse tunnels are up is known at the gateways.",
	},
	{
		Name: "fairlead_agent_memberships",
		Kind: Gauge,
		Of:   agent,
		Help: "Configured memberships of the agent: an edge has one for each bootstrap file.",
	},
	{Name: "fairlead_agent_enrolled", Kind: Gauge, Of: agent, Help: "Memberships that have a certificate."},
	{
		Name: "fairlead_agent_connected",
		Kind: Gauge,
		Of:   agent,
		Help: "Memberships with an open ADS stream to an xds-server.",
	},
	{
		Name: "fairlead_agent_cached",
		Kind: Gauge,
		Of:   agent,
		Help: "Memberships whose Envoy runs with configuration from disk, because no xds-server was reached since the start.",
	},
	{
		Name: "fairlead_agent_leaf_expiry_timestamp_seconds",
		Kind: Gauge,
		Of:   agent,
		Help: "Expiry (Unix time) of the agent's first certificate; absent without one.",
	},
	{
		Name:   "fairlead_agent_troubles",
		Kind:   Gauge,
		Labels: []string{"about"},
		Of:     agent,
		Help:   "Memberships with an error, by subject; /status has the message.",
	},
	{
		Name: "fairlead_agent_configuration_refused",
		Kind: Gauge,
		Of:   agent,
		Help: "Memberships whose newest configuration is rejected in part, by Envoy, by the agent's own check or after " +
			"crashes.",
	},
	{
		Name:   "fairlead_agent_configuration_answers_total",
		Kind:   Counter,
		Labels: []string{"answer"},
		Of:     agent,
		Help:   "Answers to xds-servers about configuration: ack or nack.",
	},
	{
		Name: "fairlead_agent_last_report_timestamp_seconds",
		Kind: Gauge,
		Of:   agent,
		Help: "Time (Unix) of the agent's last report; it sends one when something has changed, and there is none before " +
			"the first.",
	},
	{Name: "fairlead_agent_envoy_running", Kind: Gauge, Of: agent, Help: "1 while Envoy runs."},
	{
		Name: "fairlead_agent_envoy_exits_total",
		Kind: Counter,
		Of:   agent,
		Help: "Unexpected ends of Envoy, each followed by a restart.",
	},
	{
		Name: "fairlead_agent_envoy_answers",
		Kind: Gauge,
		Of:   agent,
		Help: "0 while Envoy's main thread or one of its workers has not answered the agent for 5 s.",
	},
	{
		Name: "fairlead_agent_envoy_replaced_total",
		Kind: Counter,
		Of:   agent,
		Help: "Hanging Envoys that the agent killed to start a new one.",
	},
	{
		Name: "fairlead_agent_envoy_scraped",
		Kind: Gauge,
		Of:   agent,
		Help: "1 if Envoy's own statistics are in this answer.",
	},
	{
		Name: "fairlead_agent_envoy_series_dropped",
		Kind: Gauge,
		Of:   agent,
		Help: "Series of Envoy that were left out of this answer because of the limit.",
	},
}

// gateways lists the metrics that only the gateway-agent has.
var gateways = []Metric{
	{
		Name:   "fairlead_gateway_tunnels",
		Kind:   Gauge,
		Labels: []string{"worker"},
		Of:     atGateway,
		Help:   "Live reverse tunnels, by worker of Envoy.",
	},
	{Name: "fairlead_gateway_edges", Kind: Gauge, Of: atGateway, Help: "Edges that have tunnels here."},
	{
		Name:   "fairlead_gateway_network_connections",
		Kind:   Gauge,
		Labels: []string{"owner"},
		Of:     atGateway,
		Help: "Open connections of apiservers to networks (egress), and of edges for the machines of their networks " +
			"(forward).",
	},
	{
		Name: "fairlead_gateway_workload_clusters",
		Kind: Gauge,
		Of:   atGateway,
		Help: "Names of workload clusters that Envoy serves.",
	},
	{
		Name: "fairlead_gateway_dark_workload_clusters",
		Kind: Gauge,
		Of:   atGateway,
		Help: "Of these, unreachable ones: they have had no tunnel for a while, and their clients are rejected at once.",
	},
	{
		Name:   "fairlead_gateway_clients_total",
		Kind:   Counter,
		Labels: []string{"route", "result"},
		Of:     atGateway,
		Help: "Connections of clients that have ended, by route (sni, connect): reached were carried to an edge, failed " +
			"were not, broken ended with their reverse tunnel, which is known only of connect; a name that no workload " +
			"cluster has is not counted.",
	},
	{
		Name:   "fairlead_gateway_rejected_clients_total",
		Kind:   Counter,
		Labels: []string{"reason"},
		Of:     atGateway,
		Help: "Clients of unreachable workload clusters, which are rejected at once: within an hour of the end of the " +
			"cluster's last tunnel here (outage), or other. fairlead_gateway_clients_total counts them as reached.",
	},
	{
		Name: "fairlead_gateway_expected_tunnel_seconds_total",
		Kind: Counter,
		Of:   atGateway,
		Help: "Time in which workload clusters should have had a tunnel here, summed over all that the gateway serves and " +
			"that have had one since the agent's start.",
	},
	{
		Name: "fairlead_gateway_missing_tunnel_seconds_total",
		Kind: Counter,
		Of:   atGateway,
		Help: "Of this time, the time without a tunnel; an outage counts for an hour at most.",
	},
	{
		Name:    "fairlead_gateway_outage_seconds",
		Kind:    Histogram,
		Buckets: recoveries,
		Of:      atGateway,
		Help: "Time from the end of a workload cluster's last tunnel here to its next one, observed when that opens; " +
			"longer than an hour is not observed.",
	},
	{
		Name:    "fairlead_gateway_cut_seconds",
		Kind:    Histogram,
		Buckets: bounded,
		Of:      atGateway,
		Help: "Time from the arrival of a revocation, or from a later begin of the connection, until the kernel has closed " +
			"a connection of that edge.",
	},
	{
		Name: "fairlead_gateway_cut_total",
		Kind: Counter,
		Of:   atGateway,
		Help: "Connections that were closed because their edge is revoked or their tunnel has ended.",
	},
	{
		Name: "fairlead_gateway_cut_failures_total",
		Kind: Counter,
		Of:   atGateway,
		Help: "Failed attempts to close a connection: a revoked edge may still be connected.",
	},
	{
		Name: "fairlead_gateway_holes",
		Kind: Gauge,
		Of:   atGateway,
		Help: "Workers without a tunnel of an edge that has others: clients on these workers are reset.",
	},
	{
		Name: "fairlead_gateway_moved_total",
		Kind: Counter,
		Of:   atGateway,
		Help: "Tunnels that were closed so that the edge opens them on another worker.",
	},
	{
		Name: "fairlead_gateway_given_up_total",
		Kind: Counter,
		Of:   atGateway,
		Help: "Workers that stayed without a tunnel after all attempts.",
	},
	{
		Name: "fairlead_gateway_unknown_connections",
		Kind: Gauge,
		Of:   atGateway,
		Help: "Connections to the public port without a recorded owner.",
	},
	{
		Name: "fairlead_gateway_record_incomplete",
		Kind: Gauge,
		Of:   atGateway,
		Help: "1 if the record does not account for each connection to the public port.",
	},
	{
		Name: "fairlead_gateway_unknown_closed_total",
		Kind: Counter,
		Of:   atGateway,
		Help: "Connections that were closed because they had no recorded owner.",
	},
	{
		Name: "fairlead_gateway_replaced_total",
		Kind: Counter,
		Of:   atGateway,
		Help: "Replacements of Envoy to close tunnels of revoked edges, by gateways without NET_ADMIN.",
	},
	{
		Name: "fairlead_gateway_bad_events_total",
		Kind: Counter,
		Of:   atGateway,
		Help: "Lines of Envoy's tunnel log that could not be parsed.",
	},
	{
		Name:   "fairlead_gateway_admitted_total",
		Kind:   Counter,
		Labels: []string{"what"},
		Of:     atGateway,
		Help: "Connections to the public port that the agent admitted before TLS (connection), and tunnels that it " +
			"admitted after TLS (tunnel).",
	},
	{
		Name:   "fairlead_gateway_refused_total",
		Kind:   Counter,
		Labels: []string{"reason"},
		Of:     atGateway,
		Help: "Connections that the agent rejected before TLS (source, network, capacity), and tunnels and others that it " +
			"rejected after TLS (gateway, edge, edge_rate, tunnel_id, tunnel_id_rate); and requests of nodes beyond their " +
			"rate (requests).",
	},
	{
		Name:   "fairlead_gateway_full_ratio",
		Kind:   Gauge,
		Labels: []string{"limit"},
		Of:     atGateway,
		Help: "Used part of a limit of the gateway: memory, connections, those of them at the public port, or reverse " +
			"tunnels; at 1 it rejects what is new, and keeps what is open. Of reverse tunnels it rejects those of tunnel " +
			"ids that have their share from two thirds on.",
	},
	{
		Name:   "fairlead_gateway_worker_cpu_seconds_total",
		Kind:   Counter,
		Labels: []string{"worker"},
		Of:     atGateway,
		Help:   "CPU time of each worker of Envoy; with 1 s per second it cannot do more.",
	},
	{
		Name: "fairlead_gateway_known_sources",
		Kind: Gauge,
		Of:   atGateway,
		Help: "Sources from which an edge opened a tunnel within 24 h: half of the handshakes are reserved for them.",
	},
	{
		Name:   "fairlead_gateway_closed_total",
		Kind:   Counter,
		Labels: []string{"reason"},
		Of:     atGateway,
		Help: "Connections that the agent closed: tunnels and others beyond the limit of their node, tunnel id or gateway " +
			"(excess), silent connections of a source that has too many (silent), and those of nodes with too many requests " +
			"(requests).",
	},
	{
		Name:       "fairlead_gateway_cluster_tunnels",
		Kind:       Gauge,
		Labels:     []string{"tunnel_id"},
		Of:         atGateway,
		PerCluster: true,
		Help:       "Live tunnels of a workload cluster.",
	},
	{
		Name:       "fairlead_gateway_cluster_round_trip_seconds",
		Kind:       Gauge,
		Labels:     []string{"tunnel_id"},
		Of:         atGateway,
		PerCluster: true,
		Help: "Longest round-trip time of a workload cluster's tunnels, as the kernel measures it; behind a load " +
			"balancer that terminates TCP it is the time to that load balancer; absent if none is known.",
	},
}

// edges lists the metrics that only the edge-agent has.
var edges = []Metric{
	{
		Name:   "fairlead_edge_apiservers",
		Kind:   Gauge,
		Labels: []string{"health"},
		Of:     atEdge,
		Help:   "Memberships by the health of their apiserver: healthy, unhealthy or unknown.",
	},
	{
		Name: "fairlead_edge_apiserver_leaf_expiry_timestamp_seconds",
		Kind: Gauge,
		Of:   atEdge,
		Help: "Earliest expiry (Unix time) of the apiservers' serving certificates; absent if none is known.",
	},
	{
		Name:   "fairlead_edge_tunnels",
		Kind:   Gauge,
		Labels: []string{"gateway"},
		Of:     atEdge,
		Help:   "Reverse tunnels to a gateway, of all memberships.",
	},
	{
		Name:       "fairlead_edge_apiserver_healthy",
		Kind:       Gauge,
		Labels:     []string{"tunnel_id"},
		Of:         atEdge,
		PerCluster: true,
		Help:       "1 if the apiserver of a workload cluster is healthy.",
	},
}
