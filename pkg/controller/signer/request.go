package signer

import (
	"crypto"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"slices"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/controller/config"
	"github.com/fairlead/fairlead/pkg/controller/records"
	"github.com/fairlead/fairlead/pkg/decision"
	"github.com/fairlead/fairlead/pkg/model"
)

// maxAge is the greatest age of a request that is answered. It is longer than the xds-server waits: nothing would use
// the certificate of an older one, and after an outage each retry of an edge would have used up its token once more.
const maxAge = 30 * time.Second

const (
	// maxHost bounds the label that a machine gives itself: as long as a DNS name.
	maxHost = 253
	// maxRequestPEM has room for certs.MaxCSR bytes in PEM, which are a third more, and the PEM frame.
	maxRequestPEM = 2 * certs.MaxCSR
)

// Reasons for which a CertificateSigningRequest is denied. Requesters read them, so they must not change.
const (
	ReasonWrongUser      = "WrongUser"      // the requester is not the xds-server
	reasonTooOld         = "TooOld"         // the xds-server has stopped waiting
	reasonInvalidRequest = "InvalidRequest" // the signing request is invalid, or its key type is not accepted
	ReasonWrongUsage     = "WrongUsage"     // the profile has no such usage
	ReasonInvalidName    = "InvalidName"    // an annotation is invalid
	ReasonWrongRole      = "WrongRole"      // the signer is for another role than that of the Tunnel
	ReasonUnknownTunnel  = "UnknownTunnel"  // there is no such Tunnel: it may have been moved
	ReasonTunnelEnded    = "TunnelEnded"    // the Tunnel was replaced by another one, or its Cluster is gone
	// the controller has not recorded the id as this Tunnel's: it may be another Tunnel's
	ReasonNotHeld      = "IDNotHeld"
	ReasonRevoked      = "Revoked"      // the edge, or one that enrolled with the same token, is in spec.revokedEdges
	ReasonUnknownToken = "UnknownToken" // the Tunnel has no record of the token: it has ended, or is another Tunnel's
	ReasonTokenExpired = "TokenExpired" // the token was not used in time
	ReasonTokenUsedUp  = "TokenUsedUp"  // the token has no uses left, or has enrolled another key of the same Pod
	// the Tunnel accepts no ServiceAccount tokens, or the controller has recorded no keys for them
	ReasonPodsNotAccepted = "PodsNotAccepted"
	ReasonInvalidPodToken = "InvalidPodToken" // the ServiceAccount token does not verify, or is not for this node name
)

// refusal is a rejection that a retry would not change.
type refusal struct{ reason, message string }

// Error returns the message with its reason.
func (r *refusal) Error() string { return r.reason + ": " + r.message }

func refuseRequest(reason, format string, args ...any) *refusal {
	return &refusal{reason, fmt.Sprintf(format, args...)}
}

// profile is one kind of leaf, selected by the signer name.
type profile struct {
	role           model.Role
	client, server bool // what its holder is in TLS handshakes
}

var profiles = map[string]profile{
	v1alpha1.SignerEdge:    {role: model.RoleEdge, client: true, server: true},
	v1alpha1.SignerEgress:  {role: model.RoleEgress, client: true},
	v1alpha1.SignerGateway: {role: model.RoleGateway, client: true, server: true},
	v1alpha1.SignerControl: {role: model.RoleControl, server: true},
}

// SignsFor reports whether this controller answers requests to a signer.
func SignsFor(signer string) bool {
	_, ok := profiles[signer]
	return ok
}

// allows reports whether a leaf of this profile may have a usage.
func (p profile) allows(usage certificatesv1.KeyUsage) bool {
	switch usage {
	case certificatesv1.UsageDigitalSignature:
		return true
	case certificatesv1.UsageServerAuth:
		return p.server
	case certificatesv1.UsageClientAuth:
		return p.client
	}
	return false
}

// request is the parsed content of a CertificateSigningRequest.
type request struct {
	profile   profile
	key       crypto.PublicKey
	subject   model.Subject
	tunnel    model.Key
	tokenHash string // of a bootstrap token; empty for a renewal and for a Pod
	podToken  string // the ServiceAccount token of a Pod; empty for a renewal and for a bootstrap token
	host      string
	created   time.Time // the CertificateSigningRequest
	notAfter  time.Time
	enrols    *v1alpha1.Tunnel // whose edge gets its first certificate; nil: it has had one
}

// readRequest validates everything of a CertificateSigningRequest that requires no other object. Its error is a
// *refusal. now is by the clock that set the time of the request.
func readRequest(c config.Config, csr *certificatesv1.CertificateSigningRequest, now time.Time) (request, error) {
	if csr.Spec.Username != c.XDSServerUser {
		return request{}, refuseRequest(ReasonWrongUser, "user %q is not the xds-server", csr.Spec.Username)
	}
	if age := now.Sub(csr.CreationTimestamp.Time); age > maxAge {
		return request{}, refuseRequest(
			reasonTooOld, "it was created %s ago, and its requester no longer waits", age.Round(time.Second),
		)
	}
	q := request{profile: profiles[csr.Spec.SignerName], notAfter: endOfLeaf(c, csr)}
	for _, usage := range csr.Spec.Usages {
		if !q.profile.allows(usage) {
			return request{}, refuseRequest(ReasonWrongUsage, "%s issues no certificates for %q", csr.Spec.SignerName, usage)
		}
	}
	if len(csr.Spec.Request) > maxRequestPEM {
		return request{}, refuseRequest(
			reasonInvalidRequest, "spec.request has %d bytes, more than %d", len(csr.Spec.Request), maxRequestPEM,
		)
	}
	block, rest := pem.Decode(csr.Spec.Request)
	if block == nil || len(strings.TrimSpace(string(rest))) > 0 {
		return request{}, refuseRequest(reasonInvalidRequest, "spec.request is not one block of PEM")
	}
	var err error
	if q.key, err = certs.ParseCSR(block.Bytes); err != nil {
		return request{}, refuseRequest(reasonInvalidRequest, "%v", err)
	}
	if no := q.readNames(csr.Annotations); no != nil {
		return request{}, no
	}
	return q, nil
}

// endOfLeaf returns the end of a leaf: after the usual lifetime, or sooner if the request asks for that.
func endOfLeaf(c config.Config, csr *certificatesv1.CertificateSigningRequest) time.Time {
	lifetime := c.LeafLifetime
	if s := csr.Spec.ExpirationSeconds; s != nil {
		lifetime = min(lifetime, time.Duration(*s)*time.Second)
	}
	// From the time of the request and not from now, so that a repeated answer is identical.
	return csr.CreationTimestamp.Add(lifetime)
}

// readNames reads the subject of the request from the annotations that the xds-server writes. It takes no name from the
// CSR.
func (q *request) readNames(annotations map[string]string) *refusal {
	q.subject = model.Subject{Role: q.profile.role, Node: annotations[v1alpha1.RequestNodeAnnotation]}
	switch q.profile.role {
	case model.RoleControl:
		q.subject = model.ControlSubject()
		return nil
	case model.RoleGateway:
		if err := model.ValidateGatewayName(q.subject.Node); err != nil {
			return refuseRequest(ReasonInvalidName, "%v", err)
		}
		return nil
	}
	q.subject.ID = annotations[v1alpha1.RequestTunnelIDAnnotation]
	q.tokenHash = annotations[v1alpha1.RequestTokenAnnotation]
	q.podToken = annotations[v1alpha1.RequestPodTokenAnnotation]
	q.host = annotations[v1alpha1.RequestHostAnnotation]
	namespace, name, ok := strings.Cut(annotations[v1alpha1.RequestTunnelAnnotation], "/")
	q.tunnel = model.Key{Namespace: namespace, Name: name}
	switch {
	case !ok || namespace == "" || name == "" || strings.Contains(name, "/"):
		return refuseRequest(ReasonInvalidName, "annotation %s is not namespace/name", v1alpha1.RequestTunnelAnnotation)
	case model.ValidateNodeName(q.subject.Node) != nil || model.ValidateGatewayName(q.subject.Node) == nil:
		return refuseRequest(ReasonInvalidName, "%q is not a node name of an edge", q.subject.Node)
	case model.ValidateID(q.subject.ID) != nil:
		return refuseRequest(ReasonInvalidName, "%q is not a tunnel id", q.subject.ID)
	case q.tokenHash != "" && q.podToken != "":
		return refuseRequest(ReasonInvalidPodToken, "the request has two credentials")
	case len(q.host) > maxHost || strings.ContainsFunc(q.host, func(r rune) bool { return r < ' ' || r > '~' }):
		return refuseRequest(
			ReasonInvalidName, "the host name has more than %d bytes, or is not printable ASCII", maxHost,
		)
	}
	return nil
}

// checkTunnel rejects the request if the tunnel of an edge does not exist, was replaced or has ended, if it is for
// another role, or if the edge or its token is revoked. served is the Cluster of the Tunnel; nil: it is gone.
func (q request) checkTunnel(tunnel *v1alpha1.Tunnel, served *clusterv1.Cluster) *refusal {
	switch {
	case tunnel == nil:
		return refuseRequest(ReasonUnknownTunnel, "Tunnel %s not found", q.tunnel)
	case tunnel.ClaimedID() != q.subject.ID:
		return refuseRequest(
			ReasonTunnelEnded, "Tunnel %s has another id than %s: it was deleted and created again", q.tunnel, q.subject.ID,
		)
	case tunnel.HeldID() != q.subject.ID:
		return refuseRequest(
			ReasonNotHeld, "Tunnel %s does not hold the id %s: the controller has not recorded it", q.tunnel, q.subject.ID,
		)
	case decision.Role(tunnel) != q.subject.Role:
		return refuseRequest(
			ReasonWrongRole, "Tunnel %s is for the role %s, not %s", q.tunnel, decision.Role(tunnel), q.subject.Role,
		)
	case served == nil:
		return refuseRequest(ReasonTunnelEnded, "the Cluster of Tunnel %s is gone", q.tunnel)
	case slices.Contains(tunnel.Spec.RevokedEdges, q.subject.Node):
		return refuseRequest(ReasonRevoked, "the edge %s is revoked in Tunnel %s", q.subject.Node, q.tunnel)
	case q.tokenHash != "" && decision.TokenRevoked(tunnel, q.tokenHash):
		return refuseRequest(ReasonRevoked, "an edge that enrolled with the same token is revoked in Tunnel %s", q.tunnel)
	}
	return nil
}

// verifyPod verifies the ServiceAccount token of a Pod by the keys that the controller has recorded, and returns the
// record of the Pod; nil: the request has no such token. It trusts nothing that the xds-server has verified.
func (q request) verifyPod(
	tunnel *v1alpha1.Tunnel, served *clusterv1.Cluster, now time.Time,
) (*v1alpha1.EdgePodStatus, *refusal) {
	if q.podToken == "" {
		return nil, nil
	}
	issuer, err := decision.PodIssuer(tunnel, served.UID)
	if err != nil {
		return nil, refuseRequest(ReasonPodsNotAccepted, "%v", err)
	}
	pod, err := issuer.Verify(q.podToken, now)
	if err != nil {
		return nil, refuseRequest(ReasonInvalidPodToken, "%v", err)
	}
	if q.subject.Node != model.NodeNameForPod(q.subject.ID, pod.UID) {
		return nil, refuseRequest(ReasonInvalidPodToken, "the token is not for the edge %s", q.subject.Node)
	}
	key, err := x509.MarshalPKIXPublicKey(q.key)
	if err != nil {
		return nil, refuseRequest(reasonInvalidRequest, "%v", err)
	}
	sum := sha256.Sum256(key)
	return &v1alpha1.EdgePodStatus{
		Name: pod.Name, UID: types.UID(pod.UID), TokenIssuedAt: metav1.NewTime(pod.IssuedAt),
		KeySHA256: hex.EncodeToString(sum[:]),
	}, nil
}

// usePodToken returns a refusal if a token may not enrol this key, because the Pod has enrolled another key with it or
// with a newer one. So a reader of CertificateSigningRequests cannot use a token again.
func usePodToken(recorded, pod *v1alpha1.EdgePodStatus) *refusal {
	if pod == nil || recorded == nil || recorded.KeySHA256 == pod.KeySHA256 ||
		pod.TokenIssuedAt.After(recorded.TokenIssuedAt.Time) {
		return nil
	}
	return refuseRequest(
		ReasonTokenUsedUp,
		"the Pod %s has enrolled another key with this token or a newer one: its next token enrols this one", pod.Name,
	)
}

// enter records an edge in the status of its Tunnel, and counts the use of its token if it has not been counted. The
// node name of a first certificate is derived from the token and the edge's signing request, so a recorded edge was
// counted by an earlier attempt, whose answer may not have arrived in time. pod is the Pod of a verified ServiceAccount
// token, or nil.
func (q request) enter(status *v1alpha1.TunnelStatus, pod *v1alpha1.EdgePodStatus, now time.Time) *refusal {
	nodeID := q.subject.NodeID()
	known := slices.ContainsFunc(status.Edges, func(e v1alpha1.EdgeStatus) bool { return e.NodeID == nodeID })
	if q.tokenHash != "" && !known {
		if no := useToken(status.Tokens, q.tokenHash, now); no != nil {
			return no
		}
	}
	if recorded := records.EdgeOf(status.Edges, q.subject.Node); recorded != nil {
		if no := usePodToken(recorded.Pod, pod); no != nil {
			return no
		}
	}
	status.Edges = records.CurrentEdges(records.PutEdge(status.Edges, v1alpha1.EdgeStatus{
		NodeID: nodeID, Host: q.host, TokenSHA256: q.tokenHash, Pod: pod,
		EnrolledAt:          metav1.NewTime(now.Truncate(time.Second)),
		CertificateNotAfter: metav1.NewTime(q.notAfter.Truncate(time.Second)),
	}), now)
	return nil
}

// useToken counts one use of a token, if it is valid.
func useToken(tokens []v1alpha1.TokenStatus, hash string, now time.Time) *refusal {
	i := records.TokenIndex(tokens, hash)
	switch {
	case i < 0:
		return refuseRequest(ReasonUnknownToken, "the Tunnel has no record of this token")
	case !now.Before(tokens[i].ExpiresAt.Time):
		return refuseRequest(ReasonTokenExpired, "the token expired at %s", tokens[i].ExpiresAt.UTC().Format(time.RFC3339))
	case tokens[i].Uses >= tokens[i].MaxUses:
		return refuseRequest(
			ReasonTokenUsedUp, "the token has been used %d times, which is its limit", tokens[i].Uses,
		)
	}
	tokens[i].Uses++
	at := metav1.NewTime(now.Truncate(time.Second))
	tokens[i].LastUsedAt = &at
	return nil
}
