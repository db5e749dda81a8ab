package check

import (
	"context"
	"fmt"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/diagnose/explain"
	"github.com/fairlead/fairlead/pkg/diagnose/writers"
)

// slow is how long a controller may leave a change unprocessed.
const slow = 30 * time.Second

// checkCluster checks the Cluster: whether it exists, requests a tunnel, and is neither paused nor being deleted.
func checkCluster(ctx context.Context, v *visit) finding {
	cluster := &clusterv1.Cluster{}
	if err := v.Objects.Get(ctx, v.key, cluster); err != nil {
		if apierrors.IsNotFound(err) {
			v.readNetworks(ctx)
			if f := v.orphans(); f != nil {
				return *f
			}
		}
		return v.unreadable(ctx, err, "Cluster", "clusters.cluster.x-k8s.io", v.key)
	}
	v.cluster = cluster
	tunnel := &v1alpha1.Tunnel{}
	if v.Objects.Get(ctx, v.key, tunnel) == nil {
		v.tunnel = tunnel // its own hop reports its faults
	}
	v.readNetworks(ctx)
	return v.judgeCluster()
}

// judgeCluster returns the finding for the Cluster that was read, and for the pause of its Tunnel.
func (v *visit) judgeCluster() finding {
	cluster := v.cluster
	label := fmt.Sprintf(
		"kubectl -n %s label cluster %s %s=%s --overwrite", v.key.Namespace, v.key.Name, v1alpha1.TunnelLabel,
		v1alpha1.TunnelEnabled,
	)
	has := cluster.Labels[v1alpha1.TunnelLabel]
	unpause := fmt.Sprintf(
		"to unpause it: kubectl -n %s patch cluster %s --type=merge -p '{\"spec\":{\"paused\":false}}', and remove its "+
			"annotation %s if present",
		v.key.Namespace, v.key.Name, clusterv1.PausedAnnotation,
	)
	switch {
	case has == v1alpha1.TunnelDisabled && !v.hasNetworks():
		return broken("it has the label "+v1alpha1.TunnelLabel+"="+has, "this Cluster has opted out of a tunnel", label)
	case has != v1alpha1.TunnelEnabled && v.tunnel == nil && !v.hasNetworks():
		return broken(
			"it has neither the label "+v1alpha1.TunnelLabel+" nor a Tunnel",
			"the Cluster has not opted in, and the controller does not serve all Clusters (--all-clusters)", label,
		)
	case !cluster.DeletionTimestamp.IsZero():
		return warning(
			"it was deleted at "+utc(cluster.DeletionTimestamp.Time)+" and waits for finalizers: "+orNone(cluster.Finalizers),
			"the Cluster was deleted: its tunnel remains until Cluster API has removed the machines",
			"wait; if the deletion does not end, kubectl "+
				"-n "+v.key.Namespace+" describe cluster "+v.key.Name+" lists its finalizers: see the log of the controller of "+
				"each",
		)
	case ptr.Deref(cluster.Spec.Paused, false) || hasPause(cluster):
		return warning(
			"it is paused", "the Cluster was paused: its tunnel remains as it is, and nothing is repaired", unpause,
		)
	case v.tunnel != nil && hasPause(v.tunnel):
		return warning(
			"its Tunnel has the annotation "+clusterv1.PausedAnnotation,
			"the Tunnel was paused: it remains as it is, and nothing is repaired",
			fmt.Sprintf(
				"to unpause it: kubectl -n %s annotate tunnel %s %s-", v.key.Namespace, v.key.Name, clusterv1.PausedAnnotation,
			),
		)
	}
	if has != v1alpha1.TunnelEnabled && v.tunnel == nil {
		return ok("it exists, and has RemoteNetworks")
	}
	return ok("it exists, and has opted in")
}

func hasPause(o client.Object) bool {
	_, paused := o.GetAnnotations()[clusterv1.PausedAnnotation]
	return paused
}

func orNone(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

// paused returns the finding for a pause of the controllers.
func (v *visit) paused() bool {
	return v.halted || v.cluster != nil && (ptr.Deref(v.cluster.Spec.Paused, false) || hasPause(v.cluster)) ||
		v.tunnel != nil && hasPause(v.tunnel)
}

// unreadable returns the finding for a required object that cannot be read.
func (v *visit) unreadable(ctx context.Context, err error, kind, resource string, key client.ObjectKey) finding {
	detail := fmt.Sprintf("%s %s cannot be read from namespace %s: %s", kind, key.Name, key.Namespace, text(err))
	cause, cure := explain.Unreadable(err, ctx.Err() != nil, resource, key.Namespace)
	return broken(detail, cause, cure)
}

// checkTunnel checks the Tunnel and the conditions that the controller has set.
func checkTunnel(ctx context.Context, v *visit) finding {
	if v.cluster == nil {
		return skipped("the Cluster was not read")
	}
	if v.tunnel == nil && v.hasNetworks() && v.cluster.Labels[v1alpha1.TunnelLabel] != v1alpha1.TunnelEnabled {
		return skipped("the Cluster has no tunnel of its own")
	}
	if v.tunnel == nil {
		return v.noTunnel(ctx)
	}
	t := v.tunnel
	accepted := apimeta.FindStatusCondition(t.Status.Conditions, v1alpha1.ConditionAccepted)
	switch {
	case !t.DeletionTimestamp.IsZero() && v.cluster.DeletionTimestamp.IsZero():
		return broken(
			"it was deleted at "+utc(t.DeletionTimestamp.Time)+" and is not gone yet",
			"the Tunnel was deleted, or the label was removed from the Cluster; it is gone when the kubeconfig has its "+
				"original server again",
			"wait until it is gone: the controller then creates another one if the Cluster has the label, and edges must "+
				"enrol again. "+v.heldBack(
				ctx,
			),
		)
	case accepted == nil || accepted.ObservedGeneration < t.Generation && v.now().Sub(writers.Changed(t)) > slow:
		if v.paused() {
			return warning(
				"the controller has not reconciled its last change", "the Cluster or the Tunnel is paused", "unpause it",
			)
		}
		return v.unanswered(ctx)
	case accepted.Status == metav1.ConditionFalse:
		return refusedTunnel(accepted)
	case accepted.Reason == v1alpha1.ReasonNotTunnelled:
		return ok("its mode %s leads through a network of your own, without a tunnel", t.Spec.Kubeconfig.Mode)
	case accepted.Reason == v1alpha1.ReasonWaitingForCluster:
		return warning(
			"it is prepared and waits for its Cluster: "+accepted.Message, "the Cluster is to be moved here",
			"move it: fairlead move",
		)
	}
	return ok("%s", accepted.Message)
}

func (v *visit) noTunnel(ctx context.Context) finding {
	detail := "the Cluster has opted in, but has no Tunnel"
	tunnel := &v1alpha1.Tunnel{}
	if err := v.Objects.Get(ctx, v.key, tunnel); err != nil && !apierrors.IsNotFound(err) {
		return v.unreadable(ctx, err, "Tunnel", "tunnels.fairlead.dev", v.key)
	}
	if v.paused() {
		return broken(detail, "the Cluster is paused, so the controller does not create one", "unpause the Cluster")
	}
	if down := v.controllerDown(ctx); down != "" {
		return broken(detail, down, v.startController())
	}
	return broken(
		detail, "the controller has not created it yet, or lacks the permission",
		"wait a few seconds; then see the log of the controller: kubectl -n "+v.installation()+" logs deployment/controller",
	)
}

// unanswered returns the finding for a Tunnel that no controller processes.
func (v *visit) unanswered(ctx context.Context) finding {
	detail := "the controller has not reconciled its last change"
	if down := v.controllerDown(ctx); down != "" {
		return broken(detail, down, v.startController())
	}
	return broken(
		detail, "the controller is too slow, or lacks permission to write its status",
		"see the log of the controller: kubectl -n "+v.installation()+" logs deployment/controller",
	)
}

func (v *visit) heldBack(ctx context.Context) string {
	if down := v.controllerDown(ctx); down != "" {
		return down + ": " + v.startController()
	}
	return ""
}

// refusedTunnel returns the finding for a Tunnel that is not served, or only in part. The condition's message names the
// field and the cure.
func refusedTunnel(c *metav1.Condition) finding {
	detail := "it is not accepted (" + c.Reason + "): " + c.Message
	cause, cure := explain.Tunnel(c.Reason)
	if v1alpha1.ServedInPart(c.Reason) {
		return warning(detail, cause, cure)
	}
	return broken(detail, cause, cure)
}
