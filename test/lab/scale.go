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
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/test/lab/kube"
	"github.com/fairlead/fairlead/test/lab/netns"
)

// gatewaySet is the name of the StatefulSet of the gateways. The lab acts as its controller, and as the controller of
// its Services.
const gatewaySet = "gateway"

// gatewayManifest returns the StatefulSet of the gateways as in deploy/kubernetes.
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

// createGatewaySet creates the StatefulSet, which the xds-servers follow.
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

// SetZones publishes the zones of the gateways, in order, as Kubernetes does for Pods on nodes with a zone. Call it
// once.
func (l *Lab) SetZones(ctx context.Context, zones ...string) error {
	slice := &discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv4}
	slice.Namespace, slice.Name = InstallationNamespace, "gateway-peers-lab"
	slice.Labels = map[string]string{discoveryv1.LabelServiceName: "gateway-peers"}
	for i, zone := range zones {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{netns.PublicAddress(i).String()}, Hostname: ptr.To(netns.GatewayReplica(i)), Zone: ptr.To(zone),
		})
	}
	if err := l.Management.Client.Create(ctx, slice); err != nil {
		return fmt.Errorf("publishing zones of gateways: %w", err)
	}
	return nil
}

// AskForGateways sets the number of replicas, as kubectl scale does, and does nothing else: AddGateway and
// RemoveGateway start and end Pods.
func (l *Lab) AskForGateways(ctx context.Context, replicas int) error {
	return l.changeGatewaySet(ctx, func(set *appsv1.StatefulSet) error {
		set.Spec.Replicas = ptr.To(int32(replicas))
		return l.Management.Client.Update(ctx, set)
	})
}

// countGateways sets the number of Pods in the status.
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

// AddGateway scales the gateways up by one, and returns when the new one reports that it is ready: then clients and
// edges find it by the common names. No other test may use the lab's gateways meanwhile.
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

// StartUninvitedGateway starts a gateway that is not a replica of the StatefulSet, with the same credential as the
// others, and doesn't wait for it. RemoveGateway ends it.
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

// RemoveGateway scales the gateways down by one, the last. As with a Pod, it first gets no new clients, then SIGTERM,
// and may take as long as patience to end. No other test may use the lab's gateways meanwhile.
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

// ReplaceGateway ends a gateway and starts it again as another Pod of the same name, as a rollout does with each. It
// returns when the new one is ready and has its name.
func (l *Lab) ReplaceGateway(ctx context.Context, i int, patience time.Duration) error {
	if err := l.endGateway(ctx, i, patience); err != nil {
		return err
	}
	if err := l.startGateway(ctx, i); err != nil {
		return err
	}
	return l.Network.NameGateway(i)
}

// endGateway ends a gateway like a deleted Pod.
func (l *Lab) endGateway(ctx context.Context, i int, patience time.Duration) error {
	if err := l.Network.UnnameGateway(i); err != nil {
		return err
	}
	if err := l.Gateways[i].Terminate(patience); err != nil {
		return err
	}
	l.Gateways[i].Stop()
	if err := os.RemoveAll(l.File(netns.GatewayReplica(i))); err != nil { // like the volume of a Pod
		return fmt.Errorf("removing the folder of a gateway: %w", err)
	}
	pod := &corev1.Pod{}
	pod.Namespace, pod.Name = InstallationNamespace, netns.GatewayReplica(i)
	if err := l.Management.Client.Delete(ctx, pod); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("deleting the Pod of a gateway: %w", err)
	}
	return nil
}
