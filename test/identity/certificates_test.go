package identity

import (
	"bytes"
	"crypto/x509"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/outsider"
	"github.com/fairlead/fairlead/test/world"
)

// certificates proves which program signs which certificate, and where keys are stored.
func (d *doors) certificates(t *testing.T) {
	oslo := d.Member(t, "oslo", nil)
	edge := d.Edge(t, lab.EdgeSpec{Name: "edge-oslo"}, oslo)
	that(t, "the CA of an existing Secret signs every certificate", func(t *testing.T) {
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(d.ca.CertPEM())
		for name, dir := range d.folders(edge) {
			stolen, err := outsider.Steal(domain, dir)
			must(t, err)
			if _, err := stolen.Leaf.Verify(x509.VerifyOptions{
				Roots:     roots,
				KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
			}); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
	that(
		t, "a certificate is valid for a day and contains only the names of its role",
		func(t *testing.T) { d.profiles(t, oslo, edge) },
	)
	that(
		t, "the xds-server requests each certificate as a CertificateSigningRequest of Fairlead's signers", d.requests,
	)
	that(t, "only the controller may read the CA's key", d.caKey)
	that(t, "only its owner can read a private key", func(t *testing.T) {
		for _, dir := range d.folders(edge) {
			checkKeyFiles(t, dir)
		}
	})
	that(t, "a private key does not leave the machine that generated it", func(t *testing.T) { d.keysDoNotLeave(t, edge) })
}

// folders returns the state folders of all programs that have a certificate on disk.
func (d *doors) folders(edge *lab.Agent) map[string]string {
	return map[string]string{
		"edge": edge.StateDir, "gateway-0": d.Gateways[0].StateDir, "gateway-1": d.Gateways[1].StateDir,
		"xds-server": d.File("xds-server"),
	}
}

func (d *doors) profiles(t *testing.T, oslo *world.Member, edge *lab.Agent) {
	tunnel, err := oslo.Tunnel(t.Context())
	must(t, err)
	own := world.Steal(t, edge)
	for name, want := range map[string]model.Subject{
		"edge":       {Role: model.RoleEdge, Node: own.Subject.Node, ID: tunnel.Spec.ID},
		"gateway-0":  {Role: model.RoleGateway, Node: "gateway-0"},
		"gateway-1":  {Role: model.RoleGateway, Node: "gateway-1"},
		"xds-server": model.ControlSubject(),
	} {
		stolen, err := outsider.Steal(domain, d.folders(edge)[name])
		must(t, err)
		leaf := stolen.Leaf
		if stolen.Subject != want || leaf.IsCA || len(leaf.IPAddresses)+len(leaf.EmailAddresses)+len(leaf.URIs) > 0 ||
			len(leaf.Subject.Names) != 1 {
			t.Errorf("%s: it says %s %v, CA %v; want %+v", name, leaf.Subject, leaf.DNSNames, leaf.IsCA, want)
		}
		if left := time.Until(leaf.NotAfter); left < 23*time.Hour || left > 24*time.Hour {
			t.Errorf("%s: it ends in %s", name, left)
		}
	}
}

func (d *doors) requests(t *testing.T) {
	clients, err := kubernetes.NewForConfig(d.Management.Config)
	must(t, err)
	requests, err := clients.CertificatesV1().CertificateSigningRequests().List(t.Context(), metav1.ListOptions{})
	must(t, err)
	seen := map[string]int{}
	for _, request := range requests.Items {
		seen[request.Spec.SignerName]++
		if want := "system:serviceaccount:" + lab.InstallationNamespace + ":xds-server"; request.Spec.Username != want {
			t.Errorf("%s was written by %s, want %s", request.Name, request.Spec.Username, want)
		}
		approved := slices.ContainsFunc(
			request.Status.Conditions,
			func(c certificatesv1.CertificateSigningRequestCondition) bool {
				return c.Type == certificatesv1.CertificateApproved
			},
		)
		if len(request.Status.Certificate) > 0 && !approved {
			t.Errorf("%s has a certificate without an approval", request.Name)
		}
	}
	for _, signer := range []string{v1alpha1.SignerEdge, v1alpha1.SignerGateway, v1alpha1.SignerControl} {
		if seen[signer] == 0 {
			t.Errorf("there is none of the signer %s: %v", signer, seen)
		}
	}
}

// caKey checks with the apiserver, for each account, whether it may read the Secrets of the CA.
func (d *doors) caKey(t *testing.T) {
	for account, want := range map[string]bool{"controller": true, "xds-server": false, "gateway": false} {
		kubeconfig, err := d.AccountKubeconfig(t.Context(), account)
		must(t, err)
		config, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig)
		must(t, err)
		config.Dial = d.Network.Management.DialContext
		for _, name := range []string{v1alpha1.CASecretName, v1alpha1.CAStateSecretName} {
			for _, verb := range []string{"get", "list", "watch"} {
				if got := canI(t, config, verb, name); got != want {
					t.Errorf("%s may %s the Secret %s: %v, want %v", account, verb, name, got, want)
				}
			}
		}
	}
}

func canI(t *testing.T, config *rest.Config, verb, secret string) bool {
	t.Helper()
	clients, err := kubernetes.NewForConfig(config)
	must(t, err)
	review, err := clients.AuthorizationV1().
		SelfSubjectAccessReviews().
		Create(t.Context(), &authorizationv1.SelfSubjectAccessReview{
			Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{
				Namespace: lab.InstallationNamespace, Verb: verb, Resource: "secrets", Name: secret,
			}},
		}, metav1.CreateOptions{})
	must(t, err)
	return review.Status.Allowed
}

// keyFiles returns the files with private keys in a folder, each by a characteristic line of its key.
func keyFiles(t *testing.T, dir string) map[string]string {
	t.Helper()
	found := map[string]string{}
	must(t, filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if _, key, ok := strings.Cut(string(data), "PRIVATE KEY-----\n"); ok {
			line, _, _ := strings.Cut(key, "\n")
			found[line] = path
		}
		return nil
	}))
	return found
}

// checkKeyFiles fails the test if other users can read a file with a key, or if there is no such file.
func checkKeyFiles(t *testing.T, dir string) {
	t.Helper()
	files := keyFiles(t, dir)
	for _, path := range files {
		info, err := os.Stat(path)
		must(t, err)
		if info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %s", path, info.Mode())
		}
	}
	if len(files) == 0 {
		t.Errorf("%s holds no key", dir)
	}
}

// keysDoNotLeave searches for each key in every file of the lab: other machines' folders, all logs, and the management
// cluster's etcd, which holds all objects.
func (d *doors) keysDoNotLeave(t *testing.T, edge *lab.Agent) {
	keys := map[string]string{}
	for _, dir := range d.folders(edge) {
		for line, path := range keyFiles(t, dir) {
			keys[line] = path
		}
	}
	caKey, err := d.ca.KeyPEM()
	must(t, err)
	caLine := strings.Split(string(caKey), "\n")[1]
	inEtcd, looked := 0, 0
	must(t, filepath.WalkDir(d.Dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return ignoreGone(err)
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return ignoreGone(err)
		}
		looked += len(data)
		for line, owner := range keys {
			if path != owner && bytes.Contains(data, []byte(line)) {
				t.Errorf("the key in %s is in %s too", owner, path)
			}
		}
		if strings.Contains(path, "/etcd-") && strings.Contains(path, "-management/") &&
			bytes.Contains(data, []byte(caLine)) {
			inEtcd++
		}
		return nil
	}))
	measured("key_search_mb", float64(looked)/1e6)
	if inEtcd == 0 {
		t.Error("not even the CA's key was found in etcd, where it is: this search would find nothing")
	}
}

func ignoreGone(err error) error {
	if os.IsNotExist(err) {
		return nil
	}
	return err
}
