package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/test/lab/kube"
	"github.com/fairlead/fairlead/test/lab/netns"
)

// gatewaySet is the name of the StatefulSet of the gateways. The lab plays its controller, and that of its Services.
const gatewaySet = "gateway"

// gatewayManifest is the StatefulSet of the gateways as deploy/kubernetes has it.
func (l *Lab) gatewayManifest() (*appsv1.StatefulSet, error) {
	objects, err := kube.ReadObjects(filepath.Join(l.Parts.Root, "deploy", "kubernetes", "gateway.yaml"))
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(objects, func(o *unstructured.Unstructured) bool { return o.GetKind() == "StatefulSet" })
	if i < 0 {
		return nil, errors.New("reading the StatefulSet of the gateways: its manifest has none")
	}
	set := &appsv1.StatefulSet{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(objects[i].Object, set); err != nil {
		return nil, fmt.Errorf("reading the StatefulSet of the gateways: %w", err)
	}
	return set, nil
}

// createGatewaySet makes the StatefulSet, which the xds-servers follow.
func (l *Lab) createGatewaySet(ctx context.Context) error {
	set, err := l.gatewayManifest()
	if err != nil {
		return err
	}
	for i, port := range set.Spec.Template.Spec.Containers[0].Ports {
		if port.Name == "public" {
			set.Spec.Template.Spec.Containers[0].Ports[i].ContainerPort = netns.PublicPort
		}
	}
	set.Spec.Replicas = ptr.To(int32(l.options.Gateways))
	if err := l.Management.Client.Create(ctx, set); err != nil {
		return fmt.Errorf("creating the StatefulSet of the gateways: %w", err)
	}
	return l.countGateways(ctx, l.options.Gateways)
}

// AskForGateways says how many gateways there are to be, as kubectl scale does, and does nothing else: that the Pods
// come or go is for AddGateway and RemoveGateway.
func (l *Lab) AskForGateways(ctx context.Context, replicas int) error {
	return l.changeGatewaySet(ctx, func(set *appsv1.StatefulSet) error {
		set.Spec.Replicas = ptr.To(int32(replicas))
		return l.Management.Client.Update(ctx, set)
	})
}

// countGateways says how many Pods there are.
func (l *Lab) countGateways(ctx context.Context, pods int) error {
	return l.changeGatewaySet(ctx, func(set *appsv1.StatefulSet) error {
		set.Status.Replicas = int32(pods)
		return l.Management.Client.Status().Update(ctx, set)
	})
}

func (l *Lab) changeGatewaySet(ctx context.Context, change func(*appsv1.StatefulSet) error) error {
	set := &appsv1.StatefulSet{}
	err := l.Management.Client.Get(ctx, client.ObjectKey{Namespace: InstallationNamespace, Name: gatewaySet}, set)
	if err == nil {
		err = change(set)
	}
	if err != nil {
		return fmt.Errorf("changing the StatefulSet of the gateways: %w", err)
	}
	return nil
}

// AddGateway scales the gateways up by one, and returns when the new one calls itself ready: from then on clients and
// edges find it by the names that all gateways have. No other test may use the lab's gateways meanwhile.
func (l *Lab) AddGateway(ctx context.Context) error {
	i := len(l.Gateways)
	if err := l.AskForGateways(ctx, i+1); err != nil {
		return err
	}
	if err := l.Network.AddGateway(ctx, i); err != nil {
		return err
	}
	l.Gateways = append(l.Gateways, nil)
	if err := l.countGateways(ctx, i+1); err != nil {
		return err
	}
	if err := l.startGateway(ctx, i); err != nil {
		return err
	}
	return l.Network.NameGateway(i)
}

// StartUninvitedGateway starts one more gateway that the StatefulSet does not ask for, with the same credential as the
// others, and doesn't wait for it: RemoveGateway ends it.
func (l *Lab) StartUninvitedGateway(ctx context.Context) error {
	i := len(l.Gateways)
	if err := l.Network.AddGateway(ctx, i); err != nil {
		return err
	}
	spec, err := l.gatewaySpec(ctx, i)
	if err != nil {
		return err
	}
	gateway, err := l.runAgent(spec)
	l.Gateways = append(l.Gateways, gateway)
	return err
}

// RemoveGateway scales the gateways down by one, the last. As with a Pod, no new client is led to it, it gets
// SIGTERM and may take as long as patience; then it is gone. No other test may use the lab's gateways meanwhile.
func (l *Lab) RemoveGateway(ctx context.Context, patience time.Duration) error {
	last := len(l.Gateways) - 1
	if err := l.AskForGateways(ctx, last); err != nil {
		return err
	}
	if err := l.endGateway(ctx, last, patience); err != nil {
		return err
	}
	l.Gateways = l.Gateways[:last]
	l.Network.RemoveGateway(ctx)
	return l.countGateways(ctx, last)
}

// ReplaceGateway ends a gateway and starts it again as another Pod of the same name, which is what a rollout does with
// one after the other. It returns when the new one is ready and led to.
func (l *Lab) ReplaceGateway(ctx context.Context, i int, patience time.Duration) error {
	if err := l.endGateway(ctx, i, patience); err != nil {
		return err
	}
	if err := l.startGateway(ctx, i); err != nil {
		return err
	}
	return l.Network.NameGateway(i)
}

// endGateway does with a gateway what happens to a Pod that is deleted.
func (l *Lab) endGateway(ctx context.Context, i int, patience time.Duration) error {
	if err := l.Network.UnnameGateway(i); err != nil {
		return err
	}
	if err := l.Gateways[i].Terminate(patience); err != nil {
		return err
	}
	l.Gateways[i].Stop()
	if err := os.RemoveAll(l.File(netns.GatewayReplica(i))); err != nil { // as the volume of a Pod
		return fmt.Errorf("removing the folder of a gateway: %w", err)
	}
	pod := &corev1.Pod{}
	pod.Namespace, pod.Name = InstallationNamespace, netns.GatewayReplica(i)
	if err := l.Management.Client.Delete(ctx, pod); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("deleting the Pod of a gateway: %w", err)
	}
	return nil
}
