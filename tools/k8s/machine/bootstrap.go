package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/certificate/csr"
	"k8s.io/client-go/util/keyutil"
)

const (
	kubeletConf   = "/etc/kubernetes/kubelet.conf"
	bootstrapConf = "/etc/kubernetes/bootstrap-kubelet.conf"
	pkiDir        = kubeletDir + "/pki"
	// kubeadm join gives the kubelet five minutes. After a request that is not signed in this time there is time for
	// another one.
	signingLimit = time.Minute
)

// bootstrap obtains a client certificate for the Node if there is none yet and kubeadm has left a token for it. It then
// writes kubelet.conf, for which kubeadm join waits.
func (k *kubelet) bootstrap(ctx context.Context) error {
	if exists(kubeletConf) || !exists(bootstrapConf) {
		return nil
	}
	kubeconfig, err := clientcmd.LoadFromFile(bootstrapConf)
	if err != nil {
		return err
	}
	rest, err := clientcmd.NewDefaultClientConfig(*kubeconfig, nil).ClientConfig()
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(rest)
	if err != nil {
		return err
	}
	pair, err := k.requestCertificate(ctx, client)
	if err != nil {
		return fmt.Errorf("asking for a client certificate: %w", err)
	}
	current := filepath.Join(pkiDir, "kubelet-client-current.pem")
	file := filepath.Join(pkiDir, time.Now().UTC().Format("kubelet-client-2006-01-02-15-04-05.pem"))
	if err := os.MkdirAll(pkiDir, 0o755); err != nil {
		return err
	}
	if err := errors.Join(os.WriteFile(file, pair, 0o600), os.Symlink(file, current)); err != nil {
		return err
	}
	kubeconfig.AuthInfos = map[string]*clientcmdapi.AuthInfo{
		"default-auth": {ClientCertificate: current, ClientKey: current},
	}
	kubeconfig.Contexts[kubeconfig.CurrentContext].AuthInfo = "default-auth"
	data, err := clientcmd.Write(*kubeconfig)
	if err != nil {
		return err
	}
	slog.Info("kubelet has its certificate")
	return replaceFile(kubeletConf, data, 0o600)
}

// requestCertificate returns the Node's certificate, signed by the cluster, and its key.
func (k *kubelet) requestCertificate(ctx context.Context, client kubernetes.Interface) ([]byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	keyPEM, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		return nil, err
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject: pkix.Name{CommonName: "system:node:" + k.config.Hostname, Organization: []string{"system:nodes"}},
	}, key)
	if err != nil {
		return nil, err
	}
	request := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
	usages := []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth}
	ctx, cancel := context.WithTimeout(ctx, signingLimit)
	defer cancel()
	name, uid, err := csr.RequestCertificate(
		client, request, "", certificatesv1.KubeAPIServerClientKubeletSignerName, nil, usages, key,
	)
	if err != nil {
		return nil, err
	}
	signed, err := csr.WaitForCertificate(ctx, client, name, uid)
	if err != nil {
		return nil, err
	}
	return append(signed, keyPEM...), nil
}
