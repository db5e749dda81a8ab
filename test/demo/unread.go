package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fairlead/fairlead/test/bench/konnectivity"
	"github.com/fairlead/fairlead/test/hosted"
	"github.com/fairlead/fairlead/test/lab/kube"
	"github.com/fairlead/fairlead/test/pods"
)

const (
	rivalName = "rival"
	execs     = 10 // beside the unread stream
	// beside is how long they send lines beside it, one in each interval. konnectivity ends an unread stream after 10 s in
	// one of its modes.
	beside   = 8 * time.Second
	interval = 200 * time.Millisecond
	// frozenAfter is how long an exec gets no byte until it counts as frozen.
	frozenAfter = 5 * time.Second
)

// showUnread shows what an unread stream does to other streams, through Fairlead and through konnectivity.
func (d *networksDemo) showUnread(ctx context.Context) error {
	if err := d.startRival(ctx); err != nil {
		return err
	}
	d.step("%d kubectl execs at site 1 send lines to and fro. Beside them a kubectl port-forward gets bytes without end",
		execs)
	d.step("that its client does not read. (An unread logs -f would show nothing: kube-apiserver 1.37 reads all logs of a")
	d.step("kubelet through one HTTP/2 connection, which has flow control of its own.) The longest silence in %.0f s:",
		beside.Seconds())
	var group errgroup.Group // without a common context: the failure of one must not end the other
	group.Go(func() error { return d.unread(ctx, "Fairlead", d.shop.APIServer, 0) })
	if d.rival != nil {
		group.Go(func() error { return d.unread(ctx, "konnectivity "+konnectivity.HTTPConnect, d.rival, execs) })
	}
	return group.Wait()
}

// unread opens execs and an unread port-forward on the Node of site1, and prints how long the execs were silent. It
// returns an error if another number of them than want is frozen.
func (d *networksDemo) unread(ctx context.Context, name string, through *kube.APIServer, want int) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c, err := pods.NewClient(through.Config, d.sites[0].node, kube.Container)
	if err != nil {
		return err
	}
	all, err := c.OpenEchoes(ctx, execs, execs)
	if len(all) < execs {
		return fmt.Errorf("opening execs through %s: %w", name, err)
	}
	stream, err := c.Forward(ctx, hosted.EchoPort)
	if err != nil {
		return fmt.Errorf("forwarding a port through %s: %w", name, err)
	}
	defer func() { _ = stream.Close() }()
	if _, err := io.WriteString(stream, hosted.Flood+"\n"); err != nil {
		return fmt.Errorf("forwarding a port through %s: %w", name, err)
	}
	var mu sync.Mutex
	var silences []time.Duration
	var running sync.WaitGroup
	end := time.Now().Add(beside)
	for _, e := range all {
		running.Go(func() {
			silence := slices.Max(e.TripsUntil(end, interval))
			mu.Lock()
			defer mu.Unlock()
			silences = append(silences, silence)
		})
	}
	running.Wait()
	slices.Sort(silences)
	frozen := len(silences) - len(slices.DeleteFunc(slices.Clone(silences),
		func(s time.Duration) bool { return s >= frozenAfter }))
	d.result(frozen == want, "%-25s %2d of %d execs freeze, the median exec is silent for %6.3f s, the worst for %6.3f s",
		name+":", frozen, execs, silences[execs/2].Seconds(), silences[execs-1].Seconds())
	if frozen != want {
		return fmt.Errorf("beside an unread stream %d of %d execs through %s froze, want %d", frozen, execs, name, want)
	}
	return nil
}

// startRival starts konnectivity, if it is there, and an apiserver that uses it to dial the Node of site1.
func (d *networksDemo) startRival(ctx context.Context) error {
	if err := konnectivity.Installed(d.Parts); err != nil {
		d.step("konnectivity is not there, so its half of the next step is left out: %v", err)
		return nil
	}
	d.step("For comparison, konnectivity: its server beside the gateway, its agent on the edge's machine at site 1.")
	k, err := konnectivity.Start(ctx, d.Workspace, konnectivity.Spec{
		Mode: konnectivity.HTTPConnect, Beside: d.Network.Gateways[0], Address: d.Network.PublicAddress(0), FirstPort: 8300,
	})
	if err != nil {
		return err
	}
	node := d.sites[0]
	if _, err := k.StartAgent(ctx, node.edgeHost.Namespace); err != nil {
		return err
	}
	at, err := d.Network.AddHosted(ctx, rivalName, 110)
	if err != nil {
		return err
	}
	if d.rival, err = hosted.StartAPIServer(ctx, d.Lab, at, rivalName, k.Selector()); err != nil {
		return err
	}
	return d.rival.CreateNode(ctx, node.node, node.machine.Address, node.node)
}
