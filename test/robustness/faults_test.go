package robustness

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/lab/kube"
	"github.com/fairlead/fairlead/test/lab/netns"
	"github.com/fairlead/fairlead/test/lab/proc"
	"github.com/fairlead/fairlead/test/lab/workspace"
)

// fault begins a fault, and returns what ends it. A fault of an edge whose Cluster is deleted has no effect.
func (in *installation) fault(ctx context.Context, s Step) (end func() error, err error) {
	released := in.hold(s)
	stop, err := in.start(ctx, s)
	if errors.Is(err, errNoEdge) {
		stop, err = nothing, nil
	}
	if err != nil {
		return nil, err
	}
	return func() error {
		defer released()
		return stop()
	}, nil
}

// hold records that a fault holds up what an edge has received, if it does. The edge may have been revoked before the
// fault ends.
func (in *installation) hold(s Step) (released func()) {
	fields := strings.Split(s.Target, "/")
	ofEnvoy := s.Action == Freeze && strings.HasSuffix(s.Target, "/envoy")
	if in.members[fields[0]] == nil || !ofEnvoy && s.Action != Unplug && s.Action != Forget {
		return func() {}
	}
	p, err := in.place(fields[0], fields[1])
	if err != nil {
		return func() {}
	}
	held := Entry{Kind: KindHeld, Edge: p.site.Address.String(), Text: string(s.Action)}
	held.ID, _ = in.history.Begin(held)
	return func() {
		held.Kind = KindReleased
		in.history.Add(held)
	}
}

func (in *installation) start(ctx context.Context, s Step) (end func() error, err error) {
	switch s.Action {
	case Refuse, Fail:
		return in.refuse(ctx, s.Action)
	case Downgrade:
		return in.downgrade(ctx, s.Target)
	case FillDisk, ReadOnly, SlowDisk:
		d, err := in.diskOf(s.Target)
		if err != nil {
			return nil, err
		}
		return diskFault(ctx, d, s.Action)
	case Unplug, OneWay, Delay, Lossy, Corrupt, Forget, WrongDNS, Misroute:
		cluster, number, _ := strings.Cut(s.Target, "/")
		if r := in.remote(cluster); r != nil {
			return func() error { return r.site.Plug(ctx) }, r.site.Unplug(ctx)
		}
		if s.Action == WrongDNS || s.Action == Misroute {
			return in.misname(cluster, number, s.Action)
		}
		p, err := in.place(cluster, number)
		if err != nil {
			return nil, err
		}
		return p.fault(ctx, s.Action)
	}
	switch {
	case s.Action == NoQuorum:
		return in.loseQuorum(ctx)
	case s.Target == "apiserver":
		return in.freezeManagement(in.Management.Process)
	case s.Target == "etcd": // its other members continue, but the apiserver uses all
		return in.freezeManagement(in.Etcd)
	}
	service, agent, err := in.process(s.Target)
	if err != nil {
		return nil, err
	}
	switch {
	case s.Action == Ahead:
		return in.wrongClock(service, clockError)
	case s.Action == Behind:
		return in.wrongClock(service, -clockError)
	case s.Action == Kill && agent == nil:
		service.Hold()
		return func() error { service.Resume(); return nil }, nil
	}
	pid := service.Process().PID()
	if agent != nil {
		if pid, err = agent.EnvoyPID(); err != nil {
			return nothing, nil // it is down because of another fault
		}
	}
	if resource, is := limited[s.Action]; is {
		return in.limitResource(s, pid, service.Process().Name, resource)
	}
	return faultOf(pid, s.Action)
}

// limited are the resources of which a process can use no more, by the fault.
var limited = map[Action]int{NoFiles: unix.RLIMIT_NOFILE, NoMemory: unix.RLIMIT_DATA}

// limitResource begins such a fault of a process, which may crash because of it. An Envoy that an agent starts
// meanwhile inherits the limit, so that one ends with the fault too.
func (in *installation) limitResource(s Step, pid int, log string, resource int) (end func() error, err error) {
	inherited := nothing
	if owner, isAgent := strings.CutSuffix(s.Target, "/agent"); isAgent {
		_, agent, err := in.process(owner + "/envoy")
		if err != nil {
			return nil, err
		}
		inherited = func() error {
			pid, err := agent.EnvoyPID()
			if err != nil {
				return nil // there is none
			}
			return unlimit(pid, resource)
		}
	}
	calm := in.mayCrash(log)
	stop, err := faultOf(pid, s.Action)
	if err != nil {
		return nil, err
	}
	return func() error {
		defer calm()
		return errors.Join(stop(), inherited())
	}, nil
}

// unlimit lets a process use as much of a resource as it may.
func unlimit(pid, resource int) error {
	var limits unix.Rlimit
	if err := unix.Prlimit(pid, resource, nil, &limits); err != nil {
		return unlessGone(err)
	}
	limits.Cur = limits.Max
	return unlessGone(unix.Prlimit(pid, resource, &limits, nil))
}

// clockError is how wrong clocks may be, as docs/edge.md promises.
const clockError = 10 * time.Minute

// wrongClock starts a program again with a wrong clock. An Envoy that it adopts keeps its own.
func (in *installation) wrongClock(service *proc.Service, by time.Duration) (end func() error, err error) {
	usual := service.Process().Spec
	restart := func(program string, env []string) {
		service.Hold()
		service.Change(func(spec *proc.Spec) { spec.Program, spec.Env = program, env })
		service.Resume()
	}
	restart(in.clocks.Program(filepath.Base(usual.Program)), in.clocks.Env(by))
	return func() error {
		restart(usual.Program, usual.Env)
		return nil
	}, nil
}

// freezeManagement freezes processes without which the management cluster does not answer, or not always.
func (in *installation) freezeManagement(processes ...*proc.Process) (end func() error, err error) {
	end = func() error { return each(processes, (*proc.Process).Thaw) }
	if err := each(processes, (*proc.Process).Freeze); err != nil {
		return nil, errors.Join(err, end())
	}
	return end, nil
}

func each(processes []*proc.Process, do func(*proc.Process) error) error {
	var errs []error
	for _, p := range processes {
		errs = append(errs, do(p))
	}
	return errors.Join(errs...)
}

// noLeaderWithin is how soon the last member of etcd must have noticed that it is: after an election timeout, on a busy
// machine.
const noLeaderWithin = 20 * time.Second

// loseQuorum freezes all members of etcd but one, at random, and waits until that one reports it.
func (in *installation) loseQuorum(ctx context.Context) (end func() error, err error) {
	last := rand.IntN(len(in.EtcdMembers))
	end, err = in.freezeManagement(slices.Delete(slices.Clone(in.EtcdMembers), last, last+1)...)
	if err != nil {
		return nil, err
	}
	err = proc.Wait(ctx, noLeaderWithin, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, attempt)
		defer cancel()
		err := kube.EtcdHealth(ctx, in.Network.Management, last)
		if errors.Is(err, kube.ErrNoLeader) {
			return nil
		}
		return fmt.Errorf("etcd does not report that it has no leader: %w", cmp.Or(err, errors.New("it is healthy")))
	})
	if err != nil {
		return nil, errors.Join(err, end())
	}
	return end, nil
}

// faultOf begins a fault of a process. One that has ended because of another fault has no fault.
func faultOf(pid int, action Action) (end func() error, err error) {
	p, err := os.FindProcess(pid) // it is a handle: a later process with the same id is another one
	if err != nil {
		return nil, err
	}
	signal := func(s os.Signal) error { return unlessDone(p.Signal(s)) }
	switch action {
	case Kill:
		return nothing, signal(syscall.SIGKILL)
	case Freeze:
		return func() error { return signal(syscall.SIGCONT) }, signal(syscall.SIGSTOP)
	case Starve:
		return starve(signal), nil
	case NoFiles:
		files, err := proc.Files(pid)
		if err != nil {
			return nothing, nil // it has ended
		}
		return limit(pid, limited[action], uint64(files), signal)
	case NoMemory:
		size, err := proc.Data(pid)
		if err != nil {
			return nothing, nil // it has ended
		}
		return limit(pid, limited[action], size, signal)
	}
	return nil, fmt.Errorf("%s is no fault of a process", action)
}

const (
	// A starved process runs for the first part of each slice.
	slice, running = 100 * time.Millisecond, 10 * time.Millisecond
)

// starve stops a process most of the time until the returned function is called.
func starve(signal func(os.Signal) error) (end func() error) {
	stop, stopped := make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			if err := signal(syscall.SIGSTOP); err != nil {
				stopped <- err
				return
			}
			select {
			case <-stop:
				stopped <- signal(syscall.SIGCONT)
				return
			case <-time.After(slice - running):
			}
			if err := signal(syscall.SIGCONT); err != nil {
				stopped <- err
				return
			}
			<-time.After(running)
		}
	}()
	return func() error {
		close(stop)
		return <-stopped
	}
}

// limit lets a process use no more of a resource than it does now.
func limit(pid, resource int, now uint64, signal func(os.Signal) error) (end func() error, err error) {
	var before unix.Rlimit
	if err := unix.Prlimit(pid, resource, nil, &before); err != nil {
		return nothing, unlessGone(err)
	}
	few := unix.Rlimit{Cur: now, Max: before.Max}
	return func() error {
		if signal(syscall.Signal(0)) != nil {
			return nil
		}
		return unlessGone(unix.Prlimit(pid, resource, &before, nil))
	}, unlessGone(unix.Prlimit(pid, resource, &few, nil))
}

// unlessGone is unlessDone for system calls.
func unlessGone(err error) error {
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	return err
}

// diskOf returns the disk of a gateway or of an edge.
func (in *installation) diskOf(target string) (*workspace.Disk, error) {
	owner, number, _ := strings.Cut(target, "/")
	if owner == "gateway" {
		n, err := strconv.Atoi(number)
		if err != nil || n >= len(in.disks) {
			return nil, fmt.Errorf("%s has no disk of its own", target)
		}
		return in.disks[n], nil
	}
	p, err := in.place(owner, number)
	if err != nil {
		return nil, err
	}
	return p.disk, nil
}

// diskFault begins a fault of a disk.
func diskFault(ctx context.Context, d *workspace.Disk, action Action) (end func() error, err error) {
	switch action {
	case FillDisk:
		return d.Free, d.Fill()
	case SlowDisk:
		d.Slow(slowBy)
		return func() error { d.Slow(0); return nil }, nil
	}
	return func() error { return d.ReadOnly(ctx, false) }, d.ReadOnly(ctx, true)
}

// fault begins a fault of the network of an edge.
func (p *place) fault(ctx context.Context, action Action) (end func() error, err error) {
	switch action {
	case Unplug:
		return func() error { return p.site.Plug(ctx) }, p.site.Unplug(ctx)
	case OneWay:
		return loseGateways(ctx, p.site)
	}
	repair, err := p.site.Impair(ctx, impairments[action]())
	if err != nil {
		return nil, err
	}
	return func() error { return repair(ctx) }, nil
}

// misname makes the name of the gateways lead elsewhere at the site of an edge: to a machine that is no gateway, or to
// only one of the gateways.
func (in *installation) misname(cluster, number string, action Action) (end func() error, err error) {
	p, err := in.place(cluster, number)
	if err != nil {
		return nil, err
	}
	wrong := in.Network.WorkloadAddress()
	if action == Misroute {
		wrong = netns.PublicAddress(0)
	}
	name := in.Network.PublicName
	right := p.site.Addresses(name)
	return func() error { return p.site.SetHost(name, right...) }, p.site.SetHost(name, wrong)
}

// slowBy is how much longer a slow disk takes for each write. To replace a file takes four of them.
const slowBy = 2 * time.Second

// later is how long a delayed packet takes.
const later = 150 * time.Millisecond

// impairments are the faults of a cable that is not cut.
var impairments = map[Action]func() netns.Impairment{
	Delay: func() netns.Impairment {
		return func(netns.Frame) netns.Fate { return netns.Fate{Delay: later} }
	},
	Lossy: func() netns.Impairment {
		return func(netns.Frame) netns.Fate {
			return netns.Fate{
				Drop: rand.IntN(20) == 0, Twice: rand.IntN(20) == 0, Delay: time.Duration(rand.IntN(10)) * time.Millisecond,
			}
		}
	},
	Corrupt: func() netns.Impairment {
		return func(netns.Frame) netns.Fate { return netns.Fate{Corrupt: rand.IntN(100) == 0} }
	},
	Forget: func() netns.Impairment {
		known := map[string]bool{}
		return func(f netns.Frame) netns.Fate {
			if f.Begins {
				known[f.Flow] = true
			}
			return netns.Fate{Drop: f.Flow != "" && !known[f.Flow]}
		}
	},
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
	gateways := func(do func(int) error) error {
		var errs []error
		for i := range Gateways {
			errs = append(errs, do(i))
		}
		return errors.Join(errs...)
	}
	end = func() error {
		return gateways(func(i int) error { return site.Find(ctx, netns.PublicAddress(i)) })
	}
	return end, gateways(func(i int) error { return site.Lose(ctx, netns.PublicAddress(i)) })
}

// process returns the process that a target names. If it is an Envoy, its agent is returned too.
func (in *installation) process(target string) (*proc.Service, *lab.Agent, error) {
	fields := strings.Split(target, "/")
	n, _ := strconv.Atoi(fields[1]) // targets have no other numbers than those of processes
	var agent *lab.Agent
	switch fields[0] {
	case "controller":
		return in.Controllers[n], nil, nil
	case "xds-server":
		return in.XDSServers[n], nil, nil
	case "gateway":
		agent = in.lasting[n]
	default:
		if r := in.remote(fields[0]); r != nil {
			agent = r.agent(fields[1])
			break
		}
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
