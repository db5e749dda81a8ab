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
)

// slow is how long a controller may leave a change unprocessed.
const slow = 30 * time.Second

// checkCluster checks the Cluster: whether it exists, requests a tunnel, and is neither paused nor being deleted.
func checkCluster(ctx context.Context, v *visit) finding {
	cluster := &clusterv1.Cluster{}
	if err := v.Objects.Get(ctx, v.key, cluster); err != nil {
		return v.unreadable(ctx, err, "Cluster", "clusters.cluster.x-k8s.io", v.key)
	}
	v.cluster = cluster
	tunnel := &v1alpha1.Tunnel{}
	if v.Objects.Get(ctx, v.key, tunnel) == nil {
		v.tunnel = tunnel // its own hop reports its faults
	}
	label := fmt.Sprintf("kubectl -n %s label cluster %s %s=%s --overwrite", v.key.Namespace, v.key.Name, v1alpha1.TunnelLabel, v1alpha1.TunnelEnabled)
	has := cluster.Labels[v1alpha1.TunnelLabel]
	unpause := fmt.Sprintf("when that is over: kubectl -n %s patch cluster %s --type=merge -p '{\"spec\":{\"paused\":false}}', and remove its annotation %s if it has it",
		v.key.Namespace, v.key.Name, clusterv1.PausedAnnotation)
	switch {
	case has == v1alpha1.TunnelDisabled:
		return broken("it has the label "+v1alpha1.TunnelLabel+"="+has, "somebody has decided that this Cluster gets no tunnel", label)
	case has != v1alpha1.TunnelEnabled && v.tunnel == nil:
		return broken("it has not the label "+v1alpha1.TunnelLabel+", and no Tunnel", "nobody has asked for a tunnel, and the controller does not make one for all Clusters (--all-clusters)", label)
	case !cluster.DeletionTimestamp.IsZero():
		return warning("it is being deleted since "+utc(cluster.DeletionTimestamp.Time)+", and waits for "+orNobody(cluster.Finalizers),
			"somebody has deleted the Cluster: its way stays until Cluster API has removed the machines, and goes then",
			"wait; if it does not end: kubectl -n "+v.key.Namespace+" describe cluster "+v.key.Name+" names who still holds a finalizer, and the logs of that controller say why")
	case ptr.Deref(cluster.Spec.Paused, false) || hasPause(cluster):
		return warning("it is paused", "somebody has paused the Cluster: its way stays as it is, and nothing that is wrong is repaired", unpause)
	case v.tunnel != nil && hasPause(v.tunnel):
		return warning("its Tunnel has the annotation "+clusterv1.PausedAnnotation, "somebody has paused the Tunnel: its way stays as it is, and nothing that is wrong is repaired",
			fmt.Sprintf("when that is over: kubectl -n %s annotate tunnel %s %s-", v.key.Namespace, v.key.Name, clusterv1.PausedAnnotation))
	}
	return ok("it is there, and wants a tunnel")
}

func hasPause(o client.Object) bool {
	_, paused := o.GetAnnotations()[clusterv1.PausedAnnotation]
	return paused
}

func orNobody(names []string) string {
	if len(names) == 0 {
		return "nobody"
	}
	return strings.Join(names, ", ")
}

// paused returns the finding for a pause of the controllers.
func (v *visit) paused() bool {
	return v.cluster != nil && (ptr.Deref(v.cluster.Spec.Paused, false) || hasPause(v.cluster)) || v.tunnel != nil && hasPause(v.tunnel)
}

// unreadable returns the finding for a required object that cannot be read.
func (v *visit) unreadable(ctx context.Context, err error, kind, resource string, key client.ObjectKey) finding {
	switch {
	case apierrors.IsNotFound(err):
		return broken(fmt.Sprintf("there is no %s %s in namespace %s", kind, key.Name, key.Namespace), "another name or namespace is meant, or another management cluster",
			"kubectl get "+resource+" -A lists all that there are; fairlead check takes --namespace, --context and --kubeconfig")
	case apierrors.IsForbidden(err):
		return broken(fmt.Sprintf("%s %s can't be read: %s", kind, key.Name, text(err)), "the user of this command may not read "+resource+" in namespace "+key.Namespace,
			"let the user get, list and watch "+resource+" and tunnels.fairlead.dev there, for example by kubectl create role and rolebinding, or use another --context")
	case apierrors.IsUnauthorized(err):
		return broken("the management cluster does not take this user", "the credentials of the management cluster's kubeconfig have ended", "log in to the management cluster again")
	case apimeta.IsNoMatchError(err):
		return broken("the management cluster has no "+resource, "Cluster API or Fairlead is not installed there, or another management cluster is meant", "install it, or use another --context")
	case ctx.Err() != nil:
		return broken("the management cluster does not answer", "its apiserver is down or slow, or this machine has no way there", "see that kubectl get "+resource+" works here")
	}
	return broken("the management cluster can't be asked: "+text(err), "its apiserver is down, or this machine has no way there", "see that kubectl get "+resource+" works here")
}

// checkTunnel checks the Tunnel and the conditions that the controller has set.
func checkTunnel(ctx context.Context, v *visit) finding {
	if v.cluster == nil {
		return skipped("there is no Cluster to look at")
	}
	if v.tunnel == nil {
		return v.noTunnel(ctx)
	}
	t := v.tunnel
	accepted := apimeta.FindStatusCondition(t.Status.Conditions, v1alpha1.ConditionAccepted)
	switch {
	case !t.DeletionTimestamp.IsZero() && v.cluster.DeletionTimestamp.IsZero():
		return broken("it is being deleted since "+utc(t.DeletionTimestamp.Time), "somebody has deleted the Tunnel, or taken the label from the Cluster; it goes when the kubeconfig has its original server again",
			"wait until it is gone: the controller then makes another one, if the Cluster has the label; edges have to enrol again. "+v.heldBack(ctx))
	case accepted == nil || accepted.ObservedGeneration < t.Generation && v.now().Sub(changedAt(t)) > slow:
		if v.paused() {
			return warning("the controller has not looked at it since it was changed", "the Cluster or the Tunnel is paused", "unpause it")
		}
		return v.unanswered(ctx)
	case accepted.Status == metav1.ConditionFalse:
		return refusedTunnel(accepted)
	case accepted.Reason == v1alpha1.ReasonNotTunnelled:
		return ok("its mode %s leads through a network of your own, without a tunnel", t.Spec.Kubeconfig.Mode)
	case accepted.Reason == v1alpha1.ReasonWaitingForCluster:
		return warning("it is prepared, and waits for its Cluster: "+accepted.Message, "the Cluster is to be moved here", "move it: fairlead move")
	}
	return ok("%s", accepted.Message)
}

func (v *visit) noTunnel(ctx context.Context) finding {
	detail := "the Cluster wants a tunnel, and has no Tunnel"
	tunnel := &v1alpha1.Tunnel{}
	if err := v.Objects.Get(ctx, v.key, tunnel); err != nil && !apierrors.IsNotFound(err) {
		return v.unreadable(ctx, err, "Tunnel", "tunnels.fairlead.dev", v.key)
	}
	if v.paused() {
		return broken(detail, "the Cluster is paused, so none is made", "unpause the Cluster")
	}
	if down := v.controllerDown(ctx); down != "" {
		return broken(detail, down, v.startController())
	}
	return broken(detail, "the controller has not made it yet, or may not", "wait some seconds; then the log of the controller says why: kubectl -n "+v.installation()+" logs deployment/controller")
}

// unanswered returns the finding for a Tunnel that no controller processes.
func (v *visit) unanswered(ctx context.Context) finding {
	detail := "the controller has not looked at it since it was changed"
	if down := v.controllerDown(ctx); down != "" {
		return broken(detail, down, v.startController())
	}
	return broken(detail, "the controller does not come to it, or may not write its status", "the log of the controller says why: kubectl -n "+v.installation()+" logs deployment/controller")
}

func (v *visit) heldBack(ctx context.Context) string {
	if down := v.controllerDown(ctx); down != "" {
		return down + ": " + v.startController()
	}
	return ""
}

// changedAt returns when an object's spec was last written, from its managed fields.
func changedAt(o client.Object) time.Time {
	at := o.GetCreationTimestamp().Time
	for _, f := range o.GetManagedFields() {
		if f.Subresource == "" && f.Time != nil && f.Time.After(at) {
			at = f.Time.Time
		}
	}
	return at
}

// refusedTunnel returns the finding for a Tunnel that is not served, or only in part. The condition's message names the
// field and the cure.
func refusedTunnel(c *metav1.Condition) finding {
	detail := "it is not accepted (" + c.Reason + "): " + c.Message
	switch c.Reason {
	case v1alpha1.ReasonNameTaken:
		return broken(detail, "two Clusters claim one hostname or id, and the other has it on record", "rename or delete one of the two Clusters; the one that stays is served some seconds later")
	case v1alpha1.ReasonInvalidExtraName:
		return warning(detail, "an extra name is malformed, or another Tunnel has it; all the rest is served",
			"take the name out of spec.extraNames of this Tunnel, or of the one that has it: kubectl edit tunnel")
	case v1alpha1.ReasonInvalidName:
		return broken(detail, "the names of the Cluster and its namespace give no DNS name", "make the Cluster again under another name")
	case v1alpha1.ReasonInvalidAPIServer:
		return broken(detail, "the address that edges are to dial is neither an IP address nor a DNS name", "put it right in spec.apiServer of the Tunnel, or in spec.controlPlaneEndpoint of the Cluster")
	case v1alpha1.ReasonControlledByOther:
		return broken(detail, "the Tunnel has an owner that is no Cluster", "remove that owner reference, or the Tunnel")
	case v1alpha1.ReasonTunnelsOff:
		return broken(detail, "this installation makes no tunnels", "choose another mode in spec.kubeconfig.mode, or run the controller with gateways")
	}
	return broken(detail, "the controller refuses it", "do what the message says")
}
