package recipes_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/fairlead/fairlead/api/v1alpha1"
)

// The types of other providers are in modules that an installation of Fairlead never needs, and that are not to be had
// everywhere. So this is what they were seen to take, and the kinds that the fields have: as of August 2026 rancher/cluster-api-provider-rke2
// (controlplane/api/v1beta2, bootstrap/api/v1beta2), k3s-io/cluster-api-k3s (the same), siderolabs/cluster-api-control-plane-provider-talos and
// -bootstrap-provider-talos (api/v1beta1), clastix/cluster-api-control-plane-provider-kamaji (api/v1alpha2). No recipe may have a field that
// is not in here. "s" is a string, a list has the kind of its items.
var (
	fileFields = map[string]any{
		"path": "s", "owner": "s", "permissions": "s", "encoding": "s", "content": "s",
		"contentFrom": map[string]any{"secret": map[string]any{"name": "s", "key": "s"}},
	}
	serverFields = map[string]any{"tlsSan": []any{"s"}, "bindAddress": "s", "advertiseAddress": "s", "clusterDNS": "s", "clusterDomain": "s"}

	known = map[string]map[string]any{
		"controlplane.cluster.x-k8s.io/v1beta2 RKE2ControlPlane": {
			"files": []any{fileFields}, "preRKE2Commands": []any{"s"}, "postRKE2Commands": []any{"s"}, "serverConfig": serverFields,
			"version": "s", "registrationMethod": "s", "registrationAddress": "s",
		},
		"controlplane.cluster.x-k8s.io/v1beta2 KThreesControlPlane": {
			"version": "s", "kthreesConfigSpec": map[string]any{
				"files": []any{fileFields}, "preK3sCommands": []any{"s"}, "postK3sCommands": []any{"s"}, "serverConfig": serverFields, "version": "s",
			},
		},
		"controlplane.cluster.x-k8s.io/v1beta1 TalosControlPlane": {
			"version": "s", "controlPlaneConfig": map[string]any{"controlplane": map[string]any{
				"talosVersion": "s", "generateType": "s", "data": "s", "strategicPatches": []any{"s"}, "hostname": map[string]any{"source": "s"},
			}},
		},
		"controlplane.cluster.x-k8s.io/v1alpha2 KamajiControlPlane": {
			"version": "s", "dataStoreName": "s", "network": map[string]any{"serviceType": "s", "serviceAddress": "s", "advertiseAddress": "s", "certSANs": []any{"s"}},
			"deployment": map[string]any{"externalClusterReference": map[string]any{
				"kubeconfigSecretName": "s", "kubeconfigSecretKey": "s", "kubeconfigSecretNamespace": "s", "deploymentNamespace": "s",
			}},
		},
	}
)

// TestFieldsAreKnown shows each object to the description of its provider's fields, or to its type where that is one of ours or
// of Kubernetes.
func TestFieldsAreKnown(t *testing.T) {
	files, err := filepath.Glob("*.yaml")
	if err != nil || len(files) != 5 {
		t.Fatalf("%v, %v", files, err)
	}
	for _, file := range files {
		for _, o := range documents(t, file) {
			var err error
			switch kind := fmt.Sprint(o["apiVersion"], " ", o["kind"]); kind {
			case "fairlead.dev/v1alpha1 Tunnel":
				err = runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(o, &v1alpha1.Tunnel{}, true)
			case "apps/v1 Deployment":
				err = runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(o, &appsv1.Deployment{}, true)
			default:
				if known[kind] == nil {
					t.Errorf("%s: nothing is known of %s", file, kind)
				}
				err = fits(o["spec"], known[kind], "spec")
			}
			if err != nil {
				t.Errorf("%s: %v", file, err)
			}
		}
	}
}

// fits says whether a value has only fields that a description has, and of their kinds.
func fits(value, kind any, path string) error {
	switch kind := kind.(type) {
	case string:
		if _, ok := value.(string); !ok {
			return fmt.Errorf("%s is no string", path)
		}
	case []any:
		list, ok := value.([]any)
		if !ok || len(list) == 0 {
			return fmt.Errorf("%s is no list with something in it", path)
		}
		for i, item := range list {
			if err := fits(item, kind[0], fmt.Sprintf("%s[%d]", path, i)); err != nil {
				return err
			}
		}
	case map[string]any:
		fields, ok := value.(map[string]any)
		if !ok {
			return fmt.Errorf("%s is no object", path)
		}
		for name, field := range fields {
			if kind[name] == nil {
				return fmt.Errorf("%s.%s is not a field", path, name)
			}
			if err := fits(field, kind[name], path+"."+name); err != nil {
				return err
			}
		}
	}
	return nil
}

func TestFitsRefuses(t *testing.T) {
	kind := known["controlplane.cluster.x-k8s.io/v1beta2 RKE2ControlPlane"]
	for want, value := range map[string]any{
		"spec.file is not a field":                 map[string]any{"file": "x"},
		"spec.serverConfig.tlsSan is no list":      map[string]any{"serverConfig": map[string]any{"tlsSan": "x"}},
		"spec.files[0].contentFrom.secret.name is": map[string]any{"files": []any{map[string]any{"contentFrom": map[string]any{"secret": map[string]any{"name": 1}}}}},
		"spec.serverConfig is no object":           map[string]any{"serverConfig": "x"},
	} {
		if err := fits(value, kind, "spec"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
