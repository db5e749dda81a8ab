package webhook

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	runtimeconfig "sigs.k8s.io/controller-runtime/pkg/config"
	metrics "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/fairlead/fairlead/internal/freeport"
	"github.com/fairlead/fairlead/internal/kubetest"
	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/controller/controllertest"
	"github.com/fairlead/fairlead/pkg/controller/objects"
	"github.com/fairlead/fairlead/pkg/controller/reconciler"
)

// mount writes a certificate as a kubelet does into the folder of a volume: into a separate folder, and a link to it.
func mount(t *testing.T, dir, version string, serving certs.Serving) {
	t.Helper()
	own := filepath.Join(dir, version)
	if err := os.Mkdir(own, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{"tls.crt": serving.CertPEM, "tls.key": serving.KeyPEM} {
		if err := os.WriteFile(filepath.Join(own, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
		if link := filepath.Join(dir, name); version == "..1" {
			if err := os.Symlink(filepath.Join("..data", name), link); err != nil {
				t.Fatal(err)
			}
		}
	}
	next := filepath.Join(dir, "..data_tmp")
	if err := os.Symlink(version, next); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(next, filepath.Join(dir, "..data")); err != nil {
		t.Fatal(err)
	}
}

func newServing(t *testing.T) certs.Serving {
	t.Helper()
	serving, err := certs.NewServing("webhook", []string{"127.0.0.1"}, time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return serving
}

// mountedWebhook returns a manager with only the webhook, as a user that may read Tunnels and Clusters and no Secret.
func mountedWebhook(t *testing.T, dir string) (mgr ctrl.Manager, address string) {
	t.Helper()
	const user = "mounted-webhook"
	admin := controllertest.APIServer(t)
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{GenerateName: user + "-"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{"fairlead.dev"}, Resources: []string{"tunnels"}, Verbs: []string{"list", "watch"}},
		{APIGroups: []string{"cluster.x-k8s.io"}, Resources: []string{"clusters"}, Verbs: []string{"list", "watch"}},
	}}
	controllertest.Create(t, admin, role)
	controllertest.Create(t, admin, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{GenerateName: user + "-"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
	})
	scheme, err := objects.NewScheme()
	if err != nil {
		t.Fatal(err)
	}
	mgr, err = ctrl.NewManager(kubetest.Impersonate(controllertest.RESTConfig(t), user), ctrl.Options{
		Scheme: scheme, Metrics: metrics.Options{BindAddress: "0"},
		Controller: runtimeconfig.Controller{SkipNameValidation: ptr.To(true)},
	})
	if err != nil {
		t.Fatal(err)
	}
	config := controllertest.Config()
	config.WebhookListen, config.WebhookCertDir = freeport.Address(t), dir
	deps := reconciler.Deps{
		Config: config, Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Log: slog.New(slog.DiscardHandler), Now: time.Now,
	}
	if err := Setup(deps, mgr); err != nil {
		t.Fatal(err)
	}
	return mgr, config.WebhookListen
}

// TestAMountedCertificateIsServed creates and replaces the certificate as files, as cert-manager and a kubelet do.
func TestAMountedCertificateIsServed(t *testing.T) {
	dir := t.TempDir()
	first, second := newServing(t), newServing(t)
	mount(t, dir, "..1", first)
	mgr, address := mountedWebhook(t, dir)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	serves := func(serving certs.Serving) func() error {
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(serving.CAPEM)
		return func() error {
			conn, err := (&tls.Dialer{Config: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13}}).DialContext(
				t.Context(), "tcp", address,
			)
			if err != nil {
				return err
			}
			return conn.Close()
		}
	}
	controllertest.Eventually(t, serves(first))
	old, err := (&tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12}}).DialContext(
		t.Context(), "tcp", address,
	)
	if err == nil {
		_ = old.Close()
		t.Error("TLS 1.2 is accepted")
	}
	mount(t, dir, "..2", second)
	controllertest.Eventually(t, serves(second))
}

// TestWithoutMountedFilesTheProcessEnds: it must not serve with a certificate of its own, which apiservers do not
// trust.
func TestWithoutMountedFilesTheProcessEnds(t *testing.T) {
	mgr, _ := mountedWebhook(t, t.TempDir())
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := mgr.Start(ctx); err == nil {
		t.Error("the manager goes on")
	}
}
