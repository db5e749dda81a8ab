package kubernetes_test

import (
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/internal/kubetest"
)

// withComponent returns the objects that are applied together with a component of this directory.
func withComponent(t *testing.T, component string) []*unstructured.Unstructured {
	t.Helper()
	return kubetest.KustomizeUser(t, []string{"kubernetes"}, []string{"kubernetes/" + component}, "")
}

func TestThePageIsServedOnlyIfRequested(t *testing.T) {
	admin := apiserver(t)
	serves := func(template []any) bool {
		return slices.ContainsFunc(
			template, func(arg any) bool { return len(arg.(string)) > 14 && arg.(string)[:14] == "--page-listen=" },
		)
	}
	for component, wants := range map[string]struct{ serves, reviews bool }{
		"": {}, "page": {serves: true}, "page-tokens": {serves: true, reviews: true},
	} {
		t.Run(component, func(t *testing.T) {
			built := kubetest.KustomizeUser(t, []string{"kubernetes"}, nil, "")
			if component != "" {
				built = withComponent(t, component)
			}
			reviews := false
			for _, o := range built {
				if err := admin.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(o.DeepCopy()), client.FieldOwner(
					"page"), client.ForceOwnership, client.DryRunAll); err != nil {
					t.Errorf("applying %s %s: %v", o.GetKind(), o.GetName(), err)
				}
				reviews = reviews || o.GetKind() == "ClusterRole" && o.GetName() == "fairlead-xds-server-page"
				if o.GetKind() != "Deployment" || o.GetName() != "xds-server" {
					continue
				}
				containers, _, err := unstructured.NestedSlice(o.Object, "spec", "template", "spec", "containers")
				if err != nil {
					t.Fatal(err)
				}
				if got := serves(containers[0].(map[string]any)["args"].([]any)); got != wants.serves {
					t.Errorf("it serves the page: %v, want %v", got, wants.serves)
				}
			}
			if reviews != wants.reviews {
				t.Errorf("it may review access: %v, want %v", reviews, wants.reviews)
			}
		})
	}
}
