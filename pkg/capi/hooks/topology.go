package hooks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	jsonpatch "github.com/evanphx/json-patch/v5"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	runtimehooksv1 "sigs.k8s.io/cluster-api/api/runtime/hooks/v1alpha1"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/capi/inject"
	"github.com/fairlead/fairlead/pkg/model"
)

// controlPlaneField is the field of a Cluster that references its control plane.
const controlPlaneField = "spec.controlPlaneRef"

var kubeadmTemplate = schema.GroupKind{Group: "controlplane.cluster.x-k8s.io", Kind: "KubeadmControlPlaneTemplate"}

// configPath is the path of the KubeadmConfigSpec in such a template.
var configPath = []string{"spec", "template", "spec", "kubeadmConfigSpec"}

// GeneratePatches patches the control plane of a Cluster that requests edges on it.
func (e *Extension) GeneratePatches(
	_ context.Context, request *runtimehooksv1.GeneratePatchesRequest, response *runtimehooksv1.GeneratePatchesResponse,
) {
	items, err := patches(request)
	if err != nil {
		fail(&response.CommonResponse, err)
		return
	}
	response.Items, response.Status = items, runtimehooksv1.ResponseStatusSuccess
}

func patches(request *runtimehooksv1.GeneratePatchesRequest) ([]runtimehooksv1.GeneratePatchesResponseItem, error) {
	cluster, err := clusterOf(request.Variables)
	if err != nil {
		return nil, err
	}
	if !inject.Requested(cluster.Metadata.Labels, cluster.Metadata.Annotations) {
		return nil, nil
	}
	var items []runtimehooksv1.GeneratePatchesResponseItem
	for _, item := range request.Items {
		if !isControlPlane(item.HolderReference) {
			continue
		}
		template, err := decode(item.Object)
		if err != nil {
			return nil, err
		}
		if template.GroupVersionKind().GroupKind() != kubeadmTemplate {
			continue // ValidateTopology returns the error
		}
		o, err := optionsOf(cluster, item.Variables, request.Variables)
		if err != nil {
			return nil, err
		}
		patch, err := patchOf(template, o)
		if err != nil {
			return nil, fmt.Errorf("patching %s: %w", kubeadmTemplate.Kind, err)
		}
		items = append(
			items,
			runtimehooksv1.GeneratePatchesResponseItem{
				UID:       item.UID,
				PatchType: runtimehooksv1.JSONMergePatchType,
				Patch:     patch,
			},
		)
	}
	return items, nil
}

// patchOf returns the changes of an injection as a merge patch.
func patchOf(template *unstructured.Unstructured, o inject.Options) ([]byte, error) {
	config, _, err := unstructured.NestedMap(template.Object, configPath...)
	if err != nil {
		return nil, fmt.Errorf("reading kubeadmConfigSpec: %w", err)
	}
	if config == nil {
		config = map[string]any{}
	}
	if err := inject.Fields(config, o); err != nil {
		return nil, err
	}
	patched := template.DeepCopy()
	if err := unstructured.SetNestedMap(patched.Object, config, configPath...); err != nil {
		return nil, fmt.Errorf("writing kubeadmConfigSpec: %w", err)
	}
	before, err := json.Marshal(template.Object)
	if err != nil {
		return nil, fmt.Errorf("encoding the template: %w", err)
	}
	after, err := json.Marshal(patched.Object)
	if err != nil {
		return nil, fmt.Errorf("encoding the patched template: %w", err)
	}
	return jsonpatch.CreateMergePatch(before, after)
}

// ValidateTopology rejects topologies that cannot work, after all patches of the ClusterClass.
func (e *Extension) ValidateTopology(
	_ context.Context, request *runtimehooksv1.ValidateTopologyRequest, response *runtimehooksv1.ValidateTopologyResponse,
) {
	if err := check(request); err != nil {
		fail(&response.CommonResponse, err)
		return
	}
	response.Status = runtimehooksv1.ResponseStatusSuccess
}

func check(request *runtimehooksv1.ValidateTopologyRequest) error {
	cluster, err := clusterOf(request.Variables)
	if err != nil {
		return err
	}
	if err := checkRequest(cluster.Metadata.Labels, cluster.Metadata.Annotations); err != nil {
		return err
	}
	if !inject.Requested(cluster.Metadata.Labels, cluster.Metadata.Annotations) {
		return nil
	}
	i := slices.IndexFunc(request.Items, func(item *runtimehooksv1.ValidateTopologyRequestItem) bool {
		return item != nil && isControlPlane(item.HolderReference)
	})
	if i < 0 {
		return errors.New(
			"the topology has no control plane that edges could run on: remove the " +
				"annotation " + v1alpha1.EdgesAnnotation + " from the Cluster",
		)
	}
	item := request.Items[i]
	template, err := decode(item.Object)
	if err != nil {
		return err
	}
	if kind := template.GroupVersionKind().GroupKind(); kind != kubeadmTemplate {
		return fmt.Errorf(
			"cannot add edges to a %s: remove Fairlead's external patch from the ClusterClass and follow the recipe for its "+
				"provider",
			kind.Kind,
		)
	}
	o, err := optionsOf(cluster, item.Variables, request.Variables)
	if err != nil {
		return err
	}
	config, _, err := unstructured.NestedMap(template.Object, configPath...)
	if err != nil {
		return fmt.Errorf("reading kubeadmConfigSpec: %w", err)
	}
	return inject.Check(config, o)
}

// checkRequest rejects incomplete or unknown labels and annotations of a Cluster.
func checkRequest(labels, annotations map[string]string) error {
	edges := annotations[v1alpha1.EdgesAnnotation]
	switch {
	case edges == "":
		return nil
	case edges != v1alpha1.EdgesOnControlPlane:
		return &model.FieldError{
			Field: "metadata.annotations[" + v1alpha1.EdgesAnnotation + "]", Value: edges, Problem: "is unknown",
			Cure: "write " + v1alpha1.EdgesOnControlPlane + ", or nothing if edges run elsewhere",
		}
	case labels[v1alpha1.TunnelLabel] == v1alpha1.TunnelDisabled:
		return nil // it has opted out, regardless of the annotation
	case labels[v1alpha1.TunnelLabel] != v1alpha1.TunnelEnabled:
		return &model.FieldError{
			Field: "metadata.labels[" + v1alpha1.TunnelLabel + "]", Value: labels[v1alpha1.TunnelLabel],
			Problem: "edges are requested, but the Cluster has no tunnel",
			Cure: "set it to " + v1alpha1.TunnelEnabled + ", or remove the annotation " + v1alpha1.EdgesAnnotation +
				" from the Cluster",
		}
	}
	return nil
}

func isControlPlane(holder runtimehooksv1.HolderReference) bool {
	return holder.Kind == "Cluster" && holder.FieldPath == controlPlaneField
}

// decode decodes a template of any kind.
func decode(object runtime.RawExtension) (*unstructured.Unstructured, error) {
	template := &unstructured.Unstructured{}
	if err := template.UnmarshalJSON(object.Raw); err != nil {
		return nil, fmt.Errorf("reading a template of the topology: %w", err)
	}
	return template, nil
}

func fail(response *runtimehooksv1.CommonResponse, err error) {
	response.Status, response.Message = runtimehooksv1.ResponseStatusFailure, "fairlead: "+err.Error()
}
