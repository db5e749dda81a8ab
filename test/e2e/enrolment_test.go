package e2e

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/test/promise"
)

// enrolment proves what edges and gateways obtain by enrolling.
func (w *world) enrolment(t *testing.T) {
	promise.That(t, "an edge's leaf contains only its node ID and its tunnel ID", func(t *testing.T) {
		tunnel := w.tunnel(t, w.berlin.Cluster)
		subject := subjectOf(t, w.berlin.edge.StateDir)
		want := model.Subject{Role: model.RoleEdge, Node: subject.Node, ID: tunnel.Spec.ID}
		if subject != want {
			t.Errorf("subject is %+v, want %+v", subject, want)
		}
	})
	promise.That(t, "the gateway enrols with the ServiceAccount token of its Pod", func(t *testing.T) {
		want := model.Subject{Role: model.RoleGateway, Node: "gateway-0"}
		if subject := subjectOf(t, w.Gateways[0].StateDir); subject != want {
			t.Errorf("subject is %+v, want %+v", subject, want)
		}
	})
	promise.That(t, "the Tunnel's status lists the edge and counts each use of the token", func(t *testing.T) {
		tunnel := w.tunnel(t, w.berlin.Cluster)
		if node := subjectOf(t, w.berlin.edge.StateDir).NodeID(); len(tunnel.Status.Edges) != 1 ||
			tunnel.Status.Edges[0].NodeID != node {
			t.Errorf("edges are %+v, want one, %s", tunnel.Status.Edges, node)
		}
		var uses int32
		for _, token := range tunnel.Status.Tokens {
			uses += token.Uses
		}
		if uses != 1 {
			t.Errorf("tokens were used %d times, want once", uses)
		}
	})
	promise.That(t, "only its owner can read a file that contains a key", func(t *testing.T) {
		for _, dir := range []string{w.berlin.edge.StateDir, w.Gateways[0].StateDir, w.file("xds-server")} {
			checkKeyFiles(t, dir)
		}
	})
	promise.That(t, "the command in the bootstrap Secret starts an edge on a new machine", w.bootstrapCommand)
}

// bootstrapCommand runs the command, then stops the first edge, so that the second one must carry all requests.
func (w *world) bootstrapCommand(t *testing.T) {
	secret, err := w.paris.Secret(t.Context(), v1alpha1.BootstrapSecretSuffix)
	must(t, err)
	must(t, w.RunOnMachine("machine-paris", secret.Data[v1alpha1.BootstrapCommandKey]))
	eventually(t, func(ctx context.Context) error {
		tunnel, err := w.paris.Tunnel(ctx)
		if err != nil {
			return err
		}
		if len(tunnel.Status.Edges) != 2 {
			return fmt.Errorf("edges are %+v", tunnel.Status.Edges)
		}
		return nil
	})
	w.paris.edge.Hold()
	must(t, w.paris.edge.KillEnvoy())
	w.brokenNow()
	defer func() {
		w.paris.edge.Resume()
		eventually(t, w.paris.edge.Ready)
	}()
	eventually(t, w.paris.works)
	must(t, steady(t.Context(), w.paris))
}

// checkKeyFiles fails the test if other users can read a file with a key, or if there is no such file.
func checkKeyFiles(t *testing.T, dir string) {
	t.Helper()
	found := 0
	must(t, filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil || !strings.Contains(string(data), "PRIVATE KEY") {
			return err
		}
		found++
		info, err := entry.Info()
		if err == nil && info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %s", path, info.Mode())
		}
		return err
	}))
	if found == 0 {
		t.Errorf("%s holds no key", dir)
	}
}
