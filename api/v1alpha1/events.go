package v1alpha1

// Reasons of events that do not belong to a condition. Each change of a condition of a Tunnel also emits an event,
// with the condition's reason. Warnings, events of a Tunnel without a condition, and changes of TunnelReady, Ready and
// Paused are also emitted for the Cluster.
const (
	// EventEdgeEnrolled: an edge of the Tunnel received its first certificate.
	EventEdgeEnrolled = "EdgeEnrolled"
	// EventEdgeRefused: the certificate request of an edge of the Tunnel was rejected. The message contains the cause:
	// its token is used up or expired, the edge is revoked, or the Cluster does not exist.
	EventEdgeRefused = "EdgeRefused"
	// EventEdgeRevoked: the controller has observed an edge in spec.revokedEdges of the Tunnel.
	EventEdgeRevoked = "EdgeRevoked"
	// EventEdgeCut: all gateways have reported that they have no reverse tunnel of a revoked edge left.
	EventEdgeCut = "EdgeCut"
	// EventCAProblem: the CA that the user supplied is invalid. The event is about the Secret or ConfigMap that
	// contains it; the message names the key.
	EventCAProblem = "CAProblem"
	// EventRolloutStarted: a change of what all gateways and edges run reaches the first of them, or then all. This and
	// the next two are events of the ConfigMap fairlead-rollout.
	EventRolloutStarted = "RolloutStarted"
	// EventRolloutStopped: a change was taken back; the message names the node and the cause.
	EventRolloutStopped = "RolloutStopped"
	// EventRolloutEnded: all nodes run one profile again, the new one or the one of before.
	EventRolloutEnded = "RolloutEnded"
	// EventBootReportUnmatched: a boot report with the token of a Cluster is about a machine that is none of its
	// Machines. The event is about the Cluster.
	EventBootReportUnmatched = "BootReportUnmatched"
)
