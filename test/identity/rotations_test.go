package identity

import (
	"context"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/lab/proc"
	"github.com/fairlead/fairlead/test/outsider"
	"github.com/fairlead/fairlead/test/traffic"
	"github.com/fairlead/fairlead/test/world"
)

const (
	// leafLife is the lifetime of certificates in TestRotationsInterruptNoRequest.
	leafLife = 16 * time.Second
	// caLife is the lifetime of a CA there. The controller replaces a CA at 4/5 of it, which is after everything that
	// is counted under load.
	caLife = 280 * time.Second
	// caOverlap is how long each phase of a rotation lasts. A program that is offline for a whole rotation must enrol
	// again.
	caOverlap = 18 * time.Second
	// turnEdges edges serve turnClusters workload clusters each, which makes two certificates in a second.
	// With turnLanes each workload cluster has more reverse tunnels than a gateway makes attempts.
	turnEdges, turnClusters, turnLanes = 4, 6, 2
	// leafRotations is how many rotations must happen under load.
	leafRotations = 400
	// loadRate is how many requests per second the load attempts, and calmRate the same while a CA rotates by itself. A
	// slow or busy machine makes fewer requests. What matters is that none fails.
	loadRate, calmRate = 40, 20
	// leastPerPath is how many requests each path must carry on average, so that an idle load fails the test.
	leastPerPath = 20
)

// rotations is an installation with certificates that live for seconds.
type rotations struct {
	*world.World
	members []*world.Member
	edges   []*lab.Agent
	load    *traffic.Load
	paths   int          // of the load
	from    traffic.Mark // when the load began
	before  int          // certificates issued before the load

	bootstrap []byte // a bootstrap file from before any rotation of the CA
}

// TestRotationsInterruptNoRequest proves that replacing a leaf or a CA costs no request, and what happens to programs
// that are offline for long.
func TestRotationsInterruptNoRequest(t *testing.T) {
	if testing.Short() {
		t.Skip("needs some minutes")
	}
	t.Parallel()
	// Before anything else, because certificates that live for seconds would expire while three installations start at
	// the same time.
	controlPlaneGone.wait(t)
	release := hold(t, whole)
	defer release()
	r := &rotations{World: newWorld(t, lab.Options{
		Gateways: 2, Lean: true, WithoutWorkload: true, ControllerFlags: []string{
			"--leaf-lifetime=" + leafLife.String(), "--ca-overlap=" + caOverlap.String(), "--ca-lifetime=" + caLife.String(),
		}, XDSServerFlags: []string{fmt.Sprintf("--lanes=%d", turnLanes)},
	})}
	r.bringUp(t)
	r.begin(t, loadRate)
	t.Run("CA", r.rotateCA)
	t.Run("leaves", r.rotateLeaves)
	r.load.Stop()
	r.begin(t, calmRate)
	t.Run("CA by itself", r.rotatesItself)
	r.load.Stop()
	t.Run("expired leaf", r.expiredWhileOff)
	release()
	t.Run("long outage", r.longOutage)
	t.Run("logs", func(t *testing.T) { r.Logs(t) })
}

// bringUp makes Clusters and edges. Every edge serves every Cluster.
func (r *rotations) bringUp(t *testing.T) {
	for i := range turnClusters {
		r.members = append(r.members, r.Member(t, fmt.Sprintf("turn-%d", i), nil))
	}
	for i := range turnEdges {
		r.edges = append(r.edges, r.StartEdge(t, lab.EdgeSpec{Name: fmt.Sprintf("edge-turn-%d", i)}, r.members...))
	}
	for _, m := range r.members {
		must(t, proc.Wait(t.Context(), 2*patience, m.Works))
	}
	for _, e := range r.edges {
		must(t, proc.Wait(t.Context(), 2*patience, e.Ready))
	}
}

// begin starts a load with the given number of requests per second.
func (r *rotations) begin(t *testing.T, rate int) {
	t.Helper()
	var paths []traffic.Path
	for _, m := range r.members {
		paths = append(paths, m.Path(0, false), m.Path(1, true))
	}
	_, before, err := r.newCertificates()
	must(t, err)
	r.load = traffic.Start(t, rate, 2, "/whoami", paths...)
	r.from, r.before, r.paths = r.load.Count(), before, len(paths)
}

// undisturbed fails the test if a request has failed or a stream has broken since a mark, or if the load was too small
// to prove anything.
func (r *rotations) undisturbed(t *testing.T, since traffic.Mark) {
	t.Helper()
	must(t, r.load.Unbroken(since))
	if made, least := r.load.Count().Requests-since.Requests, leastPerPath*r.paths; made < least {
		t.Errorf("only %d requests were made, fewer than %d prove nothing", made, least)
	}
}

// programs returns the log names of all programs that renew certificates.
func (r *rotations) programs() []string {
	names := []string{"xds-server", "gateway-0", "gateway-1"}
	for i := range turnEdges {
		names = append(names, fmt.Sprintf("edge-turn-%d", i))
	}
	return names
}

// newCertificates returns the log lines that report a new certificate, by program.
func (r *rotations) newCertificates() (map[string][]string, int, error) {
	lines, n := map[string][]string{}, 0
	for _, name := range r.programs() {
		found, err := proc.Lines(r.LogFile(name), `msg="certificate obtained"`)
		if err != nil {
			return nil, 0, err
		}
		lines[name] = found
		n += len(found)
	}
	return lines, n, nil
}

// rotateLeaves waits until there were enough rotations since the load began, and checks what they have cost.
func (r *rotations) rotateLeaves(t *testing.T) {
	that(
		t,
		"no request fails and no stream breaks while 400 leaves are renewed under load",
		func(t *testing.T) {
			must(t, proc.Wait(t.Context(), 6*time.Minute, func(context.Context) error {
				if err := r.load.Unbroken(r.from); err != nil {
					t.Fatal(err)
				}
				_, n, err := r.newCertificates()
				if n -= r.before; err == nil && n < leafRotations {
					err = fmt.Errorf("%d certificates", n)
				}
				return err
			}))
			r.undisturbed(t, r.from)
			m := r.load.Count()
			measured("leaf_rotations", leafRotations)
			measured("requests", float64(m.Requests-r.from.Requests))
			measured("requests_per_s", r.load.RateSince(r.from))
			measured("requests_failed", float64(m.Failed-r.from.Failed))
			measured("streams_broken", float64(r.load.Broken()))
			measured("slow_requests", float64(m.Slow-r.from.Slow))
		},
	)
	that(t, "leaves are renewed at two thirds of their lifetime, with jitter", r.atTwoThirds)
}

var certificateLine = regexp.MustCompile(`^time=(\S+) .*node=(\S+) .*not_after="?([^"]+?)( m=\S+)?"?$`)

// atTwoThirds computes when programs renewed under load: the time from one certificate to the next, as a fraction of
// the first one's remaining validity. It checks the median and the minimum, because a busy machine delays some renewals
// of such short-lived certificates, which, as shown before, costs no request.
func (r *rotations) atTwoThirds(t *testing.T) {
	lines, _, err := r.newCertificates()
	must(t, err)
	var parts []float64
	late := 0
	for _, name := range r.programs() {
		got, ends := map[string]time.Time{}, map[string]time.Time{}
		for _, line := range lines[name] {
			f := certificateLine.FindStringSubmatch(line)
			if f == nil {
				t.Fatalf("this line has another form: %q", line)
			}
			at, err := time.Parse(time.RFC3339, f[1])
			must(t, err)
			notAfter, err := parseTime(f[3])
			must(t, err)
			if begin, known := got[f[2]]; known && begin.After(r.from.At) {
				part := at.Sub(begin).Seconds() / ends[f[2]].Sub(begin).Seconds()
				parts = append(parts, part)
				if part > 1 {
					late++
				}
			}
			got[f[2]], ends[f[2]] = at, notAfter
		}
	}
	if len(parts) == 0 {
		t.Fatal("the logs contain no renewal")
	}
	slices.Sort(parts)
	least, median, most := parts[0], parts[len(parts)/2], parts[len(parts)-1]
	measured("renewed_at_median", median)
	measured("renewed_at_latest", most)
	measured("renewed_late", float64(late))
	if median < 0.62 || median > 0.8 || least < 0.62 || median-least < 0.01 {
		t.Errorf(
			"%d certificates were renewed at %.2f to %.2f of their life, the median %.2f, %d of them too late", len(parts),
			least, most, median, late,
		)
	}
}

// parseTime parses a time in slog's format, or in that of time.Time's String.
func parseTime(text string) (time.Time, error) {
	if at, err := time.Parse(time.RFC3339, text); err == nil {
		return at, nil
	}
	return time.Parse("2006-01-02 15:04:05.999999999 -0700 MST", text)
}

// expiredWhileOff proves that an edge whose leaf expired while it was off keeps its identity when it starts again.
func (r *rotations) expiredWhileOff(t *testing.T) {
	that(
		t,
		"an edge that was off until its leaf expired keeps its identity without a token",
		func(t *testing.T) {
			edge := r.edges[0]
			before, err := outsider.StealAll(domain, edge.StateDir)
			must(t, err)
			world.StopEdge(t, edge)
			must(t, proc.Wait(t.Context(), 2*leafLife+patience, func(context.Context) error {
				for _, stolen := range before {
					if left := time.Until(stolen.Leaf.NotAfter); left > -leafLife {
						return fmt.Errorf("%s is good for %s", stolen.Subject.Node, left)
					}
				}
				return nil
			}))
			edge.Resume()
			measured("wake_up_s", world.Took(t, patience, func(context.Context) error {
				after, err := outsider.StealAll(domain, edge.StateDir)
				if err != nil {
					return err
				}
				for i := range before {
					if len(after) != len(before) || after[i].Subject != before[i].Subject || time.Now().After(after[i].Leaf.NotAfter) {
						return fmt.Errorf("it has %+v", after[i].Subject)
					}
				}
				return nil
			}).Seconds())
			eventually(t, edge.Ready)
		},
	)
}

// longOutage stops everything except the edges for three lifetimes of a leaf, and starts it again. The management
// cluster is frozen; all of Fairlead's programs are killed.
func (r *rotations) longOutage(t *testing.T) {
	that(
		t,
		"edges reconnect without help after all other programs were down for three lifetimes of "+
			"a leaf",
		func(t *testing.T) {
			pids := map[string]int{}
			for _, e := range r.edges {
				pids[e.Process().Name] = e.Process().PID()
			}
			must(t, r.Management.Process.Freeze())
			r.Controller.Hold()
			r.XDSServers[0].Hold()
			for _, g := range r.Gateways {
				g.Hold()
				must(t, g.KillEnvoy())
			}
			start := time.Now()
			must(t, proc.Wait(t.Context(), 10*leafLife, func(context.Context) error {
				if down := time.Since(start); down < 3*leafLife {
					return fmt.Errorf("down for %s", down)
				}
				return nil
			}))
			measured("night_s", time.Since(start).Seconds())
			must(t, r.Management.Process.Thaw())
			for _, s := range []*proc.Service{r.Controller, r.XDSServers[0], r.Gateways[0].Service, r.Gateways[1].Service} {
				s.Resume()
			}
			measured("morning_s", world.Took(t, 3*patience, func(ctx context.Context) error {
				for _, m := range r.members {
					if err := m.Works(ctx); err != nil {
						return err
					}
				}
				return nil
			}).Seconds())
			for _, e := range r.edges {
				if now := e.Process().PID(); now != pids[e.Process().Name] {
					t.Errorf("%s was process %d, is %d", filepath.Base(e.StateDir), pids[e.Process().Name], now)
				}
			}
		},
	)
}
