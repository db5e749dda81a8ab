package controller

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/kubeconfig"
)

func TestAKubeconfigWithoutTunnelIsRestoredOnlyIfItIsOurs(t *testing.T) {
	byHand := kubeconfig.Way{Server: originalServer, ProxyURL: proxy} // a user may use the gateways as a proxy
	ours := kubeconfig.Way{Server: direct, TLSServerName: "kubernetes", ProxyURL: proxy}
	tests := map[string]struct {
		entry kubeconfig.Way
		kept  map[string]string
		want  kubeconfig.Way
	}{
		"a user's own":               {entry: byHand, want: byHand},
		"all annotations":            {entry: ours, kept: rewritten(direct, originalServer), want: kubeconfig.Way{Server: originalServer}},
		"the written server":         {entry: ours, kept: map[string]string{v1alpha1.WrittenServerAnnotation: direct}, want: kubeconfig.Way{Server: "https://192.0.2.10:6443"}},
		"the original server":        {entry: ours, kept: map[string]string{v1alpha1.OriginalServerAnnotation: originalServer}, want: kubeconfig.Way{Server: originalServer}},
		"the original server's name": {entry: byHand, kept: map[string]string{v1alpha1.OriginalTLSServerNameAnnotation: "x"}, want: kubeconfig.Way{Server: originalServer}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			cluster, _ := served("c1", 1000)
			cluster.Labels = nil
			secret := secretWith(t, tc.entry, tc.kept)
			api := fakeAPI(t, cluster, secret)
			before := secret.DeepCopy()
			if err := api.Get(t.Context(), client.ObjectKeyFromObject(secret), before); err != nil {
				t.Fatal(err)
			}
			if _, err := started(t, api, api).Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(cluster)}); err != nil {
				t.Fatal(err)
			}
			if err := api.Get(t.Context(), client.ObjectKeyFromObject(secret), secret); err != nil {
				t.Fatal(err)
			}
			checkEntry(t, secret, tc.want)
			if kubeconfig.Noted(secret) {
				t.Errorf("annotations %v are left", secret.Annotations)
			}
			if diff := cmp.Diff(before, secret); tc.entry == tc.want && diff != "" {
				t.Error(diff)
			}
		})
	}
}
