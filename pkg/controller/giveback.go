package controller

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
	"github.com/fairlead/fairlead/pkg/kubeconfig"
)

// restorer restores kubeconfigs to what their control-plane providers wrote.
type restorer struct {
	deps
}

func newRestorer(p deps) *restorer {
	return &restorer{deps: p}
}

// giveBack restores the kubeconfig of a Cluster. First what is on record goes, or the webhook would write it again. A kubeconfig
// that can't be read, or whose Secret is immutable, must not keep a Tunnel for ever.
func (r *restorer) giveBack(ctx context.Context, o objects) (*v1alpha1.Tunnel, error) {
	// Most Clusters without Tunnel never had one, and what looks like ours there, say a proxy, is their owner's.
	if o.tunnel == nil && !kubeconfig.Noted(o.kubeconfig) {
		return nil, nil
	}
	tunnel := o.tunnel
	if tunnel != nil && tunnel.Status.Kubeconfig.Mode != "" {
		status := tunnel.Status.DeepCopy()
		status.Kubeconfig = v1alpha1.KubeconfigStatus{Copies: status.Kubeconfig.Copies}
		var err error
		if tunnel, err = patchStatus(ctx, r.client, tunnel, *status); err != nil {
			return nil, client.IgnoreNotFound(err)
		}
	}
	if o.kubeconfig == nil {
		return tunnel, nil
	}
	want := o.kubeconfig.DeepCopy()
	changed, err := kubeconfig.Restore(want, o.key.Name, wayBack(r.config, o))
	if !changed || errors.Is(err, kubeconfig.ErrInvalid) {
		return tunnel, nil
	}
	if err != nil {
		return nil, err
	}
	if immutable(o.kubeconfig) {
		r.log.Warn("kubeconfig can't be given back: its Secret is immutable", "cluster", o.key.String())
		if tunnel != nil {
			r.warn(tunnel, v1alpha1.ReasonNotWritable, fmt.Sprintf("Secret %s is immutable, so its kubeconfig goes on leading by Fairlead's way: delete it, and its control-plane provider writes it anew", o.kubeconfig.Name))
		}
		return tunnel, nil
	}
	switch err := r.client.Patch(ctx, want, lockedPatch(o.kubeconfig)); {
	case denied(err):
		return r.heldBack(ctx, o, tunnel, apierrors.ReasonForError(err))
	case err != nil:
		return nil, wrap("writing kubeconfig Secret", err)
	}
	r.log.Info("kubeconfig given back", "cluster", o.key.String())
	return tunnel, nil
}

// A Tunnel waits giveBackPatience for a kubeconfig that may not be given back, and tries each giveBackRetry: long enough for a
// webhook that is started again, or a person who reads the condition. Then it goes: nothing holds a finalizer for ever.
const giveBackPatience, giveBackRetry = 10 * time.Minute, 30 * time.Second

// heldBack says of a kubeconfig that an admission policy or webhook does not let be given back, and returns the Tunnel when it
// has waited for long enough, else errLater. The condition's time is when it began: so a restart does not begin anew.
func (r *restorer) heldBack(ctx context.Context, o objects, tunnel *v1alpha1.Tunnel, why metav1.StatusReason) (*v1alpha1.Tunnel, error) {
	r.log.Warn("kubeconfig can't be given back", "cluster", o.key.String(), "reason", why)
	if tunnel == nil { // nothing waits for it
		return nil, errLater{giveBackPatience}
	}
	now, status := r.now(), tunnel.Status.DeepCopy()
	c := apimeta.FindStatusCondition(status.Conditions, v1alpha1.ConditionKubeconfigReady)
	if c != nil && c.Reason == v1alpha1.ReasonNotGivenBack {
		if now.Sub(c.LastTransitionTime.Time) < giveBackPatience {
			return nil, errLater{giveBackRetry}
		}
		r.warn(tunnel, v1alpha1.ReasonNotGivenBack, fmt.Sprintf("the Tunnel goes, though Secret %s could not be written for %s: its kubeconfig goes on leading by Fairlead's way until its control-plane provider writes it anew", o.kubeconfig.Name, giveBackPatience))
		return tunnel, nil
	}
	apimeta.RemoveStatusCondition(&status.Conditions, v1alpha1.ConditionKubeconfigReady) // so that its time begins now
	_, err := reportStatus(ctx, statusWriter{r.client, r.recorder, r.log}, tunnel, status, metav1.Condition{
		Type: v1alpha1.ConditionKubeconfigReady, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonNotGivenBack, LastTransitionTime: metav1.NewTime(now),
		Message: fmt.Sprintf("Secret %s may not be written: an admission policy or webhook refuses it (%s), so the kubeconfig still leads by Fairlead's way. "+
			"Let the controller patch it; it is tried until %s, and then the Tunnel goes all the same", o.kubeconfig.Name, why, now.Add(giveBackPatience).UTC().Format(time.RFC3339)),
	})
	if err != nil {
		return nil, err
	}
	return nil, errLater{giveBackRetry}
}

// warn tells of what is no transition of a condition.
func (r *restorer) warn(tunnel *v1alpha1.Tunnel, reason, message string) {
	tell(r.recorder, r.log, tunnel, []transition{{"", corev1.EventTypeWarning, reason, message}})
}
