package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// RemoteNetwork is a network of a workload cluster that its apiservers cannot dial, and whose machines cannot dial the
// apiservers: for example the site of some workers. Edges in the network connect both sides. A Cluster may have many
// networks, each with its own Tunnel, <name>.network: with its own id, bootstrap Secret, edges, limits and revocations.
// The 256 oldest networks of a Cluster are served.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:categories=cluster-api
// +kubebuilder:metadata:labels="clusterctl.cluster.x-k8s.io="
// +kubebuilder:printcolumn:name="Cluster",type=string,JSONPath=`.spec.clusterName`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Accepted",type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].status`
// +kubebuilder:printcolumn:name="Tunnel",type=string,JSONPath=`.status.conditions[?(@.type=="TunnelReady")].status`
// +kubebuilder:printcolumn:name="Egress",type=string,JSONPath=`.status.conditions[?(@.type=="EgressReady")].status`
// +kubebuilder:printcolumn:name="Edges",type=integer,JSONPath=`.status.connectedEdges`
// +kubebuilder:printcolumn:name="CIDRs",type=string,JSONPath=`.spec.cidrs`,priority=1
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].message`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="self.metadata.name.matches('^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$')",message="metadata.name must be a DNS label, because it is part of the names of targets"
type RemoteNetwork struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec RemoteNetworkSpec `json:"spec"`
	// +optional
	Status RemoteNetworkStatus `json:"status,omitzero"`
}

// RemoteNetworkList is a list of RemoteNetworks.
//
// +kubebuilder:object:root=true
type RemoteNetworkList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []RemoteNetwork `json:"items"`
}

// RemoteNetworkSpec is the desired state of a network. Its edges dial what cidrs, dnsSuffixes, ports and targets
// permit, and nothing else.
//
// +kubebuilder:validation:XValidation:rule="self.clusterName == oldSelf.clusterName",message="spec.clusterName is immutable: edges are bound to the Cluster; create another RemoteNetwork"
type RemoteNetworkSpec struct {
	// clusterName is the name of the Cluster, in the same namespace, that has this network.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	ClusterName string `json:"clusterName"`

	// cidrs are the addresses in this network that the apiservers of the Cluster reach through it: of machines, and of
	// Pods and Services if the edges run where these are routed. Among the networks of one Cluster the longest prefix
	// wins. Other Clusters may use the same addresses.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=49
	// +kubebuilder:validation:items:XValidation:rule="isCIDR(self) && cidr(self) == cidr(self).masked()",message="must be a CIDR without bits after its prefix, such as 10.1.0.0/16 or fd00:1::/64"
	CIDRs []string `json:"cidrs,omitempty"`

	// dnsSuffixes are the DNS domains that the edges resolve in this network: the name itself and all names below it.
	// Their addresses must be in cidrs. Among the networks of one Cluster the longest suffix wins.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=253
	// +kubebuilder:validation:items:XValidation:rule="self.matches('^([a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?[.])*[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$') && !self.matches('^[0-9.]+$')",message="must be a lower-case DNS domain without a wildcard and without a dot at either end, such as site1.example.com"
	DNSSuffixes []string `json:"dnsSuffixes,omitempty"`

	// ports are the TCP ports of cidrs and dnsSuffixes. Defaults to all ports.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	Ports []NetworkPort `json:"ports,omitempty"`

	// targets are single addresses in this network that clients in the management network reach by name, such as a
	// vCenter, an Ironic or the apid of Talos: <target>.<network>.<cluster>.<namespace>.<tunnel domain>.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=16
	Targets []NetworkTarget `json:"targets,omitempty"`
}

// NetworkPort is a port, or a range of ports.
//
// +kubebuilder:validation:XValidation:rule="!has(self.endPort) || self.endPort >= self.port",message="endPort must not be less than port"
type NetworkPort struct {
	// port is the port, or the first port of the range.
	// +kubebuilder:validation:XValidation:rule="self >= 1 && self <= 65535",message="must be between 1 and 65535"
	Port int32 `json:"port"`
	// endPort is the last port of the range. Defaults to port.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self >= 1 && self <= 65535",message="must be between 1 and 65535"
	EndPort int32 `json:"endPort,omitempty"`
}

// NetworkTarget is one address in a network with a name.
type NetworkTarget struct {
	// name is the first label of the DNS name of the target.
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([a-z0-9-]*[a-z0-9])?$')",message="must be a DNS label, such as vcenter"
	Name string `json:"name"`
	// address is an IP address or a DNS name, as seen from the edges of this network. It need not be in cidrs.
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.matches('^([A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?[.]?|[0-9A-Fa-f.]*:[0-9A-Fa-f.]*:[0-9A-Fa-f:.]*)$')",message="must be an IP address or a DNS name alone: without https://, and the port goes into the field port"
	Address string `json:"address"`
	// port is the TCP port. Defaults to 443.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self >= 1 && self <= 65535",message="must be between 1 and 65535; leave it out for 443"
	Port int32 `json:"port,omitempty"`
}

// RemoteNetworkStatus is the state that the controller observed. What is granted is recorded in the status of the
// Tunnel.
type RemoteNetworkStatus struct {
	// tunnel is the name of the Tunnel of this network.
	// +optional
	Tunnel string `json:"tunnel,omitempty"`
	// targets are the DNS names of the targets that are served.
	// +optional
	// +listType=atomic
	Targets []string `json:"targets,omitempty"`
	// connectedEdges is the number of edges of this network that have a reverse tunnel and are not revoked.
	// +optional
	ConnectedEdges int32 `json:"connectedEdges,omitempty"`
	// conditions are Accepted, TunnelReady and EgressReady, and Ready, which summarises them.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}
