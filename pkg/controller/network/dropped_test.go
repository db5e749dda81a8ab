package network

import (
	"log/slog"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/kubetest"
	"github.com/fairlead/fairlead/pkg/controller/config"
	"github.com/fairlead/fairlead/pkg/controller/controllertest"
	"github.com/fairlead/fairlead/pkg/controller/reconciler"
	"github.com/fairlead/fairlead/pkg/controller/records"
	"github.com/fairlead/fairlead/pkg/controller/tunnel"
)

// TestWithoutTunnelsADeletedTunnelLosesItsFinalizer: nothing else would, so its namespace could not be deleted.
func TestWithoutTunnelsADeletedTunnelLosesItsFinalizer(t *testing.T) {
	const other = "other.example.org/finalizer"
	for name, tc := range map[string]struct {
		tunnel string
		change func(*clusterv1.Cluster, *v1alpha1.Tunnel)
		stays  bool // with its finalizer
	}{
		"of a network":  {tunnel: "site1.network"},
		"of apiservers": {tunnel: "c1.egress"},
		"of no network": {tunnel: "gone.network"},
		"for another use": {tunnel: "site1.network", stays: true, change: func(_ *clusterv1.Cluster, o *v1alpha1.Tunnel) {
			o.Spec.Network = "x"
		}},
		"of a paused Cluster": {tunnel: "c1.egress", stays: true, change: func(o *clusterv1.Cluster, _ *v1alpha1.Tunnel) {
			o.Annotations = map[string]string{clusterv1.PausedAnnotation: ""}
		}},
		"not being deleted": {tunnel: "site1.network", stays: true, change: func(_ *clusterv1.Cluster, o *v1alpha1.Tunnel) {
			o.DeletionTimestamp = nil
		}},
	} {
		t.Run(name, func(t *testing.T) {
			cluster, network := kubetest.Cluster("prod", "c1"), &v1alpha1.RemoteNetwork{}
			network.Namespace, network.Name, network.Spec.ClusterName = "prod", "site1", "c1"
			of := &v1alpha1.Tunnel{ObjectMeta: metav1.ObjectMeta{
				Namespace: "prod", Name: tc.tunnel, Finalizers: []string{v1alpha1.TunnelFinalizer, other},
				DeletionTimestamp: &metav1.Time{Time: time.Now()},
			}}
			of.Spec = map[string]v1alpha1.TunnelSpec{
				"site1.network": {Network: "site1"}, "gone.network": {Network: "gone"}, "c1.egress": {EgressOf: "c1"},
			}[tc.tunnel]
			if tc.change != nil {
				tc.change(cluster, of)
			}
			api := controllertest.FakeAPI(t, cluster, network, of)
			d := reconciler.Deps{
				Config: config.Config{NoTunnels: true, Namespace: "fairlead-system"}, Client: api, Live: api,
				Recorder: events.NewFakeRecorder(10), Log: slog.New(slog.DiscardHandler), Now: time.Now,
			}
			r := New(d, tunnel.New(d, records.NewEndedTunnels(api, api, d.Config.Namespace, time.Now), nil, nil))
			key := client.ObjectKeyFromObject(of)
			for range 2 {
				if _, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: key}); err != nil {
					t.Fatal(err)
				}
			}
			if got := controllertest.HasFinalizer(controllertest.Read(t, api, of)); got != tc.stays {
				t.Errorf("it has the finalizer: %t, want %t", got, tc.stays)
			}
			for _, name := range []string{"site1.network", "c1.egress"} {
				err := api.Get(t.Context(), client.ObjectKey{Namespace: "prod", Name: name}, &v1alpha1.Tunnel{})
				if name != tc.tunnel && !apierrors.IsNotFound(err) {
					t.Errorf("there is a Tunnel %s: %v", name, err)
				}
			}
		})
	}
}
