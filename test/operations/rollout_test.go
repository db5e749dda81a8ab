package operations

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/lab/netns"
	"github.com/fairlead/fairlead/test/lab/proc"
	"github.com/fairlead/fairlead/test/world"
)

const (
	// soak is the value of --rollout-soak. On a busy machine an edge needs less than a quarter of it to dial all
	// tunnels again.
	soak = 16 * time.Second
	// nowhere is an address without a machine.
	nowhere = "192.0.2.77:443"
)

// rollouts is an installation with three edges. Two of them belong to one workload cluster.
type rollouts struct {
	*world.World
	members []*world.Member
	edges   []string // node names
	of      map[string]*world.Member
}

// synced is the output of `fairlead config sync -o json`.
type synced struct {
	Nodes []struct{ Node, Role, Type, Status, Profile, Message string }

	Rollout struct {
		Phase, Current, Next, Reason string
		AtNext, Nodes                int
		First                        []string
	}
	code int
}

// profiles returns the profiles of the nodes of a role, by node.
func (s synced) profiles(role string) map[string]string {
	all := map[string]string{}
	for _, n := range s.Nodes {
		if n.Role == role && n.Profile != "" {
			all[n.Node] = n.Profile
		}
	}
	return all
}

// at returns the nodes of a role that are served a profile.
func (s synced) at(role, profile string) (nodes []string) {
	for node, p := range s.profiles(role) {
		if p == profile {
			nodes = append(nodes, node)
		}
	}
	slices.Sort(nodes)
	return nodes
}

func newRollouts(t *testing.T) *rollouts {
	t.Helper()
	r := &rollouts{World: world.Start(t, &proof, lab.Options{
		Gateways: 2, XDSServers: 2, Lean: true, WithoutWorkload: true, LogLevel: "info",
		ControllerFlags: []string{"--rollout-soak=" + soak.String()},
	}), of: map[string]*world.Member{}}
	r.members = []*world.Member{r.Member(t, "c1", nil), r.Member(t, "c2", nil)}
	for i, m := range []*world.Member{r.members[0], r.members[0], r.members[1]} {
		node := world.Steal(t, r.Edge(t, lab.EdgeSpec{Name: fmt.Sprintf("edge-%d", i)}, m)).Subject.Node
		r.edges, r.of[node] = append(r.edges, node), m
	}
	eventually(t, r.whole)
	return r
}

// whole returns the condition that all edges have tunnels to both gateways.
func (r *rollouts) whole(ctx context.Context) error {
	for _, node := range r.edges {
		if err := r.of[node].TunnelsOf(ctx, node, 2); err != nil {
			return err
		}
	}
	return nil
}

// sync runs fairlead config sync.
func (r *rollouts) sync(ctx context.Context) (s synced, err error) {
	cmd, err := r.Command(ctx, "config", "sync", "-o", "json", r.Inspection())
	if err != nil {
		return s, err
	}
	out, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) && len(out) > 0 {
		s.code, err = exit.ExitCode(), nil
	}
	if err != nil {
		return s, err
	}
	return s, json.Unmarshal(out, &s)
}

// until runs config sync until a condition holds, and calls seen with each answer.
func (r *rollouts) until(t *testing.T, what string, seen func(synced), done func(synced) bool) (last synced) {
	t.Helper()
	err := proc.Wait(t.Context(), backIn, func(ctx context.Context) (err error) {
		if last, err = r.sync(ctx); err != nil {
			return err
		}
		if seen != nil {
			seen(last)
		}
		if !done(last) {
			return fmt.Errorf("%s: it is %+v", what, last)
		}
		return nil
	})
	must(t, err)
	return last
}

// configure restarts a program with a flag, one replica after the other.
func (r *rollouts) configure(t *testing.T, services []*proc.Service, ready func(context.Context) error, flag string) {
	t.Helper()
	name, _, _ := strings.Cut(flag, "=")
	for _, s := range services {
		r.Restart(t, s, ready, func(spec *proc.Spec) {
			spec.Args = append(
				slices.DeleteFunc(slices.Clone(spec.Args), func(arg string) bool { return strings.HasPrefix(arg, name+"=") }), flag,
			)
		})
	}
}

// TestChangesRollOutInWaves changes settings of all nodes: one that works, one that breaks the nodes that receive it,
// and one that is applied at once.
func TestChangesRollOutInWaves(t *testing.T) {
	t.Parallel()
	r := newRollouts(t)
	before := r.until(t, "the profile is on record", nil, func(s synced) bool {
		return s.Rollout.Phase == "none" && s.Rollout.Current != "" && len(s.at("edge", s.Rollout.Current)) == 3
	}).Rollout.Current
	good := r.reaches(t, before)
	r.stops(t, good)
	r.atOnce(t, good)
	t.Run("logs", func(t *testing.T) { r.Logs(t) })
}

// reaches changes the access log, and returns the profile that contains the change.
func (r *rollouts) reaches(t *testing.T, before string) (next string) {
	var first []string
	that(
		t,
		"a changed setting first reaches one gateway and one edge of the workload cluster with two edges",
		func(t *testing.T) {
			r.configure(t, r.XDSServers, r.XDSServerReady, "--access-log=all")
			s := r.until(t, "the first wave runs it", nil, func(s synced) bool {
				return s.Rollout.Phase == "first" && s.Rollout.AtNext == 2
			})
			next, first = s.Rollout.Next, s.at("edge", s.Rollout.Next)
			if len(first) != 1 || r.of[first[0]] != r.members[0] || len(s.at("gateway", next)) != 1 ||
				len(s.at("edge", before)) != 2 {
				t.Fatalf("it reached %v: %+v", first, s)
			}
		},
	)
	began := time.Now()
	that(t, "a changed setting then reaches all nodes, and config sync shows the progress", func(t *testing.T) {
		s := r.until(t, "all run it", func(s synced) {
			if reached := s.at("edge", next); s.Rollout.Phase == "first" && !slices.Equal(reached, first) {
				t.Errorf("in the first wave it reached %v", reached)
			}
		}, func(s synced) bool { return s.Rollout.Phase == "none" })
		if s.Rollout.Current != next || len(s.at("edge", next)) != 3 || len(s.at("gateway", next)) != 2 {
			t.Errorf("it is %+v", s)
		}
		eventually(t, r.whole)
	})
	measured("rollout_after_first_s", time.Since(began).Seconds())
	return next
}

// stops has edges dial an address without a listener.
func (r *rollouts) stops(t *testing.T, before string) {
	reached := map[string]bool{}
	began := time.Now()
	that(t, "an unreachable public address reaches only one edge and is rolled back", func(t *testing.T) {
		r.configure(t, r.XDSServers, r.XDSServerReady, "--public-address="+nowhere)
		s := r.until(t, "it is stopped", func(s synced) {
			for _, node := range s.at("edge", s.Rollout.Next) {
				reached[node] = true
			}
		}, func(s synced) bool { return s.Rollout.Phase == "stopped" })
		if len(reached) != 1 {
			t.Errorf("it reached %v", reached)
		}
		for node := range reached {
			if !strings.Contains(s.Rollout.Reason, node) || !strings.Contains(s.Rollout.Reason, "tunnels to gateway-") ||
				s.code == 0 {
				t.Errorf("config sync ends with %d and has the reason %q, want %s and its tunnels", s.code, s.Rollout.Reason, node)
			}
		}
	})
	measured("rollout_stopped_s", time.Since(began).Seconds())
	that(t, "all nodes run the previous profile after a rollback, and the edge reconnects", func(t *testing.T) {
		r.until(t, "all run the profile of before", nil, func(s synced) bool {
			return s.Rollout.Current == before && len(s.at("edge", before)) == 3 && len(s.at("gateway", before)) == 2
		})
		eventually(t, r.whole)
		for _, m := range r.members {
			eventually(t, m.Works)
		}
	})
}

// atOnce restores the previous address, and changes the access log.
func (r *rollouts) atOnce(t *testing.T, before string) {
	that(
		t,
		"a change with --rollout=immediate reaches all nodes at once, also after a stopped rollout",
		func(t *testing.T) {
			r.configure(
				t, r.XDSServers, r.XDSServerReady, "--public-address="+fmt.Sprintf("%s:%d", netns.PublicName, netns.PublicPort),
			)
			r.until(
				t, "the rollout has ended", nil,
				func(s synced) bool { return s.Rollout.Phase == "none" && s.Rollout.Current == before },
			)
			r.configure(t, r.Controllers, r.ControllerReady, "--rollout=immediate")
			r.configure(t, r.XDSServers, r.XDSServerReady, "--access-log=failed")
			s := r.until(t, "all run it", func(s synced) {
				if s.Rollout.Phase != "none" {
					t.Errorf("there is a rollout: %+v", s.Rollout)
				}
			}, func(s synced) bool {
				return s.Rollout.Current != before && len(s.at("edge", s.Rollout.Current)) == 3 &&
					len(s.at("gateway", s.Rollout.Current)) == 2
			})
			if s.Rollout.Next != "" {
				t.Errorf("it is %+v", s.Rollout)
			}
			eventually(t, r.whole)
		},
	)
}
