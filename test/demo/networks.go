package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/test/hosted"
	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/lab/kube"
	"github.com/fairlead/fairlead/test/lab/netns"
	"github.com/fairlead/fairlead/test/lab/proc"
)

const (
	edgeHost, nodeHost = 2, 5 // numbers of the machines of a site
	webhookReason      = "no ConfigMaps, says a webhook at site 2"
)

// site is one place with machines: its network, its only edge and its Node.
type site struct {
	name, node string
	of         *hosted.ControlPlane
	network    *hosted.Network
	edge       *lab.Agent
	edgeHost   *netns.Site
	machine    *netns.Site
}

// networksDemo is the Cluster shop with three sites, and the Cluster bank with a site that has the addresses of site1.
type networksDemo struct {
	*lab.Lab
	*story
	shop, bank *hosted.ControlPlane
	sites      []*site
	// rival has the same Node as site1, through konnectivity; nil if konnectivity is not there.
	rival *kube.APIServer
}

// showNetworks runs all steps. It returns the error of the first step that fails.
func showNetworks(ctx context.Context, l *lab.Lab, s *story) error {
	d := &networksDemo{Lab: l, story: s}
	s.step("The control planes of two Clusters, shop and bank, run in the management network. The machines of shop are at")
	s.step("three sites, those of bank at a fourth one, which has the same addresses as site 1. One public port is open.")
	s.step("Starting etcd, kube-apiserver, Fairlead with a gateway, two hosted kube-apiservers and kubelets at sites.")
	for _, step := range []func(context.Context) error{
		d.start, d.showWalls, d.connect, d.showExecs, d.showServices, d.showUnread, d.showLostEdge,
	} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	d.explore()
	return nil
}

// start starts everything except edges.
func (d *networksDemo) start(ctx context.Context) error {
	if err := d.Start(ctx); err != nil {
		return err
	}
	group, groupCtx := errgroup.WithContext(ctx)
	for i, c := range []**hosted.ControlPlane{&d.shop, &d.bank} {
		group.Go(func() (err error) {
			name := []string{"shop", "bank"}[i]
			*c, err = hosted.New(groupCtx, d.Lab, hosted.Spec{Name: name, Namespace: namespace, Host: 100 + i})
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	for i, cidr := range []string{"10.1.0.0/16", "10.2.0.0/16", "10.3.0.0/16", "10.1.0.0/16"} {
		p := &site{name: fmt.Sprint("site", i+1), node: fmt.Sprint("node", i+1), of: d.shop}
		if i == 3 {
			p.of = d.bank
		}
		var err error
		if p.network, err = hosted.NewNetwork(ctx, d.Lab, p.name, netip.MustParsePrefix(cidr)); err != nil {
			return err
		}
		if p.machine, err = p.network.Node(ctx, p.of, p.node, nodeHost); err != nil {
			return err
		}
		d.sites = append(d.sites, p)
	}
	d.result(true, "all of them are ready")
	return nil
}

// showWalls shows that no site is reached from outside, and that its machines reach nothing.
func (d *networksDemo) showWalls(ctx context.Context) error {
	d.step("What can dial what?")
	var attempts []attempt
	for _, p := range d.sites {
		kubelet := address(p.machine.Address.String(), kube.KubeletPort)
		attempts = append(attempts, attempt{
			p.of.Site.Namespace, "apiserver of " + p.of.Name, kubelet, "the kubelet at " + p.name + " (" + kubelet + ")", false,
		})
	}
	first := d.sites[0].machine.Namespace
	return tryAll(ctx, d.story, append(attempts,
		attempt{first, "Node at site1", d.shop.APIServer.Endpoint.String(), "the apiserver of shop", false},
		attempt{
			first, "Node at site1", address(d.Network.PublicAddress(0).String(), netns.PublicPort),
			"the gateway's public port, which only edges reach", false,
		},
	))
}

// connect creates the RemoteNetworks, starts their edges and the Envoys beside the apiservers, and waits until all are
// ready.
func (d *networksDemo) connect(ctx context.Context) error {
	d.step("A RemoteNetwork for each site. Its edge dials the gateway's public port, as Envoys beside the apiservers do.")
	begin := time.Now()
	for _, p := range d.sites {
		spec := v1alpha1.RemoteNetworkSpec{CIDRs: []string{p.network.Prefix.String()}, Ports: hosted.Ports()}
		if _, err := p.of.CreateNetwork(ctx, p.name, spec); err != nil {
			return fmt.Errorf("creating the RemoteNetwork %s: %w", p.name, err)
		}
	}
	group, groupCtx := errgroup.WithContext(ctx)
	for _, c := range []*hosted.ControlPlane{d.shop, d.bank} {
		group.Go(func() error { return c.Enrol(groupCtx) })
	}
	for _, p := range d.sites {
		group.Go(func() (err error) {
			p.edge, p.edgeHost, err = p.network.Edge(groupCtx, p.of, p.name, "edge", edgeHost)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	if err := proc.Wait(ctx, patience, d.unready()); err != nil {
		return err
	}
	d.result(true, "all networks are ready, %.1f s after they were created", time.Since(begin).Seconds())
	return d.showFairlead(ctx, networkList...)
}

// networkList is the command that names a site that is not ready.
var networkList = []string{"network", "list", "-n", namespace}

func (d *networksDemo) showFairlead(ctx context.Context, args ...string) error {
	out, err := d.Exec(ctx, args...)
	d.show("fairlead "+strings.Join(args, " ")+":", out)
	if err != nil {
		return fmt.Errorf("fairlead %s: %w", args[0], err)
	}
	return nil
}

// unready returns a condition that is nil once networkList reports that all sites are ready except some.
func (d *networksDemo) unready(except ...string) func(context.Context) error {
	want := strings.Join(except, " ")
	return func(ctx context.Context) error {
		out, err := d.Exec(ctx, append(networkList, "-o", "json")...)
		if err != nil {
			return fmt.Errorf("fairlead network list: %w: %s", err, out)
		}
		var list struct {
			Networks []struct {
				Network string `json:"network"`
				Ready   string `json:"ready"`
				Message string `json:"message"`
			} `json:"networks"`
		}
		if err := json.Unmarshal([]byte(out), &list); err != nil {
			return fmt.Errorf("reading what fairlead network list prints: %w", err)
		}
		var have []string
		for _, n := range list.Networks {
			if n.Ready != "True" {
				have = append(have, n.Network)
			}
		}
		if strings.Join(have, " ") != want || len(list.Networks) != len(d.sites) {
			return fmt.Errorf("fairlead network list: %d networks, not ready: %q, want %q: %s", len(list.Networks), have,
				except, out)
		}
		return nil
	}
}

// showExecs runs a command on each Node.
func (d *networksDemo) showExecs(ctx context.Context) error {
	d.step("kubectl exec on every Node. Each command prints the network namespace of the machine on which it runs:")
	for _, p := range d.sites {
		var out string
		run := func(ctx context.Context) (err error) {
			out, err = p.of.Kubectl(ctx, "exec", p.node, "--", "ip", "netns", "identify")
			if err != nil {
				return fmt.Errorf("%w: %s", err, out)
			}
			return nil
		}
		if err := proc.Wait(ctx, patience, run); err != nil {
			return err
		}
		ran := strings.TrimPrefix(strings.TrimSpace(out), d.Name+"-")
		good := ran == p.name+"-"+p.node
		d.result(good, "apiserver of %s, %s with the address %s: runs on %s", p.of.Name, p.node, p.machine.Address, ran)
		if !good {
			return fmt.Errorf("the command of %s ran on %s", p.node, ran)
		}
	}
	return nil
}

// showServices shows what the apiserver does with Services at its sites.
func (d *networksDemo) showServices(ctx context.Context) error {
	if err := d.shop.ServeWebhook(ctx, d.sites[1].machine, webhookReason); err != nil {
		return err
	}
	if err := d.shop.ServeNodeMetrics(ctx, d.sites[2].machine, "node1", "node2", "node3"); err != nil {
		return err
	}
	if err := proc.Wait(ctx, patience, d.shop.Denied(webhookReason)); err != nil {
		return err
	}
	out, _ := d.shop.Kubectl(ctx, "create", "configmap", "prices") // the webhook denies it
	d.show("A webhook at site 2 decides: kubectl create configmap prices:", out)
	top := func(ctx context.Context) (err error) {
		if out, err = d.shop.Kubectl(ctx, "top", "nodes"); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}
	if err := proc.Wait(ctx, patience, top); err != nil {
		return err
	}
	d.show("An aggregated API at site 3 serves kubectl top nodes:", out)
	return nil
}

// showLostEdge ends the edge of site 2 with its Envoy, like the loss of its machine. One command then names the site.
func (d *networksDemo) showLostEdge(ctx context.Context) error {
	lost := d.sites[1]
	d.step("The machine of the edge at %s fails.", lost.name)
	begin := time.Now()
	lost.edge.Hold()
	if err := lost.edge.KillEnvoy(); err != nil {
		return err
	}
	if err := proc.Wait(ctx, patience, d.unready(lost.name)); err != nil {
		return err
	}
	d.result(true, "one command names the site, %.1f s after the failure", time.Since(begin).Seconds())
	if err := d.showFairlead(ctx, networkList...); err != nil {
		return err
	}
	for _, p := range []*site{d.sites[0], d.sites[2], d.sites[3]} {
		if err := p.of.RunsOn(p.node, p.machine)(ctx); err != nil {
			return err
		}
	}
	d.result(true, "kubectl exec still works on every other Node")
	begin = time.Now()
	lost.edge.Resume()
	if err := proc.Wait(ctx, patience, d.unready()); err != nil {
		return err
	}
	if err := proc.Wait(ctx, patience, lost.of.RunsOn(lost.node, lost.machine)); err != nil {
		return err
	}
	d.result(true, "the machine is back: kubectl exec works at %s, %.1f s later", lost.name, time.Since(begin).Seconds())
	return nil
}

// explore prints commands to explore the demo.
func (d *networksDemo) explore() {
	d.show("To look around from another terminal:",
		"ip netns exec "+d.Network.Management.Name+" bin/fairlead network list -A --kubeconfig "+
			d.File("management.kubeconfig")+"\n")
}
