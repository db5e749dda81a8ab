package test

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/diagnose/check"
	"github.com/fairlead/fairlead/pkg/diagnose/collect"
	"github.com/fairlead/fairlead/pkg/diagnose/explain"
)

const (
	sourcesTime = 15 * time.Second
	// maxNodes bounds one list. The Nodes that a balancer uses are among the first, or it uses all.
	maxNodes = 500
)

// testSource is whether the gateways observe the addresses of edges, and not those of a load balancer.
const testSource check.ID = "source-addresses"

// sources tests whether the load balancer preserves the addresses of edges. It compares what the gateways observe with
// the addresses of the management cluster's Nodes and of the load balancer, as far as the user may read them.
func (t *tester) sources(ctx context.Context, id string) []check.Result {
	if t.checker.Servers == nil {
		return nil // the test of each edge has reported it
	}
	return []check.Result{check.Measure(ctx, testSource, "addresses of edges", sourcesTime, func(
		ctx context.Context,
	) check.Outcome {
		fleet, err := t.checker.Servers.Observe(ctx, id, nil)
		if err != nil {
			return check.Outcome{
				Status: check.Unknown, Detail: "the xds-servers do not answer: " + explain.Text(err),
				Cure: "see the hop servers of fairlead check",
			}
		}
		own, errs := t.middlemen(ctx)
		outcome := judgeSources(fleet, own)
		if outcome.Status == check.OK && len(errs) > 0 {
			outcome.Status = check.Unknown
			outcome.Detail += "; not compared with " + strings.Join(errs, " and ")
			outcome.Cure = "run the command as a user that may list Nodes and get the Service " + v1alpha1.PublicServiceName
		}
		return outcome
	})}
}

// middlemen returns the addresses of everything in the management cluster that may replace the addresses of edges, with
// its name, and what could not be read.
func (t *tester) middlemen(ctx context.Context) (own map[netip.Addr]string, unread []string) {
	own = map[netip.Addr]string{}
	add := func(text, name string) {
		if address, err := netip.ParseAddr(text); err == nil {
			own[address.Unmap()] = name
		}
	}
	nodes := &corev1.NodeList{}
	if err := t.m.List(ctx, nodes, client.Limit(maxNodes)); err != nil {
		unread = append(unread, "Nodes ("+explain.Text(err)+")")
	}
	for i := range nodes.Items {
		for _, a := range nodes.Items[i].Status.Addresses {
			add(a.Address, "the Node "+nodes.Items[i].Name)
		}
	}
	service := &corev1.Service{}
	key := client.ObjectKey{Namespace: t.flags.Installation, Name: v1alpha1.PublicServiceName}
	if err := t.m.Get(ctx, key, service); client.IgnoreNotFound(err) != nil {
		unread = append(unread, "the Service "+key.Name+" ("+explain.Text(err)+")")
	}
	for _, ingress := range service.Status.LoadBalancer.Ingress {
		add(ingress.IP, "the load balancer")
	}
	return own, unread
}

// judgeSources compares the sources of tunnels with addresses of the management cluster. An address that the machine of
// an edge has itself is preserved, whatever else has it. Any other one may be that of a NAT, which no setting here
// changes.
func judgeSources(fleet collect.Fleet, own map[netip.Addr]string) check.Outcome {
	machines := map[string][]netip.Addr{} // by node name
	for i := range fleet.Edges {
		machines[fleet.Edges[i].Node] = fleet.Edges[i].Addresses
	}
	sources, replaced := map[netip.Addr]bool{}, map[netip.Addr]string{}
	preserved := 0
	for i := range fleet.Tunnels {
		tunnel := &fleet.Tunnels[i]
		source := tunnel.Source()
		if !source.IsValid() || sources[source] {
			continue
		}
		sources[source] = true
		switch name := own[source]; {
		case slices.Contains(machines[tunnel.Node], source):
			preserved++
		case name != "":
			replaced[source] = name
		}
	}
	switch {
	case len(sources) == 0:
		return check.Outcome{Status: check.Skipped, Detail: "no tunnel is open"}
	case len(replaced) > 0:
		first := slices.MinFunc(slices.Collect(maps.Keys(replaced)), netip.Addr.Compare)
		return check.Outcome{
			Status: check.Warning,
			Detail: fmt.Sprintf("the gateways observe edges at %s, the address of %s", first, replaced[first]),
			Cause: "the load balancer or kube-proxy replaces the addresses of edges, so all edges share the limits of one " +
				"address",
			Cure: "set the values publicService.trafficPolicy to Local, or have the load balancer send PROXY protocol and " +
				"set gateway.proxyProtocolFrom",
		}
	}
	return check.Outcome{Status: check.OK, Detail: fmt.Sprintf(
		"the gateways observe %d addresses, none of the load balancer or of a Node; %d of them are addresses of the edges' "+
			"machines, others are those of a NAT", len(sources), preserved,
	)}
}
