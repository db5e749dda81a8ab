package kubeconfigs

import (
	"context"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/controller/controllertest"
	"github.com/fairlead/fairlead/pkg/kubeconfig"
)

// optOut removes the request for a tunnel from a Cluster.
func (w *switchWorld) optOut() {
	w.t.Helper()
	if err := w.api.Get(w.t.Context(), client.ObjectKeyFromObject(w.cluster), w.cluster); err != nil {
		w.t.Fatal(err)
	}
	w.cluster.Labels[v1alpha1.TunnelLabel] = v1alpha1.TunnelDisabled
	if err := w.api.Update(w.t.Context(), w.cluster); err != nil {
		w.t.Fatal(err)
	}
}

// TestAnAdmissionPolicyDoesNotKeepATunnelForever rejects the restored kubeconfig. The controller retries for a while
// and reports it.
func TestAnAdmissionPolicyDoesNotKeepATunnelForever(t *testing.T) {
	w := newSwitchWorld(t, controllertest.Config(), controllertest.OriginalServer, byProxy("proxy:3128", ""))
	w.check(w.reconcileAfter(0), v1alpha1.ConditionKubeconfigReady, v1alpha1.ReasonRewritten, "http://proxy:3128")
	asked, refuses := 0, true
	w.refuseSecrets(func(name string) error {
		if asked++; refuses {
			return controllertest.Forbidden(name)
		}
		return nil
	})
	w.tunnels.Now = func() time.Time { return w.clock }
	recorder := events.NewFakeRecorder(10)
	w.tunnels.Recorder = recorder
	w.optOut()
	request := reconcile.Request{NamespacedName: client.ObjectKeyFromObject(w.cluster)}
	tunnel := controllertest.TunnelNamed(w.cluster)
	for spent := time.Duration(0); spent < giveBackPatience; spent += giveBackRetry {
		result, err := w.tunnels.Reconcile(t.Context(), request)
		if err != nil || result.RequeueAfter != giveBackRetry {
			t.Fatalf("after %s it is tried again after %s, %v", spent, result.RequeueAfter, err)
		}
		if err := w.api.Get(t.Context(), request.NamespacedName, tunnel); err != nil {
			t.Fatalf("after %s the Tunnel: %v", spent, err)
		}
		w.check(tunnel, v1alpha1.ConditionKubeconfigReady, v1alpha1.ReasonNotGivenBack, "admission policy")
		w.clock = w.clock.Add(giveBackRetry)
	}
	if tries := int(giveBackPatience / giveBackRetry); asked != tries {
		t.Errorf("%d tries, want %d", asked, tries)
	}
	if _, err := w.tunnels.Reconcile(t.Context(), request); err != nil {
		t.Fatal(err)
	}
	if err := w.api.Get(t.Context(), request.NamespacedName, tunnel); !apierrors.IsNotFound(err) {
		t.Errorf("the Tunnel is held: %v", err)
	}
	const refused, goes = "Warning NotGivenBack cannot write Secret c1-kubeconfig", "Warning NotGivenBack the Tunnel is " +
		"deleted"
	for i, want := range []string{refused, refused, goes, goes} { // of the Tunnel, and of its Cluster
		select {
		case event := <-recorder.Events:
			if !strings.HasPrefix(event, want) {
				t.Errorf("event %d is %q, want %q", i, event, want)
			}
		default:
			t.Errorf("there is no event %q", want)
		}
	}
}

// TestTheKubeconfigIsRestoredWhenAPolicyAllowsIt within the remaining time.
func TestTheKubeconfigIsRestoredWhenAPolicyAllowsIt(t *testing.T) {
	w := newSwitchWorld(t, controllertest.Config(), controllertest.OriginalServer, byProxy("proxy:3128", ""))
	w.reconcileAfter(0)
	api := w.tunnels.Client
	w.refuseSecrets(controllertest.Forbidden)
	w.optOut()
	request := reconcile.Request{NamespacedName: client.ObjectKeyFromObject(w.cluster)}
	if _, err := w.tunnels.Reconcile(t.Context(), request); err != nil {
		t.Fatal(err)
	}
	w.tunnels.Client = api
	if _, err := w.tunnels.Reconcile(t.Context(), request); err != nil {
		t.Fatal(err)
	}
	if got := w.endpoint(); got != (kubeconfig.Endpoint{Server: controllertest.OriginalServer}) {
		t.Errorf("the kubeconfig leads %v", got)
	}
	if err := w.api.Get(
		context.Background(), request.NamespacedName, controllertest.TunnelNamed(w.cluster),
	); !apierrors.IsNotFound(err) {
		t.Errorf("the Tunnel: %v", err)
	}
}
