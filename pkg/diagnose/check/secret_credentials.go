package check

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// compareCA returns a finding if the kubeconfig does not trust the Cluster's CA; nil: it does, or that is unknown.
func (v *visit) compareCA(ctx context.Context, name string, entry *clientcmdapi.Cluster) *finding {
	secret := &corev1.Secret{}
	key := client.ObjectKey{Namespace: v.key.Namespace, Name: v.key.Name + "-ca"}
	if entry.InsecureSkipTLSVerify || v.Secrets.Get(ctx, key, secret) != nil {
		return nil
	}
	want, have := certificatesOf(secret.Data[corev1.TLSCertKey]), certificatesOf(entry.CertificateAuthorityData)
	for _, w := range want {
		for _, h := range have {
			if bytes.Equal(w.Raw, h.Raw) {
				return nil
			}
		}
	}
	if len(want) == 0 {
		return nil
	}
	f := broken(
		"its CA is not the one in Secret "+key.Name,
		"Secret "+name+" was edited and has another CA"+lastWriter(v.secret)+", or the Cluster's CA was replaced",
		v.rewrite(name),
	)
	return &f
}

// certificatesOf returns the certificates in a PEM file and skips everything else.
func certificatesOf(data []byte) (all []*x509.Certificate) {
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		if c, err := x509.ParseCertificate(block.Bytes); err == nil {
			all = append(all, c)
		}
	}
	return all
}

// userOf returns the user of a kubeconfig's current context; nil: there is none.
func userOf(config *clientcmdapi.Config) *clientcmdapi.AuthInfo {
	if current := config.Contexts[config.CurrentContext]; current != nil {
		return config.AuthInfos[current.AuthInfo]
	}
	return nil
}

// compareUser returns a finding about the client certificate; nil: it is valid, or there is none.
func (v *visit) compareUser(name string, user *clientcmdapi.AuthInfo) *finding {
	if user == nil {
		f := broken("its current context names no user", "Secret "+name+" was edited"+lastWriter(v.secret), v.rewrite(name))
		return &f
	}
	leaves := certificatesOf(user.ClientCertificateData)
	if len(leaves) == 0 {
		return nil
	}
	leaf, now := leaves[0], v.now()
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
	if leaves := certificatesOf(user.ClientCertificateData); len(leaves) > 0 {
		return fmt.Sprintf("; its client certificate is valid for %s", leaves[0].NotAfter.Sub(now).Round(time.Minute))
	}
	return ""
}
