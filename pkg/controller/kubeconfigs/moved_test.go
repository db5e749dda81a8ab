package kubeconfigs

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/controller/config"
	"github.com/fairlead/fairlead/pkg/controller/controllertest"
	"github.com/fairlead/fairlead/pkg/kubeconfig"
	"github.com/fairlead/fairlead/pkg/model"
)

// moveTo creates what clusterctl moves to another installation: objects without status, and with other uids of their
// owners.
func (w *switchWorld) moveTo(config config.Config) *switchWorld {
	w.t.Helper()
	there := newSwitchWorld(w.t, config, controllertest.OriginalServer, v1alpha1.KubeconfigSpec{})
	there.ca = w.ca
	for _, o := range []client.Object{
		controllertest.TunnelNamed(w.cluster), controllertest.SecretNamed("prod", "c1"+kubeconfig.Suffix),
	} {
		if err := w.api.Get(w.t.Context(), client.ObjectKeyFromObject(o), o); err != nil {
			w.t.Fatal(err)
		}
		stale := o.DeepCopyObject().(client.Object)
		if err := there.api.Get(w.t.Context(), client.ObjectKeyFromObject(o), stale); err != nil {
			w.t.Fatal(err)
		}
		o.SetResourceVersion(stale.GetResourceVersion())
		o.SetOwnerReferences(stale.GetOwnerReferences())
		if tunnel, ok := o.(*v1alpha1.Tunnel); ok {
			tunnel.Status = v1alpha1.TunnelStatus{}
		}
		if err := there.api.Update(w.t.Context(), o); err != nil {
			w.t.Fatal(err)
		}
	}
	there.restart()
	return there
}

// TestAMovedKubeconfigUsesTheNewInstallation covers every mode: the kubeconfig uses the gateways of the new
// installation, or the user's private network as before, and still has the provider's own server on record.
func TestAMovedKubeconfigUsesTheNewInstallation(t *testing.T) {
	second := controllertest.Config()
	second.Domain = "tunnels.second.example"
	second.APIServer = model.Endpoint{Host: "10.2.2.2", Port: 6443}
	second.Connect = model.Endpoint{Host: "10.2.2.2", Port: 3128}
	for _, mode := range controllertest.EveryMode {
		t.Run(string(mode), func(t *testing.T) {
			w := newSwitchWorld(
				t, controllertest.Config(), controllertest.OriginalServer, controllertest.SpecOf(mode, "proxy.example.org:3128"),
			)
			if mode == v1alpha1.KubeconfigModeHTTPSProxy {
				tunnel := controllertest.TunnelNamed(w.cluster)
				if err := w.api.Get(t.Context(), client.ObjectKeyFromObject(tunnel), tunnel); err != nil {
					t.Fatal(err)
				}
				tunnel.Spec.Kubeconfig.Proxy.Address = controllertest.ListenTLS(
					t, w.ca, "127.0.0.1:0", nil, "kubernetes",
				).Addr().String()
				if err := w.api.Update(t.Context(), tunnel); err != nil {
					t.Fatal(err)
				}
			}
			w.check(w.reconcileAfter(0), v1alpha1.ConditionKubeconfigReady, v1alpha1.ReasonRewritten, "")
			before := w.endpoint()
			there := w.moveTo(second)
			if got := there.endpoint(); got != before {
				t.Fatalf("it arrives leading %v, and left leading %v", got, before)
			}
			there.check(there.reconcileAfter(0), v1alpha1.ConditionKubeconfigReady, v1alpha1.ReasonRewritten, "")
			want := map[v1alpha1.KubeconfigMode]kubeconfig.Endpoint{
				v1alpha1.KubeconfigModeSNI: {Server: "https://10.2.2.2:6443", TLSServerName: "c1.prod.tunnels.second.example"},
				v1alpha1.KubeconfigModeConnect: {
					Server: "https://c1.prod.tunnels.second.example:6443", TLSServerName: "kubernetes",
					ProxyURL: "http://10.2.2.2:3128",
				},
			}
			if !mode.Tunnelled() {
				want[mode] = before
			}
			if got := there.endpoint(); got != want[mode] {
				t.Errorf("it leads %v, want %v", got, want[mode])
			}
			there.optOut()
			if _, err := there.tunnels.Reconcile(
				t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(there.cluster)},
			); err != nil {
				t.Fatal(err)
			}
			secret := &corev1.Secret{}
			if err := there.api.Get(
				t.Context(), client.ObjectKey{Namespace: "prod", Name: "c1" + kubeconfig.Suffix}, secret,
			); err != nil {
				t.Fatal(err)
			}
			if got := there.endpoint(); got != (kubeconfig.Endpoint{Server: controllertest.OriginalServer}) ||
				kubeconfig.Annotated(secret) {
				t.Errorf("after opting out it leads %v, with %v", got, secret.Annotations)
			}
		})
	}
}
