package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// TunnelStatus is the state that the controller observed and its decisions.
type TunnelStatus struct {
	// hostname is the tunnel hostname: the SNI or CONNECT authority that is routed to this workload cluster.
	// +optional
	Hostname string `json:"hostname,omitempty"`

	// names are all DNS names that are served: the hostname and the extra names that this Tunnel holds. No other
	// Tunnel can take a name that is recorded here. Empty if nothing is served.
	// +optional
	// +listType=atomic
	Names []string `json:"names,omitempty"`

	// id is the tunnel id that this Tunnel holds. No other Tunnel can take it, even while nothing is served.
	// +optional
	ID string `json:"id,omitempty"`

	// served is what the controller has granted in addition to names and id. The xds-servers serve only what is
	// recorded here. Empty if nothing is served.
	// +optional
	Served *ServedStatus `json:"served,omitempty"`

	// kubeconfig is how the Cluster's kubeconfig Secret leads to the workload cluster.
	// +optional
	Kubeconfig KubeconfigStatus `json:"kubeconfig,omitzero"`

	// conditions are Accepted, KubeconfigReady, KubeconfigMode, KubeconfigSwitched, HostnameResolves, CopiesReady,
	// Enrolled, TunnelReady and APIServerReachable; Ready, which summarises the conditions that clients depend on; and
	// Paused, while the Cluster or the Tunnel is paused.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// edges are the edges that have a certificate for this tunnel.
	// +optional
	// +listType=map
	// +listMapKey=nodeID
	Edges []EdgeStatus `json:"edges,omitempty"`

	// connectedEdges is the number of edges that have a reverse tunnel and are not revoked.
	// +optional
	ConnectedEdges int32 `json:"connectedEdges,omitempty"`
	// tunnels is the number of reverse tunnels of these edges, to all gateways together.
	// +optional
	Tunnels int32 `json:"tunnels,omitempty"`

	// tokens are the records of the bootstrap tokens that are still valid. Only the bootstrap Secret contains the
	// tokens themselves.
	// +optional
	// +listType=map
	// +listMapKey=sha256
	Tokens []TokenStatus `json:"tokens,omitempty"`

	// bootReportTokens are the records of the valid tokens with which machines send boot reports. Such a token permits
	// nothing else. Its uses are neither counted nor limited: maxUses and uses are 0.
	// +optional
	// +listType=map
	// +listMapKey=sha256
	BootReportTokens []TokenStatus `json:"bootReportTokens,omitempty"`

	// serviceAccountIssuer is how tokens of spec.edgeServiceAccount are verified, as the controller read it from the
	// workload cluster through the tunnel. It is kept while the tunnel is down.
	// +optional
	ServiceAccountIssuer *ServiceAccountIssuerStatus `json:"serviceAccountIssuer,omitempty"`
}

// ServiceAccountIssuerStatus is the issuer of the ServiceAccount tokens of a workload cluster.
type ServiceAccountIssuerStatus struct {
	// clusterUID is the UID of the Cluster whose issuer this is. Tokens are accepted for this Cluster only.
	// +optional
	ClusterUID types.UID `json:"clusterUID,omitempty"`

	// issuer is the issuer of the tokens.
	// +optional
	Issuer string `json:"issuer,omitempty"`

	// keys are the public keys that verify the tokens. Empty if they have not been read yet.
	// +optional
	// +listType=atomic
	Keys []ServiceAccountKey `json:"keys,omitempty"`

	// changedAt is when issuer or keys last changed.
	// +optional
	ChangedAt *metav1.Time `json:"changedAt,omitempty"`

	// error is why issuer and keys could not be read at the last attempt. Empty if they were read. The keys of the
	// previous attempt remain valid.
	// +optional
	Error string `json:"error,omitempty"`
}

// ServiceAccountKey is a public key of an issuer.
type ServiceAccountKey struct {
	// id is the key id that tokens name.
	ID string `json:"id"`
	// publicKey is the key as PKIX, DER.
	PublicKey []byte `json:"publicKey"`
}

// ServedStatus is the configuration of edges and gateways for this tunnel. The controller decides it from the Cluster
// and from the spec of the Tunnel, and records it in the same write as names and id.
type ServedStatus struct {
	// clusterUID is the UID of the Cluster for which this was granted. Empty if only enrolment is granted.
	// +optional
	ClusterUID types.UID `json:"clusterUID,omitempty"`

	// apiServers are the addresses, as host:port, that edges connect to: the first one, and each following one while
	// the previous ones are unhealthy.
	// +optional
	// +listType=atomic
	APIServers []string `json:"apiServers,omitempty"`

	// limits are the valid limits of the spec.
	// +optional
	Limits ServedLimits `json:"limits,omitzero"`

	// network is what is granted to a Tunnel with spec.network.
	// +optional
	Network *ServedNetwork `json:"network,omitempty"`

	// enrolmentOnly is true while the Tunnel waits for its Cluster: edges may enrol, and no client is served.
	// +optional
	EnrolmentOnly bool `json:"enrolmentOnly,omitempty"`
}

// ServedNetwork is what the edges of a RemoteNetwork serve, and for which apiservers.
type ServedNetwork struct {
	// clusterName is the name of the Cluster that has the network.
	ClusterName string `json:"clusterName"`
	// egressID is the tunnel id of the Tunnel <cluster>.egress: apiservers that enrolled with it may use the network.
	// +optional
	EgressID string `json:"egressID,omitempty"`
	// cidrs are the addresses that apiservers reach.
	// +optional
	// +listType=atomic
	CIDRs []string `json:"cidrs,omitempty"`
	// dnsSuffixes are the DNS domains that apiservers reach.
	// +optional
	// +listType=atomic
	DNSSuffixes []string `json:"dnsSuffixes,omitempty"`
	// ports are the ports of cidrs and dnsSuffixes, with first and last port of each range. Empty means all.
	// +optional
	// +listType=atomic
	Ports []NetworkPort `json:"ports,omitempty"`
	// narrowed counts how often cidrs or ports have lost a part. Then the edges end the streams of apiservers, because
	// some of them lead to what was removed.
	// +optional
	Narrowed int64 `json:"narrowed,omitempty"`
	// targets are the single addresses with names.
	// +optional
	// +listType=atomic
	Targets []ServedTarget `json:"targets,omitempty"`
	// apiServers are the addresses, as host:port, at which gateways reach the apiservers of the Cluster for machines in
	// the network.
	// +optional
	// +listType=atomic
	APIServers []string `json:"apiServers,omitempty"`
	// apiServerTunnelID is the tunnel id by which gateways reach the apiservers of the Cluster instead, if these are
	// behind a tunnel too.
	// +optional
	APIServerTunnelID string `json:"apiServerTunnelID,omitempty"`
}

// ServedTarget is one named target of a network.
type ServedTarget struct {
	// name is the DNS name by which clients reach the target.
	Name string `json:"name"`
	// address is the host:port that the edges dial.
	Address string `json:"address"`
}

// ServedLimits are the limits of a tunnel. Zero means the default.
type ServedLimits struct {
	// connections is the maximum number of connections that may be open through each gateway and name.
	// +optional
	Connections int64 `json:"connections,omitempty"`
	// pendingConnections is the maximum number of connections that may wait for a reverse tunnel.
	// +optional
	PendingConnections int64 `json:"pendingConnections,omitempty"`
	// bandwidth is the maximum number of bytes per second that each edge carries for each gateway, in each direction.
	// +optional
	Bandwidth int64 `json:"bandwidth,omitempty"`
}

// EdgeStatus is one edge of a tunnel, as users of the API read it. Programs read it as observed.Edge.
type EdgeStatus struct {
	// nodeID is the subject of the edge's certificate.
	NodeID string `json:"nodeID"`
	// host is the machine's own name.
	// +optional
	Host string `json:"host,omitempty"`
	// enrolledAt is when the edge received its first certificate. For an edge of a moved Cluster it is when the edge
	// was first observed, and certificateNotAfter is the latest possible time until the edge renews.
	EnrolledAt metav1.Time `json:"enrolledAt"`
	// certificateNotAfter is when the newest certificate of the edge expires.
	CertificateNotAfter metav1.Time `json:"certificateNotAfter"`
	// tokenSHA256 is the hash of the token with which the edge enrolled. Revoking the edge also revokes the token.
	// +optional
	TokenSHA256 string `json:"tokenSHA256,omitempty"`
	// pod is the Pod of the edge, if it enrolled with a ServiceAccount token.
	// +optional
	Pod *EdgePodStatus `json:"pod,omitempty"`
	// revokedAt is when the controller observed that the edge is revoked.
	// +optional
	RevokedAt *metav1.Time `json:"revokedAt,omitempty"`
	// cutAt is when all gateways had reported that they have no reverse tunnel of the revoked edge left.
	// +optional
	CutAt *metav1.Time `json:"cutAt,omitempty"`
	// gateways are the gateways that have reverse tunnels of the edge, as reported by the gateways. For a revoked edge
	// they are the gateways that have not yet reported that its reverse tunnels are closed, including gateways that
	// have since stopped reporting.
	// +optional
	// +listType=map
	// +listMapKey=name
	Gateways []EdgeGatewayStatus `json:"gateways,omitempty"`
	// connected is true while the Envoy beside an apiserver is connected to the control channel. It has no reverse
	// tunnels, so gateways is empty. Only a Tunnel with spec.egressOf has such nodes.
	// +optional
	Connected bool `json:"connected,omitempty"`
	// lastSeen is when the edge was last connected to the control channel, or had a reverse tunnel. While the edge is
	// connected it is updated only every few minutes.
	// +optional
	LastSeen *metav1.Time `json:"lastSeen,omitempty"`
	// form is how the edge runs: Process or Container.
	// +optional
	Form string `json:"form,omitempty"`
	// version is the version of the edge-agent.
	// +optional
	Version string `json:"version,omitempty"`
	// apiServer is what the edge reports about the apiserver.
	// +optional
	APIServer *EdgeAPIServerStatus `json:"apiServer,omitempty"`
	// lastError is the latest error that the edge reports. Empty if there is none.
	// +optional
	LastError string `json:"lastError,omitempty"`
}

// EdgePodStatus is the Pod, in the workload cluster, of an edge that enrolled with a ServiceAccount token. The node
// name of the edge follows from the UID, so a revoked Pod cannot enrol again.
type EdgePodStatus struct {
	// name is the name of the Pod.
	Name string `json:"name"`
	// uid is the UID of the Pod.
	UID types.UID `json:"uid"`
	// tokenIssuedAt is when the token was issued with which the Pod enrolled. Tokens that were issued earlier are
	// rejected, and so is this token for another key.
	TokenIssuedAt metav1.Time `json:"tokenIssuedAt"`
	// keySHA256 is the hash of the public key that enrolled with the token, in lower-case hexadecimal.
	KeySHA256 string `json:"keySHA256"`
}

// EdgeGatewayStatus are the reverse tunnels of an edge to one gateway.
type EdgeGatewayStatus struct {
	// name is gateway-<i>.
	Name string `json:"name"`
	// tunnels is the number of reverse tunnels.
	Tunnels int32 `json:"tunnels"`
	// workersWithout is the number of workers of the gateway's Envoy on which the edge has had no reverse tunnel for
	// some seconds. This edge does not serve clients that are connected to these workers. The gateway repairs this.
	// +optional
	WorkersWithout int32 `json:"workersWithout,omitempty"`
}

// EdgeAPIServerStatus is the state of the apiserver as an edge observes it.
type EdgeAPIServerStatus struct {
	// address is the address that was probed: the first healthy one, or else the first.
	Address string `json:"address"`
	// healthy reports whether the apiserver answers.
	Healthy bool `json:"healthy"`
	// reason is why the apiserver is not healthy: NameNotResolved, NoRoute, ConnectionRefused, ConnectionTimeout,
	// ConnectionFailed, NoAnswer, NotAPIServer, CertificateNotValid or NotReady. Empty if an edge of an earlier version
	// reports.
	// +optional
	Reason string `json:"reason,omitempty"`
	// message is why the apiserver is not healthy, for people.
	// +optional
	Message string `json:"message,omitempty"`
	// version is the version of Kubernetes. Empty if the apiserver does not report it to unauthenticated clients.
	// +optional
	Version string `json:"version,omitempty"`
	// certificateNames are the DNS names and IP addresses in its serving certificate.
	// +optional
	// +listType=atomic
	CertificateNames []string `json:"certificateNames,omitempty"`
	// certificateNotAfter is when its serving certificate expires.
	// +optional
	CertificateNotAfter *metav1.Time `json:"certificateNotAfter,omitempty"`
}

// TokenStatus is the record of one bootstrap token.
type TokenStatus struct {
	// sha256 is the hash of the token, in lower-case hexadecimal.
	SHA256 string `json:"sha256"`
	// expiresAt is when the token expires.
	ExpiresAt metav1.Time `json:"expiresAt"`
	// maxUses is how many edges may enrol with the token.
	MaxUses int32 `json:"maxUses"`
	// uses is how many edges have enrolled with the token.
	Uses int32 `json:"uses"`
	// lastUsedAt is when an edge last enrolled with the token.
	// +optional
	LastUsedAt *metav1.Time `json:"lastUsedAt,omitempty"`
}
