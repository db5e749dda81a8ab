package cli

import (
	"errors"
	"os/exec"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/cli/join"
	"github.com/fairlead/fairlead/internal/eventually"
	"github.com/fairlead/fairlead/internal/kubetest"
)

func TestNetworkEgressPrintsEachForm(t *testing.T) {
	p := newPerson(t)
	for form, want := range map[string][]string{
		"kamaji":    {"kind: KamajiControlPlane", "kind: TenantControlPlane", "kind: ConfigMap"},
		"kubeadm":   {"kind: KubeadmControlPlane", "kube-apiserver0+strategic.yaml"},
		"k0smotron": {"kind: K0smotronControlPlane", "--disable-components=konnectivity-server"},
		"files":     {"--egress-selector-config-file=", "url: https://gateway.t.example.com:443"},
	} {
		out := p.must(
			t, append(want, "c1.egress-edge-bootstrap", "image: registry.example.com/edge:v1", "enable-aggregator-routing"),
			"network", "egress", "-n", "prod", "c1", "--for="+form, "--image=registry.example.com/edge:v1",
			"--gateway-url=https://gateway.t.example.com:443",
		)
		if strings.Contains(out, "fl1.") {
			t.Errorf("%s: it has a token", form)
		}
	}
}

func TestNetworkListShowsWhatIsWrong(t *testing.T) {
	p := newPerson(t)
	namespace := kubetest.NewNamespace(t, p)
	network := &v1alpha1.RemoteNetwork{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "oslo"},
		Spec:       v1alpha1.RemoteNetworkSpec{ClusterName: "c1", CIDRs: []string{"10.1.0.0/16"}},
	}
	if err := p.Create(t.Context(), network); err != nil {
		t.Fatal(err)
	}
	eventually.True(t, 30*time.Second, "the list has the controller's reason", func() error {
		out, err := p.does(t, "network", "list", "-n", namespace)
		if err == nil && !strings.Contains(out, "there is no Cluster c1") {
			err = errors.New(out)
		}
		return err
	})
	p.must(t, []string{"10.1.0.0/16"}, "network", "list", "-n", namespace, "-o", "wide")
	p.must(t, []string{`"cluster": "c1"`}, "network", "list", "-n", namespace, "-o", "json")
	p.must(t, []string{"there is no RemoteNetwork"}, "network", "list", "-n", kubetest.NewNamespace(t, p))
}

// TestEveryFormOfANetworkIsACommand: a shell reads it, and its edge listens only if it is asked to.
func TestEveryFormOfANetworkIsACommand(t *testing.T) {
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "oslo.network-edge-bootstrap"},
		Data: map[string][]byte{
			v1alpha1.BootstrapFileKey:    []byte("id: abc\ntoken: fl1.abc\n"),
			v1alpha1.BootstrapCommandKey: []byte("umask 077\nedge-agent run --bootstrap /etc/fairlead/bootstrap.yaml\n"),
		},
	}
	for form, write := range join.NetworkForms {
		for _, listen := range []string{"10.1.0.1:6443", ""} {
			text, err := write(secret, "registry.example.com/edge:v1", listen, map[string]string{"site": "oslo"})
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.Contains(text, "--apiserver-listen="+listen) && listen != ""; got != (listen != "") {
				t.Errorf("%s at %q: %s", form, listen, text)
			}
			if strings.Contains(text, "--local-apiserver") || strings.Contains(text, "image: fairlead-edge\n") {
				t.Errorf("%s: %s", form, text)
			}
			for _, name := range []string{"\n  name: \"oslo\"\n", "secretName: oslo-bootstrap", `nodeSelector: {site: "oslo"}`} {
				if got := strings.Contains(text, name); got != (form == "daemonset") {
					t.Errorf("%s: %q is %v: %s", form, name, got, text)
				}
			}
			check := exec.CommandContext(t.Context(), "sh", "-n")
			check.Stdin = strings.NewReader(text)
			if out, err := check.CombinedOutput(); err != nil {
				t.Errorf("%s: no shell reads it: %v: %s", form, err, out)
			}
		}
	}
}
