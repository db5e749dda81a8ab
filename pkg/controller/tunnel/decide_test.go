package tunnel

import (
	"context"
	"errors"
	"slices"
	"testing"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/controller/controllertest"
)

// twoOfOneName returns an older Tunnel that holds a name and a younger one that was denied it, both reconciled once.
func twoOfOneName(t *testing.T) (r *Reconciler, api client.WithWatch, older, younger *v1alpha1.Tunnel) {
	t.Helper()
	c1, older := controllertest.Served("older", 1000, "api.example.org")
	c2, younger := controllertest.Served("younger", 1001, "api.example.org")
	api = controllertest.FakeAPI(t, c1, older, c2, younger)
	r = started(t, api, api)
	for _, tunnel := range []*v1alpha1.Tunnel{older, younger} {
		key := client.ObjectKeyFromObject(tunnel)
		if _, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: key}); err != nil {
			t.Fatal(err)
		}
		if err := api.Get(t.Context(), key, tunnel); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Contains(older.Status.Names, "api.example.org") ||
		slices.Contains(younger.Status.Names, "api.example.org") {
		t.Fatalf("names %v and %v", older.Status.Names, younger.Status.Names)
	}
	return r, api, older, younger
}

// TestANameLeavesOneRecordBeforeItEntersAnother: a reader of both records never finds the name in both.
func TestANameLeavesOneRecordBeforeItEntersAnother(t *testing.T) {
	for _, mode := range []v1alpha1.KubeconfigMode{v1alpha1.KubeconfigModeAuto, v1alpha1.KubeconfigModeAddress} {
		t.Run(string(mode), func(t *testing.T) {
			r, api, older, younger := twoOfOneName(t)
			enqueued := 0
			r.notify = func(key client.ObjectKey) {
				if key != client.ObjectKeyFromObject(younger) {
					return
				}
				enqueued++
				now := older.DeepCopy()
				if err := api.Get(t.Context(), client.ObjectKeyFromObject(older), now); err != nil {
					t.Error(err)
				}
				if slices.Contains(now.Status.Names, "api.example.org") {
					t.Error("the younger is enqueued while the name is on record of the older")
				}
			}
			older.Spec.ExtraNames, older.Spec.Kubeconfig.Mode = nil, mode
			if mode == v1alpha1.KubeconfigModeAddress {
				older.Spec.Kubeconfig.Server, older.Spec.Kubeconfig.TLSServerName = "https://lb.example.org:6443", "kubernetes"
			}
			if err := api.Update(t.Context(), older); err != nil {
				t.Fatal(err)
			}
			for range 2 { // the recorded name stays reserved until the record is observed to be another
				if _, err := r.Reconcile(
					t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(older)},
				); err != nil {
					t.Fatal(err)
				}
			}
			if enqueued != 2 {
				t.Errorf("the younger was enqueued %d times", enqueued)
			}
			if _, err := r.Reconcile(
				t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(younger)},
			); err != nil {
				t.Fatal(err)
			}
			if err := api.Get(t.Context(), client.ObjectKeyFromObject(younger), younger); err != nil {
				t.Fatal(err)
			}
			if !apimeta.IsStatusConditionTrue(younger.Status.Conditions, v1alpha1.ConditionAccepted) {
				t.Errorf("conditions %+v", younger.Status.Conditions)
			}
		})
	}
}

// TestAFailedRecordLosesNoOther: the decision has changed the registry, so a retry would enqueue none.
func TestAFailedRecordLosesNoOther(t *testing.T) {
	r, api, older, younger := twoOfOneName(t)
	r.Client = interceptor.NewClient(api, interceptor.Funcs{
		SubResourcePatch: func(
			context.Context, client.Client, string, client.Object, client.Patch, ...client.SubResourcePatchOption,
		) error {
			return controllertest.ErrCrash
		},
	})
	enqueued := 0
	r.notify = func(key client.ObjectKey) {
		if key == client.ObjectKeyFromObject(younger) {
			enqueued++
		}
	}
	older.Spec.ExtraNames = nil
	if err := api.Update(t.Context(), older); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Reconcile(
		t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(older)},
	); !errors.Is(err, controllertest.ErrCrash) {
		t.Fatalf("got %v", err)
	}
	if enqueued != 1 {
		t.Errorf("the younger was enqueued %d times", enqueued)
	}
}
