package sight

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/diagnose/check"
	"github.com/fairlead/fairlead/test/faults"
	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/lab/kube"
	"github.com/fairlead/fairlead/test/lab/netns"
	"github.com/fairlead/fairlead/test/lab/proc"
	"github.com/fairlead/fairlead/test/world"
)

// etcdPort is the port of the etcd of a room, at the loopback address.
const etcdPort = "2379"

// away is how long proveBreaks keeps all gateways away.
const away = 3 * time.Second

// trial is what the commands of `fairlead test` print.
type trial struct {
	Status   check.Status
	Tests    []check.Result
	Failed   int
	Clusters []struct {
		Status                                                     check.Status
		Hop                                                        *check.Result
		Tests                                                      []check.Result
		Requests, FailedRequests, BrokenWatches, BrokenConnections int
		Failures                                                   []struct{ Hop, Detail, Error string }
	}
}

// trial runs a command of `fairlead test` about the room, and returns its output and its exit code.
func (r *room) trial(ctx context.Context, t *testing.T, args ...string) (got trial, code int) {
	t.Helper()
	out, code, err := r.world.output(ctx, append([]string{"test"}, args...)...)
	must(t, err)
	if err := json.Unmarshal(out, &got); err != nil {
		t.Fatalf("exit code %d: %v: %s", code, err, out)
	}
	return got, code
}

// edgePreflight runs `fairlead test edge-preflight` in the network of the workload cluster.
func (r *room) edgePreflight(t *testing.T, bootstrap []byte) (got trial, code int) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "bootstrap.yaml")
	must(t, os.WriteFile(file, bootstrap, 0o600))
	cmd := r.site.Command(
		t.Context(), r.world.Parts.OwnPath("fairlead"), "test", "edge-preflight", "--bootstrap="+file, "-o", "json",
	)
	return trialOf(t, cmd)
}

// trialOf runs a command of `fairlead test`, and returns its output and its exit code.
func trialOf(t *testing.T, cmd *exec.Cmd) (got trial, code int) {
	t.Helper()
	out, err := cmd.Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		code, err = exit.ExitCode(), nil
	}
	must(t, err)
	must(t, json.Unmarshal(out, &got))
	return got, code
}

// statusOf returns the status of the first result with an id.
func statusOf(all []check.Result, id check.ID) check.Status {
	if at := slices.IndexFunc(all, func(r check.Result) bool { return r.ID == id }); at >= 0 {
		return all[at].Status
	}
	return "absent"
}

// through returns the arguments of `fairlead test through` about the room.
func (r *room) through(command ...string) []string {
	return append([]string{
		"through", "-n", r.Namespace, r.Name, "-o", "json", "--settle=1s", "--interval=200ms", r.world.Inspection(), "--",
	}, command...)
}

// proveTrials checks the commands that test an installation before, after and during a change.
func (r *room) proveTrials(t *testing.T) {
	connectivity := []string{
		"connectivity", "-n", r.Namespace, r.Name, "-o", "json", "--watch-for=200ms", "--connections=20", "--bytes=1000000",
		r.world.Inspection(),
	}
	that(t, "test connectivity finds no fault on a healthy installation", func(t *testing.T) {
		got, code := r.trial(t.Context(), t, connectivity...)
		if code != 0 || len(got.Clusters) != 1 || got.Clusters[0].Hop != nil {
			t.Fatalf("exit code %d: %+v", code, got)
		}
		for _, id := range []check.ID{"sni", "address", "edge-probe", "source-addresses", "connections", "download"} {
			if status := statusOf(got.Clusters[0].Tests, id); status != check.OK {
				t.Errorf("the test %s is %s: %+v", id, status, got.Clusters[0].Tests)
			}
		}
	})
	that(t, "test connectivity tests both modes, an idle connection, a command and a port-forward", r.proveRequested)
	that(t, "test preflight finds a management cluster fit, and a closed port", func(t *testing.T) {
		got, code := r.trial(t.Context(), t, "preflight", "-o", "json", "--public-address=127.0.0.1:1")
		for id, want := range map[check.ID]check.Status{
			"kubernetes": check.OK, "cluster-api": check.OK, "permissions": check.OK, "clock": check.OK, "port": check.Warning,
		} {
			if status := statusOf(got.Tests, id); status != want || code != 0 {
				t.Errorf("exit code %d, %s is %s: %+v", code, id, status, got.Tests)
			}
		}
	})
	that(t, "test through counts no failure while nothing happens, and passes on the exit code", func(t *testing.T) {
		got, code := r.trial(t.Context(), t, r.through("sh", "-c", "sleep 3; exit 3")...)
		if code != 3 || got.Failed != 0 || got.Clusters[0].Requests < 5 {
			t.Errorf("exit code %d: %+v", code, got)
		}
	})
	that(t, "test through reports what breaks when the Envoys of the gateways are killed", r.proveBreaks)
	that(t, "status --wait returns when a Cluster is ready, and names what is missing at the timeout", func(t *testing.T) {
		must(t, r.waits(t.Context(), "3m", 0))
		world.StopEdge(t, r.edge)
		must(t, proc.Wait(t.Context(), deadTime, func(ctx context.Context) error { return r.waits(ctx, "1s", 1) }))
	})
	that(t, "test connectivity names the hop when the edge is dead", func(t *testing.T) {
		must(t, proc.Wait(t.Context(), deadTime, func(ctx context.Context) error {
			answer, err := r.Check(ctx, "")
			if err == nil && answer.First != check.HopTunnels {
				err = fmt.Errorf("check says %s", answer)
			}
			return err
		}))
		got, code := r.trial(t.Context(), t, connectivity...)
		if hop := got.Clusters[0].Hop; code != 1 || hop == nil || hop.ID != check.HopTunnels {
			t.Errorf("exit code %d: %+v: %+v", code, hop, got)
		}
		r.edge.Resume()
		must(t, proc.Wait(t.Context(), faults.CureTime, r.Healthy("")))
	})
}

// proveRequested checks the tests that connectivity does only on request, against a real apiserver, and a kubelet
// without containers. The port-forward leads to etcd, which does not speak first.
func (r *room) proveRequested(t *testing.T) {
	must(t, r.api.CreateNode(t.Context(), "worker", r.site.Address, lab.Pod))
	_, err := kube.StartKubelet(t.Context(), r.world.Workspace, kube.KubeletSpec{
		Name: "kubelet-" + r.name, Namespace: r.site.Namespace, Address: r.site.Address, CA: r.api.CA,
	})
	must(t, err)
	got, code := r.trial(
		t.Context(), t, "connectivity", "-n", r.Namespace, r.Name, "-o", "json", "--watch-for=200ms", "--connections=1",
		"--bytes=1000", "--idle=2s", "--sni="+netns.HostPort(netns.GatewayName, netns.APIServerPort),
		"--connect="+netns.HostPort(netns.GatewayName, netns.ConnectPort), "--exec=default/"+lab.Pod,
		"--port-forward=default/"+lab.Pod+":"+etcdPort, r.world.Inspection(),
	)
	if code != 0 || len(got.Clusters) != 1 {
		t.Fatalf("exit code %d: %+v", code, got)
	}
	for _, id := range []check.ID{"sni", "connect", "idle", "exec", "port-forward"} {
		if status := statusOf(got.Clusters[0].Tests, id); status != check.OK {
			t.Errorf("the test %s is %s: %+v", id, status, got.Clusters[0].Tests)
		}
	}
}

// waits returns nil if `status --wait` ends with an exit code.
func (r *room) waits(ctx context.Context, timeout string, want int) error {
	out, code, err := r.world.output(
		ctx, "status", "-n", r.Namespace, "--wait", "--timeout="+timeout, "--live=false",
	)
	if err == nil && code != want {
		err = fmt.Errorf("exit code %d: %s", code, out)
	}
	return err
}

// proveBreaks kills the Envoys of all gateways while a command runs, and keeps the gateways away for longer than a
// check takes. Then none of them listens, and soon none reports either.
func (r *room) proveBreaks(t *testing.T) {
	running := filepath.Join(t.TempDir(), "running")
	ended := make(chan error, 1)
	go func() {
		err := proc.Wait(t.Context(), faults.CureTime, func(context.Context) error {
			_, err := os.Stat(running)
			return err
		})
		for _, g := range r.world.Gateways {
			g.Hold()
			err = errors.Join(err, g.KillEnvoy())
		}
		<-time.After(away)
		for _, g := range r.world.Gateways {
			g.Resume()
		}
		ended <- err
	}()
	got, code := r.trial(t.Context(), t, r.through("sh", "-c", "touch "+running+"; sleep 5")...)
	must(t, <-ended)
	c := got.Clusters[0]
	if code != 1 || c.BrokenWatches == 0 || c.BrokenConnections == 0 || got.Failed == 0 || len(c.Failures) == 0 {
		t.Errorf("exit code %d: %+v", code, got)
	}
	named, gateways := false, []check.ID{check.HopRoute, check.HopPort}
	for _, f := range c.Failures {
		named = named || slices.Contains(gateways, check.ID(f.Hop))
		if f.Hop == "" && f.Detail == "" {
			t.Errorf("a failure has neither a hop nor the reason why none is known: %+v", f)
		}
	}
	if !named {
		t.Errorf("no failure has one of the hops %s: %+v", gateways, c.Failures)
	}
	must(t, proc.Wait(t.Context(), faults.CureTime, r.Healthy("")))
}

// provePublicAddress runs preflight in the network of a gateway, which reaches the management apiserver and the public
// address of another gateway. The lab has no Pods that need the settings.
func (r *room) provePublicAddress(t *testing.T) {
	settings := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: lab.InstallationNamespace, Name: v1alpha1.SettingsConfigMapName},
		Data:       map[string]string{"TUNNEL_DOMAIN": string(world.Domain)},
	}
	must(t, r.world.Management.Client.Create(t.Context(), settings))
	defer func() { must(t, r.world.Management.Client.Delete(t.Context(), settings)) }()
	kubeconfig, err := r.world.ManagementKubeconfig()
	must(t, err)
	public := netip.AddrPortFrom(r.world.Network.PublicAddress(0), netns.PublicPort)
	cmd := r.world.Network.Gateways[1].Command(
		t.Context(), r.world.Parts.OwnPath("fairlead"), "test", "preflight", "-o", "json",
		"--public-address="+public.String(),
	)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig)
	got, code := trialOf(t, cmd)
	for _, id := range []check.ID{"permissions", "dns", "port", "tls", "packets"} {
		if status := statusOf(got.Tests, id); status != check.OK || code != 0 {
			t.Errorf("exit code %d, %s is %s: %+v", code, id, status, got.Tests)
		}
	}
}

// proveEdgePreflight checks the command for the time before an edge. It runs at the end: the xds-servers report for
// some minutes that a machine in this network has rejected their certificate, as they would of an edge.
func (r *room) proveEdgePreflight(t *testing.T) {
	that(t, "test preflight finds the certificate of an installation at its public address", r.provePublicAddress)
	that(t, "test edge-preflight finds a closed port and a wrong CA", func(t *testing.T) {
		good, err := r.Bootstrap(t.Context())
		must(t, err)
		got, code := r.edgePreflight(t, good)
		for _, id := range []check.ID{"dns", "port", "tls", "clock", "packets"} {
			if status := statusOf(got.Tests, id); status != check.OK || code != 0 {
				t.Errorf("exit code %d, %s is %s: %+v", code, id, status, got.Tests)
			}
		}
		for id, change := range map[check.ID]func(map[string]any){
			"port": func(f map[string]any) {
				host, _, _ := strings.Cut(fmt.Sprint(f["gateway"]), ":")
				f["gateway"] = host + ":1"
			},
			"tls": func(f map[string]any) { f["ca"] = r.otherCA(t) },
		} {
			var file map[string]any
			must(t, yaml.Unmarshal(good, &file))
			change(file)
			bad, err := yaml.Marshal(file)
			must(t, err)
			if got, code := r.edgePreflight(t, bad); code != 1 || statusOf(got.Tests, id) != check.Broken {
				t.Errorf("exit code %d: %s is not broken: %+v", code, id, got.Tests)
			}
		}
	})
}

// otherCA is the CA of the apiserver of the room, which has not signed the certificate of a gateway.
func (r *room) otherCA(t *testing.T) string {
	t.Helper()
	kubeconfig, err := r.Kubeconfig(t.Context())
	must(t, err)
	config, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig)
	must(t, err)
	return string(config.CAData)
}
