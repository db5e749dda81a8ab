package cli

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead/fairlead/internal/freeport"
	"github.com/fairlead/fairlead/internal/kubetest"
	"github.com/fairlead/fairlead/pkg/certs"
)

// startKubelet starts a kubelet whose containers are processes of this machine, and makes a Node for it.
func startKubelet(t *testing.T, p *person) (node string) {
	t.Helper()
	program, err := filepath.Abs("../../bin/fake-kubelet")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(program); err != nil {
		if os.Getenv("REAL_PARTS_REQUIRED") != "" {
			t.Fatalf("no fake-kubelet: run `make tools`: %v", err)
		}
		t.Skipf("no fake-kubelet: run `make tools`: %v", err)
	}
	address := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: freeport.TCP(t)}
	cert, key := kubeletLeaf(t)
	kubelet := exec.CommandContext(t.Context(), program, "-address="+address.String(), "-cert="+cert, "-key="+key)
	kubelet.Env = append(os.Environ(), edgeVariable+"=yes")
	kubelet.Stderr = os.Stderr
	if err := kubelet.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = kubelet.Process.Kill(); _ = kubelet.Wait() })
	worker := &corev1.Node{ObjectMeta: metav1.ObjectMeta{GenerateName: "worker-"}}
	if err := p.Create(t.Context(), worker); err != nil {
		t.Fatal(err)
	}
	worker.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "127.0.0.1"}}
	worker.Status.DaemonEndpoints.KubeletEndpoint.Port = int32(address.Port)
	if err := p.Status().Update(t.Context(), worker); err != nil {
		t.Fatal(err)
	}
	kubetest.Eventually(t, "the kubelet is up", func() error {
		conn, err := net.Dial("tcp", address.String())
		if err == nil {
			_ = conn.Close()
		}
		return err
	})
	return worker.Name
}

func kubeletLeaf(t *testing.T) (cert, key string) {
	t.Helper()
	ca, err := certs.NewCA("kubelet", time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	k, err := certs.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	chain, err := ca.Issue(
		k.Public(),
		certs.Leaf{
			CommonName: "kubelet",
			DNSNames:   []string{"kubelet"},
			Server:     true,
			NotBefore:  time.Now().Add(-time.Minute),
			NotAfter:   time.Now().Add(time.Hour),
		},
	)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	cert, key = filepath.Join(t.TempDir(), "tls.crt"), filepath.Join(t.TempDir(), "tls.key")
	if err := errors.Join(os.WriteFile(cert, chain, 0o600), os.WriteFile(key, pem.EncodeToMemory(
		&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600)); err != nil {
		t.Fatal(err)
	}
	return cert, key
}
