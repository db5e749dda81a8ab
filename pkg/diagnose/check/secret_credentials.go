package check

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/pkg/diagnose/credentials"
)

// compareCA returns a finding if the kubeconfig does not trust the Cluster's CA; nil: it does, or that is unknown.
func (v *visit) compareCA(ctx context.Context, name string, entry *clientcmdapi.Cluster) *finding {
	secret := &corev1.Secret{}
	key := client.ObjectKey{Namespace: v.key.Namespace, Name: v.key.Name + "-ca"}
	if entry.InsecureSkipTLSVerify || v.Secrets.Get(ctx, key, secret) != nil {
		return nil
	}
	if credentials.Trusts(secret.Data[corev1.TLSCertKey], entry.CertificateAuthorityData) {
		return nil
	}
	f := broken(
		"its CA is not the one in Secret "+key.Name,
		"Secret "+name+" was edited and has another CA"+lastWriter(v.secret)+", or the Cluster's CA was replaced",
		v.rewrite(name),
	)
	return &f
}

// compareUser returns a finding about the client certificate; nil: it is valid, or there is none.
func (v *visit) compareUser(name string, user *clientcmdapi.AuthInfo) *finding {
	if user == nil {
		f := broken("its current context names no user", "Secret "+name+" was edited"+lastWriter(v.secret), v.rewrite(name))
		return &f
	}
	leaf, now := credentials.Leaf(user.ClientCertificateData), v.now()
	if leaf == nil {
		return nil
	}
	renew := "its control-plane provider renews it; to renew it at once, delete the Secret: kubectl " +
		"-n " + v.key.Namespace + " delete secret " + name
	switch {
	case now.After(leaf.NotAfter):
		f := broken(
			"its client certificate expired at "+utc(leaf.NotAfter),
			"it was not renewed: the control-plane provider does not run, or the Cluster is paused, or the clock of this "+
				"machine is wrong",
			renew,
		)
		return &f
	case now.Before(leaf.NotBefore):
		f := broken(
			"its client certificate is not valid before "+utc(leaf.NotBefore)+", and the clock of this machine shows "+utc(now),
			"the clock of this machine is slow", "correct the clock of this machine",
		)
		return &f
	case leaf.NotAfter.Sub(now) < leaf.NotAfter.Sub(leaf.NotBefore)/10:
		f := warning("its client certificate expires at "+utc(leaf.NotAfter), "it was not renewed yet", renew)
		return &f
	}
	return nil
}

// until describes how long the client certificate is valid.
func until(user *clientcmdapi.AuthInfo, now time.Time) string {
	if leaf := credentials.Leaf(user.ClientCertificateData); leaf != nil {
		return fmt.Sprintf("; its client certificate is valid for %s", leaf.NotAfter.Sub(now).Round(time.Minute))
	}
	return ""
}
