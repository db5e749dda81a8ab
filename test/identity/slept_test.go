package identity

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/lab/proc"
	"github.com/fairlead/fairlead/test/lab/workspace"
	"github.com/fairlead/fairlead/test/outsider"
	"github.com/fairlead/fairlead/test/world"
)

const day = 24 * time.Hour

// offForMonths proves what happens to an edge that was off for months. The test replaces its leaf by one of the same CA
// that expired then.
func (d *doors) offForMonths(t *testing.T) {
	m := d.Member(t, "tallinn", nil)
	edge := d.Edge(t, lab.EdgeSpec{Name: "edge-tallinn"}, m)
	node := world.Steal(t, edge).Subject.Node
	that(t, "an edge whose leaf expired 89 days ago renews it with its key and keeps its identity", func(t *testing.T) {
		d.age(t, edge, 89*day)
		measured("renewed_after_89_days_s", world.Took(t, patience, m.Works).Seconds())
		if now := world.Steal(t, edge).Subject.Node; now != node {
			t.Errorf("it is %s now, was %s", now, node)
		}
	})
	that(t, "the renewal of a leaf that expired 91 days ago is rejected with the reason", func(t *testing.T) {
		file := d.BootstrapFile("edge-tallinn", 0)
		bootstrap, err := os.ReadFile(file)
		must(t, err)
		// A token as old as the leaf would be useless too.
		old := regexp.MustCompile(`token: .*`).ReplaceAll(bootstrap, []byte("token: fl1.long-gone"))
		must(t, os.WriteFile(file, old, 0o600))
		d.age(t, edge, 91*day)
		eventually(t, d.LogContains("edge-tallinn", "can no longer be renewed"))
		must(t, m.Unreachable(t.Context()))
	})
	that(
		t,
		"an edge enrols as a new node with a new bootstrap file after the grace period",
		func(t *testing.T) {
			must(t, os.WriteFile(d.BootstrapFile("edge-tallinn", 0), m.BootstrapFile(t), 0o600))
			measured("enrolled_after_91_days_s", world.Took(t, 3*patience, m.Works).Seconds())
			if now := world.Steal(t, edge).Subject.Node; now == node {
				t.Error("it is still the node that it was")
			}
		},
	)
	world.StopEdge(t, edge)
}

// age stops an edge, replaces its leaf by one that expired some time ago, and starts the edge again.
func (d *doors) age(t *testing.T, edge *lab.Agent, ago time.Duration) {
	t.Helper()
	stolen := world.Steal(t, edge)
	world.StopEdge(t, edge)
	end := time.Now().Add(-ago)
	old, err := outsider.Forge(d.ca, domain, stolen.Subject, end.Add(-day), end)
	must(t, err)
	store, err := certs.OpenStore(stolen.Folder)
	must(t, err)
	must(t, store.Save(old, stolen.Bundle))
	edge.Resume()
}

// disk proves that an edge survives a disk that accepts no further writes.
func (d *doors) disk(t *testing.T) {
	m := d.Member(t, "odessa", nil)
	small, err := d.NewDisk(t.Context(), "small-disk", 2048)
	must(t, err)
	must(t, small.Fill())
	tokens := func() int32 {
		tunnel, err := m.Tunnel(t.Context())
		must(t, err)
		var uses int32
		for _, token := range tunnel.Status.Tokens {
			uses += token.Uses
		}
		return uses
	}
	edge := d.StartEdge(t, lab.EdgeSpec{Name: "edge-odessa", StateDir: filepath.Join(small.Path, "state")}, m)
	that(t, "an edge with a full disk reports it and does not use a token", func(t *testing.T) {
		eventually(t, d.LogContains("edge-odessa", "no space left"))
		if n := tokens(); n > 0 {
			t.Errorf("tokens were used %d times", n)
		}
	})
	that(t, "an edge enrols without help when its disk has space again", func(t *testing.T) {
		must(t, small.Free())
		measured("disk_freed_s", world.Took(t, 2*patience, m.Works).Seconds())
	})
	that(t, "an enrolled edge continues, and restarts, with a full disk", func(t *testing.T) {
		eventually(t, edge.Ready)
		must(t, small.Fill())
		world.StopEdge(t, edge)
		edge.Resume()
		measured("start_on_full_disk_s", world.Took(t, patience, m.Works).Seconds())
		must(t, small.Free())
	})
	d.readOnly(t, m, edge, small)
	world.StopEdge(t, edge)
}

func (d *doors) readOnly(t *testing.T, m *world.Member, edge *lab.Agent, small *workspace.Disk) {
	that(t, "an edge with a read-only disk reports the remedy", func(t *testing.T) {
		world.StopEdge(t, edge)
		must(t, small.ReadOnly(t.Context(), true))
		edge.Resume()
		eventually(t, d.LogContains("edge-odessa", "read-only", "--runtime-dir"))
	})
	that(t, "an edge runs on a read-only disk if its sockets are in another folder", func(t *testing.T) {
		edge.Hold()
		runtime := d.File("edge-odessa", "run")
		edge.Change(func(s *proc.Spec) { s.Args = append(s.Args, "--runtime-dir="+runtime) })
		edge.Resume()
		measured("start_on_read_only_disk_s", world.Took(t, patience, m.Works).Seconds())
		if err := os.WriteFile(filepath.Join(small.Path, "probe"), nil, 0o600); err == nil {
			t.Error("the disk can be written")
		}
		edge.Hold()
		must(t, killIn(runtime, d.EnvoyPath()))
		must(t, small.ReadOnly(t.Context(), false))
	})
}

// killIn kills the Envoy that runs in a folder.
func killIn(dir, envoy string) error {
	pid, err := proc.FindProcess(envoy, dir)
	if err != nil {
		return err
	}
	process, err := os.FindProcess(pid)
	return errors.Join(err, process.Kill())
}
