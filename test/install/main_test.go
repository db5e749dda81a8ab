// Package install proves the installation on real Kubernetes, by the commands of docs/install.md: Helm installs a chart
// and images from a registry of the test, and edges run in another cluster, which the first cannot dial, as Pods, as a
// static Pod and with the commands of systemd's units. Requests are counted during each disturbance. The names of its
// checks are the promises.
package install

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/fairlead/fairlead/test/lab/cluster"
	"github.com/fairlead/fairlead/test/lab/workspace"
	"github.com/fairlead/fairlead/test/promise"
)

// Short names for the functions of package promise.
var (
	that     = promise.That
	measured = promise.Measured
	must     = promise.Must
)

var proof = promise.Proof{Name: "verify install", Parallel: 1, Missing: missing}

// missing returns an error if a part of a cluster, or of the installation, is missing.
func missing() error {
	parts, err := workspace.FindClusterParts()
	if err != nil {
		return err
	}
	files := []string{filepath.Join(imagesOf(parts.Root), "values.yaml")}
	for _, name := range []string{"envoy", "capi-core", "capi-config", "helm"} {
		files = append(files, parts.RealPath(name))
	}
	for _, file := range files {
		if _, err := os.Stat(file); err != nil {
			return fmt.Errorf("finding parts: %w: run make install-test", err)
		}
	}
	return nil
}

func TestMain(m *testing.M) { os.Exit(proof.Main(m)) }

// start starts clusters at the same time. They stop with the test. If it fails, their logs are kept.
func start(t *testing.T, all ...cluster.Options) []*cluster.Cluster {
	t.Helper()
	started, errs := make([]*cluster.Cluster, len(all)), make([]error, len(all))
	var group sync.WaitGroup
	for i, options := range all {
		group.Go(func() { started[i], errs[i] = cluster.Start(t.Context(), options) })
	}
	group.Wait()
	for i, c := range started {
		if c == nil {
			continue
		}
		proof.OnInterrupt(func(ctx context.Context) { _ = c.Stop(ctx) })
		t.Cleanup(func() {
			if t.Failed() {
				keepLogs(c, all[i].Name)
			}
			must(t, c.Stop(context.Background()))
		})
	}
	must(t, errors.Join(errs...))
	return started
}

// keepLogs keeps the logs of a cluster's processes and of its Pods.
func keepLogs(c *cluster.Cluster, name string) {
	folder, err := c.KeepLogs()
	if err != nil {
		return
	}
	fmt.Println("the logs of all processes of", name, "are in", folder)
	for _, n := range c.Nodes() {
		_ = os.CopyFS(filepath.Join(folder, n.Name), os.DirFS(n.PodLogs()))
	}
}
