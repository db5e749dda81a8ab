// Package webhook serves the mutating webhook that writes the recorded way into a kubeconfig Secret while it is
// admitted, and keeps the serving certificate where no other program does. In go an admission request and the record
// in a Tunnel's status, out comes a patch. It decides nothing, refuses nothing and reads no Secret but that of its
// own certificate.
package webhook

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"

	"gomodules.xyz/jsonpatch/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/controller/config"
	"github.com/fairlead/fairlead/pkg/controller/objects"
	"github.com/fairlead/fairlead/pkg/kubeconfig"
)

const (
	// MaxKubeconfig keeps the webhook quick: a larger kubeconfig is left to the controller. Usual ones have 6 KiB.
	MaxKubeconfig = 128 << 10
	// MaxAnnotations is the apiserver's limit.
	MaxAnnotations = 256 << 10
)

// kubeconfigWebhook puts the recorded way into a kubeconfig Secret that is being written. It decides
// nothing: what it does the controller would do a moment later. So it never refuses a Secret, and leaves alone what
// it is in any doubt about. Every replica serves it.
//
// It can't tell the apiserver from another caller on its port. So it adds no secret to a response that was not in the
// request: it reads no Secret at all, and of a proxy's credentials it keeps those that the request holds. The
// controller adds those of a new one.
type kubeconfigWebhook struct {
	config config.Config
	client client.Reader // the cache
	log    *slog.Logger
}

// Handle implements admission.Handler.
func (w *kubeconfigWebhook) Handle(ctx context.Context, request admission.Request) admission.Response {
	changes, err := w.rewrite(ctx, request)
	if err != nil {
		w.log.Info("webhook leaves kubeconfig unchanged", "secret", request.Namespace+"/"+request.Name, "error", err)
		return admission.Allowed("")
	}
	if len(changes) == 0 {
		return admission.Allowed("")
	}
	return admission.Patched("", changes...)
}

// rewrite returns what is to be changed of a Secret; nil: nothing.
func (w *kubeconfigWebhook) rewrite(
	ctx context.Context, request admission.Request,
) ([]jsonpatch.JsonPatchOperation, error) {
	var before, old corev1.Secret
	if err := json.Unmarshal(request.Object.Raw, &before); err != nil {
		return nil, fmt.Errorf("reading Secret: %w", err)
	}
	if len(request.OldObject.Raw) > 0 {
		if err := json.Unmarshal(request.OldObject.Raw, &old); err != nil {
			return nil, fmt.Errorf("reading previous Secret: %w", err)
		}
	}
	name, ok := strings.CutSuffix(before.Name, kubeconfig.Suffix)
	_, labelled := before.Labels[clusterv1.ClusterNameLabel]
	switch {
	case !ok || name == "" || !labelled || !before.DeletionTimestamp.IsZero():
		return nil, nil // not Cluster API's
	case ptr.Deref(before.Immutable, false) || ptr.Deref(old.Immutable, false):
		return nil, nil // it is not to be changed, and a change could be refused
	case len(before.Data[kubeconfig.Key]) > MaxKubeconfig:
		return nil, nil
	}
	decision, ok, err := w.decision(ctx, client.ObjectKey{Namespace: request.Namespace, Name: name}, &old, &before)
	if !ok || err != nil {
		return nil, err
	}
	after := before.DeepCopy()
	if changed, err := kubeconfig.Apply(after, name, decision); err != nil || !changed {
		return nil, err
	}
	if !fits(after) {
		return nil, nil // the apiserver would refuse what its writer may write
	}
	return operations(&before, after), nil
}

// decision is what is on record for a Cluster, with the credentials that the Secrets in the request hold; false:
// nothing is on record, or the kubeconfig is to be left alone now.
func (w *kubeconfigWebhook) decision(
	ctx context.Context, key client.ObjectKey, sent ...*corev1.Secret,
) (none kubeconfig.Decision, ok bool, err error) {
	o := objects.Group{Key: key}
	if o.Tunnel, err = objects.Get(ctx, w.client, key, &v1alpha1.Tunnel{}); err != nil || o.Tunnel == nil {
		return none, false, objects.Wrap("reading Tunnel", err)
	}
	if o.Cluster, err = objects.Get(ctx, w.client, key, &clusterv1.Cluster{}); err != nil || o.Cluster == nil {
		return none, false, objects.Wrap("reading Cluster", err)
	}
	if owner := objects.ControllingCluster(o.Tunnel); owner == nil || owner.UID != o.Cluster.UID || objects.Paused(o) {
		return none, false, nil
	}
	decision, ok := kubeconfig.FromTunnelAndSecrets(o.Tunnel, w.config.Gateways(), key.Name, sent...)
	decision.Endpoint = kubeconfig.EndpointURL(
		o.Cluster.Spec.ControlPlaneEndpoint.Host, o.Cluster.Spec.ControlPlaneEndpoint.Port,
	)
	return decision, ok, nil
}

// fits says whether the apiserver takes a Secret of this size.
func fits(secret *corev1.Secret) bool {
	data, annotations := 0, 0
	for _, value := range secret.Data {
		data += len(value)
	}
	for key, value := range secret.Annotations {
		annotations += len(key) + len(value)
	}
	return data <= corev1.MaxSecretSize && annotations <= MaxAnnotations
}

// operations are what leads from one Secret to another. Only keys that differ are named: a Secret may be large.
func operations(before, after *corev1.Secret) []jsonpatch.JsonPatchOperation {
	var out []jsonpatch.JsonPatchOperation
	if before.Annotations == nil && len(after.Annotations) > 0 {
		out = append(out, jsonpatch.NewOperation("add", "/metadata/annotations", after.Annotations))
	} else {
		out = append(
			out,
			difference(
				"/metadata/annotations/", before.Annotations, after.Annotations, func(a, b string) bool { return a == b },
			)...,
		)
	}
	return append(out, difference("/data/", before.Data, after.Data, bytes.Equal)...) // there is data: it was read
}

func difference[V any](
	path string, before, after map[string]V, equal func(a, b V) bool,
) (out []jsonpatch.JsonPatchOperation) {
	escape := strings.NewReplacer("~", "~0", "/", "~1") // RFC 6901
	for _, key := range slices.Sorted(maps.Keys(after)) {
		if was, ok := before[key]; !ok || !equal(was, after[key]) {
			out = append(out, jsonpatch.NewOperation("add", path+escape.Replace(key), after[key]))
		}
	}
	for _, key := range slices.Sorted(maps.Keys(before)) {
		if _, ok := after[key]; !ok {
			out = append(out, jsonpatch.NewOperation("remove", path+escape.Replace(key), nil))
		}
	}
	return out
}

// serve fills the cache in every replica, whether it leads or not, waits for a certificate, and then serves the
// webhook.
func (w *kubeconfigWebhook) serve(
	ctx context.Context, from cache.Cache, wait func(context.Context) error, server webhook.Server,
) error {
	for _, o := range []client.Object{&v1alpha1.Tunnel{}, &clusterv1.Cluster{}} {
		if _, err := from.GetInformer(ctx, o); err != nil && ctx.Err() == nil {
			return fmt.Errorf("filling cache of the webhook: %w", err)
		}
	}
	if wait(ctx) != nil {
		return nil // the program ends
	}
	return server.Start(ctx)
}
