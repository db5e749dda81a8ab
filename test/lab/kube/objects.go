package kube

import (
	"context"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/test/lab/proc"
)

// WaitEstablished waits until an apiserver serves the types of CRDs.
func (a *APIServer) WaitEstablished(ctx context.Context, crds []*unstructured.Unstructured) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, crd := range crds {
		group.Go(func() error {
			return proc.Wait(ctx, proc.StartTimeout, func(ctx context.Context) error {
				current := &unstructured.Unstructured{}
				current.SetGroupVersionKind(crd.GroupVersionKind())
				if err := a.Client.Get(ctx, types.NamespacedName{Name: crd.GetName()}, current); err != nil {
					return err
				}
				return established(current)
			})
		})
	}
	return group.Wait()
}

func established(crd *unstructured.Unstructured) error {
	conditions, _, err := unstructured.NestedSlice(crd.Object, "status", "conditions")
	if err != nil {
		return err
	}
	is := func(c any) bool {
		fields, _ := c.(map[string]any)
		return fields["type"] == "Established" && fields["status"] == "True"
	}
	if !slices.ContainsFunc(conditions, is) {
		return fmt.Errorf("type %s is not established", crd.GetName())
	}
	return nil
}

// CreateAll creates objects concurrently, and retries while the apiserver doesn't serve a type yet.
func (a *APIServer) CreateAll(ctx context.Context, objects []*unstructured.Unstructured) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(8)
	for _, object := range objects {
		group.Go(func() error {
			create := func() error { return client.IgnoreAlreadyExists(a.Client.Create(ctx, object.DeepCopy())) }
			if err := retry.OnError(retry.DefaultBackoff, IsNoMatch, create); err != nil {
				return fmt.Errorf("creating %s %s: %w", object.GetKind(), object.GetName(), err)
			}
			return nil
		})
	}
	return group.Wait()
}

// fieldOwner owns the fields of applied manifests, as kubectl would.
const fieldOwner = client.FieldOwner("user")

// Apply applies manifests as kubectl apply --server-side does.
func (a *APIServer) Apply(ctx context.Context, manifests []byte) error {
	objects, err := ParseObjects(manifests)
	if err != nil {
		return err
	}
	for _, object := range objects {
		if err := a.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(object), fieldOwner,
			client.ForceOwnership); err != nil {
			return fmt.Errorf("applying %s %s: %w", object.GetKind(), object.GetName(), err)
		}
	}
	return nil
}
