package model

// APIServerReason classifies why an edge finds an apiserver unhealthy. Programs decide by it; the message beside it is
// for people. Edges of an earlier version do not report one.
type APIServerReason string

// The reasons.
const (
	APIServerNameNotResolved     APIServerReason = "NameNotResolved"     // DNS has no address for the name, or no answer
	APIServerNoRoute             APIServerReason = "NoRoute"             // the machine of the edge has none
	APIServerConnectionRefused   APIServerReason = "ConnectionRefused"   // nothing listens there
	APIServerConnectionTimeout   APIServerReason = "ConnectionTimeout"   // no TCP connection in time
	APIServerConnectionFailed    APIServerReason = "ConnectionFailed"    // no TLS connection for another reason
	APIServerNoAnswer            APIServerReason = "NoAnswer"            // a TCP connection, but no answer to TLS in time
	APIServerNotAPIServer        APIServerReason = "NotAPIServer"        // the answer is not that of an apiserver
	APIServerCertificateNotValid APIServerReason = "CertificateNotValid" // by the edge's clock
	APIServerNotReady            APIServerReason = "NotReady"            // /readyz reports it, or does not answer
)

// Trouble is the subject of a problem that an edge reports about itself, as "subject: text". An edge has at most one
// problem about a subject at a time.
type Trouble string

// The subjects.
const (
	TroubleCertificate   Trouble = "certificate"
	TroubleConfiguration Trouble = "configuration"
	TroubleChannel       Trouble = "control channel"
	TroubleEnvoy         Trouble = "Envoy"
	TroubleStart         Trouble = "start of Envoy"
	TroubleDisk          Trouble = "disk"
	TroubleMembership    Trouble = "membership"
	TroubleHang          Trouble = "Envoy hangs"
	TroubleReplaced      Trouble = "Envoy replaced"
)
