package webhook

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	jsonpatch "github.com/evanphx/json-patch/v5"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/controller/controllertest"
	"github.com/fairlead/fairlead/pkg/kubeconfig"
)

// stored are objects as a cache has them.
type stored []client.Object

// Get implements client.Reader.
func (s stored) Get(_ context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	for _, o := range s {
		if client.ObjectKeyFromObject(o) != key || fmt.Sprintf("%T", o) != fmt.Sprintf("%T", into) {
			continue
		}
		data, err := json.Marshal(o)
		if err != nil {
			return err
		}
		return json.Unmarshal(data, into)
	}
	return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
}

// List implements client.Reader. The webhook lists nothing.
func (stored) List(context.Context, client.ObjectList, ...client.ListOption) error {
	return errors.ErrUnsupported
}

// fuzzObjects are a Cluster c1 with a tunnel, and a Cluster c2 with a proxy and credentials.
func fuzzObjects() stored {
	var all stored
	for _, name := range []string{"c1", "c2"} {
		cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "prod", Name: name, UID: "u"}}
		tunnel := &v1alpha1.Tunnel{ObjectMeta: metav1.ObjectMeta{
			Namespace: "prod", Name: name,
			OwnerReferences: []metav1.OwnerReference{
				*metav1.NewControllerRef(cluster, clusterv1.GroupVersion.WithKind("Cluster")),
			},
		}}
		tunnel.Status.Hostname = name + ".prod.tunnels.example.com"
		tunnel.Status.Kubeconfig = v1alpha1.KubeconfigStatus{
			Mode: v1alpha1.KubeconfigModeSNI, Server: "https://10.1.1.1:6443", TLSServerName: tunnel.Status.Hostname,
		}
		if name == "c2" {
			tunnel.Spec.Kubeconfig = v1alpha1.KubeconfigSpec{
				Mode:  v1alpha1.KubeconfigModeHTTPProxy,
				Proxy: &v1alpha1.ProxySpec{Address: "proxy.example.com:3128", CredentialsSecret: "proxy"},
			}
			tunnel.Status.Kubeconfig = v1alpha1.KubeconfigStatus{
				Mode: v1alpha1.KubeconfigModeHTTPProxy, ProxyURL: "http://proxy.example.com:3128",
			}
		}
		all = append(all, cluster, tunnel)
	}
	return append(all, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "prod", Name: "proxy"}, Type: corev1.SecretTypeBasicAuth,
		Data: map[string][]byte{corev1.BasicAuthUsernameKey: []byte("user"), corev1.BasicAuthPasswordKey: []byte("hunter2")},
	})
}

// fuzzReview returns a seed: what an apiserver sends for a Secret.
func fuzzReview(
	f *testing.F, cluster, kubeconfigText string, annotations map[string]string, old *corev1.Secret,
) []byte {
	f.Helper()
	secret := corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "prod", Name: cluster + kubeconfig.Suffix,
			Labels: map[string]string{clusterv1.ClusterNameLabel: cluster}, Annotations: annotations,
		},
		Data: map[string][]byte{kubeconfig.Key: []byte(kubeconfigText)},
	}
	raw, err := json.Marshal(secret)
	if err != nil {
		f.Fatal(err)
	}
	request := &admissionv1.AdmissionRequest{
		UID: "1", Namespace: "prod", Name: secret.Name, Operation: admissionv1.Create, Object: runtime.RawExtension{Raw: raw},
	}
	if old != nil {
		request.Operation = admissionv1.Update
		if request.OldObject.Raw, err = json.Marshal(old); err != nil {
			f.Fatal(err)
		}
	}
	data, err := json.Marshal(admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"}, Request: request,
	})
	if err != nil {
		f.Fatal(err)
	}
	return data
}

const fuzzKubeconfig = `apiVersion: v1
kind: Config
clusters: [{name: c1, cluster: {server: "https://192.0.2.1:6443"}}, {name: c2, cluster: {server: "https://192.0.2.2:6443"}}]
`

// FuzzWebhook sends reviews to the webhook, as any client of its port can. It must reject no Secret, its patches must
// apply and change only our fields, and no answer may contain a proxy credential that was not in the request.
func FuzzWebhook(f *testing.F) {
	f.Add(fuzzReview(f, "c1", fuzzKubeconfig, nil, nil))
	f.Add(fuzzReview(f, "c2", fuzzKubeconfig, map[string]string{v1alpha1.WrittenServerAnnotation: "x"}, nil))
	f.Add(fuzzReview(
		f, "c2", fuzzKubeconfig, nil,
		&corev1.Secret{
			Data: map[string][]byte{
				kubeconfig.Key: []byte(strings.ReplaceAll(fuzzKubeconfig, "server:", "proxy-url: 'http://u:p@h:1', server:")),
			},
		},
	))
	f.Add([]byte(
		`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"object":{"metadata":{"name":"c1-kubeconfig","labels":{"cluster.x-k8s.io/cluster-name":""}},"data":null}}}`,
	))
	f.Add([]byte(`{"request":null}`))
	objects := fuzzObjects()
	var hook http.Handler = &webhook.Admission{
		Handler: &kubeconfigWebhook{config: controllertest.Config(), client: objects, log: slog.New(slog.DiscardHandler)},
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		request := httptest.NewRequestWithContext(t.Context(), http.MethodPost, Path, bytes.NewReader(body))
		request.Header.Set("Content-Type", "application/json")
		recorder := httptest.NewRecorder()
		hook.ServeHTTP(recorder, request)
		answer := recorder.Body.Bytes()
		var got, asked admissionv1.AdmissionReview
		if err := json.Unmarshal(answer, &got); err != nil || got.Response == nil {
			t.Fatalf("the answer is %.200q: %v", answer, err)
		}
		if len(got.Response.Patch) == 0 {
			return
		}
		if err := json.Unmarshal(body, &asked); err != nil || asked.Request == nil {
			t.Fatalf("an answer with a patch for no request: %v", err)
		}
		checkPatch(t, asked.Request, got.Response.Patch)
	})
}

// checkPatch applies a patch. It fails the test if the patch does not apply, changes fields that are not ours, or adds
// the password of the proxy.
func checkPatch(t *testing.T, asked *admissionv1.AdmissionRequest, patch []byte) {
	t.Helper()
	operations, err := jsonpatch.DecodePatch(patch)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range operations {
		if path, err := o.Path(); err != nil ||
			!strings.HasPrefix(path, "/metadata/annotations") && !strings.HasPrefix(path, "/data/") {
			t.Errorf("it changes %q, %v", path, err)
		}
	}
	// An apiserver sends objects that it has decoded and encoded again.
	var before, after, old corev1.Secret
	_ = json.Unmarshal(asked.OldObject.Raw, &old) // there may be none
	if err := json.Unmarshal(asked.Object.Raw, &before); err != nil {
		t.Fatal(err)
	}
	canonical, err := json.Marshal(before)
	if err != nil {
		t.Fatal(err)
	}
	patched, err := operations.Apply(canonical)
	if err != nil {
		t.Fatalf("it can't be applied: %v: %s", err, patch)
	}
	if err := json.Unmarshal(patched, &after); err != nil {
		t.Fatal(err)
	}
	if holds(after) && !holds(before) && !holds(old) {
		t.Error("the Secret holds a password that its writer did not have")
	}
}

// holds reports whether the password of the proxy is in a Secret.
func holds(secret corev1.Secret) bool {
	for _, value := range secret.Data {
		if bytes.Contains(value, []byte("hunter2")) {
			return true
		}
	}
	return strings.Contains(fmt.Sprint(secret.Annotations), "hunter2")
}
