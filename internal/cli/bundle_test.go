package cli

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/kubetest"
	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/enrol"
)

// plants holds secrets of every kind. The test searches the bundle for each of their forms.
type plants struct{ all map[string]string }

func (p *plants) put(what, secret string) string {
	p.all[what] = secret
	return secret
}

// found returns the planted secrets that a text contains, as they are or in base64.
func (p *plants) found(text string) (all []string) {
	for what, secret := range p.all {
		for _, form := range []string{
			secret, base64.StdEncoding.EncodeToString([]byte(secret)),
			base64.RawURLEncoding.EncodeToString([]byte(secret)),
		} {
			if strings.Contains(text, form) {
				all = append(all, what)
			}
		}
	}
	return all
}

// keyLines returns a private key. It plants the key and a line from its middle, which must not leak either.
func keyLines(t *testing.T, p *plants) (pem string) {
	t.Helper()
	key, err := certs.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	ca, err := certs.NewCA("x", time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	chain, err := ca.Issue(
		key.Public(),
		certs.Leaf{
			CommonName: "x",
			DNSNames:   []string{"x"},
			Server:     true,
			NotBefore:  time.Now(),
			NotAfter:   time.Now().Add(time.Hour),
		},
	)
	if err != nil {
		t.Fatal(err)
	}
	identity, err := certs.NewIdentity(chain, key)
	if err != nil {
		t.Fatal(err)
	}
	text, err := identity.KeyPEM()
	if err != nil {
		t.Fatal(err)
	}
	p.put("a line of a private key", strings.Split(string(text), "\n")[1])
	return string(text)
}

// TestSupportBundleHasNoSecrets plants secrets wherever users and programs leave them, and searches the bundle for
// them.
func TestSupportBundleHasNoSecrets(t *testing.T) {
	p := newPerson(t)
	secrets := &plants{map[string]string{}}
	pem := keyLines(t, secrets)
	key := serve(t, p, edgeStatus("edge-a", v1alpha1.EdgeGatewayStatus{Name: "gateway-0", Tunnels: 2}))
	lastApplied := fmt.Sprintf(
		`{"data":{"x":%q}}`,
		base64.StdEncoding.EncodeToString([]byte(secrets.put("last-applied of a Secret", "applied-hunter2"))),
	)
	create := func(o client.Object) {
		t.Helper()
		if err := p.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	for _, namespace := range []string{key.Namespace, "fairlead-system"} {
		create(&corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "fairlead-", Namespace: namespace, Annotations: map[string]string{
				"kubectl.kubernetes.io/last-applied-configuration": lastApplied, "example.com/note": secrets.put(
					"an annotation of somebody's", "blue-canary"),
			}, Labels: map[string]string{"fairlead.dev/x": "y"}},
			Data: map[string][]byte{"value": []byte(secrets.put("data of a Secret", "data-hunter2")), "tls.key": []byte(pem)},
		})
	}
	tunnel := &v1alpha1.Tunnel{}
	token := secrets.put("a bootstrap token of ours", "fl1.abcdefghijklmnop234567abcdefghijklmnop")
	setStatus(t, p, key, func(s *v1alpha1.TunnelStatus) {
		s.Edges[0].LastError = "dialling https://me:" + secrets.put(
			"a password in a URL", "url-hunter2",
		) + "@proxy:3128 with Authorization: Basic " + secrets.put("a header", "aGVhZGVyLWh1bnRlcjI=")
		s.Edges[0].TokenSHA256 = secrets.put("the hash of a token", enrol.HashToken(token))
	})
	kubetest.Eventually(t, "the Tunnel is written", func() error {
		if err := p.Get(t.Context(), key, tunnel); err != nil {
			return err
		}
		tunnel.Annotations = map[string]string{
			"kubectl.kubernetes.io/last-applied-configuration": secrets.put("last-applied of a Tunnel", "tunnel-hunter2"),
		}
		tunnel.Spec.Kubeconfig.Copies = []v1alpha1.KubeconfigCopy{{Name: "people", Exec: &v1alpha1.ExecAudience{
			Command: "login", Args: []string{"--client-secret", secrets.put("an argument of a login program", "arg-hunter2")},
			Env: []v1alpha1.ExecEnv{{Name: "COLOUR", Value: secrets.put("a variable of a login program", "mauve-hunter2")}},
		}}}
		return p.Update(t.Context(), tunnel)
	})
	create(
		&corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "fairlead-", Namespace: "fairlead-system"},
			Data: map[string]string{
				"gateway-token-sha256": secrets.put(
					"the hash of the gateway token", enrol.HashToken("gateway"),
				), "kubeconfig": "users:\n- user:\n    token: " + secrets.put("a token in a kubeconfig", "kube-hunter2") + "\n",
				"notes": "client-key-data: " + secrets.put(
					"a key in a kubeconfig", base64.StdEncoding.EncodeToString([]byte("key-hunter2")),
				),
			},
		},
	)
	create(&corev1.Event{
		ObjectMeta: metav1.ObjectMeta{
			GenerateName: "e-",
			Namespace:    key.Namespace,
		}, InvolvedObject: corev1.ObjectReference{Kind: "Tunnel", Namespace: key.Namespace, Name: key.Name},
		Reason: "X", Message: "refused: Bearer " + secrets.put("a bearer token", "bearer-hunter2-bearer"), Type: "Warning",
	})
	logged := "starting\n" + pem + `{"msg":"enrolled","token":"` + secrets.put(
		"a token in a log", "log-hunter2",
	) + `","jwt":"` + secrets.put(
		"a JWT in a log", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJodW50ZXIyIn0.c2lnbmF0dXJl",
	) + "\"}\n" + token + "\nready\n"
	loggingPod(t, p, logged, secrets.put("a variable of a Pod", "env-hunter2"))

	file := filepath.Join(t.TempDir(), "bundle.tar.gz")
	out := p.must(t, []string{file + " has "}, "support-bundle", "--file", file)
	info, err := os.Stat(file)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("%v, %v", err, info.Mode())
	}
	files := unpack(t, file)
	for name, text := range files {
		for _, what := range secrets.found(text) {
			t.Errorf("%s has %s", name, what)
		}
	}
	if found := secrets.found(out); found != nil {
		t.Errorf("it prints %v", found)
	}
	for name, want := range map[string]string{
		"versions.yaml": "gitVersion", "objects/tunnels.yaml": key.Namespace, "objects/clusters.yaml": key.Namespace,
		"objects/secrets.yaml": "name: fairlead-", "objects/events.yaml": "refused: ",
		"installation/configmaps.yaml": v1alpha1.InstallationConfigMapName, "installation/pods.yaml": "name: COLOUR",
		"status.txt": key.Namespace, "status.json": `"gateway-0"`, "check.json": `"hops"`,
		"logs/xds-server-x.main.log": "ready", "README.txt": "removed",
	} {
		if !strings.Contains(files[name], want) {
			t.Errorf("%s is without %q:\n%.2000s", name, want, files[name])
		}
	}
	// What cannot be gathered is listed with the reason.
	for _, want := range []string{"config-sync.txt: ", "Not in it:"} {
		if !strings.Contains(files["README.txt"], want) {
			t.Errorf("README.txt is without %q:\n%s", want, files["README.txt"])
		}
	}
	p.mustNot(t, "exists: use another --file", "support-bundle", "--file", file)
	p.must(t, nil, "support-bundle", "--file", file, "--overwrite", "-n", key.Namespace, "--no-checks", "--no-logs")
}

// loggingPod makes a Pod of the installation on a node whose kubelet has a log of the Pod.
func loggingPod(t *testing.T, p *person, log, env string) {
	t.Helper()
	kubelet := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasPrefix(r.URL.Path, "/containerLogs/fairlead-system/xds-server-x/") {
			http.NotFound(w, r)
			return
		}
		_, _ = io.WriteString(w, log)
	}))
	t.Cleanup(kubelet.Close)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{GenerateName: "logs-"}}
	if err := p.Create(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "127.0.0.1"}}
	node.Status.DaemonEndpoints.KubeletEndpoint.Port = int32(kubelet.Listener.Addr().(*net.TCPAddr).Port)
	if err := p.Status().Update(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "fairlead-system", Name: "default"}}
	if err := p.Create(t.Context(), account); client.IgnoreAlreadyExists(err) != nil {
		t.Fatal(err)
	}
	restricted := &corev1.SecurityContext{
		AllowPrivilegeEscalation: new(
			bool,
		), RunAsNonRoot: ptr.To(true), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "fairlead-system", Name: "xds-server-x"},
		Spec: corev1.PodSpec{
			NodeName: node.Name,
			Containers: []corev1.Container{
				{Name: "main", Image: "none", Env: []corev1.EnvVar{{Name: "COLOUR", Value: env}}, SecurityContext: restricted},
			},
		},
	}
	if err := p.Create(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Delete(context.Background(), pod, client.GracePeriodSeconds(0)) })
}

// unpack reads a bundle, and removes its top folder from the names of files.
func unpack(t *testing.T, path string) map[string]string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	packed, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for r := tar.NewReader(packed); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		_, name, _ := strings.Cut(header.Name, "/")
		files[name] = string(text)
	}
}
