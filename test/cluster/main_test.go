// Package cluster proves that test/lab/cluster runs real Kubernetes clusters: what a kubelet, a container runtime and a
// network of Pods do, several clusters side by side, and that nothing is left behind. The names of its checks are what
// other tests rely on.
package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/test/lab/cluster"
	"github.com/fairlead/fairlead/test/lab/workspace"
	"github.com/fairlead/fairlead/test/promise"
)

// Short names for the functions of package promise.
var (
	that       = promise.That
	measured   = promise.Measured
	eventually = promise.Eventually
	must       = promise.Must
)

var proof = promise.Proof{
	Name: "verify cluster", Parallel: 1,
	Missing: func() error {
		_, err := workspace.FindClusterParts()
		return err
	},
}

func TestMain(m *testing.M) {
	if os.Getenv(crashEnv) != "" {
		os.Exit(crash())
	}
	os.Exit(proof.Main(m))
}

// guestImage is the image of the program guest.
const guestImage = "registry.example.test/guest:v1"

// start starts a cluster with the image of the guest. It stops with the test.
func start(t *testing.T, options cluster.Options) *cluster.Cluster {
	t.Helper()
	proof.Need(t)
	began := time.Now()
	c, err := cluster.Start(t.Context(), options)
	must(t, err)
	proof.OnInterrupt(func(ctx context.Context) { _ = c.Stop(ctx) })
	measured(options.Name+"_ready_s", time.Since(began).Seconds())
	t.Cleanup(func() {
		if t.Failed() {
			if folder, err := c.KeepLogs(); err == nil {
				fmt.Println("the logs of all processes of", options.Name, "are in", folder)
			}
		}
		must(t, c.Stop(context.Background()))
	})
	image, err := cluster.GuestImage(t.Context())
	must(t, err)
	must(t, c.LoadImage(t.Context(), image, guestImage))
	return c
}

// commandTime bounds one kubectl command.
const commandTime = 2 * time.Minute

// kubectl runs kubectl and returns its output.
func kubectl(ctx context.Context, c *cluster.Cluster, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, commandTime)
	defer cancel()
	cmd := c.Kubectl(ctx, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("kubectl %s: %w: %s%s", strings.Join(args, " "), err, stdout.String(), stderr.String())
	}
	return strings.TrimSpace(stdout.String()), nil
}

// ask runs kubectl, which must succeed.
func ask(t *testing.T, c *cluster.Cluster, args ...string) string {
	t.Helper()
	out, err := kubectl(t.Context(), c, args...)
	must(t, err)
	return out
}

// says returns a condition that holds if kubectl prints a text.
func says(c *cluster.Cluster, want string, args ...string) func(context.Context) error {
	return func(ctx context.Context) error {
		got, err := kubectl(ctx, c, args...)
		if err == nil && got != want {
			err = fmt.Errorf("kubectl %s prints %q, want %q", strings.Join(args, " "), got, want)
		}
		return err
	}
}

// apply applies manifests.
func apply(t *testing.T, c *cluster.Cluster, manifests string) {
	t.Helper()
	must(t, c.Apply(t.Context(), []byte(strings.ReplaceAll(manifests, "GUEST", guestImage))))
}

// failed is the error of a check that should not have passed.
func failed(err error, want string) error {
	switch {
	case err == nil:
		return errors.New("it succeeded")
	case !strings.Contains(err.Error(), want):
		return fmt.Errorf("it failed for another reason: %w", err)
	}
	return nil
}
