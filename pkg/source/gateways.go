package source

import (
	"context"
	"errors"
	"fmt"
	"math"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/pkg/model"
)

const (
	// gatewaySetName is the required name of the StatefulSet, because a gateway has the name of its Pod.
	gatewaySetName = "gateway"
	// publicPortName is the name of the port on which the container of a gateway listens for edges.
	publicPortName = "public"
)

// gatewaysKey is the queue's key for the gateways. No Tunnel has a name without a namespace.
var gatewaysKey = model.Key{Name: "gateways"}

// ValidateGatewaySet checks the name of a StatefulSet of gateways.
func ValidateGatewaySet(name string) error {
	if name != gatewaySetName {
		return fmt.Errorf(
			"StatefulSet %q: its Pods would not have the names gateway-<number>, which gateways require: name it %s", name,
			gatewaySetName,
		)
	}
	return nil
}

// Gateways returns the gateways of a StatefulSet in the order of their numbers: one for each requested Pod, even
// before it exists, and one for each remaining Pod. An error names the invalid field, and what to do.
func Gateways(set *appsv1.StatefulSet, address model.ReplicaAddress) ([]model.Gateway, error) {
	if err := ValidateGatewaySet(set.Name); err != nil {
		return nil, err
	}
	port, err := publicPort(set)
	if err != nil {
		return nil, err
	}
	replicas := int32(1) // the apiserver's default
	if set.Spec.Replicas != nil {
		replicas = *set.Spec.Replicas
	}
	// While the set is scaled down, status.replicas includes the Pods that are ending.
	requested := replicas
	replicas = max(replicas, set.Status.Replicas)
	first := int32(0)
	if set.Spec.Ordinals != nil {
		first = set.Spec.Ordinals.Start
	}
	switch {
	case replicas < 1:
		return nil, fieldError(
			set, "spec.replicas",
			fmt.Errorf("it is %d: without a gateway no edge can connect: scale it to 1 at least", replicas),
		)
	case replicas > model.MaxGateways:
		return nil, fieldError(
			set,
			"spec.replicas",
			fmt.Errorf(
				"there are %d, but every edge keeps tunnels to each: scale it to %d at most", replicas, model.MaxGateways,
			),
		)
	case first < 0 || first > math.MaxInt32-replicas:
		return nil, fieldError(
			set, "spec.ordinals.start", fmt.Errorf("%d leaves no numbers for %d gateways", first, replicas),
		)
	}
	var gateways []model.Gateway
	for i := first; i < first+replicas; i++ {
		g := model.Gateway{Name: fmt.Sprintf("%s-%d", set.Name, i), Leaving: requested > 0 && i >= first+requested}
		g.Peer = model.Endpoint{Host: fmt.Sprintf("%s.%s.%s.svc", g.Name, set.Spec.ServiceName, set.Namespace), Port: port}
		if g.Public, err = address.Of(g.Name); err != nil {
			return nil, fmt.Errorf("address of one replica: %w", err)
		}
		gateways = append(gateways, g)
	}
	if err := model.ValidateGateways(gateways); err != nil {
		return nil, fmt.Errorf("StatefulSet %s/%s: %w", set.Namespace, set.Name, err)
	}
	return gateways, nil
}

// joiningShare is by which factor the gateways may grow for an xds-server that starts meanwhile to mark the new ones.
// Edges keep tunnels to the others until all are ready, so each of these carries that many times its share.
const joiningShare = 3

// markJoining marks the gateways that have joined since all of them were ready last. settled are the names of those, or
// nil before the first time; markJoining returns the next value. A gateway is ready when it has the tunnels that are
// assigned to it.
//
// The first time, the first ones count as settled, as many as are ready: Pods are added at the end. None is marked
// while Pods are being replaced, and if so few are ready that this is a new installation or an outage: they could not
// carry the tunnels of all others. Those that leave have been there.
func markJoining(set *appsv1.StatefulSet, gateways []model.Gateway, settled map[string]bool) map[string]bool {
	ready, requested := int(set.Status.ReadyReplicas), 0
	for _, g := range gateways {
		if !g.Leaving {
			requested++
		}
	}
	all := ready >= len(gateways)
	if all || settled == nil {
		there := len(gateways)
		replacing := set.Status.CurrentRevision != set.Status.UpdateRevision // those that are not ready have not joined
		if !all && !replacing && ready < requested && joiningShare*ready >= requested {
			there = ready
		}
		settled = make(map[string]bool, len(gateways))
		for i, g := range gateways {
			settled[g.Name] = i < there || g.Leaving
		}
	}
	for i := range gateways {
		gateways[i].Joining = !settled[gateways[i].Name]
	}
	return settled
}

// publicPort returns the port on which the containers listen for edges. It requires the Service that gives each Pod a
// name.
func publicPort(set *appsv1.StatefulSet) (uint16, error) {
	if set.Spec.ServiceName == "" {
		return 0, fieldError(
			set, "spec.serviceName",
			errors.New("it is empty: name the headless Service that gives each Pod a DNS name: gateways reach each other by it"),
		)
	}
	for _, container := range set.Spec.Template.Spec.Containers {
		for _, port := range container.Ports {
			if port.Name == publicPortName && port.ContainerPort > 0 && port.ContainerPort <= math.MaxUint16 {
				return uint16(port.ContainerPort), nil
			}
		}
	}
	return 0, fieldError(
		set, "spec.template.spec.containers[].ports",
		fmt.Errorf("none has the name %s: name the port of --public-listen so", publicPortName),
	)
}

func fieldError(set *appsv1.StatefulSet, field string, err error) error {
	return fmt.Errorf("StatefulSet %s/%s: %s: %w", set.Namespace, set.Name, field, err)
}

// stripGatewaySet keeps the fields of a StatefulSet that Gateways and markJoining read.
func stripGatewaySet(object any) (any, error) {
	set, ok := object.(*appsv1.StatefulSet)
	if !ok {
		return object, nil
	}
	kept := &appsv1.StatefulSet{}
	kept.Namespace, kept.Name, kept.UID, kept.ResourceVersion = set.Namespace, set.Name, set.UID, set.ResourceVersion
	kept.Spec.Replicas, kept.Spec.Ordinals, kept.Spec.ServiceName = set.Spec.Replicas, set.Spec.Ordinals,
		set.Spec.ServiceName
	kept.Status.Replicas, kept.Status.ReadyReplicas = set.Status.Replicas, set.Status.ReadyReplicas
	kept.Status.CurrentRevision, kept.Status.UpdateRevision = set.Status.CurrentRevision, set.Status.UpdateRevision
	for _, c := range set.Spec.Template.Spec.Containers {
		kept.Spec.Template.Spec.Containers = append(
			kept.Spec.Template.Spec.Containers, corev1.Container{Name: c.Name, Ports: c.Ports},
		)
	}
	return kept, nil
}

// watchGateways prepares the watch of the StatefulSet, if one is configured.
func (k *Kube) watchGateways(ctx context.Context) error {
	if k.gatewaySet == nil {
		return nil
	}
	if _, err := k.enqueueOn(ctx, k.gatewaySet, &appsv1.StatefulSet{}, gatewaysKey); err != nil {
		return fmt.Errorf("watching the StatefulSet %s: %w", k.GatewaySet, err)
	}
	return k.watchZones(ctx)
}

// publishGateways publishes the gateways. While they are not known, the ones published last remain, so that edges keep
// their tunnels. The reason is logged once.
func (k *Kube) publishGateways(ctx context.Context) error {
	if k.gatewaySet == nil {
		return nil
	}
	set := &appsv1.StatefulSet{}
	at := client.ObjectKey{Namespace: k.Namespace, Name: k.GatewaySet}
	err := k.gatewaySet.Get(ctx, at, set)
	var gateways []model.Gateway
	switch {
	case apierrors.IsNotFound(err):
		err = fmt.Errorf(
			"StatefulSet %s not found: apply your installation again, or name the gateways by --gateway", at,
		)
	case err != nil:
		return fmt.Errorf("reading StatefulSet %s: %w", at, err)
	default:
		gateways, err = Gateways(set, k.ReplicaAddress)
	}
	if err != nil {
		if text := err.Error(); text != k.loggedGateways {
			k.loggedGateways = text
			k.Log.Error("cannot read gateways, the previous ones stay", "error", err)
		}
		return nil
	}
	k.loggedGateways = ""
	if err := k.setZones(ctx, set.Spec.ServiceName, gateways); err != nil {
		return err
	}
	k.settled = markJoining(set, gateways, k.settled)
	k.Publisher.SetGateways(gateways)
	return nil
}
