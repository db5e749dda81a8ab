package clusterclass_test

import (
	"context"
	"encoding/base64"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/internal/kubetest"
	"github.com/fairlead/fairlead/test/lab/proc"
)

// contractLabel declares which version of a type implements Cluster API's contract; its kustomizations add it to every
// type.
const contractLabel = "cluster.x-k8s.io/v1beta2"

// installTypes installs the types of Cluster API and of its kubeadm control-plane provider, Fairlead's own, and
// placeholders for the types of an infrastructure provider, whose fields are never read.
func installTypes(ctx context.Context, admin client.Client) error {
	module, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/cluster-api").Output()
	if err != nil {
		return fmt.Errorf("finding the types of the kubeadm control plane: %w", err)
	}
	var crds []*unstructured.Unstructured
	for _, dir := range []string{
		"../../bin/capi-config/crd/bases", "../kubernetes/crd", filepath.Join(strings.TrimSpace(string(module)),
			"controlplane/kubeadm/config/crd/bases"),
	} {
		files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
		if err != nil || len(files) == 0 {
			return fmt.Errorf("there are no types in %s: %w", dir, err)
		}
		for _, file := range files {
			data, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			more, err := kubetest.Decode(data)
			if err != nil {
				return err
			}
			crds = append(crds, more...)
		}
	}
	for _, kind := range []string{"DockerCluster", "DockerClusterTemplate", "DockerMachine", "DockerMachineTemplate"} {
		crds = append(crds, infrastructureType(kind))
	}
	for _, crd := range crds {
		labels := crd.GetLabels()
		if labels == nil {
			labels = map[string]string{}
		}
		labels[contractLabel] = "v1beta2"
		crd.SetLabels(labels)
		if err := admin.Create(ctx, crd); err != nil {
			return fmt.Errorf("installing type %s: %w", crd.GetName(), err)
		}
	}
	return proc.Wait(ctx, time.Minute, func(ctx context.Context) error { return established(ctx, admin, crds) })
}

func infrastructureType(kind string) *unstructured.Unstructured {
	anything := map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}
	plural := strings.ToLower(kind) + "s"
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": map[string]any{"name": plural + ".infrastructure.cluster.x-k8s.io"},
		"spec": map[string]any{
			"group": "infrastructure.cluster.x-k8s.io", "scope": "Namespaced",
			"names": map[string]any{
				"kind":     kind,
				"listKind": kind + "List",
				"plural":   plural,
				"singular": strings.ToLower(kind),
			},
			"versions": []any{map[string]any{
				"name": "v1beta2", "served": true, "storage": true, "subresources": map[string]any{"status": map[string]any{}},
				"schema": map[string]any{
					"openAPIV3Schema": map[string]any{
						"type":       "object",
						"properties": map[string]any{"spec": anything, "status": anything},
					},
				},
			}},
		},
	}}
}

func established(ctx context.Context, admin client.Client, crds []*unstructured.Unstructured) error {
	for _, crd := range crds {
		current := crd.DeepCopy()
		if err := admin.Get(ctx, client.ObjectKeyFromObject(crd), current); err != nil {
			return err
		}
		conditions, _, err := unstructured.NestedSlice(current.Object, "status", "conditions")
		if err != nil {
			return err
		}
		is := false
		for _, c := range conditions {
			fields, _ := c.(map[string]any)
			is = is || (fields["type"] == "Established" && fields["status"] == "True")
		}
		if !is {
			return fmt.Errorf("type %s is not established", crd.GetName())
		}
	}
	return nil
}

// installExtension creates the permissions from the extension's manifest. The extension itself runs as a process.
func installExtension(ctx context.Context, admin client.Client) error {
	data, err := os.ReadFile("../runtime-extension/runtime-extension.yaml")
	if err != nil {
		return err
	}
	objects, err := kubetest.Decode(data)
	if err != nil {
		return err
	}
	for _, o := range objects {
		if strings.HasPrefix(o.GetKind(), "ClusterRole") {
			if err := admin.Create(ctx, o); err != nil {
				return err
			}
		}
	}
	return nil
}

func base64Of(data []byte) string { return base64.StdEncoding.EncodeToString(data) }
