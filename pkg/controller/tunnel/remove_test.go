package tunnel

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/kubetest"
	"github.com/fairlead/fairlead/pkg/controller/controllertest"
	"github.com/fairlead/fairlead/pkg/controller/objects"
	"github.com/fairlead/fairlead/pkg/controller/records"
	"github.com/fairlead/fairlead/pkg/kubeconfig"
)

func TestAKubeconfigWithoutTunnelIsRestoredOnlyIfItIsOurs(t *testing.T) {
	// a user may use the gateways as a proxy
	byHand := kubeconfig.Endpoint{Server: controllertest.OriginalServer, ProxyURL: controllertest.ProxyURL}
	ours := kubeconfig.Endpoint{
		Server: controllertest.DirectURL, TLSServerName: "kubernetes", ProxyURL: controllertest.ProxyURL,
	}
	tests := map[string]struct {
		entry kubeconfig.Endpoint
		kept  map[string]string
		want  kubeconfig.Endpoint
	}{
		"a user's own": {entry: byHand, want: byHand},
		"all annotations": {
			entry: ours, kept: controllertest.Rewritten(controllertest.DirectURL, controllertest.OriginalServer),
			want: kubeconfig.Endpoint{Server: controllertest.OriginalServer},
		},
		"the written server": {
			entry: ours, kept: map[string]string{v1alpha1.WrittenServerAnnotation: controllertest.DirectURL},
			want: kubeconfig.Endpoint{Server: "https://192.0.2.10:6443"},
		},
		"the original server": {
			entry: ours, kept: map[string]string{v1alpha1.OriginalServerAnnotation: controllertest.OriginalServer},
			want: kubeconfig.Endpoint{Server: controllertest.OriginalServer},
		},
		"the original server's name": {
			entry: byHand, kept: map[string]string{v1alpha1.OriginalTLSServerNameAnnotation: "x"},
			want: kubeconfig.Endpoint{Server: controllertest.OriginalServer},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			cluster, _ := controllertest.Served("c1", 1000)
			cluster.Labels = nil
			secret := controllertest.SecretWith(t, tc.entry, tc.kept)
			api := controllertest.FakeAPI(t, cluster, secret)
			before := secret.DeepCopy()
			if err := api.Get(t.Context(), client.ObjectKeyFromObject(secret), before); err != nil {
				t.Fatal(err)
			}
			if _, err := started(t, api, api).Reconcile(
				t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(cluster)},
			); err != nil {
				t.Fatal(err)
			}
			if err := api.Get(t.Context(), client.ObjectKeyFromObject(secret), secret); err != nil {
				t.Fatal(err)
			}
			controllertest.CheckEntry(t, secret, tc.want)
			if kubeconfig.Annotated(secret) {
				t.Errorf("annotations %v are left", secret.Annotations)
			}
			if diff := cmp.Diff(before, secret); tc.entry == tc.want && diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestATunnelIsRecordedBeforeItEnds makes the write of the record fail: the Tunnel then stays.
func TestATunnelIsRecordedBeforeItEnds(t *testing.T) {
	m := controllertest.APIServer(t)
	cluster := kubetest.Cluster(kubetest.NewNamespace(t, m), "c1")
	controllertest.Create(t, m, cluster)
	tunnel := controllertest.TunnelNamed(cluster)
	objects.CompleteTunnel(tunnel, cluster)
	controllertest.Create(t, m, tunnel)
	tunnel.Status.ID = tunnel.Spec.ID
	if err := m.Status().Update(t.Context(), tunnel); err != nil {
		t.Fatal(err)
	}
	fails := true
	refuse := func(o client.Object) error {
		if o.GetName() == v1alpha1.EndedTunnelsConfigMapName && fails {
			return controllertest.ErrCrash
		}
		return nil
	}
	api := interceptor.NewClient(m, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			return errors.Join(refuse(o), c.Create(ctx, o, opts...))
		},
		Patch: func(
			ctx context.Context, c client.WithWatch, o client.Object, patch client.Patch, opts ...client.PatchOption,
		) error {
			if err := refuse(o); err != nil {
				return err
			}
			return c.Patch(ctx, o, patch, opts...)
		},
	})
	r := started(t, api, api)
	r.ended = records.NewEndedTunnels(api, api, tunnel.Namespace, time.Now)
	if err := r.Drop(t.Context(), controllertest.Read(t, m, tunnel), false); !errors.Is(err, controllertest.ErrCrash) {
		t.Fatalf("got %v", err)
	}
	if now := controllertest.Read(t, m, tunnel); now.DeletionTimestamp.IsZero() || !controllertest.HasFinalizer(now) {
		t.Errorf("the Tunnel is %+v", now.ObjectMeta)
	}
	fails = false
	if err := m.Delete(
		t.Context(),
		&corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: tunnel.Namespace, Name: v1alpha1.EndedTunnelsConfigMapName},
		},
	); client.IgnoreNotFound(err) != nil {
		t.Fatal(err)
	}
	if err := r.Drop(t.Context(), controllertest.Read(t, m, tunnel), false); err != nil {
		t.Fatal(err)
	}
	controllertest.WaitGone(t, m, tunnel)
	if !r.ended.Has(tunnel.Spec.ID) {
		t.Error("it is not on record")
	}
}
