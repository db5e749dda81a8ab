package cluster

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/test/lab/netns"
)

const (
	balancerPeriod = 500 * time.Millisecond
	balancerTime   = 10 * time.Second // bounds one round
)

// balancer plays the load balancers of a cloud. Each Service of type LoadBalancer has an address, which the router
// sends to the nodes: to all, or with externalTrafficPolicy Local to the ones with ready endpoints. kube-proxy does
// the rest.
type balancer struct {
	cluster   *Cluster
	addresses map[types.UID]netip.Addr
	routes    map[netip.Addr][]netip.Addr
}

// startBalancer runs a balancer until the cluster stops.
func (c *Cluster) startBalancer() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	c.OnClose(func(context.Context) {
		cancel()
		<-done
	})
	b := &balancer{cluster: c, addresses: map[types.UID]netip.Addr{}, routes: map[netip.Addr][]netip.Addr{}}
	go func() {
		defer close(done)
		tick := time.NewTicker(balancerPeriod)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				b.round(ctx)
			}
		}
	}()
}

// HoldBalancers keeps new Services of type LoadBalancer pending until release is called, as a slow cloud does.
func (c *Cluster) HoldBalancers() (release func()) {
	c.held.Store(true)
	return func() { c.held.Store(false) }
}

// round gives all Services their addresses and routes. What fails is repeated in the next round.
func (b *balancer) round(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, balancerTime)
	defer cancel()
	services := &corev1.ServiceList{}
	if err := b.cluster.Client.List(ctx, services); err != nil {
		return
	}
	current := map[types.UID]bool{}
	for i := range services.Items {
		service := &services.Items[i]
		if service.Spec.Type != corev1.ServiceTypeLoadBalancer || service.DeletionTimestamp != nil {
			continue
		}
		current[service.UID] = true
		if _, known := b.addresses[service.UID]; known || !b.cluster.held.Load() {
			_ = b.serve(ctx, service)
		}
	}
	for uid, address := range b.addresses {
		if !current[uid] && b.route(ctx, address, nil) == nil {
			delete(b.addresses, uid)
		}
	}
}

// serve gives one Service an address and its route.
func (b *balancer) serve(ctx context.Context, service *corev1.Service) error {
	address, known := b.addresses[service.UID]
	if !known {
		var err error
		if address, err = b.free(); err != nil {
			return err
		}
		b.addresses[service.UID] = address
	}
	via, err := b.nodes(ctx, service)
	if err != nil {
		return err
	}
	if err := b.route(ctx, address, via); err != nil {
		return err
	}
	want := []corev1.LoadBalancerIngress{{IP: address.String()}}
	if now := service.Status.LoadBalancer.Ingress; len(now) == 1 && now[0].IP == want[0].IP {
		return nil
	}
	service.Status.LoadBalancer.Ingress = want
	return b.cluster.Client.Status().Update(ctx, service)
}

// free returns an address that no Service has.
func (b *balancer) free() (netip.Addr, error) {
	used := map[netip.Addr]bool{}
	for _, address := range b.addresses {
		used[address] = true
	}
	for host := 1; host < 255; host++ {
		if address := netns.AddressAt(netns.OfferedPrefix, host); !used[address] {
			return address, nil
		}
	}
	return netip.Addr{}, fmt.Errorf("all addresses of %s are used", netns.OfferedPrefix)
}

// route sends new connections to an address to nodes, if it does not do so already. Connections stay at their node.
func (b *balancer) route(ctx context.Context, address netip.Addr, via []netip.Addr) error {
	if now, known := b.routes[address]; known && slices.Equal(now, via) {
		return nil
	}
	routes := maps.Clone(b.routes)
	routes[address] = via
	if err := b.cluster.segment.Balance(ctx, b.cluster.Parts.RealPath("nft"), routes); err != nil {
		return err
	}
	if err := b.cluster.segment.Route(ctx, netip.PrefixFrom(address, address.BitLen()), via...); err != nil {
		return err
	}
	b.routes = routes
	return nil
}

// nodes returns the addresses of the nodes that accept connections for a Service.
func (b *balancer) nodes(ctx context.Context, service *corev1.Service) ([]netip.Addr, error) {
	local := service.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
	serving := map[string]bool{}
	if local {
		slices := &discoveryv1.EndpointSliceList{}
		if err := b.cluster.Client.List(ctx, slices, client.InNamespace(service.Namespace),
			client.MatchingLabels{discoveryv1.LabelServiceName: service.Name}); err != nil {
			return nil, err
		}
		for _, slice := range slices.Items {
			for _, endpoint := range slice.Endpoints {
				ready := endpoint.Conditions.Ready == nil || *endpoint.Conditions.Ready
				if ready && endpoint.NodeName != nil {
					serving[*endpoint.NodeName] = true
				}
			}
		}
	}
	var addresses []netip.Addr
	for _, node := range b.cluster.Nodes() {
		if !local || serving[node.Name] {
			addresses = append(addresses, node.Address)
		}
	}
	return addresses, nil
}
