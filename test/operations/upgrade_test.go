package operations

import (
	"context"
	"crypto/x509"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/retry"
	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/traffic"
	"github.com/fairlead/fairlead/test/world"
)

// TestUpgrade brings an installation of an old version to this one and back, in the order of the document, under requests.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	proof.Need(t)
	from, to := oldVersion(t), newest()
	o := newOperations(t, from)
	o.kubelet.hold(func() { o.kubelet.begin = o.byTag(from, to) })
	c := o.ask(t)
	that(t, "the old version is what runs at first", func(t *testing.T) { c.proceed(t) })
	reached, unreached := slices.Clone(o.edges[:2]), o.edges[2]
	that(t, "edges get the new program and are reloaded: no tunnel ends, and no request is made twice", func(t *testing.T) {
		again := c.again.Load()
		o.reload(t, to, reached...)
		c.proceed(t)
		if n := c.again.Load() - again; n > 0 {
			t.Errorf("%d attempts failed", n)
		}
	})
	that(t, "a new edge enrols at old gateways and servers", func(t *testing.T) { o.changes(t, to) })
	that(t, "the commands of the document replace the gateways (the test starts the Pods): no request is lost", func(t *testing.T) {
		must(t, o.kustomize(to, map[string]string{"fairlead-controller": from.tag, "fairlead-xds-server": from.tag}))
		o.run(t, block(t, "Upgrade", 0))
		c.proceed(t)
	})
	that(t, "a new edge, and one of the old version, enrol at new gateways and old servers", func(t *testing.T) { o.changes(t, to, from) })
	that(t, "the commands of the document replace the servers (the test starts the Pods): no request is lost", func(t *testing.T) {
		must(t, o.kustomize(to, nil))
		o.finds(t)
		c.proceed(t)
	})
	that(t, "an edge that nobody has reached serves on, and others of the old version enrol at the new servers", func(t *testing.T) { o.changes(t, from, to) })
	that(t, "when it is updated too, all commands of the document find all well", func(t *testing.T) {
		o.reload(t, to, unreached)
		c.proceed(t)
		o.finds(t)
	})
	that(t, "the commands of the document go back (the test starts the Pods): no request is lost", func(t *testing.T) {
		old := slices.Clone(o.edges)
		must(t, o.kustomize(from, nil))
		o.run(t, block(t, "Upgrade", 2))
		c.proceed(t)
		o.reload(t, from, old...)
		c.proceed(t)
		o.changes(t, from)
	})
	that(t, "no Pod was started with a flag that its version does not know, and no edge had to enrol anew", func(t *testing.T) {
		must(t, o.kubelet.err())
		o.unvisited(t)
	})
	measured("upgrade_requests", float64(c.requests.Load()))
	measured("upgrade_made_again", float64(c.again.Load()))
	measured("upgrade_longest_s", c.worst().Seconds())
	t.Run("logs", func(t *testing.T) { o.Logs(t) })
}

// reload replaces the program of edges and reloads their units.
func (o *operations) reload(t *testing.T, v version, edges ...*edge) {
	t.Helper()
	for _, e := range edges {
		must(t, o.Become(t.Context(), e.Service, v.program("edge-agent")))
		before := e.Process().PID()
		must(t, syscall.Kill(before, syscall.SIGHUP))
		o.within(t, func(context.Context) error {
			if e.Process().PID() == before {
				return fmt.Errorf("%s still runs", e.name)
			}
			return nil
		})
		eventually(t, e.Ready)
	}
	o.within(t, o.well)
}

// changes proves that changes come through: edges of some versions enrol, and have tunnels to all gateways.
func (o *operations) changes(t *testing.T, versions ...version) {
	t.Helper()
	usual := o.version
	for _, v := range versions {
		o.version = v
		e := o.enrol(t, o.clusters[0])
		o.within(t, o.well)
		e.known = world.Steal(t, e.Agent)
	}
	o.version = usual
}

// finds gives the commands that end an upgrade until they find nothing: tunnels may have been replaced just now.
func (o *operations) finds(t *testing.T) {
	t.Helper()
	o.within(t, func(ctx context.Context) error {
		out, err := o.script(ctx, o.Lab, block(t, "Upgrade", 1))
		if err != nil {
			err = fmt.Errorf("%w: %s", err, out)
		}
		return err
	})
}

// asking are clients that make a request that fails again, as client-go does.
type asking struct {
	requests, again atomic.Int64
	mu              sync.Mutex
	longest         time.Duration
	failures        []error
}

const (
	askers   = 4
	attempts = 4
	pause    = 200 * time.Millisecond
)

// ask begins to ask for the version of both workload clusters all the time, through whatever gateway there is.
func (o *operations) ask(t *testing.T) *asking {
	t.Helper()
	a := &asking{}
	ctx, cancel := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	for i := range askers {
		c := o.clusters[i%2]
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(c.APIServer.CA.CertPEM)
		path := traffic.Path{
			From: o.Network.Management, Connect: i%2 == 1, Hostname: world.HostnameIn(namespace, c.Name), ServerName: "kubernetes", Roots: roots,
		}
		clients.Go(func() { o.client(ctx, a, path) })
	}
	t.Cleanup(func() { cancel(); clients.Wait() })
	return a
}

// client makes one request after the other, twenty on a connection.
func (o *operations) client(ctx context.Context, a *asking, path traffic.Path) {
	var s *traffic.Session
	defer func() { s.Close() }()
	for n := 0; ctx.Err() == nil; n++ {
		begun := time.Now()
		if n%20 == 0 {
			s.Close()
			s = nil
		}
		var err error
		for attempt := 1; ; attempt++ {
			if s, err = o.attempt(ctx, s, path); err == nil || ctx.Err() != nil || attempt == attempts {
				break
			}
			a.again.Add(1)
			_ = retry.Sleep(ctx, pause)
		}
		if ctx.Err() != nil {
			return
		}
		a.note(begun, err)
		_ = retry.Sleep(ctx, time.Second*askers/loadRate)
	}
}

// attempt makes a request on the connection that there is, or on a new one to a gateway that the common name leads to.
func (o *operations) attempt(ctx context.Context, s *traffic.Session, path traffic.Path) (*traffic.Session, error) {
	ctx, cancel := context.WithTimeout(ctx, traffic.RequestTimeout)
	defer cancel()
	var err error
	if s == nil {
		addresses := o.Network.Management.Addresses(lab.GatewayName)
		for picked := addresses[rand.IntN(len(addresses))]; lab.InsideAddress(path.Gateway) != picked; {
			path.Gateway++
		}
		if s, err = path.Open(ctx); err != nil {
			return nil, err
		}
	}
	if _, err = s.Get(ctx, "/version"); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

func (a *asking) note(begun time.Time, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.requests.Add(1)
	a.longest = max(a.longest, time.Since(begun))
	if err != nil {
		a.failures = append(a.failures, fmt.Errorf("%s: %w", begun.Format("15:04:05.000"), err))
	}
}

// worst is how long the longest request took with all of its attempts.
func (a *asking) worst() time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.longest
}

// proceed waits for some more requests, and fails the test if one has failed for good since it was called last.
func (a *asking) proceed(t *testing.T) {
	t.Helper()
	want := a.requests.Load() + 40
	eventually(t, func(context.Context) error {
		if n := a.requests.Load(); n < want {
			return fmt.Errorf("%d of %d requests", n, want)
		}
		return nil
	})
	a.mu.Lock()
	defer a.mu.Unlock()
	if n := len(a.failures); n > 0 {
		t.Errorf("%d of %d requests failed for good, such as: %v", n, a.requests.Load(), a.failures[0])
	}
	a.failures = nil
}
