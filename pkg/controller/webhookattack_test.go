package controller

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/kubetest"
	"github.com/fairlead/fairlead/pkg/controller/controllertest"
	"github.com/fairlead/fairlead/pkg/controller/webhook"
	"github.com/fairlead/fairlead/pkg/kubeconfig"
)

const proxyPassword = "hunter2"

// proxiedCluster has a kubeconfig that uses a proxy with credentials, in a namespace for which the webhook is called.
func proxiedCluster(t *testing.T, m *management) *clusterv1.Cluster {
	t.Helper()
	cluster := kubetest.Cluster(labelledNamespace(t, m, "yes"), "c1")
	tunnel := controllertest.TunnelNamed(cluster)
	tunnel.Spec.Kubeconfig = v1alpha1.KubeconfigSpec{
		Mode:  v1alpha1.KubeconfigModeSOCKS5,
		Proxy: &v1alpha1.ProxySpec{Address: "proxy.example.org:1080", CredentialsSecret: "proxy"},
	}
	controllertest.Create(t, m, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: cluster.Namespace, Name: "proxy"}, Type: corev1.SecretTypeBasicAuth,
		StringData: map[string]string{corev1.BasicAuthUsernameKey: "capi", corev1.BasicAuthPasswordKey: proxyPassword},
	}, tunnel, cluster, controllertest.KubeconfigSecret(t, cluster.Namespace, "c1", controllertest.OriginalServer))
	waitCondition(t, m, cluster, v1alpha1.ConditionKubeconfigReady, v1alpha1.ReasonRewritten)
	return cluster
}

// review sends an AdmissionReview to the webhook's port without any certificate, and returns the patch in the answer.
func review(t *testing.T, operation admissionv1.Operation, object, old *corev1.Secret) string {
	t.Helper()
	raw := func(secret *corev1.Secret) runtime.RawExtension {
		if secret == nil {
			return runtime.RawExtension{}
		}
		data, err := json.Marshal(secret)
		if err != nil {
			t.Fatal(err)
		}
		return runtime.RawExtension{Raw: data}
	}
	body, err := json.Marshal(admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"},
		Request: &admissionv1.AdmissionRequest{
			UID: types.UID("forged"), Operation: operation, Namespace: object.Namespace, Name: object.Name, Object: raw(object),
			OldObject: raw(old),
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(
		ctx, http.MethodPost, "https://"+replicasWebhook+webhook.Path, bytes.NewReader(body),
	)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	// an attacker verifies nothing
	caller := http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	response, err := caller.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	var reviewed admissionv1.AdmissionReview
	if err := json.Unmarshal(answer, &reviewed); err != nil || reviewed.Response == nil || !reviewed.Response.Allowed {
		t.Fatalf("answer %s: %v", answer, err)
	}
	return string(answer) + decodedPatch(t, reviewed.Response.Patch)
}

// decodedPatch is a JSON patch that writes the data of a Secret.
func decodedPatch(t *testing.T, patch []byte) string {
	t.Helper()
	if len(patch) == 0 {
		return ""
	}
	var operations []struct {
		Path  string `json:"path"`
		Value any    `json:"value"`
	}
	if err := json.Unmarshal(patch, &operations); err != nil {
		t.Fatal(err)
	}
	out := string(patch)
	for _, o := range operations {
		if text, ok := o.Value.(string); ok && strings.HasPrefix(o.Path, "/data/") {
			out += string(decode64(t, text))
		}
	}
	return out
}

func decode64(t *testing.T, text string) []byte {
	t.Helper()
	var out []byte
	if err := json.Unmarshal([]byte(`"`+text+`"`), &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// withProxy returns a kubeconfig Secret that already uses a proxy-url.
func withProxy(t *testing.T, namespace, proxyURL string) *corev1.Secret {
	t.Helper()
	secret := controllertest.KubeconfigSecret(t, namespace, "c1", controllertest.OriginalServer)
	secret.Data = map[string][]byte{kubeconfig.Key: []byte(strings.ReplaceAll(string(secret.Data[kubeconfig.Key]),
		"server: "+controllertest.OriginalServer, "server: "+controllertest.OriginalServer+"\n    proxy-url: "+proxyURL))}
	if got := controllertest.EntryOf(t, secret).ProxyURL; got != proxyURL {
		t.Fatalf("the Secret of the test has the proxy %q", got)
	}
	return secret
}

// TestTheWebhookDisclosesNoCredentials sends hand-made requests to the webhook's port, as any Pod can.
func TestTheWebhookDisclosesNoCredentials(t *testing.T) {
	m := apiserver(t)
	startReplica(t, m)
	ns := proxiedCluster(t, m).Namespace
	plain := func() *corev1.Secret {
		return controllertest.KubeconfigSecret(t, ns, "c1", controllertest.OriginalServer)
	}
	attacks := map[string]struct {
		operation   admissionv1.Operation
		object, old *corev1.Secret
	}{
		"CREATE":                       {admissionv1.Create, plain(), nil},
		"UPDATE without credentials":   {admissionv1.Update, plain(), plain()},
		"UPDATE without an old object": {admissionv1.Update, plain(), nil},
		"UPDATE with the proxy alone": {
			admissionv1.Update, plain(), withProxy(t, ns, "socks5://proxy.example.org:1080"),
		},
		"UPDATE with another's credentials": {
			admissionv1.Update, plain(), withProxy(t, ns, "socks5://me:mine@proxy.example.org:1080"),
		},
		"UPDATE with another proxy": {
			admissionv1.Update, plain(), withProxy(t, ns, "socks5://me:mine@evil.example.org:1080"),
		},
		"CREATE with another mode's proxy-url": {admissionv1.Create, withProxy(t, ns, "http://proxy.example.org:1080"), nil},
	}
	for name, attack := range attacks {
		answer := review(t, attack.operation, attack.object, attack.old)
		if !strings.Contains(answer, "socks5://") {
			t.Errorf("%s: the webhook does not answer for this Cluster, so this proves nothing: %s", name, answer)
		}
		if strings.Contains(answer, proxyPassword) || strings.Contains(answer, "capi:") {
			t.Errorf("%s: the answer has the proxy's credentials", name)
		}
	}
	// The credentials that the caller has sent for the same proxy stay, so a provider that writes the Secret again changes
	// nothing.
	known := withProxy(t, ns, "socks5://capi:"+proxyPassword+"@proxy.example.org:1080")
	if answer := review(
		t, admissionv1.Update, plain(), known,
	); !strings.Contains(answer, "socks5://capi:"+proxyPassword+"@") {
		t.Errorf("the credentials that the old object has are lost: %s", answer)
	}
}

// TestTheControllerAddsCredentialsToANewKubeconfig, which the webhook does not have. Until then it uses the proxy
// without them, and never bypasses it.
func TestTheControllerAddsCredentialsToANewKubeconfig(t *testing.T) {
	m := apiserver(t)
	startReplica(t, m)
	cluster := proxiedCluster(t, m)
	secret := controllertest.KubeconfigSecret(t, cluster.Namespace, "c1", controllertest.OriginalServer)
	if err := m.Delete(t.Context(), secret.DeepCopy()); err != nil {
		t.Fatal(err)
	}
	controllertest.WaitGone(t, m, secret)
	controllertest.Create(t, m, secret)
	if got := controllertest.EntryOf(t, secret).ProxyURL; got != "socks5://proxy.example.org:1080" {
		t.Errorf("the version that was created leads by %q", got)
	}
	began := time.Now()
	waitEndpoint(
		t, m, cluster,
		kubeconfig.Endpoint{
			Server: controllertest.OriginalServer, ProxyURL: "socks5://capi:" + proxyPassword + "@proxy.example.org:1080",
		},
	)
	t.Logf("the controller added the credentials within %s", time.Since(began))
}
