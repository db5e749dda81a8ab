package cli

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/kubetest"
	"github.com/fairlead/fairlead/pkg/certs"
)

// waitCA waits until the installation has a CA.
func waitCA(t *testing.T, p *person) {
	t.Helper()
	kubetest.Eventually(t, "the installation has a CA", func() error {
		_, err := p.does(t, "ca", "status")
		return err
	})
}

// TestCARotate rotates the CA with the program and the real controller, and then provides another CA.
func TestCARotate(t *testing.T) {
	p := newPerson(t)
	waitCA(t, p)
	before := p.must(
		t, []string{"CN=Fairlead tunnels.example.com", "made", "edge,egress,gateway,control", "the next one begins at"}, "ca",
		"status",
	)
	begin := time.Now()
	first := p.must(t, []string{"introduce: "}, "ca", "rotate")
	if lines := strings.Count(first, "\n"); lines != 1 {
		t.Errorf("printed %d lines: %s", lines, first)
	}
	// The command was interrupted; running it again continues the same rotation.
	p.must(
		t, []string{"a rotation is already running", "move: ", "retire: ", "steady: the rotation is complete"}, "ca",
		"rotate", "--wait",
	)
	t.Logf("rotation=%s", time.Since(begin).Round(100*time.Millisecond))
	serial := func(status string) string { return strings.Fields(strings.Split(status, "\n")[1])[0] }
	after := p.must(
		t, []string{"no rotation is running", "bootstrap files with the CA " + serial(before) + ", which was before"}, "ca",
		"status",
	)
	if serial(after) == serial(before) {
		t.Error("the CA is the one from before")
	}

	ca, err := certs.NewCA("Mine", time.Now(), 1000*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	key, err := ca.KeyPEM()
	if err != nil {
		t.Fatal(err)
	}
	source := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "fairlead-system", Name: v1alpha1.CASecretName}}
	setSource := func(cert []byte) {
		t.Helper()
		if err := p.Get(t.Context(), client.ObjectKeyFromObject(source), source); err != nil {
			t.Fatal(err)
		}
		source.Data = map[string][]byte{corev1.TLSCertKey: cert, corev1.TLSPrivateKeyKey: key}
		if err := p.Update(t.Context(), source); err != nil {
			t.Fatal(err)
		}
	}
	setSource([]byte("garbage"))
	kubetest.Eventually(t, "the problem is shown", func() error {
		out, err := p.does(t, "ca", "status")
		if err == nil && !strings.Contains(out, "problem: Secret fairlead-system/fairlead-ca: tls.crt: ") {
			return errNot(out)
		}
		return err
	})
	p.mustNot(t, "tls.crt", "ca", "rotate")
	setSource(ca.CertPEM())
	kubetest.Eventually(t, "the rotation begins by itself", func() error {
		out, err := p.does(t, "ca", "status")
		if err == nil && (!strings.Contains(out, "CN=Mine") || !strings.Contains(out, "brought")) {
			return errNot(out)
		}
		return err
	})
	p.must(t, []string{"steady"}, "ca", "rotate", "--wait")
	p.mustNot(t, "was supplied", "ca", "rotate")
}

type errNot string

// Error returns the output of the command.
func (e errNot) Error() string { return "not yet: " + string(e) }

func TestCAReportsMissingSecrets(t *testing.T) {
	p := newPerson(t)
	p.mustNot(t, "fairlead-installation", "ca", "status", "--namespace=default")
	p.mustNot(t, "fairlead-installation", "ca", "rotate", "--namespace=default")
	empty := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: kubetest.NewNamespace(t, p), Name: v1alpha1.InstallationConfigMapName},
	}
	if err := p.Create(t.Context(), empty); err != nil {
		t.Fatal(err)
	}
	p.mustNot(t, "check that the controller runs", "ca", "status", "--namespace="+empty.Namespace)
	empty.Data = map[string]string{
		v1alpha1.CARotationKey: `{"phase":"steady","cas":[{"serial":"1","subject":"CN=x","notAfter":"2036-01-01T00:00:00Z"}]}`,
	}
	if err := p.Update(t.Context(), empty); err != nil {
		t.Fatal(err)
	}
	p.mustNot(t, "has not begun", "ca", "rotate", "--namespace="+empty.Namespace, "--timeout=1s")
}
