package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// CAPhase is how far the rotation of the CA is.
type CAPhase string

// The phases of a rotation, in their order.
const (
	// CAPhaseSteady: there is one CA, and no rotation.
	CAPhaseSteady CAPhase = "steady"
	// CAPhaseIntroduce: the next CA is in every trust bundle, the old one signs. It lasts until whoever has a certificate has
	// got the new bundle with it.
	CAPhaseIntroduce CAPhase = "introduce"
	// CAPhaseMove: the new CA signs for edges and gateways. The xds-servers still have certificates of the old one, so
	// that an edge that was away during CAPhaseIntroduce can come and renew.
	CAPhaseMove CAPhase = "move"
	// CAPhaseRetire: the new CA signs for the xds-servers too. When their old certificates have ended the old CA leaves the
	// trust bundle.
	CAPhaseRetire CAPhase = "retire"
)

// CARotation is what CARotationKey holds: what is public about the CAs and their rotation.
type CARotation struct {
	Phase CAPhase `json:"phase"`
	// Since is when the phase began; empty in CAPhaseIntroduce before the bundle is out, and before any rotation.
	Since *metav1.Time `json:"since,omitempty"`
	// Until is when the phase ends, if nothing holds it up.
	Until *metav1.Time `json:"until,omitempty"`
	// Ends is when the whole rotation ends, if nothing holds it up.
	Ends *metav1.Time `json:"ends,omitempty"`
	// Next is when a rotation begins by itself. Empty during one, and for a CA that was brought.
	Next *metav1.Time `json:"next,omitempty"`
	// CAs are those in the trust bundle.
	CAs []CAInfo `json:"cas"`
	// Problem says what is wrong with the Secret CASecretName, and what to do. While there is one nothing changes.
	Problem string `json:"problem,omitempty"`
}

// CAInfo is what is public about one CA.
type CAInfo struct {
	Subject string `json:"subject"`
	// Serial is the serial number, in hexadecimal.
	Serial   string      `json:"serial"`
	NotAfter metav1.Time `json:"notAfter"`
	// Brought says that it was not the controller that made it.
	Brought bool `json:"brought,omitempty"`
	// Signs are the roles whose certificates it signs now: edge, gateway, control.
	Signs []string `json:"signs,omitempty"`
}
