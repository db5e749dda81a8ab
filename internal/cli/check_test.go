package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/fairlead/fairlead/internal/kubetest"
	"github.com/fairlead/fairlead/pkg/diagnose/check"
)

func TestCheckRejectsInvalidCommandLines(t *testing.T) {
	for name, args := range map[string][]string{
		"neither a name nor --all":  {"check"},
		"both":                      {"check", "c1", "--all"},
		"all namespaces of one":     {"check", "c1", "-A"},
		"none at a time":            {"check", "--all", "--parallel=0"},
		"no time":                   {"check", "c1", "--timeout=0s"},
		"a watch of no time":        {"check", "c1", "--watch-for=0s"},
		"an output that is unknown": {"check", "c1", "-o", "xml"},
	} {
		t.Run(name, func(t *testing.T) {
			var stdout, stderr strings.Builder
			if code := run(t.Context(), args, &stdout, &stderr); code != 2 || stdout.Len() > 0 || stderr.Len() == 0 {
				t.Errorf("exit code %d, printed %q and %q", code, stdout.String(), stderr.String())
			}
		})
	}
}

// checks runs check, and returns its report and exit code.
func checks(t *testing.T, p *person, into any, args ...string) (code int) {
	t.Helper()
	var stdout, stderr strings.Builder
	code = run(
		t.Context(),
		append(append([]string{"check", "--kubeconfig=" + p.kubeconfig, "--context=good"}, args...), "-o", "json"), &stdout,
		&stderr,
	)
	if err := json.Unmarshal([]byte(stdout.String()), into); err != nil || stderr.Len() > 0 {
		t.Fatalf("exit code %d: %v: %q %q", code, err, stdout.String(), stderr.String())
	}
	return code
}

// hop is one hop of a report.
func hop(t *testing.T, r check.Report, id check.ID) check.Result {
	t.Helper()
	for _, h := range r.Hops {
		if h.ID == id {
			return h
		}
	}
	t.Fatalf("there is no hop %s: %+v", id, r)
	return check.Result{}
}

// TestCheckRunsNoCommandsOfASecret proves that the writer of a kubeconfig Secret cannot run code on the machine of the
// user of `fairlead check`.
func TestCheckRunsNoCommandsOfASecret(t *testing.T) {
	p := newPerson(t)
	key := serve(t, p)
	trap := filepath.Join(t.TempDir(), "trap")
	config := clientcmdapi.NewConfig()
	config.Clusters["c1"] = &clientcmdapi.Cluster{Server: "https://10.2.2.2:6443"}
	config.AuthInfos["u"] = &clientcmdapi.AuthInfo{Exec: &clientcmdapi.ExecConfig{
		APIVersion: "client.authentication.k8s.io/v1", Command: "touch", Args: []string{trap},
		InteractiveMode: clientcmdapi.NeverExecInteractiveMode,
	}}
	config.Contexts["c"] = &clientcmdapi.Context{Cluster: "c1", AuthInfo: "u"}
	config.CurrentContext = "c"
	data, err := clientcmd.Write(*config)
	if err != nil {
		t.Fatal(err)
	}
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: key.Namespace,
			Name:      key.Name + "-kubeconfig",
			Labels:    map[string]string{"cluster.x-k8s.io/cluster-name": key.Name},
		},
		Type: "cluster.x-k8s.io/secret", Data: map[string][]byte{"value": data},
	}
	if err := p.Create(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	var report check.Report
	checks(t, p, &report, "-n", key.Namespace, key.Name, "--via=127.0.0.1:1")
	if h := hop(t, report, check.HopAuthentication); h.Status != check.Unknown {
		t.Errorf("authentication is %+v", h)
	}
	if h := hop(t, report, check.HopPort); h.Status != check.Broken ||
		!strings.Contains(h.Detail, "127.0.0.1:1: refused") {
		t.Errorf("port is %+v", h)
	}
	if _, err := os.Stat(trap); !os.IsNotExist(err) {
		t.Errorf("the plugin has run: %v", err)
	}
}

func TestCheckOfAFleetListsBrokenClustersFirst(t *testing.T) {
	p := newPerson(t)
	key := serve(t, p)
	for _, name := range []string{"a-paused", "z-paused"} {
		cluster := kubetest.Cluster(key.Namespace, name)
		cluster.Labels = map[string]string{"fairlead.dev/tunnel": "enabled"}
		cluster.Spec.Paused = new(bool)
		*cluster.Spec.Paused = true
		if err := p.Create(t.Context(), cluster); err != nil {
			t.Fatal(err)
		}
	}
	var fleet struct{ Reports []check.Report }
	if code := checks(t, p, &fleet, "-n", key.Namespace, "--all", "--parallel=2", "--via=127.0.0.1:1"); code != 1 ||
		len(fleet.Reports) != 3 {
		t.Fatalf("exit code %d, %d reports", code, len(fleet.Reports))
	}
	for i, r := range fleet.Reports {
		if i > 0 && r.Status == check.Broken && fleet.Reports[i-1].Status != check.Broken {
			t.Errorf("%s is broken, and comes after %s", r.Name, fleet.Reports[i-1].Name)
		}
		if v := r.Deciding(); v == nil || v.Cause == "" || v.Cure == "" {
			t.Errorf("%s: the verdict is %+v", r.Name, v)
		}
	}
	var one check.Report
	if code := checks(t, p, &one, "-n", key.Namespace, "nobody"); code != 1 || one.First != check.HopCluster {
		t.Errorf("of nobody it says %+v, exit code %d", one, code)
	}
}
