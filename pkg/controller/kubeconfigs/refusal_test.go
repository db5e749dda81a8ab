package kubeconfigs

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/controller/controllertest"
	"github.com/fairlead/fairlead/pkg/controller/reconciler"
	"github.com/fairlead/fairlead/pkg/kubeconfig"
)

func byProxy(address, secret string) v1alpha1.KubeconfigSpec {
	return v1alpha1.KubeconfigSpec{
		Mode: v1alpha1.KubeconfigModeHTTPProxy, Proxy: &v1alpha1.ProxySpec{Address: address, CredentialsSecret: secret},
	}
}

// TestAKubeconfigStaysWhileCredentialsAreMissing also covers unusable credentials: valid ones may arrive with the next
// object of a move.
func TestAKubeconfigStaysWhileCredentialsAreMissing(t *testing.T) {
	const kind = v1alpha1.ConditionKubeconfigReady
	w := newSwitchWorld(t, controllertest.Config(), controllertest.OriginalServer, byProxy("proxy:3128", "proxy"))
	credentials := controllertest.SecretNamed("prod", "proxy")
	credentials.Type, credentials.Data = corev1.SecretTypeBasicAuth, map[string][]byte{
		"username": []byte("capi"), "password": []byte("hunter2"),
	}
	w.check(w.reconcileAfter(0), kind, v1alpha1.ReasonInvalidProxy, "Secret not found")
	if got := w.endpoint(); got != (kubeconfig.Endpoint{Server: controllertest.OriginalServer}) {
		t.Fatalf("without credentials from the beginning it leads %v", got)
	}
	if err := w.api.Create(t.Context(), credentials.DeepCopy()); err != nil {
		t.Fatal(err)
	}
	before := w.reconcileAfter(time.Minute)
	by := kubeconfig.Endpoint{Server: controllertest.OriginalServer, ProxyURL: "http://capi:hunter2@proxy:3128"}
	if got := w.endpoint(); got != by {
		t.Fatalf("with credentials it leads %v", got)
	}

	if err := w.api.Delete(t.Context(), credentials); err != nil {
		t.Fatal(err)
	}
	after := w.reconcileAfter(time.Minute)
	w.check(after, kind, v1alpha1.ReasonInvalidProxy, "keeps using this proxy")
	if got := w.endpoint(); got != by || after.Status.Kubeconfig.ProxyURL != before.Status.Kubeconfig.ProxyURL {
		t.Errorf("it leads %v, and on record is %+v", got, after.Status.Kubeconfig)
	}
	malformed := credentials.DeepCopy()
	malformed.ResourceVersion, malformed.Data = "", map[string][]byte{
		"username": []byte("ca:pi"), "password": []byte("hunter3"),
	}
	if err := w.api.Create(t.Context(), malformed); err != nil {
		t.Fatal(err)
	}
	after = w.reconcileAfter(time.Minute)
	w.check(after, kind, v1alpha1.ReasonInvalidProxy, "contains a colon")
	w.check(after, kind, v1alpha1.ReasonInvalidProxy, "keeps using this proxy")
	if got := w.endpoint(); got != by {
		t.Errorf("with credentials that can't be used it leads %v", got)
	}
	if err := w.api.Delete(t.Context(), malformed); err != nil {
		t.Fatal(err)
	}
	after.Status = v1alpha1.TunnelStatus{} // as clusterctl move creates it
	if err := w.api.Status().Update(t.Context(), after); err != nil {
		t.Fatal(err)
	}
	w.restart()
	after = w.reconcileAfter(time.Minute)
	w.check(after, kind, v1alpha1.ReasonInvalidProxy, "keeps using this proxy")
	if got := w.endpoint(); got != by {
		t.Errorf("after a move it leads %v", got)
	}
	after.Spec.Kubeconfig = byProxy("another:3128", "proxy")
	if err := w.api.Update(t.Context(), after); err != nil {
		t.Fatal(err)
	}
	w.reconcileAfter(time.Minute)
	if got := w.endpoint(); got != (kubeconfig.Endpoint{Server: controllertest.OriginalServer}) {
		t.Errorf("a proxy that the Tunnel does not name any more stays: %v", got)
	}
}

// refuseSecrets makes the apiserver reject changes of Secrets.
func (w *switchWorld) refuseSecrets(refuse func(name string) error) {
	w.tunnels.Client = interceptor.NewClient(w.api, interceptor.Funcs{
		Patch: func(
			ctx context.Context, c client.WithWatch, o client.Object, patch client.Patch, opts ...client.PatchOption,
		) error {
			if _, ok := o.(*corev1.Secret); ok && strings.HasSuffix(o.GetName(), kubeconfig.Suffix) {
				return refuse(o.GetName())
			}
			return c.Patch(ctx, o, patch, opts...)
		},
	})
	w.restart()
}

func TestAKubeconfigThatCannotBeWrittenIsReported(t *testing.T) {
	const kind = v1alpha1.ConditionKubeconfigReady
	w := newSwitchWorld(t, controllertest.Config(), controllertest.OriginalServer, byProxy("proxy:3128", ""))
	tunnel := w.reconcileAfter(0)
	w.check(tunnel, kind, v1alpha1.ReasonRewritten, "http://proxy:3128")
	tunnel.Spec.Kubeconfig = byProxy("another:3128", "")
	if err := w.api.Update(t.Context(), tunnel); err != nil {
		t.Fatal(err)
	}
	asked := 0
	w.refuseSecrets(func(name string) error { asked++; return controllertest.Forbidden(name) })
	w.check(w.reconcileAfter(time.Minute), kind, v1alpha1.ReasonNotWritable, "admission")
	result, err := w.r.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(w.cluster)})
	if err != nil || result.RequeueAfter < lookupInterval || asked == 0 {
		t.Errorf("tried again after %s, %v", result.RequeueAfter, err)
	}
	w.refuseSecrets(func(name string) error {
		return apierrors.NewConflict(schema.GroupResource{Resource: "secrets"}, name, context.DeadlineExceeded)
	})
	if result, err = w.r.Reconcile(
		t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(w.cluster)},
	); err != nil || result.RequeueAfter < reconciler.ConflictDelay/2 || result.RequeueAfter > reconciler.ConflictDelay {
		t.Errorf("a conflict is tried again after %s, %v", result.RequeueAfter, err)
	}
}

func TestAnImmutableKubeconfigKeepsNoTunnel(t *testing.T) {
	w := newSwitchWorld(t, controllertest.Config(), controllertest.OriginalServer, byProxy("proxy:3128", ""))
	w.reconcileAfter(0)
	secret := &corev1.Secret{}
	if err := w.api.Get(
		t.Context(), client.ObjectKey{Namespace: "prod", Name: "c1" + kubeconfig.Suffix}, secret,
	); err != nil {
		t.Fatal(err)
	}
	secret.Immutable = ptr.To(true)
	if err := w.api.Update(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	w.refuseSecrets(func(name string) error { return apierrors.NewInvalid(schema.GroupKind{Kind: "Secret"}, name, nil) })
	tunnel := w.reconcileAfter(time.Minute)
	w.check(tunnel, v1alpha1.ConditionKubeconfigReady, v1alpha1.ReasonRewritten, "") // nothing needs to change
	tunnel.Spec.Kubeconfig = byProxy("another:3128", "")
	if err := w.api.Update(t.Context(), tunnel); err != nil {
		t.Fatal(err)
	}
	w.check(w.reconcileAfter(time.Minute), v1alpha1.ConditionKubeconfigReady, v1alpha1.ReasonNotWritable, "immutable")

	w.cluster.Labels = nil
	if err := w.api.Update(t.Context(), w.cluster); err != nil {
		t.Fatal(err)
	}
	if err := w.api.Delete(t.Context(), tunnel); err != nil {
		t.Fatal(err)
	}
	recorder := events.NewFakeRecorder(10)
	w.tunnels.Recorder = recorder
	if _, err := w.tunnels.Reconcile(
		t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(w.cluster)},
	); err != nil {
		t.Fatal(err)
	}
	if err := w.api.Get(t.Context(), client.ObjectKeyFromObject(tunnel), tunnel); !apierrors.IsNotFound(err) {
		t.Errorf("the Tunnel is held: %v", err)
	}
	select {
	case event := <-recorder.Events:
		if !strings.HasPrefix(event, "Warning "+v1alpha1.ReasonNotWritable) {
			t.Errorf("the event is %q", event)
		}
	default:
		t.Error("there is no event")
	}
}

// TestNotificationsBeforeTheStartAreDelivered detects a race only with -race.
func TestNotificationsBeforeTheStartAreDelivered(t *testing.T) {
	r := kubeconfigsOf(withTunnels(t, controllertest.FakeAPI(t), nil))
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
	t.Cleanup(queue.ShutDown)
	key := client.ObjectKey{Namespace: "prod", Name: "c1"}
	r.Notify(key)
	var others sync.WaitGroup
	others.Go(func() { r.Notify(key) })
	if err := r.queue.Begin(t.Context(), queue); err != nil {
		t.Fatal(err)
	}
	others.Wait()
	r.Notify(key)
	if queue.Len() != 1 {
		t.Errorf("%d requests", queue.Len())
	}
}
