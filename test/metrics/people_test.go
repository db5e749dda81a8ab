package metrics

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/world"
)

// roundTrips returns a condition that is nil once `fairlead status` shows the round-trip time to every tunnel's
// gateway, in JSON and in the table.
func roundTrips(s *world.World, m *world.Member) func(context.Context) error {
	return func(ctx context.Context) error {
		out, err := s.Exec(ctx, "status", "-A", "-o", "json", s.Inspection())
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		var got struct {
			Rows []struct {
				Cluster  string
				RTT      float64 `json:"rttMillis"`
				Gateways []struct {
					Name string
					RTT  float64 `json:"rttMillis"`
				}
			}
		}
		if err := json.Unmarshal([]byte(out), &got); err != nil {
			return fmt.Errorf("reading what status says: %w: %s", err, out)
		}
		if len(got.Rows) != 1 || got.Rows[0].Cluster != m.Name || len(got.Rows[0].Gateways) != len(s.Gateways) ||
			!plausible(got.Rows[0].RTT) {
			return fmt.Errorf("got %+v", got.Rows)
		}
		for _, g := range got.Rows[0].Gateways {
			if !plausible(g.RTT) {
				return fmt.Errorf("%s: %g ms", g.Name, g.RTT)
			}
		}
		out, err = s.Exec(ctx, "status", "-n", m.Namespace, m.Name, s.Inspection())
		for line := range strings.Lines(out) {
			if what, shown, ok := strings.Cut(line, ":"); ok && what == "Round trip" &&
				strings.HasSuffix(strings.TrimSpace(shown), "ms") {
				return err
			}
		}
		return fmt.Errorf("there is no round trip (%w) in\n%s", err, out)
	}
}

// plausible reports whether a round-trip time, in ms, is possible for a tunnel on one machine.
func plausible(rtt float64) bool { return rtt > 0 && rtt < 2000 }

// gather proves what a support bundle of a running installation contains: the metrics of its programs, and no secrets.
func (w *watcher) gather(t *testing.T, s *world.World) {
	t.Helper()
	for _, target := range s.Targets() {
		w.servePod(t, s, target)
	}
	file := s.File("bundle.tar.gz")
	out, err := s.Exec(t.Context(), "support-bundle", "--file", file, "--no-logs", s.Inspection())
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	files := unpack(t, file)
	for _, target := range s.Targets() {
		name := fmt.Sprintf("metrics/%s.%s.txt", podName(target), target.Job)
		families, err := w.families(t.Context(), target.Name)
		must(t, err)
		ours := 0
		for family := range families {
			if strings.HasPrefix(family, "fairlead_") {
				ours++
				if !strings.Contains(files[name], "# TYPE "+family+" ") {
					t.Errorf("%s is without %s", name, family)
				}
			}
		}
		if ours == 0 {
			t.Errorf("%s serves nothing of ours", target.Name)
		}
	}
	for name, want := range map[string]string{
		"status.json": `"rttMillis"`, "check.json": `"apiserver"`, "config-sync.txt": "SYNCED",
		"config/gateway-0.json":       string(world.Domain),
		"relay/gateway-0.txt":         "upstream gateway-0 ",
		"objects/remotenetworks.yaml": "10.21.0.0/16",
		"objects/tunnels.yaml":        world.Namespace, "objects/secrets.yaml": "-edge-bootstrap",
	} {
		if !strings.Contains(files[name], want) {
			t.Errorf("%s is without %q:\n%.1000s\n%s", name, want, files[name], out)
		}
	}
	secrets := secretsOf(t, s)
	for name, text := range files {
		for secret, of := range secrets {
			if strings.Contains(text, secret) {
				t.Errorf("%s has something of %s", name, of)
			}
		}
	}
	measured("bundle_files", float64(len(files)))
	measured("bundle_secrets", float64(len(secrets)))
}

func podName(target lab.Target) string { return "pod-" + target.Name }

// servePod creates a Pod of a program, and forwards its address to the program's metrics in its network namespace.
func (w *watcher) servePod(t *testing.T, s *world.World, target lab.Target) {
	t.Helper()
	at := s.Management.Endpoint.Addr()
	listener, err := s.Network.Management.Listen(t.Context(), netip.AddrPortFrom(at, 0).String())
	must(t, err)
	server := &http.Server{
		ReadHeaderTimeout: time.Minute,
		Handler: http.HandlerFunc(func(out http.ResponseWriter, in *http.Request) {
			w.relay(in.Context(), out, target.Name)
		}),
	}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
	no := false
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: lab.InstallationNamespace, Name: podName(target)},
		Spec: corev1.PodSpec{
			ServiceAccountName:           "controller",
			AutomountServiceAccountToken: &no,
			Containers: []corev1.Container{{
				Name: target.Job, Image: "none", Ports: []corev1.ContainerPort{{Name: "metrics", ContainerPort: int32(
					listener.Addr().(*net.TCPAddr).Port)}},
			}},
		},
	}
	must(t, s.Management.Client.Create(t.Context(), pod))
	pod.Status.Phase, pod.Status.PodIP, pod.Status.PodIPs = corev1.PodRunning, at.String(), []corev1.PodIP{
		{IP: at.String()},
	}
	must(t, s.Management.Client.Status().Update(t.Context(), pod))
}

// secretsOf returns the secret texts in the Secrets of the management cluster, each with its origin.
func secretsOf(t *testing.T, s *world.World) map[string]string {
	t.Helper()
	var list corev1.SecretList
	must(t, s.Management.Client.List(t.Context(), &list))
	all := map[string]string{}
	for i := range list.Items {
		for key, value := range list.Items[i].Data {
			of := fmt.Sprintf("Secret %s/%s, %s", list.Items[i].Namespace, list.Items[i].Name, key)
			for _, word := range strings.Fields(string(value)) { // lines of keys, tokens, and fields of kubeconfigs
				if len(word) >= 32 && !strings.Contains(word, string(world.Domain)) {
					all[word] = of
				}
			}
			if len(value) >= 16 {
				all[base64.StdEncoding.EncodeToString(value)] = of
			}
		}
	}
	if len(all) < 10 {
		t.Fatalf("there are only %d secrets", len(all))
	}
	return all
}

// unpack returns the files of a bundle.
func unpack(t *testing.T, path string) map[string]string {
	t.Helper()
	file, err := os.Open(path)
	must(t, err)
	defer file.Close()
	packed, err := gzip.NewReader(file)
	must(t, err)
	files := map[string]string{}
	for r := tar.NewReader(packed); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		must(t, err)
		text, err := io.ReadAll(r)
		must(t, err)
		_, name, _ := strings.Cut(header.Name, "/")
		files[name] = string(text)
	}
}
