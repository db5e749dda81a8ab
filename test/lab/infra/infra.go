package infra

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/fairlead/fairlead/test/lab/kube"
	"github.com/fairlead/fairlead/test/lab/workspace"
)

const (
	infrastructureGroup = "infrastructure.cluster.x-k8s.io"
	// labFinalizer keeps a LabMachine until its machine no longer exists.
	labFinalizer = "infrastructure.cluster.x-k8s.io/lab"
	// infrastructureInterval is the interval at which the provider reads its objects. A controller would watch them.
	infrastructureInterval = time.Second / 4
)

// infrastructure is Cluster API's infrastructure provider for LabClusters and LabMachines, according to the contract
// v1beta2. It reads all objects each time, so it keeps no state: the cloud knows what runs.
type infrastructure struct {
	cloud  *Cloud
	client client.Client
	log    *slog.Logger
}

// StartProvider runs the provider for a management cluster until the lab is closed.
func StartProvider(w *workspace.Workspace, cloud *Cloud, management *kube.APIServer) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	file, err := os.Create(w.LogFile("infrastructure"))
	if err != nil {
		file = os.Stderr
	}
	i := &infrastructure{cloud: cloud, client: management.Client, log: slog.New(slog.NewTextHandler(file, nil))}
	go func() {
		defer close(ended)
		i.run(ctx)
	}()
	w.OnClose(func(context.Context) {
		cancel()
		<-ended
	})
}

func (i *infrastructure) run(ctx context.Context) {
	tick := time.NewTicker(infrastructureInterval)
	defer tick.Stop()
	for {
		if err := i.reconcile(ctx); err != nil && ctx.Err() == nil {
			i.log.Warn("reconciling infrastructure", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// reconcile reconciles every object. An object that can't be served doesn't delay the others.
func (i *infrastructure) reconcile(ctx context.Context) error {
	var errs []error
	for kind, one := range map[string]func(context.Context, *clusterv1.Cluster, *unstructured.Unstructured) error{
		"LabCluster": i.reconcileCluster, "LabMachine": i.reconcileMachine,
	} {
		list := &unstructured.UnstructuredList{}
		list.SetAPIVersion(infrastructureGroup + "/v1beta2")
		list.SetKind(kind + "List")
		if err := i.client.List(ctx, list); err != nil {
			if kube.IsNoMatch(err) {
				continue // the types are not installed yet
			}
			return fmt.Errorf("listing %ss: %w", kind, err)
		}
		for k := range list.Items {
			object := &list.Items[k]
			if err := i.with(ctx, object, one); err != nil {
				errs = append(errs, fmt.Errorf("reconciling %s %s: %w", kind, object.GetName(), err))
			}
		}
	}
	return errors.Join(errs...)
}

// with runs a function on an object that belongs to a Cluster, unless the Cluster is paused.
func (i *infrastructure) with(ctx context.Context, object *unstructured.Unstructured,
	one func(context.Context, *clusterv1.Cluster, *unstructured.Unstructured) error,
) error {
	name := object.GetLabels()[clusterv1.ClusterNameLabel]
	if name == "" {
		return nil // Cluster API hasn't taken it over yet
	}
	cluster := &clusterv1.Cluster{}
	if err := i.client.Get(ctx, types.NamespacedName{Namespace: object.GetNamespace(), Name: name}, cluster); err != nil {
		return client.IgnoreNotFound(err)
	}
	_, paused := object.GetAnnotations()[clusterv1.PausedAnnotation]
	if paused || (cluster.Spec.Paused != nil && *cluster.Spec.Paused) || !ownedBy(object, "Cluster", "Machine") {
		return nil
	}
	return one(ctx, cluster, object)
}

// ownedBy reports whether an object has an owner of one of the kinds.
func ownedBy(object *unstructured.Unstructured, kinds ...string) bool {
	return slices.ContainsFunc(object.GetOwnerReferences(),
		func(o metav1.OwnerReference) bool { return slices.Contains(kinds, o.Kind) })
}

func (i *infrastructure) reconcileCluster(ctx context.Context, cluster *clusterv1.Cluster,
	object *unstructured.Unstructured,
) error {
	if !object.GetDeletionTimestamp().IsZero() {
		return nil // the endpoint remains: addresses cost nothing here
	}
	if _, manual := object.GetAnnotations()[clusterv1.ManagedByAnnotation]; manual ||
		cluster.Spec.ControlPlaneRef.Kind != "KubeadmControlPlane" {
		return nil // the lab itself acts as its provider: see CreateCluster
	}
	endpoint, err := i.cloud.Endpoint(ctx, client.ObjectKeyFromObject(cluster))
	if err != nil {
		return err
	}
	return i.write(ctx, object, func(o *unstructured.Unstructured) error {
		return errors.Join(
			unstructured.SetNestedField(o.Object, endpoint.Addr().String(), "spec", "controlPlaneEndpoint", "host"),
			unstructured.SetNestedField(o.Object, int64(endpoint.Port()), "spec", "controlPlaneEndpoint", "port"),
		)
	}, map[string]any{"initialization": map[string]any{"provisioned": true}})
}

func (i *infrastructure) reconcileMachine(ctx context.Context, cluster *clusterv1.Cluster,
	object *unstructured.Unstructured,
) error {
	key := client.ObjectKeyFromObject(object)
	if !object.GetDeletionTimestamp().IsZero() {
		i.cloud.remove(ctx, key)
		return i.write(ctx, object, func(o *unstructured.Unstructured) error {
			controllerutil.RemoveFinalizer(o, labFinalizer)
			return nil
		}, nil)
	}
	machine, err := i.machine(ctx, cluster, object)
	if err != nil || machine == nil {
		return err
	}
	return i.write(ctx, object, func(o *unstructured.Unstructured) error {
		return unstructured.SetNestedField(o.Object, providerID(key), "spec", "providerID")
	}, map[string]any{
		"initialization": map[string]any{"provisioned": true},
		"addresses":      []any{map[string]any{"type": "InternalIP", "address": machine.Address.String()}},
	})
}

// machine returns the machine of a LabMachine. It creates it as soon as the bootstrap data exists. A machine that ran
// before and no longer exists is not created again: nil.
func (i *infrastructure) machine(ctx context.Context, cluster *clusterv1.Cluster,
	object *unstructured.Unstructured,
) (*Machine, error) {
	key := client.ObjectKeyFromObject(object)
	if machine := i.cloud.machine(key); machine != nil {
		return machine, nil
	}
	if id, _, _ := unstructured.NestedString(object.Object, "spec", "providerID"); id != "" {
		return nil, nil
	}
	owner := slices.IndexFunc(object.GetOwnerReferences(),
		func(o metav1.OwnerReference) bool { return o.Kind == "Machine" })
	if owner < 0 {
		return nil, nil
	}
	machine := &clusterv1.Machine{}
	if err := i.client.Get(ctx, types.NamespacedName{
		Namespace: key.Namespace,
		Name:      object.GetOwnerReferences()[owner].Name,
	}, machine); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	if machine.Spec.Bootstrap.DataSecretName == nil {
		return nil, nil
	}
	secret := &corev1.Secret{}
	if err := i.client.Get(ctx, types.NamespacedName{
		Namespace: key.Namespace,
		Name:      *machine.Spec.Bootstrap.DataSecretName,
	}, secret); err != nil {
		return nil, fmt.Errorf("reading bootstrap data: %w", err)
	}
	// Before anything runs, because deleting the object must wait for the end of the machine.
	err := i.write(ctx, object, func(o *unstructured.Unstructured) error {
		controllerutil.AddFinalizer(o, labFinalizer)
		return nil
	}, nil)
	if err != nil {
		return nil, err
	}
	_, controlPlane := machine.Labels[clusterv1.MachineControlPlaneLabel]
	i.log.Info("starting machine", "machine", machine.Name)
	return i.cloud.create(ctx, machineSpec{
		key: key, cluster: client.ObjectKeyFromObject(cluster), host: machine.Name, userData: secret.Data["value"],
		version: machine.Spec.Version, controlPlane: controlPlane,
	})
}

// write updates an object and its status if they differ.
func (i *infrastructure) write(ctx context.Context, object *unstructured.Unstructured,
	change func(*unstructured.Unstructured) error, status map[string]any,
) error {
	before := object.DeepCopy()
	if err := change(object); err != nil {
		return err
	}
	patch := client.MergeFrom(before)
	if data, err := patch.Data(object); err != nil || string(data) != "{}" {
		if err := errors.Join(err, i.client.Patch(ctx, object, patch)); err != nil {
			return client.IgnoreNotFound(err)
		}
	}
	if status == nil {
		return nil
	}
	before = object.DeepCopy()
	object.Object["status"] = merged(before.Object["status"], status)
	patch = client.MergeFrom(before)
	if data, err := patch.Data(object); err != nil || string(data) == "{}" {
		return err
	}
	return client.IgnoreNotFound(i.client.Status().Patch(ctx, object, patch))
}

// merged returns a status with some fields set.
func merged(status any, fields map[string]any) map[string]any {
	all := map[string]any{}
	if old, ok := status.(map[string]any); ok {
		for key, value := range old {
			all[key] = value
		}
	}
	for key, value := range fields {
		all[key] = value
	}
	return all
}
