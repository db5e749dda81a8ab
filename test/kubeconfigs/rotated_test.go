package kubeconfigs

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// nearExpiry is the remaining validity of a client certificate that KCP replaces. KCP does so when less than six months
// remain.
const nearExpiry = 30 * 24 * time.Hour

// version is one version of the kubeconfig Secret, as a watch observed it.
type version struct {
	at        time.Time
	rotated   bool // its certificate is not about to expire
	elsewhere error
}

// rotatesUnaided proves that the controller alone corrects the kubeconfig after KCP has rotated its certificate.
func (m *member) rotatesUnaided(t *testing.T) {
	that(
		t,
		"the controller restores the tunnel in the kubeconfig after KCP rotates the client certificate",
		func(t *testing.T) {
			wrong := m.rotate(t)
			measured("rotation_without_webhook_wrong_ms", float64(wrong.Microseconds())/1000)
			if wrong == 0 {
				t.Error("KCP's rotation left the kubeconfig as it was: it should have lost its way without the webhook")
			}
			if wrong > 5*time.Second {
				t.Errorf("the kubeconfig led elsewhere for %s", wrong)
			}
			within(t, time.Minute, "", m.RemoteConnectionProbe)
		},
	)
}

// rotates proves that no reader ever gets a kubeconfig that leads elsewhere, although KCP writes one.
func (m *member) rotates(t *testing.T) {
	that(
		t,
		"every version of the kubeconfig uses the tunnel while KCP rotates the client certificate",
		func(t *testing.T) {
			wrong := m.rotate(t)
			measured("rotation_wrong_ms", float64(wrong.Microseconds())/1000)
			if wrong > 0 {
				t.Errorf("the kubeconfig led elsewhere for %s", wrong)
			}
			within(t, time.Minute, "", m.RemoteConnectionProbe)
			within(t, time.Minute, "", m.hasMachines(1))
		},
	)
}

// rotate replaces the client certificate by one that expires soon, waits until KCP has replaced that, and returns how
// long the Secret led elsewhere in between.
func (m *member) rotate(t *testing.T) time.Duration {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	must(t, m.expireSoon(ctx))
	clients, err := kubernetes.NewForConfig(m.lab.Management.Config)
	must(t, err)
	events, err := clients.CoreV1().Secrets(m.Namespace).Watch(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("metadata.name", m.Name+"-kubeconfig").String(),
	})
	must(t, err)
	defer events.Stop()
	begin, seen := time.Now(), []version{}
	for event := range events.ResultChan() {
		secret, ok := event.Object.(*corev1.Secret)
		if !ok {
			t.Fatalf("the watch brings %v", event.Object)
		}
		v := version{at: time.Now(), elsewhere: m.usesTunnel(secret.Data["value"])}
		notAfter, err := m.clientCertificateEnd(secret.Data["value"])
		must(t, err)
		v.rotated = time.Until(notAfter) > 2*nearExpiry
		seen = append(seen, v)
		if v.rotated && v.elsewhere == nil {
			break
		}
	}
	if ctx.Err() != nil {
		t.Fatalf("KCP has not rotated the certificate in time; versions seen: %+v", seen)
	}
	measured("rotated_s", time.Since(begin).Seconds())
	var wrong time.Duration
	for i, v := range seen[:len(seen)-1] {
		if v.elsewhere != nil {
			t.Logf("for %s: %v", seen[i+1].at.Sub(v.at), v.elsewhere)
			wrong += seen[i+1].at.Sub(v.at)
		}
	}
	return wrong
}

// clientCertificateEnd returns when the client certificate of a kubeconfig expires.
func (m *member) clientCertificateEnd(kubeconfig []byte) (time.Time, error) {
	config, err := clientcmd.Load(kubeconfig)
	if err != nil {
		return time.Time{}, err
	}
	for _, user := range config.AuthInfos {
		block, _ := pem.Decode(user.ClientCertificateData)
		if block == nil {
			return time.Time{}, fmt.Errorf("the kubeconfig of %s has no client certificate", m)
		}
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return time.Time{}, err
		}
		return certificate.NotAfter, nil
	}
	return time.Time{}, fmt.Errorf("the kubeconfig of %s has no user", m)
}

// expireSoon gives the kubeconfig a client certificate that expires soon, as if half a year had passed.
func (m *member) expireSoon(ctx context.Context) error {
	authority, err := m.Secret(ctx, "-ca")
	if err != nil {
		return err
	}
	certificate, key, err := issueShort(authority.Data["tls.crt"], authority.Data["tls.key"])
	if err != nil {
		return err
	}
	secret, err := m.Secret(ctx, "-kubeconfig")
	if err != nil {
		return err
	}
	config, err := clientcmd.Load(secret.Data["value"])
	if err != nil {
		return err
	}
	for _, user := range config.AuthInfos {
		user.ClientCertificateData, user.ClientKeyData = certificate, key
	}
	if secret.Data["value"], err = clientcmd.Write(*config); err != nil {
		return err
	}
	return m.lab.Management.Client.Update(ctx, secret)
}

// issueShort issues a certificate for the user of KCP's kubeconfigs.
func issueShort(caCertificate, caKey []byte) (certificatePEM, keyPEM []byte, err error) {
	authority, err := tls.X509KeyPair(caCertificate, caKey)
	if err != nil {
		return nil, nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(
			time.Now().UnixNano(),
		), Subject: pkix.Name{CommonName: "kubernetes-admin", Organization: []string{"system:masters"}},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(nearExpiry),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, authority.Leaf, key.Public(), authority.PrivateKey)
	if err != nil {
		return nil, nil, err
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, nil, err
	}
	var certificate, private bytes.Buffer
	err = pem.Encode(&certificate, &pem.Block{Type: "CERTIFICATE", Bytes: der})
	if err == nil {
		err = pem.Encode(&private, &pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER})
	}
	return certificate.Bytes(), private.Bytes(), err
}
