package source

import (
	"cmp"
	"context"
	"fmt"

	discoveryv1 "k8s.io/api/discovery/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/pkg/model"
)

// stripSlice keeps the fields of an EndpointSlice that zonesOf reads.
func stripSlice(object any) (any, error) {
	slice, ok := object.(*discoveryv1.EndpointSlice)
	if !ok {
		return object, nil
	}
	kept := &discoveryv1.EndpointSlice{}
	kept.Namespace, kept.Name, kept.UID, kept.ResourceVersion = slice.Namespace, slice.Name, slice.UID,
		slice.ResourceVersion
	if service, ok := slice.Labels[discoveryv1.LabelServiceName]; ok {
		kept.Labels = map[string]string{discoveryv1.LabelServiceName: service}
	}
	for _, e := range slice.Endpoints {
		kept.Endpoints = append(kept.Endpoints, discoveryv1.Endpoint{Hostname: e.Hostname, Zone: e.Zone})
	}
	return kept, nil
}

// watchZones watches the EndpointSlices of the namespace, whose controller copies the zone of each Pod's node into
// them (https://kubernetes.io/docs/concepts/services-networking/endpoint-slices/#topology).
func (k *Kube) watchZones(ctx context.Context) error {
	informer, err := k.enqueueOn(ctx, k.zones, &discoveryv1.EndpointSlice{}, gatewaysKey)
	if err != nil {
		return fmt.Errorf("watching EndpointSlices: %w", err)
	}
	k.zonesRead = informer.HasSynced
	return nil
}

// setZones sets the zones of gateways by the EndpointSlices of a Service. A gateway whose Pod is being replaced has no
// endpoint for a moment and keeps its last zone. Without slices, because they are not read yet or not permitted, the
// gateways have no zones, which only means that none is preferred.
func (k *Kube) setZones(ctx context.Context, service string, gateways []model.Gateway) error {
	if k.zonesRead == nil || !k.zonesRead() {
		return nil
	}
	var slices discoveryv1.EndpointSliceList
	if err := k.zones.List(
		ctx, &slices, client.InNamespace(k.Namespace), client.MatchingLabels{discoveryv1.LabelServiceName: service},
	); err != nil {
		return fmt.Errorf("reading EndpointSlices of Service %s: %w", service, err)
	}
	zones, known := zonesOf(slices.Items), map[string]string{}
	for i := range gateways {
		name := gateways[i].Name
		known[name] = cmp.Or(zones[name], k.lastZones[name])
		gateways[i].Zone = known[name]
	}
	k.lastZones = known
	return nil
}

// zonesOf returns the valid zones by the host names of Pods. A Pod of a StatefulSet has its name as host name.
func zonesOf(slices []discoveryv1.EndpointSlice) map[string]string {
	zones := map[string]string{}
	for i := range slices {
		for _, e := range slices[i].Endpoints {
			if e.Hostname != nil && e.Zone != nil && model.ValidateZone(*e.Zone) == nil {
				zones[*e.Hostname] = *e.Zone
			}
		}
	}
	return zones
}
