// Package webhook serves the mutating webhook that writes the recorded endpoint into a kubeconfig Secret during
// admission, and maintains the serving certificate if no other program does. Its input is an admission request and the
// record in a Tunnel's status; its output is a patch. It decides nothing, rejects nothing, and reads no Secret except
// that of its own certificate.
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
	// MaxKubeconfig keeps the webhook fast: a larger kubeconfig is left to the controller. Usual ones have 6 KiB.
	MaxKubeconfig = 128 << 10
	// MaxAnnotations is the apiserver's limit.
	MaxAnnotations = 256 << 10
)

// kubeconfigWebhook writes the recorded endpoint into a kubeconfig Secret that is being written. It decides nothing: it
// writes only what the controller would write a moment later. So it never rejects a Secret, and it changes nothing in
// case of doubt. Every replica serves it.
//
// It cannot authenticate the apiserver, so it must not add a secret to a response that was not in the request. It reads
// no Secret, and keeps only the proxy credentials that the request contains. The controller adds the credentials of a
// new proxy.
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

// rewrite returns what must be changed in a Secret; nil: nothing.
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
		return nil, nil // it must not be changed, and a change could be rejected
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
		return nil, nil // the apiserver would reject what its writer may write
	}
	return operations(&before, after), nil
}

// decision returns the recorded decision for a Cluster, with the credentials that the Secrets in the request contain.
// It returns false if nothing is on record or the kubeconfig must not be changed now.
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

// fits reports whether the apiserver accepts a Secret of this size.
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

// operations returns the JSON patch from one Secret to another. It names only keys that differ, because a Secret may be
// large.
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
