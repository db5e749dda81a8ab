package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// KubeconfigMode is the way in which clients reach the gateway.
// +kubebuilder:validation:Enum=sni;connect
type KubeconfigMode string

const (
	// KubeconfigModeSNI dials the gateway's apiserver listener, which routes by SNI. The serving certificate of the
	// workload cluster must have the tunnel hostname.
	KubeconfigModeSNI KubeconfigMode = "sni"
	// KubeconfigModeConnect uses the gateway as an HTTP proxy, which routes by the authority of CONNECT. Any serving
	// certificate will do.
	KubeconfigModeConnect KubeconfigMode = "connect"
)

// Tunnel says how one workload cluster is reached. It has the namespace and name of its Cluster, which owns it.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:categories=cluster-api
// +kubebuilder:metadata:labels="clusterctl.cluster.x-k8s.io="
// +kubebuilder:printcolumn:name="Hostname",type=string,JSONPath=`.status.hostname`
// +kubebuilder:printcolumn:name="Mode",type=string,JSONPath=`.spec.kubeconfig.mode`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Tunnel",type=string,JSONPath=`.status.conditions[?(@.type=="TunnelReady")].status`
// +kubebuilder:printcolumn:name="APIServer",type=string,JSONPath=`.status.conditions[?(@.type=="APIServerReachable")].status`
// +kubebuilder:printcolumn:name="Kubeconfig",type=string,JSONPath=`.status.conditions[?(@.type=="KubeconfigReady")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.spec) || !has(oldSelf.spec.id) || (has(self.spec) && has(self.spec.id) && self.spec.id == oldSelf.spec.id)",message="spec.id is immutable: edges are bound to it; delete the Tunnel to get another"
type Tunnel struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	Spec TunnelSpec `json:"spec,omitzero"`
	// +optional
	Status TunnelStatus `json:"status,omitzero"`
}

// TunnelList is a list of Tunnels.
//
// +kubebuilder:object:root=true
type TunnelList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Tunnel `json:"items"`
}

// TunnelSpec is what a user may say about a tunnel. The controller fills what is empty and changes nothing else.
type TunnelSpec struct {
	// id is the identity of the tunnel: random, chosen by the controller, never changed, moved with the object. Only who may
	// do set-id on tunnels.fairlead.dev in the namespace may choose it: whoever moves Clusters.
	// +optional
	// +kubebuilder:validation:Pattern=`^[a-z0-9]{20,32}$`
	ID string `json:"id,omitempty"`

	// kubeconfig says how the Cluster's kubeconfig Secret is written.
	// +optional
	Kubeconfig KubeconfigSpec `json:"kubeconfig,omitzero"`

	// apiServer is the address that edges dial, as seen from their network.
	// +optional
	APIServer APIServerSpec `json:"apiServer,omitzero"`

	// extraNames are further DNS names of this tunnel, beside its hostname: names that the serving certificate already
	// has. Each must be unique in the installation and may not be below the tunnel domain.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	ExtraNames []string `json:"extraNames,omitempty"`

	// revokedEdges are the node names of edges that are let in no more: their tunnels are cut, and they get no
	// certificate and no configuration. A node name is never given again, so an entry is of no use once the certificate of
	// that edge has ended and its grace time of 90 days too.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=1024
	// +kubebuilder:validation:items:MaxLength=32
	// +kubebuilder:validation:items:Pattern=`^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$`
	RevokedEdges []string `json:"revokedEdges,omitempty"`
}

// KubeconfigSpec says how the Cluster's kubeconfig Secret is written.
type KubeconfigSpec struct {
	// mode is the way in which clients reach the gateway; sni by default.
	// +optional
	Mode KubeconfigMode `json:"mode,omitempty"`

	// tlsServerName is, in mode connect, the name of the serving certificate that clients verify. By default it is the
	// host of the original server where that is a DNS name, else "kubernetes", which every kubeadm certificate has.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	TLSServerName string `json:"tlsServerName,omitempty"`
}

// APIServerSpec is the address of an apiserver.
type APIServerSpec struct {
	// address is an IP address or a DNS name; by default that of Cluster.spec.controlPlaneEndpoint, and while there is
	// none 127.0.0.1.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Address string `json:"address,omitempty"`

	// port is a TCP port; by default that of Cluster.spec.controlPlaneEndpoint, and while there is none that of
	// Cluster.spec.clusterNetwork.apiServerPort or 6443.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port,omitempty"`

	// others are further apiservers of the same workload cluster, in the order in which edges fall back to them while
	// those before are not healthy.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=8
	Others []APIServerAddress `json:"others,omitempty"`
}

// APIServerAddress is the address of a further apiserver.
type APIServerAddress struct {
	// address is an IP address or a DNS name.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Address string `json:"address"`

	// port is a TCP port; by default that of the first address.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port,omitempty"`
}

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

	// id is the tunnel id that is served, recorded like names.
	// +optional
	ID string `json:"id,omitempty"`

	// conditions are Accepted, KubeconfigReady, Enrolled, TunnelReady, APIServerReachable, and Ready for all of them; and
	// Paused, while the Cluster or the Tunnel is.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// edges are those that hold a certificate for this tunnel.
	// +optional
	// +listType=map
	// +listMapKey=nodeID
	Edges []EdgeStatus `json:"edges,omitempty"`

	// tokens are the records of the bootstrap tokens that are still valid. The tokens themselves are only in the
	// bootstrap Secret.
	// +optional
	// +listType=map
	// +listMapKey=sha256
	Tokens []TokenStatus `json:"tokens,omitempty"`
}

// EdgeStatus is one edge of a tunnel.
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
