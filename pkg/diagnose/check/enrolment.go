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
	deliver := "run edge-agent in the workload network with the newest bootstrap file: kubectl -n " + v.key.Namespace + " get secret " + name + " -o jsonpath='{.data.bootstrap\\.yaml}' | base64 -d"
	detail := "no edge has a certificate for this tunnel"
	if f := v.bootstrap(ctx, name); f != nil {
		return *f
	}
	if denied := v.denied(ctx); denied != "" {
		return broken(detail+"; "+denied, "the bootstrap file on the edge's machine is not the newest: its token has ended or was used as often as it may be", "take the newest file from the Secret, put it in the place of the old one, and start edge-agent again: "+deliver)
	}
	if refused := v.refusal(false); refused != "" {
		return broken(detail+"; "+refused, "if that machine is this Cluster's edge, its bootstrap file is old: the token in it has expired, or is used up; else no edge-agent runs with this Cluster's bootstrap file", "take the newest file from the Secret, put it in the place of the old one, and start edge-agent again: "+deliver)
	}
	return broken(detail+": none has asked for one with a good token",
		"no edge-agent runs with this Cluster's bootstrap file, or it does not reach the gateways' public port, or its file is old, so that the token in it has expired, or is used up",
		deliver+"; if it runs already its log says which it is: for an old token take the newest file from the Secret")
}

// bootstrap returns a finding about the bootstrap Secret or its token; nil: there is none, or the Secret cannot be
// read.
func (v *visit) bootstrap(ctx context.Context, name string) *finding {
	if v.Secrets == nil {
		return nil
	}
	secret := &corev1.Secret{}
	err := v.Secrets.Get(ctx, client.ObjectKey{Namespace: v.key.Namespace, Name: name}, secret)
	if apierrors.IsNotFound(err) {
		f := broken("no edge has a certificate, and there is no Secret "+name, "somebody has deleted the bootstrap Secret, and the controller has not made another one yet", "wait some seconds: the controller makes it again, with another token")
		switch full, down := v.fullQuota(ctx), v.controllerDown(ctx); {
		case v.paused():
			f.cause, f.cure = "somebody has deleted the bootstrap Secret, and the Cluster is paused, so nobody makes another one", "unpause the Cluster"
		case full != "":
			f.cause, f.cure = full+", so the controller can't make it", "raise the quota: kubectl -n "+v.key.Namespace+" edit resourcequota; the controller tries again by itself"
		case down != "":
			f.cause, f.cure = "somebody has deleted the bootstrap Secret, and "+down, v.startController()
		}
		return &f
	}
	if err != nil {
		return nil
	}
	hash := enrol.HashToken(string(secret.Data[v1alpha1.BootstrapTokenKey]))
	at := slices.IndexFunc(v.tunnel.Status.Tokens, func(t v1alpha1.TokenStatus) bool { return t.SHA256 == hash })
	why := ""
	switch {
	case at < 0:
		why = "the Tunnel has no record of it: it has expired, or was ended"
	case v.now().After(v.tunnel.Status.Tokens[at].ExpiresAt.Time):
		why = "it expired at " + utc(v.tunnel.Status.Tokens[at].ExpiresAt.Time)
	case v.tunnel.Status.Tokens[at].Uses >= v.tunnel.Status.Tokens[at].MaxUses:
		why = fmt.Sprintf("it is used up: %d of %d edges have enrolled with it", v.tunnel.Status.Tokens[at].Uses, v.tunnel.Status.Tokens[at].MaxUses)
	default:
		return nil
	}
	f := broken("no edge has a certificate, and the token in Secret "+name+" is of no use: "+why, "the controller has not replaced it, which it does long before",
		"see the controller's log; then give edge-agent the new file of the Secret")
	if down := v.controllerDown(ctx); down != "" {
		f.cause, f.cure = down+", so nobody replaces the token", v.startController()+"; some seconds later there is a new token in the Secret: give edge-agent that file"
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
				said = fmt.Sprintf("the request of a machine that calls itself %q was denied at %s (%s): %s", r.Annotations[v1alpha1.RequestHostAnnotation], utc(newest), c.Reason, c.Message)
			}
		}
	}
	return said
}
