package agent

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/fairlead/fairlead/pkg/agent/edge"
	"github.com/fairlead/fairlead/pkg/agent/identity"
	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/model"
)

// edge returns the enrolment of a bootstrap file of the command line, for edgeSubject's tunnel.
func (c *control) edge() edge.Config {
	return edge.Config{Domain: domain, Dialer: way(c.address), Credential: func() (edge.Credential, error) {
		return edge.Credential{ID: edgeSubject.ID, Token: c.token, CA: c.ca.CertPEM()}, nil
	}}
}

// loaded returns an agent that has loaded a state folder and does not run.
func loaded(t *testing.T, stateDir string, edges ...edge.Config) *Agent {
	t.Helper()
	a := &Agent{
		config:  Config{StateDir: stateDir, RuntimeDir: stateDir, Edges: edges, Joined: joinedEdge},
		log:     slog.New(slog.DiscardHandler),
		sds:     identity.NewSecretServer(),
		figures: newFigures(),
	}
	if err := errors.Join(a.makeSubfolders(), a.load()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, j := range a.joined {
			j.end()
		}
	})
	return a
}

// joins makes an edge join a tunnel while no agent runs, and obtains an identity for it.
func (c *control) joins(stateDir string) (name, dir string) {
	c.t.Helper()
	ctx, cancel := context.WithCancel(c.t.Context())
	cancel()
	joined, err := edge.Join(ctx, stateDir, c.bootstrapFile())
	if !errors.Is(err, edge.ErrNoAnswer) {
		c.t.Fatal(err)
	}
	dir = filepath.Join(stateDir, edge.JoinedFolder, joined.Name)
	store, err := certs.OpenStore(dir)
	if err != nil {
		c.t.Fatal(err)
	}
	c.save(store, c.fresh(edgeSubject))
	return joined.Name, dir
}

func TestLeavingATunnelThatTheCommandLineTookOverKeepsItsKey(t *testing.T) {
	source, target := newControl(t), newControl(t) // with the same tunnel domain and tunnel id
	root := t.TempDir()
	name, dir := target.joins(root)
	_, other := source.joins(root)
	check := func(when string, a *Agent) {
		t.Helper()
		if len(a.members) != 1 || a.members[0].dir != dir {
			t.Fatalf("%s: it uses %s, want %s", when, a.members[0].dir, dir)
		}
		if subject, err := a.members[0].current(); err != nil || subject != edgeSubject {
			t.Fatalf("%s: it has no identity: %v", when, err)
		}
	}
	check("joined", loaded(t, root, target.edge()))
	running := loaded(t, root, target.edge())
	if err := edge.Leave(root, name); err != nil {
		t.Fatal(err)
	}
	if err := running.updateJoined(t.Context()); err != nil {
		t.Fatal(err)
	}
	check("left", loaded(t, root, target.edge()))
	check("after that", loaded(t, root, target.edge()))
	unknown := target.edge()
	unknown.Credential = func() (edge.Credential, error) { return edge.Credential{}, errors.New("it is being replaced") }
	loaded(t, root, unknown)
	check("its bootstrap file could not be read for a while", loaded(t, root, target.edge()))

	if got := loaded(t, root, source.edge()).members[0].dir; got != other {
		t.Errorf("the bootstrap file of the other installation uses %s, want %s", got, other)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the key is kept that nobody uses any more: %v", err)
	}
}

func TestJoiningTheOwnTunnelKeepsTheExistingFolder(t *testing.T) {
	c := newControl(t)
	root := t.TempDir()
	own := filepath.Join(root, tunnelsFolder, "own")
	store, err := certs.OpenStore(own)
	if err != nil {
		t.Fatal(err)
	}
	c.save(store, c.fresh(edgeSubject))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := edge.Join(ctx, root, c.bootstrapFile()); !errors.Is(err, edge.ErrNoAnswer) {
		t.Fatal(err)
	}
	for range 2 {
		a := loaded(t, root, c.edge())
		if err := a.updateJoined(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := a.members[0].dir; got != own {
			t.Errorf("it uses %s, want %s", got, own)
		}
	}
}

func TestAJoinedTunnelThatFailedIsTriedAgain(t *testing.T) {
	c, to := newControl(t), newControl(t)
	root := t.TempDir()
	name, dir := to.joins(root)
	away := filepath.Join(t.TempDir(), "away")
	if err := errors.Join(os.Rename(dir, away), os.WriteFile(dir, nil,
		0o600)); err != nil { // so its folder can't be opened
		t.Fatal(err)
	}
	a := loaded(t, root, c.edge())
	collect := func() *joined {
		_ = a.updateJoined(t.Context()) // it can't write its status yet
		if len(a.joined) != 1 || a.joined[0].name != name {
			t.Fatalf("it knows %d", len(a.joined))
		}
		return a.joined[0]
	}
	first := collect()
	if first.err == nil || first.member != nil {
		t.Fatal("it was begun with a file for a folder")
	}
	if collect() != first || first.again.Before(time.Now()) || first.again.After(time.Now().Add(rejoins.Min)) {
		t.Fatalf("it is tried at once, or not within %s", rejoins.Min)
	}
	first.again = time.Now().Add(-time.Second)
	second := collect()
	if second == first || second.err == nil || time.Until(second.again) < rejoins.Min/2 || second.tries != 2 {
		t.Fatalf("it is not tried later and later: %d tries", second.tries)
	}
	if err := errors.Join(os.Remove(dir), os.Rename(away, dir)); err != nil {
		t.Fatal(err)
	}
	second.again = time.Now().Add(-time.Second)
	if third := collect(); third.err != nil || third.member == nil || third.cancel == nil {
		t.Errorf("it was not begun when it could be: %v", third.err)
	}
}

func TestAFailedMembershipIsRestarted(t *testing.T) {
	c, to := newControl(t), newControl(t)
	root := t.TempDir()
	to.joins(root)
	a := loaded(t, root, c.edge())
	first := a.joined[0]
	first.member.parts = append(
		first.member.parts, func(context.Context) error { return errors.New("its listener was closed") },
	)
	collect := func() *joined {
		if err := a.updateJoined(t.Context()); err != nil {
			t.Fatal(err)
		}
		return a.joined[0]
	}
	collect()
	select {
	case <-first.ended:
	case <-time.After(10 * time.Second):
		t.Fatal("it has not ended")
	}
	if collect() != first || first.again.Before(time.Now()) {
		t.Fatal("it is begun anew without a wait")
	}
	if got := first.status().Error; got != string(model.TroubleMembership)+": its listener was closed" {
		t.Errorf("its status says %q", got)
	}
	first.again = time.Now().Add(-time.Second)
	second := collect()
	if second == first || second.cancel == nil || second.over() || second.tries != 1 {
		t.Errorf("it was not begun anew")
	}
}
