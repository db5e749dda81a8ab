package robustness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/lab/netns"
	"github.com/fairlead/fairlead/test/lab/proc"
)

// fault begins a fault, and returns what ends it. A fault of an edge whose Cluster is deleted has no effect.
func (in *installation) fault(ctx context.Context, s Step) (end func() error, err error) {
	end, err = in.start(ctx, s)
	if errors.Is(err, errNoEdge) {
		return nothing, nil
	}
	return end, err
}

func (in *installation) start(ctx context.Context, s Step) (end func() error, err error) {
	if s.Target == "apiserver" {
		in.serving.Lock()
		end = func() error {
			defer in.serving.Unlock()
			return in.Management.Process.Thaw()
		}
		if err := in.Management.Process.Freeze(); err != nil {
			return nil, errors.Join(err, end())
		}
		return end, nil
	}
	if s.Action == Unplug || s.Action == OneWay {
		cluster, number, _ := strings.Cut(s.Target, "/")
		p, err := in.place(cluster, number)
		if err != nil {
			return nil, err
		}
		if s.Action == Unplug {
			return func() error { return p.site.Plug(ctx) }, p.site.Unplug(ctx)
		}
		return loseGateways(ctx, p.site)
	}
	service, agent, err := in.process(s.Target)
	if err != nil {
		return nil, err
	}
	switch {
	case agent == nil && s.Action == Kill:
		service.Hold()
		return func() error { service.Resume(); return nil }, nil
	case agent == nil:
		p := service.Process()
		return func() error { return unlessDone(p.Thaw()) }, unlessDone(p.Freeze())
	case s.Action == Kill:
		_ = agent.KillEnvoy() // it may be down because of another fault
		return nothing, nil
	}
	_, thaw, err := agent.FreezeEnvoy()
	if err != nil {
		return nothing, nil // it is down because of another fault
	}
	return func() error { thaw(); return nil }, nil
}

// unlessDone discards the error of a process that has ended because of another fault.
func unlessDone(err error) error {
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	return err
}

// loseGateways loses what a site sends to the gateways. What they send to the site still arrives.
func loseGateways(ctx context.Context, site *netns.Site) (end func() error, err error) {
	each := func(do func(int) error) error {
		var errs []error
		for i := range Gateways {
			errs = append(errs, do(i))
		}
		return errors.Join(errs...)
	}
	end = func() error {
		return each(func(i int) error { return site.Find(ctx, netns.PublicAddress(i)) })
	}
	return end, each(func(i int) error { return site.Lose(ctx, netns.PublicAddress(i)) })
}

// process returns the process that a target names. If it is an Envoy, its agent is returned too.
func (in *installation) process(target string) (*proc.Service, *lab.Agent, error) {
	fields := strings.Split(target, "/")
	n, err := strconv.Atoi(fields[1])
	if err != nil {
		return nil, nil, fmt.Errorf("finding process %s: %w", target, err)
	}
	var agent *lab.Agent
	switch fields[0] {
	case "controller":
		return in.Controllers[n], nil, nil
	case "xds-server":
		return in.XDSServers[n], nil, nil
	case "gateway":
		agent = in.lasting[n]
	default:
		p, err := in.place(fields[0], fields[1])
		if err != nil {
			return nil, nil, err
		}
		agent = p.Agent
	}
	if fields[2] == "envoy" {
		return agent.Service, agent, nil
	}
	return agent.Service, nil, nil
}
