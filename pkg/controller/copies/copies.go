// Package copies writes the additional kubeconfigs that a Tunnel requests, for people and programs that must not have
// the Cluster's own. Its input is the spec of a Tunnel and the kubeconfig of its Cluster; its output is Secrets, each
// with its own user, and their conditions. It does not decide the endpoint of a kubeconfig: it copies the recorded one.
package copies

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/controller/condition"
	"github.com/fairlead/fairlead/pkg/controller/objects"
	"github.com/fairlead/fairlead/pkg/controller/reconciler"
	"github.com/fairlead/fairlead/pkg/kubeconfig"
)

// copyRetry is the wait before a rejected copy is tried again. The obstacle may be a Secret of another owner, which is
// not watched.
const copyRetry = time.Minute

// Reconciler reconciles the additional kubeconfigs of one Tunnel, spec.kubeconfig.copies. A request names a Tunnel or,
// without a namespace, the id of a tunnel whose copies may have outlived it.
type Reconciler struct {
	reconciler.Deps
	labelled client.Reader // caches the metadata of all copies
}

// Reconcile makes all copies of one Tunnel match its spec.
func (r *Reconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	if request.Namespace == "" {
		return reconcile.Result{}, r.removeOrphans(ctx, request.Name)
	}
	wait, err := r.update(ctx, request.NamespacedName)
	return reconciler.Retry(reconcile.Result{RequeueAfter: wait}, err)
}

func (r *Reconciler) update(ctx context.Context, key client.ObjectKey) (time.Duration, error) {
	o, err := r.load(ctx, key)
	if err != nil || o.Tunnel == nil || o.Tunnel.ClaimedID() == "" {
		return 0, err
	}
	if !o.Tunnel.DeletionTimestamp.IsZero() {
		return 0, r.removeOthers(ctx, o.Tunnel, nil)
	}
	if owner := objects.ControllingCluster(o.Tunnel); o.Cluster == nil || owner == nil || owner.UID != o.Cluster.UID ||
		objects.Paused(o) {
		return 0, nil
	}
	// Removing unwanted copies and reporting must not depend on the result of the others.
	results, err := r.writeAll(ctx, o)
	keep := make(map[client.ObjectKey]bool, len(results))
	for i := range results {
		keep[results[i].key] = keep[results[i].key] || results[i].stays
	}
	err = errors.Join(err, r.removeOthers(ctx, o.Tunnel, keep))
	if objects.Conflict(err) { // the next reconciliation has the new version
		return 0, err
	}
	return r.requeueAfter(results), errors.Join(err, r.report(ctx, o.Tunnel, results))
}

// load reads the inputs of copies.
func (r *Reconciler) load(ctx context.Context, key client.ObjectKey) (o objects.Group, err error) {
	o.Key = key
	if o.Tunnel, err = objects.Get(ctx, r.Client, key, &v1alpha1.Tunnel{}); err != nil {
		return o, objects.Wrap("reading Tunnel", err)
	}
	if o.Cluster, err = objects.Get(ctx, r.Client, key, &clusterv1.Cluster{}); err != nil {
		return o, objects.Wrap("reading Cluster", err)
	}
	o.Kubeconfig, err = objects.Get(
		ctx, r.Client, client.ObjectKey{Namespace: key.Namespace, Name: key.Name + kubeconfig.Suffix}, &corev1.Secret{},
	)
	return o, objects.Wrap("reading kubeconfig Secret", err)
}

// copyResult is the outcome of one copy.
type copyResult struct {
	key      client.ObjectKey
	stays    bool      // an existing Secret stays, although it may be outdated
	notAfter time.Time // of its certificate; zero: it has none
	renewAt  time.Time
	problem  error
}

var (
	// errWaiting wraps problems that time alone solves.
	errWaiting = errors.New("waiting")
	// errUnverified wraps problems of a copy that was written.
	errUnverified = errors.New("it is written, but clients will reject the apiserver's certificate")
)

// writeAll writes every copy that a Tunnel requests. A copy that cannot be written does not block the others, and its
// existing Secret stays. An error is one of the apiserver that calls for an immediate retry.
func (r *Reconciler) writeAll(ctx context.Context, o objects.Group) ([]copyResult, error) {
	var results []copyResult
	var errs []error
	for i := range o.Tunnel.Spec.Kubeconfig.Copies {
		spec := &o.Tunnel.Spec.Kubeconfig.Copies[i]
		field := fmt.Sprintf("spec.kubeconfig.copies[%d]", i)
		result := copyResult{key: client.ObjectKey{Namespace: spec.Namespace, Name: spec.Name}}
		if result.key.Namespace == "" {
			result.key.Namespace = o.Key.Namespace
		}
		if slices.ContainsFunc(results, func(other copyResult) bool { return other.key == result.key }) {
			// The first one is written. The status has one entry for both.
			j := slices.IndexFunc(results, func(other copyResult) bool { return other.key == result.key })
			results[j].problem = fmt.Errorf("%s: another copy has the same name: choose another name", field)
			continue
		}
		if err := r.writeOne(ctx, o, copyRequest{spec, field}, &result); err != nil {
			errs = append(errs, err)
			result.stays, result.problem = true, fmt.Errorf("%w: the apiserver returned an error, retrying", errWaiting)
		}
		results = append(results, result)
	}
	return results, errors.Join(errs...)
}

// requeueAfter returns when the first certificate is due or an obstacle may be gone; zero: never.
func (r *Reconciler) requeueAfter(results []copyResult) (wait time.Duration) {
	sooner := func(d time.Duration) {
		if d = max(d, time.Second); wait == 0 || d < wait {
			wait = d
		}
	}
	for i := range results {
		if !results[i].renewAt.IsZero() {
			sooner(results[i].renewAt.Sub(r.Now()))
		}
		if results[i].problem != nil {
			sooner(copyRetry + rand.N(copyRetry/10))
		}
	}
	return wait
}

// statusOwner is the field manager of the fields of copies in the status of a Tunnel: their entries and their
// condition.
const statusOwner = "fairlead-copies"

// report writes the results of the copies into a Tunnel's status, if it differs. No other reconciler counts or decides
// these fields, so server-side apply is used, which does not conflict with the other writers of the status.
func (r *Reconciler) report(ctx context.Context, tunnel *v1alpha1.Tunnel, results []copyResult) error {
	status := tunnel.Status.DeepCopy()
	status.Kubeconfig.Copies = nil
	for i := range results {
		entry := v1alpha1.KubeconfigCopyStatus{
			Namespace: results[i].key.Namespace, Name: results[i].key.Name,
			CertificateNotAfter: objects.TimeOrNil(results[i].notAfter),
		}
		if results[i].problem != nil {
			entry.Error = condition.Shorten(results[i].problem.Error())
		}
		status.Kubeconfig.Copies = append(status.Kubeconfig.Copies, entry)
	}
	var transitions []condition.Transition
	var own []metav1.Condition
	if len(results) == 0 {
		apimeta.RemoveStatusCondition(&status.Conditions, v1alpha1.ConditionCopiesReady)
	} else {
		transitions = condition.Set(status, tunnel.Generation, copiesReady(results))
		own = []metav1.Condition{*apimeta.FindStatusCondition(status.Conditions, v1alpha1.ConditionCopiesReady)}
	}
	if equality.Semantic.DeepEqual(*status, tunnel.Status) {
		return nil
	}
	if err := r.apply(ctx, tunnel, status.Kubeconfig.Copies, own); err != nil {
		return err
	}
	condition.Record(r.Recorder, r.Log, tunnel, transitions)
	return nil
}

// apply applies the entries and conditions of copies, and no others.
func (r *Reconciler) apply(
	ctx context.Context, tunnel *v1alpha1.Tunnel, entries []v1alpha1.KubeconfigCopyStatus, own []metav1.Condition,
) error {
	copies, err := condition.Unstructured(entries)
	if err != nil {
		return objects.Wrap("writing status of copies", err)
	}
	conditions, err := condition.Unstructured(own)
	if err != nil {
		return objects.Wrap("writing status of copies", err)
	}
	kind := v1alpha1.GroupVersion.WithKind("Tunnel")
	return condition.ApplyStatus(ctx, r.Client, statusOwner, kind, tunnel, map[string]any{
		"kubeconfig": map[string]any{"copies": copies}, "conditions": conditions,
	})
}

// copiesReady returns the condition that reports whether all copies are correct.
func copiesReady(results []copyResult) metav1.Condition {
	c := metav1.Condition{
		Type: v1alpha1.ConditionCopiesReady, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonWaitingForSecret,
	}
	var problems []string
	for i := range results {
		if err := results[i].problem; err != nil {
			problems = append(problems, results[i].key.String()+": "+err.Error())
			switch {
			case errors.Is(err, errWaiting):
			case !errors.Is(err, errUnverified):
				c.Reason = v1alpha1.ReasonCopyRefused
			case c.Reason != v1alpha1.ReasonCopyRefused:
				c.Reason = v1alpha1.ReasonCertificateLacksHostname
			}
		}
	}
	if len(problems) == 0 {
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, v1alpha1.ReasonCopiesWritten, condition.Counted(
			len(results), "copy is written", "copies are written",
		)
		return c
	}
	c.Message = strings.Join(problems, "; ")
	return c
}

// madeFor reports whether a Secret is a copy that was made for a Tunnel. The id alone is not sufficient, because
// another Tunnel can claim it: the Tunnel must control the copy, or the copy must be annotated with the Tunnel's
// namespace and name, which are unique.
func madeFor(secret client.Object, tunnel *v1alpha1.Tunnel) bool {
	return secret.GetLabels()[v1alpha1.CopyLabel] == tunnel.ClaimedID() &&
		(metav1.IsControlledBy(secret, tunnel) || annotated(secret) == client.ObjectKeyFromObject(tunnel))
}

// annotated returns the Tunnel in a copy's annotation; zero: none.
func annotated(secret client.Object) client.ObjectKey {
	namespace, name, _ := strings.Cut(secret.GetAnnotations()[v1alpha1.RequestTunnelAnnotation], "/")
	return client.ObjectKey{Namespace: namespace, Name: name}
}

// ownerKey returns the current key of a copy's Tunnel: clusterctl moves the owner reference to another namespace, but
// not the annotation.
func ownerKey(secret client.Object) client.ObjectKey {
	if owner := metav1.GetControllerOf(secret); owner != nil && owner.Kind == "Tunnel" {
		return client.ObjectKey{Namespace: secret.GetNamespace(), Name: owner.Name}
	}
	return annotated(secret)
}

// removeOrphans removes the copies of a tunnel that is gone: all whose Tunnel does not exist or has another id.
func (r *Reconciler) removeOrphans(ctx context.Context, id string) error {
	list, err := r.list(ctx, id)
	if err != nil {
		return err
	}
	var errs []error
	for i := range list {
		key := ownerKey(&list[i])
		if key.Namespace == "" || key.Name == "" {
			continue // not written by this controller
		}
		// From the apiserver: the cache may miss a Tunnel that was just created, for example by clusterctl move.
		tunnel, err := objects.Get(ctx, r.Live, key, &v1alpha1.Tunnel{})
		switch {
		case err != nil:
			errs = append(errs, objects.Wrap("reading Tunnel", err))
		case tunnel == nil || !madeFor(&list[i], tunnel):
			errs = append(errs, r.remove(ctx, &list[i]))
		}
	}
	return errors.Join(errs...)
}

// list returns the copies that are marked as a tunnel's.
func (r *Reconciler) list(ctx context.Context, id string) ([]metav1.PartialObjectMetadata, error) {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("SecretList"))
	if err := r.labelled.List(ctx, list, client.MatchingLabels{v1alpha1.CopyLabel: id}); err != nil {
		return nil, objects.Wrap("listing copies of kubeconfigs", err)
	}
	return list.Items, nil
}

// removeOthers deletes the copies that were made for a Tunnel, except the ones to keep.
func (r *Reconciler) removeOthers(ctx context.Context, tunnel *v1alpha1.Tunnel, keep map[client.ObjectKey]bool) error {
	list, err := r.list(ctx, tunnel.ClaimedID())
	if err != nil {
		return err
	}
	var errs []error
	for i := range list {
		if o := &list[i]; madeFor(o, tunnel) && !keep[client.ObjectKeyFromObject(o)] {
			errs = append(errs, r.remove(ctx, o))
		}
	}
	return errors.Join(errs...)
}

// remove deletes a copy, unless the Secret was replaced or changed since it was read.
func (r *Reconciler) remove(ctx context.Context, o *metav1.PartialObjectMetadata) error {
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: o.Namespace, Name: o.Name}}
	err := r.Client.Delete(ctx, secret, client.Preconditions{UID: &o.UID, ResourceVersion: &o.ResourceVersion})
	if client.IgnoreNotFound(err) != nil {
		return objects.Wrap("deleting copy of a kubeconfig", err)
	}
	r.Log.Info("copy of a kubeconfig removed", "secret", o.Namespace+"/"+o.Name, "tunnel", o.Labels[v1alpha1.CopyLabel])
	return nil
}
