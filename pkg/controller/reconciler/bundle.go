package reconciler

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fairlead/fairlead/api/v1alpha1"
)

// OnTrustBundle enqueues some Tunnels when the trust bundle that they deliver appears in the ConfigMap of the
// installation, or changes. They have low priority, so that new and changed objects do not wait for them. Nothing else
// in the ConfigMap counts.
func (p Deps) OnTrustBundle(are func(*v1alpha1.Tunnel) bool) handler.EventHandler {
	type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]
	enqueue := func(ctx context.Context, q queue) {
		Enqueue(q, handler.LowPriority, someTunnels(ctx, p.Client, p.Log, are)...)
	}
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, _ event.CreateEvent, q queue) { enqueue(ctx, q) },
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q queue) {
			if bundleIn(e.ObjectOld) != bundleIn(e.ObjectNew) {
				enqueue(ctx, q)
			}
		},
	}
}

// bundleIn returns the trust bundle in the ConfigMap of the installation.
func bundleIn(o client.Object) string {
	installation, ok := o.(*corev1.ConfigMap)
	if !ok {
		return ""
	}
	return installation.Data[v1alpha1.TrustBundleKey]
}
