package v1alpha1

// Condition types of a Tunnel, each followed by its reasons.
const (
	// ConditionAccepted reports whether every part of the Tunnel is served. If it is False, its message names the
	// field.
	ConditionAccepted = "Accepted"
	// ReasonAccepted: every name and address is valid and served.
	ReasonAccepted = "Accepted"
	// ReasonNotTunnelled: the kubeconfig uses a network of the user's own, so the controller creates no tunnel. The
	// condition is True.
	ReasonNotTunnelled = "NotTunnelled"
	// ReasonTunnelsOff: this installation has tunnels disabled. The message names the modes that it supports.
	ReasonTunnelsOff = "TunnelsOff"
	// ReasonWaitingForCluster: the Tunnel was prepared for a Cluster that will be moved to this management cluster.
	// Its edges can already enrol.
	ReasonWaitingForCluster = "WaitingForCluster"
	// ReasonInvalidName: no valid tunnel hostname can be built from the Cluster's name and namespace. Nothing is
	// served.
	ReasonInvalidName = "InvalidName"
	// ReasonNameTaken: another Tunnel holds the hostname or the id. Nothing is served.
	ReasonNameTaken = "NameTaken"
	// ReasonInvalidNetwork: a CIDR, DNS suffix, port or target of a RemoteNetwork is not served. The message names each
	// of them and its remedy. Everything else is served.
	ReasonInvalidNetwork = "InvalidNetwork"
	// ReasonAmbiguousNetwork: a CIDR or DNS suffix of a RemoteNetwork is also in another network of the same Cluster,
	// which keeps it. Everything else is served.
	ReasonAmbiguousNetwork = "AmbiguousNetwork"
	// ReasonNetworkOverlap: a part of the Cluster's Pods or Services would lead into a CIDR of a RemoteNetwork by
	// accident. The CIDR is not served.
	ReasonNetworkOverlap = "NetworkOverlap"
	// ReasonNetworkHasGateway: a CIDR or target of a RemoteNetwork contains a gateway. It is not served.
	ReasonNetworkHasGateway = "NetworkHasGateway"
	// ReasonNeverDialled: a CIDR or target of a RemoteNetwork has only addresses that edges never dial. It is not
	// served.
	ReasonNeverDialled = "NeverDialled"
	// ReasonTooManyNetworks: the Cluster of a RemoteNetwork has as many older ones as it can have. Nothing is served.
	ReasonTooManyNetworks = "TooManyNetworks"
	// ReasonNoCluster: the Cluster of a RemoteNetwork does not exist. Nothing is served.
	ReasonNoCluster = "NoCluster"
	// ReasonInvalidExtraName: an extra name is malformed or belongs to another Tunnel. Everything else is served.
	ReasonInvalidExtraName = "InvalidExtraName"
	// ReasonInvalidAPIServer: the apiserver's address is neither an IP address nor a DNS name. Nothing is served.
	ReasonInvalidAPIServer = "InvalidAPIServer"
	// ReasonControlledByOther: the Tunnel's controlling owner is not a Cluster. Nothing is served.
	ReasonControlledByOther = "ControlledByOther"

	// ConditionKubeconfigReady reports whether the Cluster's kubeconfig Secret leads through the tunnel.
	ConditionKubeconfigReady = "KubeconfigReady"
	// ReasonRewritten: the Secret leads through the tunnel.
	ReasonRewritten = "Rewritten"
	// ReasonWaitingForSecret: the control-plane provider has not written the Secret yet.
	ReasonWaitingForSecret = "WaitingForSecret"
	// ReasonInvalidKubeconfig: the Secret does not contain a valid kubeconfig.
	ReasonInvalidKubeconfig = "InvalidKubeconfig"
	// ReasonNotWritable: the Secret is immutable, or an admission policy or webhook rejects the write. The Secret is
	// unchanged.
	ReasonNotWritable = "NotWritable"
	// ReasonNotGivenBack: the Tunnel is being deleted, and an admission policy or webhook rejects restoring the
	// Secret's original content. After ten minutes the Tunnel is deleted anyway.
	ReasonNotGivenBack = "NotGivenBack"
	// ReasonNotAccepted: the Tunnel is not served, so the Secret contains its original server.
	ReasonNotAccepted = "NotAccepted"
	// ReasonWaitingForTunnel: the Secret keeps its original server until a reverse tunnel is up and the apiserver
	// behind it is healthy: spec.kubeconfig.switch.
	ReasonWaitingForTunnel = "WaitingForTunnel"

	// ReasonInvalidProxy: the proxy is invalid, or its credentials cannot be read. The message names the remedy.
	ReasonInvalidProxy = "InvalidProxy"
	// ReasonInvalidServer: the server of mode address is invalid.
	ReasonInvalidServer = "InvalidServer"

	// ConditionKubeconfigMode reports which mode the kubeconfig uses, and why. It is True once a mode is decided.
	ConditionKubeconfigMode = "KubeconfigMode"
	// ReasonConfigured: spec.kubeconfig.mode sets the mode.
	ReasonConfigured = "Configured"
	// ReasonCertificateHasHostname: mode auto chose sni, because the serving certificate contains the tunnel hostname
	// or an extra name.
	ReasonCertificateHasHostname = "CertificateHasHostname"
	// ReasonCertificateHasEndpoint: mode auto chose sni, because the serving certificate contains a DNS name that only
	// this workload cluster has.
	ReasonCertificateHasEndpoint = "CertificateHasEndpoint"
	// ReasonCertificateLacksHostname: mode auto chose connect, because the serving certificate contains no name that
	// is routed to this workload cluster. For CopiesReady: a copy is written, but the certificate lacks the name that
	// its clients verify.
	ReasonCertificateLacksHostname = "CertificateLacksHostname"
	// ReasonNoEvidence: mode auto chose connect, which works with every serving certificate, because no edge has
	// reported the serving certificate yet.
	ReasonNoEvidence = "NoEvidence"

	// ConditionKubeconfigSwitched reports whether Cluster API's managers use the current kubeconfig. They read it when
	// they connect, and keep the connection as long as it works.
	ConditionKubeconfigSwitched = "KubeconfigSwitched"
	// ReasonSwitched: no manager can still be connected to the previous endpoint.
	ReasonSwitched = "Switched"
	// ReasonWaitingForManagers: connections to the previous endpoint are ending. The message contains the deadline.
	ReasonWaitingForManagers = "WaitingForManagers"
	// ReasonOldWayWorks: the previous endpoint still works, so managers that are connected to it stay connected. The
	// message reports how long.
	ReasonOldWayWorks = "OldWayWorks"

	// ConditionHostnameResolves reports whether the tunnel hostname resolves to the gateways in the management
	// cluster. While it does not, the kubeconfig contains the address of the gateways, and the hostname as
	// tls-server-name.
	ConditionHostnameResolves = "HostnameResolves"
	// ReasonResolves: the hostname resolves to the gateways.
	ReasonResolves = "Resolves"
	// ReasonDoesNotResolve: the hostname does not resolve, or resolves to something else.
	ReasonDoesNotResolve = "DoesNotResolve"

	// ConditionCopiesReady reports whether all further kubeconfigs are written. It exists only if the Tunnel requests
	// copies.
	ConditionCopiesReady = "CopiesReady"
	// ReasonCopiesWritten: all copies are written.
	ReasonCopiesWritten = "CopiesWritten"
	// ReasonCopyRefused: at least one copy is not written. The message names each of them and its remedy.
	ReasonCopyRefused = "CopyRefused"

	// ConditionEnrolled reports whether an edge has a certificate for this tunnel.
	ConditionEnrolled = "Enrolled"
	// ReasonEnrolled: at least one edge has a certificate that has neither expired nor been revoked.
	ReasonEnrolled = "Enrolled"
	// ReasonNoEdge: no edge has a valid certificate.
	ReasonNoEdge = "NoEdge"

	// ConditionTunnelReady reports whether there is a live reverse tunnel, according to the gateways. The Cluster has
	// the same condition, ClusterConditionTunnelReady.
	ConditionTunnelReady = "TunnelReady"
	// ReasonConnected: an edge has reverse tunnels to every available gateway, and on each of its workers.
	ReasonConnected = "Connected"
	// ReasonPartlyConnected: there are reverse tunnels, but not to every available gateway or not on each of its
	// workers. The condition is True.
	ReasonPartlyConnected = "PartlyConnected"
	// ReasonNoTunnel: no gateway has a reverse tunnel of this workload cluster.
	ReasonNoTunnel = "NoTunnel"
	// ReasonUnknown: the state is currently unknown. The condition is Unknown.
	ReasonUnknown = "Unknown"

	// ConditionAPIServerReachable reports whether an edge reaches the apiserver.
	ConditionAPIServerReachable = "APIServerReachable"
	// ReasonReachable: at least one edge reaches the apiserver.
	ReasonReachable = "Reachable"
	// ReasonUnreachable: no connected edge reaches the apiserver. The message contains the error that the edges
	// reported.
	ReasonUnreachable = "Unreachable"

	// ConditionReady reports whether clients reach the apiserver. It is True while Accepted, KubeconfigReady, Enrolled,
	// TunnelReady and APIServerReachable are True. Without a tunnel, only Accepted and KubeconfigReady count.
	ConditionReady = "Ready"
	// ReasonReady: clients reach the apiserver.
	ReasonReady = "Ready"
	// ReasonNotReady: the message names the condition that is not met.
	ReasonNotReady = "NotReady"

	// ConditionEgressReady reports whether an apiserver of the Cluster can use its RemoteNetworks: whether one has
	// enrolled and is connected.
	ConditionEgressReady = "EgressReady"
	// ReasonNoEgress: no apiserver of the Cluster has enrolled for egress, or all that did are revoked. Machines of the
	// network may still reach the apiserver.
	ReasonNoEgress = "NoEgress"
	// ReasonEgressLost: an apiserver of the Cluster has enrolled for egress, and none is connected now.
	ReasonEgressLost = "EgressLost"

	// ConditionPaused exists while the Cluster or the Tunnel is paused. A Cluster that disappears meanwhile was moved
	// to another management cluster: its tunnel ends here, and its edges are not denied.
	ConditionPaused = "Paused"
	// ReasonPaused is the only reason of ConditionPaused.
	ReasonPaused = "Paused"
)

// ClusterConditionTunnelReady is the condition on a Cluster that reports whether its tunnel is up. A Cluster that
// names it in Cluster.spec.availabilityGates is Available only while it is True.
const ClusterConditionTunnelReady = "TunnelReady"

// MachineConditionBootstrapReported is the condition on a Machine that contains the machine's own report of its
// bootstrap.
const MachineConditionBootstrapReported = "BootstrapReported"

// Reasons of MachineConditionBootstrapReported.
const (
	// ReasonBootstrapSucceeded: the machine reported that its bootstrap succeeded. The condition is True.
	ReasonBootstrapSucceeded = "BootstrapSucceeded"
	// ReasonBootstrapInProgress: the machine has reported, and its bootstrap has not finished. The condition is
	// Unknown.
	ReasonBootstrapInProgress = "BootstrapInProgress"
	// ReasonBootstrapFailed: a step failed. The message contains its name and the end of its log. The condition is
	// False.
	ReasonBootstrapFailed = "BootstrapFailed"
	// ReasonWaitingForReport: the machine has not reported yet, and its deadline has not passed. The condition is
	// Unknown.
	ReasonWaitingForReport = "WaitingForReport"
	// ReasonNeverReported: the machine did not report before its deadline. The condition is False, or Unknown once the
	// machine has a Node: it has then booted without reporting.
	ReasonNeverReported = "NeverReported"
)

// ServiceConditionPublicAddress is the condition on the Service gateway-public that reports whether edges can resolve
// the public address of the installation.
const ServiceConditionPublicAddress = "fairlead.dev/PublicAddress"

// Reasons of ServiceConditionPublicAddress.
const (
	// ReasonPublicAddressResolves: the public address is an IP address, or its name resolves. The condition is True.
	ReasonPublicAddressResolves = "PublicAddressResolves"
	// ReasonPublicAddressPending: the name does not resolve yet. The message contains the target of the DNS record. The
	// condition is False.
	ReasonPublicAddressPending = "PublicAddressPending"
)

// ServedInPart reports whether this reason of ConditionAccepted=False means that everything is served but what the
// message names: a Tunnel has a bootstrap file and its edges connect.
func ServedInPart(reason string) bool {
	switch reason {
	case ReasonInvalidExtraName, ReasonInvalidNetwork, ReasonAmbiguousNetwork, ReasonNetworkOverlap,
		ReasonNetworkHasGateway, ReasonNeverDialled:
		return true
	}
	return false
}
