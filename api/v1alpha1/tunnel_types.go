package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Tunnel is one tunnel id, with its edges, tokens, limits and revocations. The Tunnel with the name of a Cluster
// defines how this workload cluster is reached. A Tunnel <name>.network belongs to the RemoteNetwork <name>, and the
// Tunnel <cluster>.egress to the apiservers of a Cluster with RemoteNetworks.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:categories=cluster-api
// +kubebuilder:metadata:labels="clusterctl.cluster.x-k8s.io="
// +kubebuilder:printcolumn:name="Hostname",type=string,JSONPath=`.status.hostname`
// +kubebuilder:printcolumn:name="Mode",type=string,JSONPath=`.status.kubeconfig.mode`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Tunnel",type=string,JSONPath=`.status.conditions[?(@.type=="TunnelReady")].status`
// +kubebuilder:printcolumn:name="APIServer",type=string,JSONPath=`.status.conditions[?(@.type=="APIServerReachable")].status`
// +kubebuilder:printcolumn:name="Kubeconfig",type=string,JSONPath=`.status.conditions[?(@.type=="KubeconfigReady")].status`
// +kubebuilder:printcolumn:name="Edges",type=integer,JSONPath=`.status.connectedEdges`
// +kubebuilder:printcolumn:name="Tunnels",type=integer,JSONPath=`.status.tunnels`,priority=1
// +kubebuilder:printcolumn:name="Server",type=string,JSONPath=`.status.kubeconfig.server`,priority=1
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].message`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="!has(self.spec) || !has(self.spec.kubeconfig) || !has(self.spec.kubeconfig.copies) || self.spec.kubeconfig.copies.all(c, has(c.__namespace__) || !['-kubeconfig', '-edge-bootstrap', '-edge-resources', '-boot-report'].exists(s, c.name.endsWith(s) && c.name.substring(0, c.name.size() - s.size()) == self.metadata.name))",message="spec.kubeconfig.copies has the name of a Secret that the Cluster has already: give the copy another name"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.spec) || !has(oldSelf.spec.id) || (has(self.spec) && has(self.spec.id) && self.spec.id == oldSelf.spec.id)",message="spec.id is immutable: edges are bound to it; delete the Tunnel to get another"
// +kubebuilder:validation:XValidation:rule="(has(oldSelf.spec) && has(oldSelf.spec.network) ? has(self.spec) && has(self.spec.network) && self.spec.network == oldSelf.spec.network : !has(self.spec) || !has(self.spec.network)) && (has(oldSelf.spec) && has(oldSelf.spec.egressOf) ? has(self.spec) && has(self.spec.egressOf) && self.spec.egressOf == oldSelf.spec.egressOf : !has(self.spec) || !has(self.spec.egressOf))",message="spec.network and spec.egressOf are immutable: they decide what the certificates of the edges are for"
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

// TunnelSpec is the desired state of a tunnel. The controller fills in empty fields and changes nothing else.
//
// +kubebuilder:validation:XValidation:rule="!(has(self.network) && has(self.egressOf))",message="network and egressOf exclude each other"
// +kubebuilder:validation:XValidation:rule="!(has(self.network) || has(self.egressOf)) || !(has(self.kubeconfig) || has(self.apiServer) || has(self.extraNames) || has(self.edgeServiceAccount))",message="a Tunnel with network or egressOf leads to no apiserver: remove kubeconfig, apiServer, extraNames and edgeServiceAccount"
type TunnelSpec struct {
	// id is the identity of the tunnel. The controller chooses it at random. It never changes, and it moves with the
	// object. Setting it requires the verb set-id on tunnels.fairlead.dev in all namespaces, which the identity that
	// moves Clusters needs.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]{20,32}$')",message="must be 20 to 32 characters of a-z and 0-9; leave it out, and the controller chooses it"
	ID string `json:"id,omitempty"`

	// network is the name of the RemoteNetwork, in the same namespace, whose edges have this tunnel id. The controller
	// sets it.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Network string `json:"network,omitempty"`

	// egressOf is the name of the Cluster, in the same namespace, whose apiservers enrol with this tunnel id, to reach
	// the RemoteNetworks of that Cluster. The controller sets it.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	EgressOf string `json:"egressOf,omitempty"`

	// kubeconfig defines how the Cluster's kubeconfig Secret is written.
	// +optional
	Kubeconfig KubeconfigSpec `json:"kubeconfig,omitzero"`

	// apiServer is the address that edges connect to, as seen from their network.
	// +optional
	APIServer APIServerSpec `json:"apiServer,omitzero"`

	// limits are how much of a gateway this tunnel may use, so that other tunnels keep their share. A change applies
	// to new connections; open connections stay.
	// +optional
	Limits LimitsSpec `json:"limits,omitzero"`

	// extraNames are further DNS names of this tunnel, in addition to its hostname: names that the serving certificate
	// already contains. Each must be unique in the installation and must not be below the tunnel domain.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=1024
	// +kubebuilder:validation:items:XValidation:rule="self.size() <= 253 && self.matches('^([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?[.])+[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$') && !self.matches('^[0-9.]+$')",message="must be a lower-case DNS name with a dot that is in the serving certificate: no IP address, for which clients send no SNI, no wildcard, no https:// and no port"
	// +kubebuilder:validation:XValidation:rule="self.all(a, self.exists_one(b, a == b))",message="has a name twice: remove one of them"
	ExtraNames []string `json:"extraNames,omitempty"`

	// revokedEdges are the node names of revoked edges: their reverse tunnels are closed, and they get no certificate
	// and no configuration. A node name is never reused. An entry can be removed 90 days after the certificate of the
	// edge has expired.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=1024
	// +kubebuilder:validation:items:MaxLength=253
	// +kubebuilder:validation:items:XValidation:rule="self.matches('^[a-z0-9]([a-z0-9.-]{0,30}[a-z0-9])?$')",message="must be a node name as `fairlead edge list` shows it, such as edge-abcdefgh: without CN=, and not the name of the host"
	RevokedEdges []string `json:"revokedEdges,omitempty"`

	// edgeServiceAccount lets Pods of the workload cluster enrol as edges with a token of this ServiceAccount, in
	// addition to bootstrap tokens. By default no Pod may. The controller reads the keys that verify such tokens from
	// the workload cluster through the tunnel, so the first edge needs a bootstrap token. Removing the field ends these
	// enrolments at once; edges that have a certificate keep it until they are revoked.
	// +optional
	EdgeServiceAccount *EdgeServiceAccount `json:"edgeServiceAccount,omitempty"`
}

// EdgeServiceAccount is a ServiceAccount of the workload cluster.
type EdgeServiceAccount struct {
	// namespace is the namespace of the ServiceAccount, in the workload cluster.
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([a-z0-9-]*[a-z0-9])?$')",message="must be the name of a namespace of the workload cluster, such as fairlead-edge"
	Namespace string `json:"namespace"`

	// name is the name of the ServiceAccount. Each Pod that runs as this ServiceAccount may become an edge, so let no
	// other Pods use it.
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$')",message="must be the name of a ServiceAccount of the workload cluster, such as fairlead-edge"
	Name string `json:"name"`
}

// LimitsSpec are the limits of a tunnel. Connections beyond them are rejected at once: CONNECT with 503, SNI by
// closing.
type LimitsSpec struct {
	// connections is the maximum number of connections that may be open at the same time through each gateway and
	// name. Defaults to 512. One connection carries any number of requests and watches of its client.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self >= 1 && self <= 10000",message="must be between 1 and 10000 connections; leave it out for 512; to reject all clients delete the Tunnel"
	Connections int32 `json:"connections,omitempty"`

	// pendingConnections is the maximum number of connections that may wait for a reverse tunnel at the same time.
	// Defaults to 256.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self >= 1 && self <= 10000",message="must be between 1 and 10000 connections; leave it out for 256"
	PendingConnections int32 `json:"pendingConnections,omitempty"`

	// bandwidth is the maximum number of bytes per second, such as 10Mi, that each edge carries for each gateway, in
	// each of the two directions, for all connections together. By default there is no limit. A change makes the edges
	// replace their reverse tunnels: connections end within some seconds, and their clients connect again.
	// +optional
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).compareTo(quantity('64Ki')) >= 0 && quantity(string(self)).compareTo(quantity('1Ti')) <= 0",message="must be between 64Ki and 1Ti bytes in a second; leave it out for no limit"
	Bandwidth *resource.Quantity `json:"bandwidth,omitempty"`
}

// APIServerSpec is the address of an apiserver.
type APIServerSpec struct {
	// address is an IP address or a DNS name. Defaults to the host of Cluster.spec.controlPlaneEndpoint, or to
	// 127.0.0.1 while the Cluster has no endpoint.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self == '' || self.matches('^([A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?[.]?|[0-9A-Fa-f.]*:[0-9A-Fa-f.]*:[0-9A-Fa-f:.]*)$')",message="must be an IP address or a DNS name alone: without https://, and the port goes into the field port; leave it out for the endpoint of the Cluster"
	Address string `json:"address,omitempty"`

	// port is a TCP port. Defaults to the port of Cluster.spec.controlPlaneEndpoint. While the Cluster has no
	// endpoint, it defaults to Cluster.spec.clusterNetwork.apiServerPort, or to 6443.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self >= 1 && self <= 65535",message="must be between 1 and 65535; leave it out for that of the Cluster's endpoint"
	Port int32 `json:"port,omitempty"`

	// others are further apiservers of the same workload cluster. Edges fall back to them in this order while the
	// previous ones are unhealthy.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=8
	Others []APIServerAddress `json:"others,omitempty"`
}

// APIServerAddress is the address of a further apiserver.
type APIServerAddress struct {
	// address is an IP address or a DNS name.
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.matches('^([A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?[.]?|[0-9A-Fa-f.]*:[0-9A-Fa-f.]*:[0-9A-Fa-f:.]*)$')",message="must be an IP address or a DNS name alone: without https://, and the port goes into the field port"
	Address string `json:"address"`

	// port is a TCP port. Defaults to the port of the first address.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self >= 1 && self <= 65535",message="must be between 1 and 65535; leave it out for that of the first address"
	Port int32 `json:"port,omitempty"`
}
