package check

import (
	"context"
	"fmt"
	"slices"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/enrol"
)

// notEnrolled returns the finding if no edge has a certificate.
func (v *visit) notEnrolled(ctx context.Context) finding {
	name := v.key.Name + v1alpha1.BootstrapSecretSuffix
	file := "kubectl -n " + v.key.Namespace + " get secret " + name + " -o jsonpath='{.data.bootstrap\\.yaml}' | base64 -d"
	deliver := "run edge-agent in the workload network with the newest bootstrap file: " + file
	if of := v.tunnel.Spec.EgressOf; of != "" {
		deliver = "apply what fairlead network egress -n " + v.key.Namespace + " " + of + " prints; its file: " + file
	}
	detail := "no edge has a certificate for this tunnel"
	if f := v.bootstrap(ctx, name); f != nil {
		return *f
	}
	if denied := v.denied(ctx); denied != "" {
		return broken(
			detail+"; "+denied,
			"the bootstrap file on the edge's machine is not the newest: its token has expired or is used up",
			"replace the bootstrap file on that machine with the newest file from the Secret, and restart edge-agent: "+deliver,
		)
	}
	if refused := v.refusal(false); refused != "" {
		return broken(
			detail+"; "+refused,
			"if that machine is this Cluster's edge, its bootstrap file is old: the token in it has expired or is used up; "+
				"otherwise no edge-agent runs with this Cluster's bootstrap file",
			"replace the bootstrap file on that machine with the newest file from the Secret, and restart edge-agent: "+deliver,
		)
	}
	return broken(
		detail+": no edge has sent a signing request with a valid token",
		"no edge-agent runs with this Cluster's bootstrap file, or it does not reach the gateways' public port, or its "+
			"file is old and the token in it has expired or is used up",
		deliver+"; if edge-agent runs already, its log reports the reason; for an expired token use the newest file from "+
			"the Secret",
	)
}

// bootstrap returns a finding about the bootstrap Secret or its token; nil: there is none, or it cannot be read.
func (v *visit) bootstrap(ctx context.Context, name string) *finding {
	if v.Secrets == nil {
		return nil
	}
	secret := &corev1.Secret{}
	err := v.Secrets.Get(ctx, client.ObjectKey{Namespace: v.key.Namespace, Name: name}, secret)
	if apierrors.IsNotFound(err) {
		f := broken(
			"no edge has a certificate, and the bootstrap Secret "+name+" was not found",
			"the bootstrap Secret was deleted, and the controller has not created it again yet",
			"wait a few seconds: the controller creates it again, with a new token",
		)
		switch full, down := v.fullQuota(ctx), v.controllerDown(ctx); {
		case v.paused():
			f.cause, f.cure = isPaused+", so the controller does not create the Secret", "unpause it"
		case full != "":
			f.cause, f.cure = full+", so the controller cannot create "+
				"it", "raise the quota: kubectl -n "+v.key.Namespace+" edit resourcequota; the controller then retries"
		case down != "":
			f.cause, f.cure = "the bootstrap Secret was deleted, and "+down, v.startController()
		}
		return &f
	}
	if err != nil {
		return nil
	}
	hash := enrol.HashToken(string(secret.Data[v1alpha1.BootstrapTokenKey]))
	tokens := v.tunnel.Status.Tokens
	at := slices.IndexFunc(tokens, func(t v1alpha1.TokenStatus) bool { return t.SHA256 == hash })
	why := ""
	switch {
	case at < 0:
		why = "the Tunnel has no record of it: it has expired or was revoked"
	case v.now().After(tokens[at].ExpiresAt.Time):
		why = "it expired at " + utc(tokens[at].ExpiresAt.Time)
	case tokens[at].Uses >= tokens[at].MaxUses:
		why = fmt.Sprintf("it is used up: %d of %d edges have enrolled with it", tokens[at].Uses, tokens[at].MaxUses)
	default:
		return nil
	}
	f := broken(
		"no edge has a certificate, and the token in Secret "+name+" is not valid: "+why,
		"the controller has not replaced the token, although it was due",
		"see the log of the controller; then start edge-agent with the new file from the Secret",
	)
	down, repair := v.controllerDown(ctx), v.startController()
	if v.paused() {
		down, repair = isPaused, "unpause it"
	}
	if down != "" {
		f.cause, f.cure = down+", so the token is not replaced", repair+"; a few seconds later the Secret has "+
			"a new token: start edge-agent with that file"
	}
	return &f
}

// denied returns the newest denied request of an edge of this Tunnel.
func (v *visit) denied(ctx context.Context) string {
	var requests certificatesv1.CertificateSigningRequestList
	if v.Objects.List(ctx, &requests) != nil {
		return ""
	}
	newest, said := time.Time{}, ""
	for i := range requests.Items {
		r := &requests.Items[i]
		if r.Annotations[v1alpha1.RequestTunnelAnnotation] != v.key.String() || r.CreationTimestamp.Time.Before(newest) {
			continue
		}
		for _, c := range r.Status.Conditions {
			if c.Type == certificatesv1.CertificateDenied {
				newest = r.CreationTimestamp.Time
				said = fmt.Sprintf(
					"the signing request of a machine with host name %q was denied at %s (%s): %s",
					r.Annotations[v1alpha1.RequestHostAnnotation], utc(newest), c.Reason, c.Message,
				)
			}
		}
	}
	return said
}
