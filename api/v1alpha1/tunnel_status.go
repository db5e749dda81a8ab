package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// TunnelStatus is what the controller has found and done.
type TunnelStatus struct {
	// hostname is the tunnel hostname: the SNI or CONNECT authority that leads to this workload cluster.
	// +optional
	Hostname string `json:"hostname,omitempty"`

	// names are all DNS names that are served: the hostname and those extra names that are this Tunnel's. What is recorded
	// here no other Tunnel can take. Empty when nothing is served.
	// +optional
	// +listType=atomic
	Names []string `json:"names,omitempty"`

	// id is the tunnel id that this Tunnel has, recorded like names, also while nothing is served: no other Tunnel has it.
	// +optional
	ID string `json:"id,omitempty"`

	// served is what the controller has granted beside names and id. The xds-servers serve what is recorded and nothing
	// else. Empty when nothing is served.
	// +optional
	Served *ServedStatus `json:"served,omitempty"`

	// kubeconfig is how the Cluster's kubeconfig Secret leads to the workload cluster.
	// +optional
	Kubeconfig KubeconfigStatus `json:"kubeconfig,omitzero"`

	// conditions are Accepted, KubeconfigReady, KubeconfigMode, KubeconfigSwitched, HostnameResolves, CopiesReady, Enrolled,
	// TunnelReady, APIServerReachable, and Ready for those that clients need; and Paused, while the Cluster or the Tunnel is.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// edges are those that hold a certificate for this tunnel.
	// +optional
	// +listType=map
	// +listMapKey=nodeID
	Edges []EdgeStatus `json:"edges,omitempty"`

	// connectedEdges is how many of them have a tunnel and are not revoked.
	// +optional
	ConnectedEdges int32 `json:"connectedEdges,omitempty"`
	// tunnels is how many tunnels these have, to all gateways together.
	// +optional
	Tunnels int32 `json:"tunnels,omitempty"`

	// tokens are the records of the bootstrap tokens that are still valid. The tokens themselves are only in the
	// bootstrap Secret.
	// +optional
	// +listType=map
	// +listMapKey=sha256
	Tokens []TokenStatus `json:"tokens,omitempty"`

	// bootReportTokens are the records of the tokens with which machines report how they boot, those that are still valid. Such a
	// token is good for that alone. Its uses are not counted and not limited: maxUses and uses are 0.
	// +optional
	// +listType=map
	// +listMapKey=sha256
	BootReportTokens []TokenStatus `json:"bootReportTokens,omitempty"`
}

// ServedStatus is what edges and gateways are configured with. The controller decides it from the Cluster and from the
// spec of the Tunnel, and records it in the same write as names and id.
type ServedStatus struct {
	// clusterUID is the UID of the Cluster for which this was granted. It is empty where only enrolment is.
	// +optional
	ClusterUID types.UID `json:"clusterUID,omitempty"`

	// apiServers are the addresses that edges dial, as host:port: the first one, and the next ones while those before are
	// not healthy.
	// +optional
	// +listType=atomic
	APIServers []string `json:"apiServers,omitempty"`

	// limits are those of the spec that are valid.
	// +optional
	Limits ServedLimits `json:"limits,omitzero"`

	// enrolmentOnly says that edges may enrol and that no client is served: the Tunnel waits for its Cluster.
	// +optional
	EnrolmentOnly bool `json:"enrolmentOnly,omitempty"`
}

// ServedLimits are the limits of a tunnel. Zero stands for the default.
type ServedLimits struct {
	// connections is how many connections may be open through each gateway and name.
	// +optional
	Connections int64 `json:"connections,omitempty"`
	// pendingConnections is how many of them may wait for a tunnel.
	// +optional
	PendingConnections int64 `json:"pendingConnections,omitempty"`
	// bandwidth is how many bytes per second each edge carries for each gateway, in each direction.
	// +optional
	Bandwidth int64 `json:"bandwidth,omitempty"`
}

// EdgeStatus is one edge of a tunnel, as users of the API read it. Programs read it as observed.Edge.
type EdgeStatus struct {
	// nodeID is the subject of the edge's certificate.
	NodeID string `json:"nodeID"`
	// host is what the machine calls itself.
	// +optional
	Host string `json:"host,omitempty"`
	// enrolledAt is when the edge got its first certificate. Of one that came with a moved Cluster it is when it was seen
	// first, and certificateNotAfter the latest time that is possible, until the edge renews.
	EnrolledAt metav1.Time `json:"enrolledAt"`
	// certificateNotAfter is when the newest certificate of the edge expires.
	CertificateNotAfter metav1.Time `json:"certificateNotAfter"`
	// tokenSHA256 is the hash of the token with which the edge enrolled. When the edge is revoked the token ends too.
	// +optional
	TokenSHA256 string `json:"tokenSHA256,omitempty"`
	// revokedAt is when the controller saw that the edge is revoked.
	// +optional
	RevokedAt *metav1.Time `json:"revokedAt,omitempty"`
	// cutAt is when all gateways had said that they have no tunnel of the revoked edge any more.
	// +optional
	CutAt *metav1.Time `json:"cutAt,omitempty"`
	// gateways are those to which the edge has tunnels, as the gateways themselves say. Of a revoked edge they are those that
	// have not said yet that its tunnels are cut, among them any that has gone silent since.
	// +optional
	// +listType=map
	// +listMapKey=name
	Gateways []EdgeGatewayStatus `json:"gateways,omitempty"`
	// lastSeen is when the edge was last connected to the control channel, or had a tunnel. While it is connected this is
	// renewed every few minutes only.
	// +optional
	LastSeen *metav1.Time `json:"lastSeen,omitempty"`
	// form is how the edge runs: Process or Container.
	// +optional
	Form string `json:"form,omitempty"`
	// version is that of the edge-agent.
	// +optional
	Version string `json:"version,omitempty"`
	// apiServer is what the edge says of the apiserver.
	// +optional
	APIServer *EdgeAPIServerStatus `json:"apiServer,omitempty"`
	// lastError is the newest trouble that the edge reports; empty when there is none.
	// +optional
	LastError string `json:"lastError,omitempty"`
}

// EdgeGatewayStatus are the tunnels of an edge to one gateway.
type EdgeGatewayStatus struct {
	// name is gateway-<i>.
	Name string `json:"name"`
	// tunnels is how many there are.
	Tunnels int32 `json:"tunnels"`
	// workersWithout is on how many workers of the gateway's Envoy the edge has had no tunnel for some seconds: clients that
	// land on these are not served by this edge there. The gateway repairs it.
	// +optional
	WorkersWithout int32 `json:"workersWithout,omitempty"`
}

// EdgeAPIServerStatus is the apiserver as an edge sees it.
type EdgeAPIServerStatus struct {
	// address is the one that was asked: the first that is healthy, or else the first.
	Address string `json:"address"`
	// healthy says whether it answers.
	Healthy bool `json:"healthy"`
	// message says why it is not healthy.
	// +optional
	Message string `json:"message,omitempty"`
	// version is that of Kubernetes; empty if the apiserver does not tell strangers.
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
	// expiresAt is when the token ends.
	ExpiresAt metav1.Time `json:"expiresAt"`
	// maxUses is how many edges may enrol with the token.
	MaxUses int32 `json:"maxUses"`
	// uses is how many edges have enrolled with the token.
	Uses int32 `json:"uses"`
	// lastUsedAt is when an edge last enrolled with the token.
	// +optional
	LastUsedAt *metav1.Time `json:"lastUsedAt,omitempty"`
}
