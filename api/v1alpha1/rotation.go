package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// CAPhase is a phase of the rotation of the CA.
type CAPhase string

// The phases of a rotation, in order.
const (
	// CAPhaseSteady: there is one CA, and no rotation.
	CAPhaseSteady CAPhase = "steady"
	// CAPhaseIntroduce: the next CA is in every trust bundle, and the old one signs. The phase lasts until every
	// certificate has been renewed, because each renewal also delivers the new bundle.
	CAPhaseIntroduce CAPhase = "introduce"
	// CAPhaseMove: the new CA signs for edges and gateways. The xds-servers still have certificates of the old CA, so
	// that an edge that was disconnected during CAPhaseIntroduce can connect and renew.
	CAPhaseMove CAPhase = "move"
	// CAPhaseRetire: the new CA also signs for the xds-servers. When their old certificates have expired, the old CA
	// is removed from the trust bundle.
	CAPhaseRetire CAPhase = "retire"
)

// CARotation is the content of CARotationKey: the public data of the CAs and their rotation.
type CARotation struct {
	Phase CAPhase `json:"phase"`
	// Since is when the phase began. It is nil in CAPhaseIntroduce until the bundle is distributed, and before any
	// rotation.
	Since *metav1.Time `json:"since,omitempty"`
	// Until is when the phase ends, unless something delays it.
	Until *metav1.Time `json:"until,omitempty"`
	// Ends is when the whole rotation ends, unless something delays it.
	Ends *metav1.Time `json:"ends,omitempty"`
	// Next is when the next automatic rotation begins. It is nil during a rotation, and for a CA that the user
	// supplied.
	Next *metav1.Time `json:"next,omitempty"`
	// CAs are the CAs in the trust bundle.
	CAs []CAInfo `json:"cas"`
	// Problem is what is wrong with the Secret CASecretName, and the remedy. While it is set, nothing changes.
	Problem string `json:"problem,omitempty"`
}

// CAInfo is the public data of one CA.
type CAInfo struct {
	Subject string `json:"subject"`
	// Serial is the hexadecimal serial number.
	Serial   string      `json:"serial"`
	NotAfter metav1.Time `json:"notAfter"`
	// Brought is true if the user supplied the CA, and false if the controller created it.
	Brought bool `json:"brought,omitempty"`
	// Signs are the roles for which the CA currently signs certificates: edge, egress, gateway, control.
	Signs []string `json:"signs,omitempty"`
	// CrossSignedBy is the serial number of the CA before this one, if it vouches for this one, and CrossSignedUntil when
	// that ends. Until then, a bootstrap file that has only the CA before works.
	CrossSignedBy    string       `json:"crossSignedBy,omitempty"`
	CrossSignedUntil *metav1.Time `json:"crossSignedUntil,omitempty"`
}
