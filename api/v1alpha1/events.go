package v1alpha1

// Reasons of events that are about no condition. Each change of a condition of a Tunnel makes an event too, whose reason is the condition's;
// what a person has to do something about, and whether the tunnel is up, is told of the Cluster as well.
const (
	// EventEdgeEnrolled: an edge of the Tunnel has got its first certificate.
	EventEdgeEnrolled = "EdgeEnrolled"
	// EventEdgeRefused: an edge of the Tunnel asked for a certificate and gets none. The message says why: its token is used up or has
	// expired, it is revoked, the Cluster is gone.
	EventEdgeRefused = "EdgeRefused"
	// EventEdgeRevoked: the controller has seen that an edge is in spec.revokedEdges of the Tunnel.
	EventEdgeRevoked = "EdgeRevoked"
	// EventEdgeCut: all gateways have said that they have no tunnel of a revoked edge any more.
	EventEdgeCut = "EdgeCut"
	// EventCAProblem: the CA that was brought can't be used. It is an event of the Secret or ConfigMap with it; the message names the key.
	EventCAProblem = "CAProblem"
	// EventRolloutStarted: a change of what all gateways and edges run reaches the first of them, or then all. This and the next two are
	// events of the ConfigMap fairlead-rollout.
	EventRolloutStarted = "RolloutStarted"
	// EventRolloutStopped: a change was taken back; the message names the node and the cause.
	EventRolloutStopped = "RolloutStopped"
	// EventRolloutEnded: all nodes run one profile again, the new one or the one of before.
	EventRolloutEnded = "RolloutEnded"
	// EventBootReportUnmatched: somebody reports, with the token of a Cluster, how a machine boots that is none of its Machines. It is
	// an event of the Cluster.
	EventBootReportUnmatched = "BootReportUnmatched"
)
