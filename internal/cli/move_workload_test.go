package cli

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/kubetest"
)

// TestMovePrepareGivesTokensOnlyToItsOwnEdges runs edges of other Clusters beside the edges of this one, as where
// control planes are hosted.
func TestMovePrepareGivesTokensOnlyToItsOwnEdges(t *testing.T) {
	p, to := newPerson(t), newPersonOf(t, target.Config(t))
	up := v1alpha1.EdgeGatewayStatus{Name: "gateway-0", Tunnels: 2}
	edges, node := kubetest.NewNamespace(t, p), startKubelet(t, p)
	key := serve(t, p, on("named", up), on("twin", up), on(strings.ToUpper(node), up), on("neighbour-away"))
	named, host, neighbour, twin := t.TempDir(), t.TempDir(), t.TempDir(), t.TempDir()
	called := func(name string) func(*corev1.PodSpec) { return func(s *corev1.PodSpec) { s.Hostname = name } }
	edgePod(t, p, edges, "pod", node, named, called("named"))
	edgePod(t, p, edges, "on-the-node", node, host, func(s *corev1.PodSpec) { s.HostNetwork = true })
	edgePod(t, p, edges, "neighbour", node, neighbour)
	edgePod(t, p, edges, "neighbour-away", node, neighbour) // its edge is not connected, so it cannot be identified
	edgePod(t, p, edges, "twin-1", node, twin, called("twin"))
	edgePod(t, p, edges, "twin-2", node, twin, called("twin"))
	workloadKubeconfig(t, p, p, key)

	args := []string{
		"move",
		"prepare",
		"-n",
		key.Namespace,
		key.Name,
		"--to-kubeconfig=" + to.kubeconfig,
		"--to-kubeconfig-context=good",
		"--edge-namespace=" + edges,
		"--wait=false",
	}
	out, err := p.does(t, args...)
	if err != nil {
		t.Fatal(err)
	}
	for dir, want := range map[string]bool{named: true, host: true, neighbour: false, twin: false} {
		if _, err := os.Stat(filepath.Join(dir, "joined.yaml")); (err == nil) != want {
			t.Errorf("an edge was given the file: %v, want %v\n%s", err == nil, want, out)
		}
	}
	for _, want := range []string{
		"/pod: joined", "/on-the-node: joined", "/neighbour: left alone",
		"/neighbour-away: left alone", "/twin-1: left alone, more Pods", "/twin-2: left alone", "(host twin)",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not in\n%s", want, out)
		}
	}

	setStatus(t, to, key, func(s *v1alpha1.TunnelStatus) { s.Edges = []v1alpha1.EdgeStatus{on("named")} })
	if out = p.must(t, []string{"/on-the-node: joined"}, args...); strings.Contains(out, edges+"/pod:") {
		t.Errorf("an edge that is enrolled there was given a token:\n%s", out)
	}
}

func TestMovePrepareRunsNoCommandsOfASecret(t *testing.T) {
	p, to := newPerson(t), newPersonOf(t, target.Config(t))
	key := serve(t, p, on("a", v1alpha1.EdgeGatewayStatus{Name: "gateway-0", Tunnels: 2}))
	file, err := clientcmd.LoadFromFile(p.kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	ran := filepath.Join(t.TempDir(), "ran")
	file.CurrentContext = "good"
	file.AuthInfos["admin"] = &clientcmdapi.AuthInfo{Exec: &clientcmdapi.ExecConfig{
		APIVersion: "client.authentication.k8s.io/v1", Command: "touch", Args: []string{ran},
		InteractiveMode: clientcmdapi.NeverExecInteractiveMode,
	}}
	data, err := clientcmd.Write(*file)
	if err != nil {
		t.Fatal(err)
	}
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name + "-kubeconfig"},
		Data:       map[string][]byte{"value": data},
	}
	if err := p.Create(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	args := []string{
		"move",
		"prepare",
		"-n",
		key.Namespace,
		key.Name,
		"--to-kubeconfig=" + to.kubeconfig,
		"--to-kubeconfig-context=good",
		"--wait=false",
	}
	out := p.must(t, []string{`its user "admin" has exec`, "edge-agent join"}, args...)
	if _, err := os.Stat(ran); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("it ran a program: %v\n%s", err, out)
	}
	own := filepath.Join(t.TempDir(), "own") // the user's own kubeconfig may run plugins
	if err := os.WriteFile(own, data, 0o600); err != nil {
		t.Fatal(err)
	}
	p.must(t, nil, append(args, "--workload-kubeconfig="+own)...)
	if _, err := os.Stat(ran); err != nil {
		t.Errorf("it did not use the person's own kubeconfig: %v", err)
	}
}
