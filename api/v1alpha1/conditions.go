package v1alpha1

// Condition types of a Tunnel, and their reasons.
const (
	// ConditionAccepted says whether all of the Tunnel is served. When it is False its message names the field.
	ConditionAccepted = "Accepted"
	// ReasonAccepted: every name and address is good and served.
	ReasonAccepted = "Accepted"
	// ReasonInvalidName: the tunnel hostname can't be built from the names of the Cluster. Nothing is served.
	ReasonInvalidName = "InvalidName"
	// ReasonNameTaken: another Tunnel has the hostname or the id. Nothing is served.
	ReasonNameTaken = "NameTaken"
	// ReasonInvalidExtraName: an extra name is malformed or another Tunnel's. All the rest is served.
	ReasonInvalidExtraName = "InvalidExtraName"
	// ReasonInvalidAPIServer: the apiserver's address is neither an IP address nor a DNS name. Nothing is served.
	ReasonInvalidAPIServer = "InvalidAPIServer"
	// ReasonControlledByOther: the Tunnel has a controlling owner that is no Cluster. Nothing is served.
	ReasonControlledByOther = "ControlledByOther"

	// ConditionKubeconfigReady says whether the Cluster's kubeconfig Secret leads through the tunnel.
	ConditionKubeconfigReady = "KubeconfigReady"
	// ReasonRewritten: it does.
	ReasonRewritten = "Rewritten"
	// ReasonWaitingForSecret: the control-plane provider has not written the Secret yet.
	ReasonWaitingForSecret = "WaitingForSecret"
	// ReasonInvalidKubeconfig: the Secret holds no kubeconfig that can be read.
	ReasonInvalidKubeconfig = "InvalidKubeconfig"
	// ReasonNotAccepted: the Tunnel is not served, so the Secret has its original server.
	ReasonNotAccepted = "NotAccepted"

	// ConditionEnrolled says whether an edge holds a certificate for this tunnel.
	ConditionEnrolled = "Enrolled"
	// ReasonEnrolled: at least one does, and it has neither expired nor been revoked.
	ReasonEnrolled = "Enrolled"
	// ReasonNoEdge: none does.
	ReasonNoEdge = "NoEdge"

	// ConditionTunnelReady says whether there is a live tunnel, as the gateways say. The Cluster has the same condition as
	// ClusterConditionTunnelReady.
	ConditionTunnelReady = "TunnelReady"
	// ReasonConnected: an edge has tunnels to every gateway that is up.
	ReasonConnected = "Connected"
	// ReasonPartlyConnected: there are tunnels, but not to every gateway that is up. The condition is True.
	ReasonPartlyConnected = "PartlyConnected"
	// ReasonNoTunnel: no gateway has a tunnel of this workload cluster.
	ReasonNoTunnel = "NoTunnel"
	// ReasonUnknown: nobody can say at the moment. The condition is Unknown.
	ReasonUnknown = "Unknown"

	// ConditionAPIServerReachable says whether an edge reaches the apiserver.
	ConditionAPIServerReachable = "APIServerReachable"
	// ReasonReachable: at least one edge does.
	ReasonReachable = "Reachable"
	// ReasonUnreachable: no edge that is connected does. The message has the edges' own words.
	ReasonUnreachable = "Unreachable"

	// ConditionReady says whether clients reach the apiserver: all other conditions are True.
	ConditionReady = "Ready"
	// ReasonReady: they do.
	ReasonReady = "Ready"
	// ReasonNotReady: the message names the condition that is in the way.
	ReasonNotReady = "NotReady"

	// ConditionPaused is there while the Cluster or the Tunnel is paused. A Cluster that goes while it is there was moved to
	// another management cluster: its tunnel then ends here without its edges being denied.
	ConditionPaused = "Paused"
	// ReasonPaused is its only reason.
	ReasonPaused = "Paused"
)

// ClusterConditionTunnelReady is the condition on a Cluster that says whether its tunnel is up. It can be named in
// Cluster.spec.availabilityGates, and then decides on the Cluster's condition Available.
const ClusterConditionTunnelReady = "TunnelReady"
