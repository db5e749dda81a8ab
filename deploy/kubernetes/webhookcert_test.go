package kubernetes_test

import (
	"slices"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// of converts the object of a kind and a name, and takes no field that the type does not have.
func of[T any](t *testing.T, built []*unstructured.Unstructured, kind, name string) (into T) {
	t.Helper()
	for _, o := range built {
		if o.GetKind() != kind || o.GetName() != name {
			continue
		}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(o.Object, &into, true); err != nil {
			t.Fatalf("%s %s: %v", kind, name, err)
		}
		return into
	}
	t.Fatalf("there is no %s %s", kind, name)
	return into
}

// field reads a text of an object of cert-manager's.
func field(t *testing.T, built []*unstructured.Unstructured, kind, name string, path ...string) string {
	t.Helper()
	for _, o := range built {
		if o.GetKind() == kind && o.GetName() == name {
			text, _, err := unstructured.NestedString(o.Object, path...)
			if err != nil {
				t.Fatal(err)
			}
			return text
		}
	}
	t.Fatalf("there is no %s %s", kind, name)
	return ""
}

// TestCertManagerMayKeepTheCertificateOfTheWebhook proves that the parts of the component fit together: the
// controller reads the files of the Secret that cert-manager writes, apiservers call by the name in it and get its
// CA, and the controller may not write that any more. What cert-manager does not define is applied to a real
// kube-apiserver.
func TestCertManagerMayKeepTheCertificateOfTheWebhook(t *testing.T) {
	admin := apiserver(t)
	built := withComponent(t, "webhook-cert-manager")
	for _, o := range built {
		if o.GroupVersionKind().Group == "cert-manager.io" {
			continue
		}
		if err := admin.Apply(
			t.Context(), client.ApplyConfigurationFromUnstructured(o.DeepCopy()), client.FieldOwner("webhook"),
			client.ForceOwnership, client.DryRunAll,
		); err != nil {
			t.Errorf("applying %s %s: %v", o.GetKind(), o.GetName(), err)
		}
	}
	hooks := of[admissionv1.MutatingWebhookConfiguration](t, built, "MutatingWebhookConfiguration", "fairlead-kubeconfigs")
	if got := hooks.Annotations["cert-manager.io/inject-ca-from"]; got != "fairlead-system/fairlead-webhook" {
		t.Errorf("the CA comes from %q", got)
	}
	service := hooks.Webhooks[0].ClientConfig.Service
	var names []string
	for _, o := range built {
		if o.GetKind() == "Certificate" && o.GetName() == "fairlead-webhook" {
			names, _, _ = unstructured.NestedStringSlice(o.Object, "spec", "dnsNames")
		}
	}
	if want := service.Name + "." + service.Namespace + ".svc"; !slices.Contains(names, want) {
		t.Errorf("the certificate has the names %v, apiservers call %s", names, want)
	}
	pod := of[appsv1.Deployment](t, built, "Deployment", "controller").Spec.Template.Spec
	secret := field(t, built, "Certificate", "fairlead-webhook", "spec", "secretName")
	if len(pod.Volumes) != 1 || pod.Volumes[0].Secret == nil || pod.Volumes[0].Secret.SecretName != secret {
		t.Errorf("the volumes are %+v, the Secret is %s", pod.Volumes, secret)
	}
	mounts := pod.Containers[0].VolumeMounts
	if len(mounts) != 1 || !mounts[0].ReadOnly ||
		!slices.Contains(pod.Containers[0].Args, "--webhook-cert-dir="+mounts[0].MountPath) {
		t.Errorf("the mounts are %+v, the flags %v", mounts, pod.Containers[0].Args)
	}
	if ca := field(
		t, built, "Certificate", "fairlead-webhook-ca", "spec", "secretName",
	); ca != field(t, built, "Issuer", "fairlead-webhook", "spec", "ca", "secretName") {
		t.Errorf("the CA is in Secret %s, and another signs", ca)
	}
	for _, rule := range of[rbacv1.ClusterRole](t, built, "ClusterRole", "fairlead-controller").Rules {
		if slices.Contains(rule.Resources, "mutatingwebhookconfigurations") {
			t.Errorf("the controller has a permission that it does not need: %+v", rule)
		}
	}
}
