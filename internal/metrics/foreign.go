package metrics

import "slices"

// Foreign returns the metrics that other programs make, and that Fairlead passes on or uses in its rules and its
// dashboard.
func Foreign() []Metric { return slices.Clone(foreign) }

var foreign = []Metric{
	{Name: "envoy_server_live", Kind: Gauge, Of: agent, Help: "1 while Envoy accepts traffic."},
	{Name: "envoy_server_uptime", Kind: Gauge, Of: agent, Help: "Seconds since Envoy started."},
	{Name: "envoy_server_concurrency", Kind: Gauge, Of: agent, Help: "Worker threads."},
	{
		Name: "envoy_server_memory_allocated",
		Kind: Gauge,
		Of:   agent,
		Help: "Bytes of heap in use; --envoy-memory bounds it.",
	},
	{
		Name: "envoy_server_memory_physical_size",
		Kind: Gauge,
		Of:   agent,
		Help: "Bytes of memory that the heap has reserved.",
	},
	{Name: "envoy_server_total_connections", Kind: Gauge, Of: agent, Help: "Connections of all listeners."},
	{
		Name:   "envoy_listener_downstream_cx_active",
		Kind:   Gauge,
		Labels: []string{"envoy_listener_address"},
		Of:     atGateway,
		Help: "Open connections of a listener: public, apiserver, connect; a connection that has become a reverse " +
			"tunnel is not counted.",
	},
	{
		Name:   "envoy_listener_downstream_cx_total",
		Kind:   Counter,
		Labels: []string{"envoy_listener_address"},
		Of:     atGateway,
		Help:   "Accepted connections.",
	},
	{
		Name:   "envoy_listener_downstream_cx_overflow",
		Kind:   Counter,
		Labels: []string{"envoy_listener_address"},
		Of:     atGateway,
		Help:   "Connections rejected because of a limit.",
	},
	{
		Name:   "envoy_listener_no_filter_chain_match",
		Kind:   Counter,
		Labels: []string{"envoy_listener_address"},
		Of:     atGateway,
		Help:   "Connections with an unknown SNI.",
	},
	{
		Name:   "envoy_listener_ssl_handshake",
		Kind:   Counter,
		Labels: []string{"envoy_listener_address"},
		Of:     atGateway,
		Help:   "TLS handshakes of edges.",
	},
	{
		Name:   "envoy_listener_ssl_connection_error",
		Kind:   Counter,
		Labels: []string{"envoy_listener_address"},
		Of:     atGateway,
		Help:   "Failed TLS handshakes.",
	},
	{
		Name:   "envoy_tcp_downstream_cx_total",
		Kind:   Counter,
		Labels: []string{"envoy_tcp_prefix"},
		Of:     atGateway,
		Help:   "Connections of clients by SNI (apiserver), and of agents to the control channel (control).",
	},
	{
		Name:   "envoy_tcp_downstream_cx_rx_bytes_total",
		Kind:   Counter,
		Labels: []string{"envoy_tcp_prefix"},
		Of:     atGateway,
		Help:   "Bytes from those clients.",
	},
	{
		Name:   "envoy_tcp_downstream_cx_tx_bytes_total",
		Kind:   Counter,
		Labels: []string{"envoy_tcp_prefix"},
		Of:     atGateway,
		Help:   "Bytes to those clients.",
	},
	{
		Name:   "envoy_tcp_downstream_cx_no_route",
		Kind:   Counter,
		Labels: []string{"envoy_tcp_prefix"},
		Of:     atGateway,
		Help:   "Connections for a name that no workload cluster has.",
	},
	{
		Name:   "envoy_http_downstream_cx_rx_bytes_total",
		Kind:   Counter,
		Labels: []string{"envoy_http_conn_manager_prefix"},
		Of:     atGateway,
		Help: "Bytes from clients of the connect listener, from apiservers for networks (egress), and from machines " +
			"(forward).",
	},
	{
		Name:   "envoy_http_downstream_cx_tx_bytes_total",
		Kind:   Counter,
		Labels: []string{"envoy_http_conn_manager_prefix"},
		Of:     atGateway,
		Help:   "Bytes to these clients.",
	},
	{
		Name:   "envoy_http_downstream_rq_active",
		Kind:   Gauge,
		Labels: []string{"envoy_http_conn_manager_prefix"},
		Of:     atGateway,
		Help: "Open connections by CONNECT: of clients (connect), of apiservers to networks (egress) and of edges for " +
			"machines (forward). For egress, the limit of a Tunnel bounds those of one network.",
	},
	{
		Name:   "envoy_http_downstream_rq_xx",
		Kind:   Counter,
		Labels: []string{"envoy_http_conn_manager_prefix", "envoy_response_code_class"},
		Of:     atGateway,
		Help: "Answers to CONNECT requests, by class of code: of clients (connect), of apiservers for networks (egress) " +
			"and of edges for machines (forward). For egress, 4 is a destination that the gateway or an edge refuses, 5 a " +
			"network without an edge, a limit that is reached, or a destination that does not answer.",
	},
	{
		Name: "envoy_reverse_tunnel_handshake_accepted",
		Kind: Counter,
		Of:   atGateway,
		Help: "Reverse tunnels that edges opened.",
	},
	{
		Name: "envoy_reverse_tunnel_handshake_rejected",
		Kind: Counter,
		Of:   atGateway,
		Help: "Reverse tunnels that were rejected.",
	},
	{
		Name: "envoy_reverse_tunnel_handshake_validation_failed",
		Kind: Counter,
		Of:   atGateway,
		Help: "Of these, the ones whose claims do not match their certificate.",
	},
	{
		Name: "envoy_reverse_tunnel_fallback_no_reverse_socket",
		Kind: Counter,
		Of:   atGateway,
		Help: "Requests that found no idle reverse tunnel: there is none, or all have their maximum of streams.",
	},
	{
		Name:   "envoy_local_rate_limit_rate_limited",
		Kind:   Counter,
		Labels: []string{"envoy_local_network_ratelimit_prefix"},
		Of:     atGateway,
		Help:   "Handshakes of edges that were postponed because of --tunnel-rate.",
	},
	{
		Name: "envoy_overload_envoy_overload_actions_reject_incoming_connections_active",
		Kind: Gauge,
		Of:   atGateway,
		Help: "1 while Envoy closes new connections at once, to keep the open ones.",
	},
	{
		Name: "envoy_overload_envoy_overload_actions_stop_accepting_requests_active",
		Kind: Gauge,
		Of:   agent,
		Help: "1 while Envoy rejects new streams.",
	},
	{
		Name: "envoy_cluster_manager_active_clusters",
		Kind: Gauge,
		Of:   agent,
		Help: "Envoy clusters: on a gateway one for each name of a workload cluster, and a few more.",
	},
	{
		Name: "envoy_cluster_manager_cds_update_rejected",
		Kind: Counter,
		Of:   agent,
		Help: "Updates of Envoy clusters that Envoy rejected.",
	},
	{
		Name: "envoy_listener_manager_lds_update_rejected",
		Kind: Counter,
		Of:   agent,
		Help: "Updates of listeners that Envoy rejected.",
	},
	{
		Name: "envoy_control_plane_connected_state",
		Kind: Gauge,
		Of:   agent,
		Help: "1 while Envoy is connected to its agent.",
	},
	{Name: "process_cpu_seconds_total", Kind: Counter, Of: all, Help: "CPU time of the program, without its Envoy."},
	{Name: "process_resident_memory_bytes", Kind: Gauge, Of: all, Help: "Memory of the program, without its Envoy."},
	{Name: "go_goroutines", Kind: Gauge, Of: all, Help: "Goroutines."},
	{
		Name:   "controller_runtime_reconcile_total",
		Kind:   Counter,
		Labels: []string{"controller", "result"},
		Of:     leader,
		Help:   "Reconciliations.",
	},
	{
		Name:   "controller_runtime_reconcile_errors_total",
		Kind:   Counter,
		Labels: []string{"controller"},
		Of:     leader,
		Help:   "Failed reconciliations, which are retried.",
	},
	{
		Name:   "workqueue_depth",
		Kind:   Gauge,
		Labels: []string{"controller", "name", "priority"},
		Of:     leader,
		Help:   "Objects that wait to be reconciled.",
	},
}
