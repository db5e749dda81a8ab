package v1alpha1

// Condition types of a Tunnel, and their reasons.
const (
	// ConditionAccepted says whether all of the Tunnel is served. When it is False its message names the field.
	ConditionAccepted = "Accepted"
	// ReasonAccepted: every name and address is good and served.
	ReasonAccepted = "Accepted"
	// ReasonNotTunnelled: the kubeconfig leads through a network of the user's own, so no tunnel is made. It is True.
	ReasonNotTunnelled = "NotTunnelled"
	// ReasonTunnelsOff: this installation makes no tunnels. The message names the modes that it knows.
	ReasonTunnelsOff = "TunnelsOff"
	// ReasonWaitingForCluster: the Tunnel was prepared for a Cluster that is to be moved here. Edges enrol already.
	ReasonWaitingForCluster = "WaitingForCluster"
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
	// ReasonNotWritable: the Secret is immutable, or an admission policy or webhook refuses the write, so it stays as it is.
	ReasonNotWritable = "NotWritable"
	// ReasonNotGivenBack: the Tunnel is to go, and an admission policy or webhook does not let the Secret have its original back.
	// After ten minutes the Tunnel goes all the same.
	ReasonNotGivenBack = "NotGivenBack"
	// ReasonNotAccepted: the Tunnel is not served, so the Secret has its original server.
	ReasonNotAccepted = "NotAccepted"

	// ReasonInvalidProxy: the proxy can't be used, or its credentials can't be read. The message names the cure.
	ReasonInvalidProxy = "InvalidProxy"
	// ReasonInvalidServer: the server of mode address can't be used.
	ReasonInvalidServer = "InvalidServer"

	// ConditionKubeconfigMode says by which mode the kubeconfig leads, and why. It is True while one is decided.
	ConditionKubeconfigMode = "KubeconfigMode"
	// ReasonConfigured: spec.kubeconfig.mode names it.
	ReasonConfigured = "Configured"
	// ReasonCertificateHasHostname: mode auto took sni, because the serving certificate has the tunnel hostname or an extra name.
	ReasonCertificateHasHostname = "CertificateHasHostname"
	// ReasonCertificateHasEndpoint: mode auto took sni, because the serving certificate has a DNS name that only this workload
	// cluster has.
	ReasonCertificateHasEndpoint = "CertificateHasEndpoint"
	// ReasonCertificateLacksHostname: mode auto took connect, because the serving certificate has no name that leads here. Of
	// CopiesReady: a copy is written, but the certificate has not the name that clients of the copy verify.
	ReasonCertificateLacksHostname = "CertificateLacksHostname"
	// ReasonNoEvidence: mode auto took connect, which always works, because no edge has seen the serving certificate yet.
	ReasonNoEvidence = "NoEvidence"

	// ConditionKubeconfigSwitched says whether Cluster API's managers use the kubeconfig as it is now: they read it when they
	// connect, and keep the connection for as long as it works.
	ConditionKubeconfigSwitched = "KubeconfigSwitched"
	// ReasonSwitched: no connection by the way before can be left.
	ReasonSwitched = "Switched"
	// ReasonWaitingForManagers: connections by the way before are ending; the message says by when.
	ReasonWaitingForManagers = "WaitingForManagers"
	// ReasonOldWayWorks: the way before works still, so managers that are connected by it stay; the message says for how long.
	ReasonOldWayWorks = "OldWayWorks"

	// ConditionHostnameResolves says whether the tunnel hostname resolves to the gateways in the management cluster. When it does
	// not, the kubeconfig names the gateways, with the hostname as tls-server-name.
	ConditionHostnameResolves = "HostnameResolves"
	// ReasonResolves: it does.
	ReasonResolves = "Resolves"
	// ReasonDoesNotResolve: it does not, or to something else.
	ReasonDoesNotResolve = "DoesNotResolve"

	// ConditionCopiesReady says whether all further kubeconfigs are written. It is there while the Tunnel asks for any.
	ConditionCopiesReady = "CopiesReady"
	// ReasonCopiesWritten: they are.
	ReasonCopiesWritten = "CopiesWritten"
	// ReasonCopyRefused: the message names each that is not, and the cure.
	ReasonCopyRefused = "CopyRefused"

	// ConditionEnrolled says whether an edge holds a certificate for this tunnel.
	ConditionEnrolled = "Enrolled"
	// ReasonEnrolled: at least one does, and it has neither expired nor been revoked.
	ReasonEnrolled = "Enrolled"
	// ReasonNoEdge: none does.
	ReasonNoEdge = "NoEdge"

	// ConditionTunnelReady says whether there is a live tunnel, as the gateways say. The Cluster has the same condition as
	// ClusterConditionTunnelReady.
	ConditionTunnelReady = "TunnelReady"
	// ReasonConnected: an edge has tunnels to every gateway that is up, and on each of its workers.
	ReasonConnected = "Connected"
	// ReasonPartlyConnected: there are tunnels, but not to every gateway that is up, or not on each of its workers. The condition is
	// True.
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

// MachineConditionBootstrapReported is the condition on a Machine that says what the machine itself reports of its bootstrap.
const MachineConditionBootstrapReported = "BootstrapReported"

// Its reasons.
const (
	// ReasonBootstrapSucceeded: the condition is True.
	ReasonBootstrapSucceeded = "BootstrapSucceeded"
	// ReasonBootstrapInProgress: the machine has reported, and has not come to its end. The condition is Unknown.
	ReasonBootstrapInProgress = "BootstrapInProgress"
	// ReasonBootstrapFailed: a step failed. The message has its name and the end of its log. The condition is False.
	ReasonBootstrapFailed = "BootstrapFailed"
	// ReasonWaitingForReport: the machine has not reported yet, and still has time to. The condition is Unknown.
	ReasonWaitingForReport = "WaitingForReport"
	// ReasonNeverReported: the machine has had time to report, and never did. The condition is False, or Unknown once the
	// machine has a Node: then it has booted, without a word.
	ReasonNeverReported = "NeverReported"
)
