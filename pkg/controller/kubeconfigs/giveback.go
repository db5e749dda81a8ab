package kubeconfigs

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/controller/condition"
	"github.com/fairlead/fairlead/pkg/controller/objects"
	"github.com/fairlead/fairlead/pkg/controller/reconciler"
	"github.com/fairlead/fairlead/pkg/kubeconfig"
)

// Restorer restores the kubeconfigs that control-plane providers wrote.
type Restorer struct {
	reconciler.Deps
}

// NewRestorer returns a Restorer.
func NewRestorer(p reconciler.Deps) *Restorer {
	return &Restorer{Deps: p}
}

// Restore restores the kubeconfig of a Cluster. It removes the record first, because otherwise the webhook would write
// the endpoint again. A kubeconfig that cannot be read, or whose Secret is immutable, does not block the removal of a
// Tunnel.
func (r *Restorer) Restore(ctx context.Context, o objects.Group) (*v1alpha1.Tunnel, error) {
	// Most Clusters without a Tunnel never had one. What resembles our fields there, such as a proxy, belongs to the
	// owner.
	if o.Tunnel == nil && !kubeconfig.Annotated(o.Kubeconfig) {
		return nil, nil
	}
	tunnel := o.Tunnel
	if tunnel != nil && tunnel.Status.Kubeconfig.Mode != "" {
		status := tunnel.Status.DeepCopy()
		status.Kubeconfig = v1alpha1.KubeconfigStatus{Copies: status.Kubeconfig.Copies}
		var err error
		if tunnel, err = condition.Patch(ctx, r.Client, tunnel, *status); err != nil {
			return nil, client.IgnoreNotFound(err)
		}
	}
	if o.Kubeconfig == nil {
		return tunnel, nil
	}
	want := o.Kubeconfig.DeepCopy()
	changed, err := kubeconfig.Restore(want, o.Key.Name, restorable(r.Config, o))
	if !changed || errors.Is(err, kubeconfig.ErrInvalid) {
		return tunnel, nil
	}
	if err != nil {
		return nil, err
	}
	if immutable(o.Kubeconfig) {
		r.Log.Warn("cannot restore kubeconfig: its Secret is immutable", "cluster", o.Key.String())
		if tunnel != nil {
			r.warn(
				tunnel, v1alpha1.ReasonNotWritable,
				fmt.Sprintf(
					"Secret %s is immutable, so its kubeconfig still leads through Fairlead: delete it, and its control-plane "+
						"provider writes it again", o.Kubeconfig.Name,
				),
			)
		}
		return tunnel, nil
	}
	switch err := r.Client.Patch(ctx, want, objects.LockedPatch(o.Kubeconfig)); {
	case objects.Denied(err):
		return r.heldBack(ctx, o, tunnel, apierrors.ReasonForError(err))
	case err != nil:
		return nil, objects.Wrap("writing kubeconfig Secret", err)
	}
	r.Log.Info("kubeconfig restored", "cluster", o.Key.String())
	return tunnel, nil
}

// A Tunnel waits for giveBackPatience if its kubeconfig cannot be restored, and retries every giveBackRetry. That is
// enough for a webhook to restart, or for a person to read the condition. Then the Tunnel is removed: no finalizer
// blocks for ever.
const giveBackPatience, giveBackRetry = 10 * time.Minute, 30 * time.Second

// heldBack records that an admission policy or webhook rejects the restored kubeconfig. It returns the Tunnel after
// giveBackPatience, otherwise reconciler.Later. The time of the condition is the start of the wait, so a restart does
// not begin it again.
func (r *Restorer) heldBack(
	ctx context.Context, o objects.Group, tunnel *v1alpha1.Tunnel, why metav1.StatusReason,
) (*v1alpha1.Tunnel, error) {
	r.Log.Warn("cannot restore kubeconfig", "cluster", o.Key.String(), "reason", why)
	if tunnel == nil { // nothing waits for it
		return nil, reconciler.Later{Wait: giveBackPatience}
	}
	now, status := r.Now(), tunnel.Status.DeepCopy()
	c := apimeta.FindStatusCondition(status.Conditions, v1alpha1.ConditionKubeconfigReady)
	if c != nil && c.Reason == v1alpha1.ReasonNotGivenBack {
		if now.Sub(c.LastTransitionTime.Time) < giveBackPatience {
			return nil, reconciler.Later{Wait: giveBackRetry}
		}
		r.warn(
			tunnel, v1alpha1.ReasonNotGivenBack,
			fmt.Sprintf(
				"the Tunnel is deleted, though Secret %s could not be written for %s: its kubeconfig leads through Fairlead "+
					"until its control-plane provider writes it again", o.Kubeconfig.Name, giveBackPatience,
			),
		)
		return tunnel, nil
	}
	apimeta.RemoveStatusCondition(&status.Conditions, v1alpha1.ConditionKubeconfigReady) // so that its time begins now
	_, err := condition.Report(ctx, condition.Writer{
		Client: r.Client, Recorder: r.Recorder, Log: r.Log,
	}, tunnel, status, metav1.Condition{
		Type: v1alpha1.ConditionKubeconfigReady, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonNotGivenBack,
		LastTransitionTime: metav1.NewTime(now),
		Message: fmt.Sprintf("cannot write Secret %s: an admission policy or webhook denies it (%s), so the "+
			"kubeconfig still leads through Fairlead. "+
			"Let the controller patch it; it retries until %s, and then the Tunnel is deleted without "+
			"it", o.Kubeconfig.Name, why,
			now.Add(giveBackPatience).UTC().Format(time.RFC3339)),
	})
	if err != nil {
		return nil, err
	}
	return nil, reconciler.Later{Wait: giveBackRetry}
}

// warn records an event that is not a transition of a condition.
func (r *Restorer) warn(tunnel *v1alpha1.Tunnel, reason, message string) {
	condition.Record(
		r.Recorder, r.Log, tunnel,
		[]condition.Transition{{Condition: "", EventType: corev1.EventTypeWarning, Reason: reason, Message: message}},
	)
}
