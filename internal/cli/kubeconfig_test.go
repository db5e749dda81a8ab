package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/kubetest"
	"github.com/fairlead/fairlead/pkg/certs"
)

// provides writes the kubeconfig Secret of a Cluster like its control-plane provider, and waits until the controller
// has processed it.
func provides(t *testing.T, p *person, key client.ObjectKey, until time.Time, change ...func(*clientcmdapi.Config)) {
	t.Helper()
	ca, err := certs.NewCA("kubernetes", time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	leafKey, err := certs.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := ca.Issue(
		leafKey.Public(),
		certs.Leaf{
			CommonName: "kubernetes-admin",
			DNSNames:   []string{"admin"},
			Client:     true,
			NotBefore:  until.Add(-time.Hour),
			NotAfter:   until,
		},
	)
	if err != nil {
		t.Fatal(err)
	}
	config := clientcmdapi.NewConfig()
	config.Clusters["c1"] = &clientcmdapi.Cluster{
		Server:                   "https://192.0.2.10:6443",
		CertificateAuthorityData: ca.CertPEM(),
	}
	config.AuthInfos["admin"] = &clientcmdapi.AuthInfo{ClientCertificateData: leaf, ClientKeyData: []byte("key")}
	config.Contexts["admin@c1"] = &clientcmdapi.Context{Cluster: "c1", AuthInfo: "admin"}
	config.CurrentContext = "admin@c1"
	for _, c := range change {
		c(config)
	}
	data, err := clientcmd.Write(*config)
	if err != nil {
		t.Fatal(err)
	}
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: key.Namespace,
			Name:      key.Name + "-kubeconfig",
			Labels:    map[string]string{clusterv1.ClusterNameLabel: key.Name},
		},
		Type: clusterv1.ClusterSecretType, Data: map[string][]byte{"value": data},
	}
	if err := p.Create(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	waitCondition(t, p, key, v1alpha1.ConditionKubeconfigReady, v1alpha1.ReasonRewritten)
}

func TestKubeconfig(t *testing.T) {
	p := newPerson(t)
	key := serve(t, p)
	waitCondition(t, p, key, v1alpha1.ConditionKubeconfigReady, v1alpha1.ReasonWaitingForSecret)
	p.mustNot(t, "does not use Fairlead: Secret c1-kubeconfig", "kubeconfig", "-n", key.Namespace, "c1", "--via=address")
	provides(t, p, key, time.Now().Add(time.Hour))
	name := "c1." + key.Namespace
	config, err := clientcmd.Load([]byte(p.must(t, nil, "kubeconfig", "-n", key.Namespace, "c1", "--via=address")))
	if err != nil {
		t.Fatal(err)
	}
	if c := config.Clusters[name]; config.CurrentContext != name || c == nil ||
		c.Server != "https://"+name+".tunnels.example.com:6443" ||
		c.ProxyURL != "http://10.1.1.1:3128" {
		t.Errorf("%s: %+v", config.CurrentContext, c)
	}

	// Merging into an existing file, through a link, keeps the other contexts and sets the mode to 0600.
	dir := t.TempDir()
	file, link := filepath.Join(dir, "config"), filepath.Join(dir, "link")
	data, err := os.ReadFile(p.kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, data, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(file, link); err != nil {
		t.Fatal(err)
	}
	merge := func(more ...string) []string {
		return append([]string{"kubeconfig", "-n", key.Namespace, "c1", "--via=address", "--merge", link}, more...)
	}
	p.must(t, []string{"context " + name + " is in"}, merge()...)
	p.must(t, nil, merge()...) // merging again changes nothing
	merged, err := clientcmd.LoadFromFile(file)
	if info, _ := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 || merged.CurrentContext != "other" ||
		merged.Contexts["good"] == nil ||
		merged.Contexts[name] == nil {
		t.Errorf("%v, %v: %+v", err, info.Mode(), merged)
	}
	if info, err := os.Lstat(link); err != nil || info.Mode()&os.ModeSymlink == 0 {
		t.Errorf("the link is gone: %v", err)
	}
	p.must(t, nil, merge("--use")...)
	if merged, _ = clientcmd.LoadFromFile(file); merged.CurrentContext != name {
		t.Errorf("current is %s", merged.CurrentContext)
	}
	p.mustNot(t, "use --context-name or --replace", merge("--context-name=m")...)
	p.mustNot(t, "of something else", merge("--context-name=good")...)
	p.must(t, nil, merge("--context-name=m", "--replace")...)
	if err := os.WriteFile(file, []byte("{ hunter2"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := p.does(t, merge()...); err == nil || !strings.Contains(err.Error(), "is not a kubeconfig") ||
		strings.Contains(err.Error(), "hunter2") {
		t.Errorf("garbage: %v", err)
	}
	if err := os.WriteFile(file+".lock", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	p.mustNot(t, "is locked by another process", merge()...)
}

func TestKubeconfigRejects(t *testing.T) {
	p := newPerson(t)
	p.mustNot(t, "Tunnel c9 not found", "kubeconfig", "-n", kubetest.NewNamespace(t, p), "c9")
	for want, change := range map[string]func(*clientcmdapi.Config){
		"insecure-skip-tls-verify": func(c *clientcmdapi.Config) {
			c.Clusters["c1"].InsecureSkipTLSVerify, c.Clusters["c1"].CertificateAuthorityData = true, nil
		},
		"has no CA certificate": func(c *clientcmdapi.Config) { c.Clusters["c1"].CertificateAuthorityData = []byte("x") },
		"--allow-exec": func(c *clientcmdapi.Config) {
			c.AuthInfos["admin"] = &clientcmdapi.AuthInfo{Exec: &clientcmdapi.ExecConfig{
				Command:    "evil",
				APIVersion: "client.authentication.k8s.io/v1", InteractiveMode: clientcmdapi.NeverExecInteractiveMode,
			}}
		},
		"client-key: it is of use on one machine only": func(c *clientcmdapi.Config) {
			c.AuthInfos["admin"].ClientKey, c.AuthInfos["admin"].ClientKeyData = "/etc/passwd", nil
		},
	} {
		key := serve(t, p)
		provides(t, p, key, time.Now().Add(time.Hour), change)
		p.mustNot(t, want, "kubeconfig", "-n", key.Namespace, "c1", "--via=address")
		if want == "--allow-exec" {
			p.must(t, []string{"command: evil"}, "kubeconfig", "-n", key.Namespace, "c1", "--via=address", "--allow-exec")
		}
	}
	key := serve(t, p)
	provides(t, p, key, time.Now().Add(-time.Minute))
	p.mustNot(t, "its client certificate expired", "kubeconfig", "-n", key.Namespace, "c1", "--via=address")
	p.mustNot(t, "has no copies", "kubeconfig", "-n", key.Namespace, "c1", "--via=address", "--copy", "x")
	var stdout, stderr strings.Builder
	if code := run(t.Context(), []string{"status", "-n", key.Namespace, "c1", "--live=false", "--kubeconfig=" +
		p.kubeconfig, "--context=good"}, &stdout, &stderr); code != 1 ||
		!strings.Contains(stdout.String(), "CertificateEnded") {
		t.Errorf("exit code %d, %s\n%s", code, stderr.String(), stdout.String())
	}
}
