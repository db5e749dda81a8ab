package condition

import (
	"context"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/controller/objects"
)

// statusOwner is the field manager of our fields in the status of a Cluster.
const statusOwner = "fairlead-controller"

// ClusterWriter writes our one condition on a Cluster. It uses server-side apply, so it owns that condition and no
// other. Cluster API's own controllers patch only the conditions that they own.
type ClusterWriter struct{ Client client.Client }

// Set writes the condition if it differs. The time of its last transition changes only with its status.
func (s ClusterWriter) Set(ctx context.Context, cluster *clusterv1.Cluster, condition metav1.Condition) error {
	want, differs := onCluster(cluster, condition)
	if !differs {
		return nil
	}
	return s.apply(ctx, cluster, []metav1.Condition{want})
}

// Differs reports whether Set would write, or, if the condition is nil, whether Remove would.
func (s ClusterWriter) Differs(cluster *clusterv1.Cluster, condition *metav1.Condition) bool {
	if condition == nil {
		return apimeta.FindStatusCondition(cluster.Status.Conditions, v1alpha1.ClusterConditionTunnelReady) != nil
	}
	_, differs := onCluster(cluster, *condition)
	return differs
}

// onCluster returns the condition as it must be on the Cluster, and whether the current one differs.
func onCluster(cluster *clusterv1.Cluster, condition metav1.Condition) (want metav1.Condition, differs bool) {
	condition.Type, condition.ObservedGeneration = v1alpha1.ClusterConditionTunnelReady, cluster.Generation
	condition.Message = Shorten(condition.Message)
	all := append([]metav1.Condition(nil), cluster.Status.Conditions...)
	differs = apimeta.SetStatusCondition(&all, condition)
	return *apimeta.FindStatusCondition(all, condition.Type), differs
}

// Remove removes the condition, if it exists.
func (s ClusterWriter) Remove(ctx context.Context, cluster *clusterv1.Cluster) error {
	if !s.Differs(cluster, nil) {
		return nil
	}
	return s.apply(ctx, cluster, nil)
}

func (s ClusterWriter) apply(ctx context.Context, cluster *clusterv1.Cluster, conditions []metav1.Condition) error {
	return Apply(ctx, s.Client, clusterv1.GroupVersion.WithKind("Cluster"), cluster, conditions)
}

// Apply writes the controller's conditions of an object and removes the unlisted ones. See ApplyStatus.
func Apply(
	ctx context.Context, to client.Client, kind schema.GroupVersionKind, of client.Object, conditions []metav1.Condition,
) error {
	all, err := Unstructured(conditions)
	if err != nil {
		return objects.Wrap("writing condition of "+kind.Kind, err)
	}
	return ApplyStatus(ctx, to, statusOwner, kind, of, map[string]any{"conditions": all})
}

// ApplyStatus applies a status on the server side. Fields that owner applied before and that status no longer contains
// are removed; fields of other owners stay. A missing object is not an error. An object with the same name and another
// UID is a conflict.
func ApplyStatus(
	ctx context.Context, to client.Client, owner string, kind schema.GroupVersionKind, of client.Object,
	status map[string]any,
) error {
	o := &unstructured.Unstructured{Object: map[string]any{"status": status}}
	o.SetGroupVersionKind(kind)
	o.SetNamespace(of.GetNamespace())
	o.SetName(of.GetName())
	o.SetUID(of.GetUID())
	err := to.Status().Apply(
		ctx, client.ApplyConfigurationFromUnstructured(o), client.FieldOwner(owner), client.ForceOwnership,
	)
	return client.IgnoreNotFound(objects.Wrap("writing status of "+kind.Kind, err))
}

// Unstructured converts values to their form in an unstructured object. The result is never nil, because the apiserver
// would turn an otherwise empty status into null.
func Unstructured[T any](values []T) ([]any, error) {
	all := []any{}
	for i := range values {
		o, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&values[i])
		if err != nil {
			return nil, err
		}
		all = append(all, o)
	}
	return all, nil
}
