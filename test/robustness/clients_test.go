package robustness

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/test/lab/proc"
	"github.com/fairlead/fairlead/test/outsider"
	"github.com/fairlead/fairlead/test/traffic"
	"github.com/fairlead/fairlead/test/world"
)

const (
	// shortEvery and largeEvery are the intervals between the requests of a client, and streamEvery between a stream that
	// broke and the next one. There are several clients for each workload cluster.
	shortEvery, largeEvery, streamEvery = 200 * time.Millisecond, 2 * time.Second, time.Second / 2
	// idleFor is how long a connection is not used.
	idleFor = 12 * time.Second
	// large is the number of bytes of a large request.
	large = 1 << 20
	// slack is added to a bound, because a client takes a moment to give up.
	slack = time.Second
	// tick is the interval of the canary, and tolerance how late it may be before that is recorded.
	tick, tolerance = 20 * time.Millisecond, 100 * time.Millisecond
	// settle is how soon everything must work after the last step.
	settle = time.Minute
)

// clients are the traffic of a run.
type clients struct {
	in   *installation
	stop context.CancelFunc
	done sync.WaitGroup
}

// startClients starts clients of all kinds for all members.
func (in *installation) startClients(ctx context.Context) *clients {
	ctx, stop := context.WithCancel(ctx)
	c := &clients{in: in, stop: stop}
	c.done.Go(func() { in.repeat(ctx, stealEvery, in.steal) })
	c.done.Go(func() { in.repeat(ctx, stealEvery, in.impersonate) })
	for _, r := range in.remotes {
		c.startNetworkClients(ctx, r)
		c.done.Go(func() {
			in.observe(ctx, r.Name, func(ctx context.Context) (bool, error) { return r.ready(ctx, in.Management.Client) })
		})
	}
	for _, m := range in.all() {
		c.done.Go(func() {
			in.observe(ctx, m.name, func(ctx context.Context) (bool, error) { return in.ready(ctx, m) })
		})
		c.every(ctx, m, shortEvery, func(p traffic.Path) { in.request(m, "short", p, traffic.RequestTimeout, nil) })
		c.inTurn(ctx, m, shortEvery, func(p traffic.Path) {
			in.request(m, Idle, p, idleFor+traffic.RequestTimeout, in.afterIdling(ctx, m))
		})
		if m.real != nil {
			if in.long {
				c.startRealClients(ctx, m)
			}
			continue
		}
		c.every(ctx, m, largeEvery, func(p traffic.Path) { in.request(m, "large", p, traffic.RequestTimeout, readLarge) })
		c.onEach(ctx, m, streamEvery, func(p traffic.Path) { in.watch(ctx, m, p) })
	}
	return c
}

// Stop ends the traffic when the requests in flight have ended.
func (c *clients) Stop() {
	c.stop()
	c.done.Wait()
}

// every calls a function for the paths of a member in turn, at an interval. It does not wait until a call returns: what
// hangs must not keep other requests from being counted.
func (c *clients) every(ctx context.Context, m *member, interval time.Duration, do func(traffic.Path)) {
	paths := m.paths()
	c.repeat(ctx, m, interval, func(i int) { c.done.Go(func() { do(paths[i%len(paths)]) }) })
}

// inTurn is every for calls that take long, of which there is one at a time.
func (c *clients) inTurn(ctx context.Context, m *member, interval time.Duration, do func(traffic.Path)) {
	paths := m.paths()
	c.repeat(ctx, m, interval, func(i int) { do(paths[i%len(paths)]) })
}

// onEach is inTurn for each path by itself.
func (c *clients) onEach(ctx context.Context, m *member, interval time.Duration, do func(traffic.Path)) {
	for _, p := range m.paths() {
		c.repeat(ctx, m, interval, func(int) { do(p) })
	}
}

func (c *clients) repeat(ctx context.Context, m *member, interval time.Duration, do func(i int)) {
	i := 0
	c.done.Go(func() {
		atIntervals(ctx, interval, func() {
			if m.isUp() || !m.second() { // a Cluster is seldom in the second installation
				do(i)
			}
			i++
		})
	})
}

// atIntervals calls a function again and again until ctx ends, each time an interval after it has returned.
func atIntervals(ctx context.Context, interval time.Duration, do func()) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(interval):
		}
		do()
	}
}

// exchange is what a client does on one connection, after it has found out who answers.
type exchange func(context.Context, *traffic.Session, *Entry) error

// request sends a request on a new connection, and records it.
func (in *installation) request(m *member, client string, p traffic.Path, bound time.Duration, more exchange) {
	ask := Entry{Kind: KindAsk, Client: client, Cluster: m.name, Path: m.describe(p)}
	in.attempt(ask, bound, func(ctx context.Context, answer *Entry) error { return m.exchange(ctx, p, answer, more) })
}

// attempt does what a client does within a bound, and records it.
func (in *installation) attempt(ask Entry, bound time.Duration, do func(context.Context, *Entry) error) {
	ask.Bound = bound + slack
	id, _ := in.history.Begin(ask)
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	defer cancel()
	answer := Entry{Kind: KindAnswer, ID: id}
	if err := do(ctx, &answer); err != nil {
		answer.Error = err.Error()
	}
	in.history.Add(answer)
}

func (m *member) exchange(ctx context.Context, p traffic.Path, answer *Entry, more exchange) error {
	s, err := m.open(ctx, p, answer)
	if err != nil {
		return err
	}
	defer s.Close()
	if more == nil {
		return nil
	}
	return more(ctx, s, answer)
}

// open opens a connection, and records who answers.
func (m *member) open(ctx context.Context, p traffic.Path, answer *Entry) (*traffic.Session, error) {
	s, err := p.Open(ctx)
	if err != nil {
		return nil, err
	}
	answer.Answer = m.served(s.Leaf()) // another apiserver may not know the client, and say no more
	name, edge, err := m.who(ctx, s)
	if err != nil {
		s.Close()
		return nil, err
	}
	answer.Answer, answer.Edge = name, edge
	return s, nil
}

// afterIdling does not use the connection for a while, and then asks again.
func (in *installation) afterIdling(stop context.Context, m *member) exchange {
	return func(ctx context.Context, s *traffic.Session, answer *Entry) error {
		select {
		case <-stop.Done():
		case <-time.After(idleFor):
		case <-ctx.Done(): // it took long to connect
			return ctx.Err()
		}
		asked := in.history.Since(time.Now())
		again, edge, err := m.who(ctx, s)
		if err != nil {
			return err
		}
		if again != answer.Answer {
			err = fmt.Errorf("%s answered, and later %s", answer.Answer, again)
		}
		answer.Answer, answer.Edge, answer.Last = again, edge, asked
		return err
	}
}

func readLarge(ctx context.Context, s *traffic.Session, _ *Entry) error {
	body, err := s.Get(ctx, fmt.Sprintf("/bytes/%d", large))
	if err == nil && len(body) != large {
		err = fmt.Errorf("%d bytes arrived", len(body))
	}
	return err
}

// watch follows a stream until it breaks or the traffic ends.
func (in *installation) watch(ctx context.Context, m *member, p traffic.Path) {
	id, _ := in.history.Begin(Entry{Kind: KindAsk, Client: "watch", Cluster: m.name, Path: m.describe(p)})
	answer := Entry{Kind: KindAnswer, ID: id}
	f, err := p.Follow(context.WithoutCancel(ctx))
	if err == nil {
		select {
		case <-ctx.Done():
		case <-f.Done():
			err = f.Alive()
		}
		f.Close()
		answer.Answer, answer.Edge, answer.Last = f.Name, f.Edge, in.history.Since(f.Last())
	}
	if err != nil {
		answer.Error = err.Error()
	}
	in.history.Add(answer)
}

// startCanary starts what records when it runs later than it should, until the returned function is called.
func startCanary(ctx context.Context, history *Recorder) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var done sync.WaitGroup
	done.Go(func() {
		for {
			begin := time.Now()
			select {
			case <-ctx.Done():
				return
			case <-time.After(tick):
			}
			if late := time.Since(begin) - tick; late > tolerance {
				history.Add(Entry{Kind: KindLate, Late: late})
			}
		}
	})
	return func() {
		cancel()
		done.Wait()
	}
}

const (
	// observeEvery is the interval in which the status of a Tunnel is read.
	observeEvery = time.Second
	// stealEvery is the interval between attempts with the identities of revoked edges, and maxThieves how many of them
	// are tried, the last ones.
	stealEvery, maxThieves = 2 * time.Second, 3
	// glance is how long an observation may take. One that takes longer says nothing.
	glance = 3 * time.Second
)

// repeat calls a function at intervals until ctx ends, each time with a short deadline.
func (in *installation) repeat(ctx context.Context, interval time.Duration, do func(context.Context)) {
	atIntervals(ctx, interval, func() {
		short, cancel := context.WithTimeout(ctx, glance)
		defer cancel()
		do(short)
	})
}

// observe records when the tunnel of a Cluster, or its network, becomes ready, and when it is not any longer.
func (in *installation) observe(ctx context.Context, cluster string, now func(context.Context) (bool, error)) {
	known, was := false, false
	in.repeat(ctx, observeEvery, func(ctx context.Context) {
		ready, err := now(ctx)
		if err != nil || known && ready == was {
			return
		}
		known, was = true, ready
		in.history.Add(Entry{Kind: KindReady, Cluster: cluster, Up: ready})
	})
}

// ready reports whether a member has a Tunnel that is ready.
func (in *installation) ready(ctx context.Context, m *member) (bool, error) {
	tunnel := &v1alpha1.Tunnel{}
	err := in.lab(m).Management.Client.Get(ctx, m.key(), tunnel)
	if err != nil {
		return false, client.IgnoreNotFound(err)
	}
	return meta.IsStatusConditionTrue(tunnel.Status.Conditions, v1alpha1.ConditionReady), nil
}

// steal asks an xds-server for resources with the identities of revoked edges, and records each that succeeds.
func (in *installation) steal(ctx context.Context) {
	in.mu.Lock()
	thieves := in.thieves[max(0, len(in.thieves)-maxThieves):]
	in.mu.Unlock()
	for _, stolen := range thieves {
		node := stolen.Subject.NodeID()
		if _, err := in.Outsider(stolen).Fetch(ctx, node); err == nil {
			in.history.Add(Entry{Kind: KindFetched, Name: node})
		}
	}
}

// impersonate asks an xds-server for the resources of all other nodes with the identity of one edge. It records what
// succeeds, and the first time that each pair is denied.
func (in *installation) impersonate(ctx context.Context) {
	all := in.identities()
	if len(all) == 0 {
		return // none has enrolled yet
	}
	own := all[rand.IntN(len(all))]
	for _, node := range slices.Concat(nodesOf(all), nodesOf(in.gateways())) {
		from := own.Subject.NodeID()
		if node == from {
			continue
		}
		_, err := in.Outsider(own).Fetch(ctx, node)
		if err == nil {
			in.history.Add(Entry{Kind: KindFetched, Name: node, Client: from})
		}
		if pair := from + " " + node; status.Code(err) == codes.PermissionDenied && !in.denied[pair] {
			in.denied[pair] = true
			in.history.Add(Entry{Kind: KindDenied, Name: node, Client: from})
		}
	}
}

// identities returns the identities of all edges that should carry traffic, and of what is beside apiservers.
func (in *installation) identities() []outsider.Stolen {
	var folders []string
	for _, m := range in.all() {
		if !m.second() {
			for _, p := range in.places(m) {
				folders = append(folders, p.StateDir)
			}
		}
	}
	for _, r := range in.remotes {
		folders = append(folders, r.edge.StateDir, r.Egress.StateDir)
	}
	return stolen(folders)
}

// gateways returns the identities of the gateways that are never removed.
func (in *installation) gateways() []outsider.Stolen {
	var folders []string
	for _, g := range in.lasting[:Gateways-1] {
		folders = append(folders, g.StateDir)
	}
	return stolen(folders)
}

// stolen returns the identities in state folders. One with several, because its Cluster is being moved, is left out.
func stolen(folders []string) (all []outsider.Stolen) {
	for _, folder := range folders {
		if s, err := outsider.Steal(world.Domain, folder); err == nil {
			all = append(all, s)
		}
	}
	return all
}

func nodesOf(all []outsider.Stolen) (nodes []string) {
	for _, s := range all {
		nodes = append(nodes, s.Subject.NodeID())
	}
	return nodes
}

// settled waits until every member answers, or does not, as it should.
func (in *installation) settled(ctx context.Context, within time.Duration) error {
	return proc.Wait(ctx, within, func(ctx context.Context) error {
		for _, r := range in.remotes {
			ctx, cancel := context.WithTimeout(ctx, traffic.RequestTimeout)
			err := errors.Join(r.ask(ctx, &Entry{}), isReady(r.ready(ctx, in.Management.Client)))
			cancel()
			if err != nil {
				return fmt.Errorf("%s: %w", r.Name, err)
			}
		}
		for _, m := range in.all() {
			for _, p := range m.paths() {
				if err := m.asExpected(ctx, p); err != nil {
					return err
				}
			}
			if err := m.kubeconfig(ctx, v1alpha1.KubeconfigModeSNI); err != nil {
				return err
			}
			if !m.isUp() {
				continue
			}
			if err := isReady(in.ready(ctx, m)); err != nil {
				return fmt.Errorf("%s: %w", m.name, err)
			}
		}
		return nil
	})
}

// isReady returns an error if what is read is not ready, or could not be read.
func isReady(ready bool, err error) error {
	if err == nil && !ready {
		err = errors.New("it is not ready")
	}
	return err
}

// kubeconfig returns nil if the kubeconfig of a member works, which has a mode, or if it should not: in the mode sni a
// client verifies the name of the Cluster.
func (m *member) kubeconfig(ctx context.Context, mode v1alpha1.KubeconfigMode) error {
	if m.real == nil || !m.named && mode == v1alpha1.KubeconfigModeSNI || !m.isUp() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, traffic.RequestTimeout)
	defer cancel()
	return m.cluster.Reach(ctx)
}

func (m *member) asExpected(ctx context.Context, p traffic.Path) error {
	ctx, cancel := context.WithTimeout(ctx, traffic.RequestTimeout)
	defer cancel()
	err := m.exchange(ctx, p, &Entry{}, nil)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.up {
		return err
	}
	if err == nil {
		return errors.New("it answers")
	}
	return nil
}

// last records which Tunnels and networks are ready, and sends a request on every path and with each kubeconfig.
func (in *installation) last(ctx context.Context) {
	inTheEnd := func(cluster string, ready bool, err error) {
		e := Entry{Kind: KindReady, Client: Final, Cluster: cluster, Up: ready}
		if err != nil {
			e.Error = err.Error()
		}
		in.history.Add(e)
	}
	for _, r := range in.remotes {
		ready, err := r.ready(ctx, in.Management.Client)
		inTheEnd(r.Name, ready, err)
		in.attempt(Entry{Kind: KindAsk, Client: Final, Cluster: r.Name, Path: EgressPath}, traffic.RequestTimeout, r.ask)
	}
	for _, m := range in.all() {
		ready, err := in.ready(ctx, m)
		inTheEnd(m.name, ready, err)
		for _, p := range m.paths() {
			in.request(m, Final, p, traffic.RequestTimeout, nil)
		}
		if !m.named {
			continue
		}
		used := Entry{Kind: KindKubeconfig, Cluster: m.name}
		if err := m.kubeconfig(ctx, v1alpha1.KubeconfigModeSNI); err != nil {
			used.Error = err.Error()
		}
		in.history.Add(used)
	}
}
