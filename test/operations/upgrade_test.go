package operations

import (
	"context"
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead/fairlead/test/traffic"
	"github.com/fairlead/fairlead/test/versions"
	"github.com/fairlead/fairlead/test/world"
)

// TestUpgradesLoseNoRequest upgrades installations of old versions to this one and downgrades them again, in the order
// of the document, under load.
func TestUpgradesLoseNoRequest(t *testing.T) {
	t.Parallel()
	proof.Need(t)
	for _, old := range versions.Earlier() {
		t.Run(old.Number, func(t *testing.T) { upgrade(t, oldVersion(t, old), newest()) })
	}
}

func upgrade(t *testing.T, from, to version) {
	t.Helper()
	o := newOperations(t, from)
	o.kubelet.hold(func() { o.kubelet.begin = o.byTag(from, to) })
	c := o.ask(t)
	that(t, "the installation runs the old version before the upgrade", func(t *testing.T) { c.proceed(t) })
	allReachable, unreached := slices.Clone(o.edges[:2]), o.edges[2]
	that(
		t,
		"no request fails while the documented commands upgrade the servers (the test starts the Pods)",
		func(t *testing.T) {
			must(t, o.kustomize(to, map[string]string{"fairlead-gateway": from.tag}))
			o.run(t, block(t, "Upgrade", 0))
			c.proceed(t)
		},
	)
	that(t, "edges of both versions enrol with new servers and old gateways", func(t *testing.T) {
		o.changes(t, from, to)
	})
	that(
		t,
		"no request fails while the documented commands upgrade the gateways (the test starts the Pods)",
		func(t *testing.T) {
			must(t, o.kustomize(to, nil))
			o.finds(t)
			c.proceed(t)
		},
	)
	that(
		t, "edges of the old version keep serving, and new edges of both versions enrol",
		func(t *testing.T) { o.changes(t, from, to) },
	)
	that(
		t,
		"no request fails while edges are upgraded one by one, and none is retried for an "+
			"Envoy that stays",
		func(t *testing.T) {
			again := c.Again()
			replaced := o.reload(t, to, allReachable...)
			c.proceed(t)
			if n := c.Again() - again; n > int64(replaced*openAtTheEnd) {
				t.Errorf("%d attempts failed, although only %d Envoys were replaced", n, replaced)
			}
		},
	)
	that(t, "all documented checks succeed with edges of both versions", func(t *testing.T) {
		o.finds(t)
		o.reload(t, to, unreached)
		c.proceed(t)
	})
	that(t, "no request fails while the documented commands downgrade (the test starts the Pods)", func(t *testing.T) {
		old := slices.Clone(o.edges)
		must(t, o.kustomize(from, nil))
		o.run(t, block(t, "Upgrade", 2))
		c.proceed(t)
		o.reload(t, from, old...)
		c.proceed(t)
		o.changes(t, from)
	})
	that(
		t,
		"every Pod accepts its flags, and no edge enrols again",
		func(t *testing.T) {
			must(t, o.kubelet.err())
			o.edgesUnchanged(t)
		},
	)
	measured("upgrade_requests", float64(c.Requests()))
	measured("upgrade_made_again", float64(c.Again()))
	measured("upgrade_longest_s", c.Longest().Seconds())
	t.Run("logs", func(t *testing.T) { o.Logs(t) })
}

// openAtTheEnd is the most connections that an Envoy may have when its drain time is over: one of each client.
const openAtTheEnd = 8

// steady is how long an edge must be ready before the next one is reloaded.
const steady = 2 * time.Second

// reload replaces the program of edges and reloads their units, one after the other. It returns how many Envoys were
// replaced: the ones that the new program starts with other arguments or another bootstrap.
func (o *operations) reload(t *testing.T, v version, edges ...*edge) (replaced int) {
	t.Helper()
	for _, e := range edges {
		must(t, o.Become(t.Context(), e.Service, v.program("edge-agent")))
		envoy, err := e.EnvoyPID()
		must(t, err)
		before := e.Process().PID()
		must(t, syscall.Kill(before, syscall.SIGHUP))
		o.within(t, func(context.Context) error {
			if e.Process().PID() == before {
				return fmt.Errorf("%s still runs", e.name)
			}
			return nil
		})
		var since time.Time
		o.within(t, func(ctx context.Context) error {
			if err := e.Ready(ctx); err != nil {
				since = time.Time{}
				return err
			}
			if since.IsZero() {
				since = time.Now()
			}
			if ready := time.Since(since); ready < steady {
				return fmt.Errorf("%s is ready for %v", e.name, ready)
			}
			return nil
		})
		if now, err := e.EnvoyPID(); err != nil || now != envoy {
			replaced++
		}
	}
	o.within(t, o.healthy)
	return replaced
}

// changes proves that changes take effect: edges of the given versions enrol, and get tunnels to all gateways.
func (o *operations) changes(t *testing.T, versions ...version) {
	t.Helper()
	usual := o.version
	for _, v := range versions {
		o.version = v
		e := o.enrol(t, o.clusters[0])
		o.within(t, o.healthy)
		e.known = world.Steal(t, e.Agent)
	}
	o.version = usual
}

// finds runs the commands that end an upgrade until they find nothing, because tunnels may have been replaced a moment
// ago.
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

// patience is how long a client retries a request. A workload cluster with one edge has no tunnel while its Envoy is
// replaced.
const patience = 10 * time.Second

// asking holds the clients of both workload clusters.
type asking struct{ *traffic.Retrying }

// ask starts to request the version of both workload clusters continuously, through any gateway.
func (o *operations) ask(t *testing.T) asking {
	t.Helper()
	var paths []traffic.Path
	for i, c := range o.clusters[:2] {
		paths = append(paths, o.pathTo(c, 0, i == 1))
	}
	return asking{
		traffic.StartRetrying(
			t,
			traffic.Retry{Patience: patience, Pause: 200 * time.Millisecond},
			loadRate,
			"/version",
			paths...),
	}
}

// proceed waits for some more requests, and fails the test if one has finally failed since the previous call.
func (a asking) proceed(t *testing.T) {
	t.Helper()
	eventually(t, a.More(40))
	if err := a.Err(); err != nil {
		t.Error(err)
	}
}
