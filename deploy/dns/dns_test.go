// Package dns_test tests the files of this directory with their real consumers: the Corefile with CoreDNS, the objects
// with an apiserver that has external-dns's CRD.
package dns_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/fairlead/fairlead/internal/freeport"
	"github.com/fairlead/fairlead/internal/kubetest"
)

const root = "../.."

var server = kubetest.Server{Prepare: installExternalDNS}

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	os.Exit(server.Run(m))
}

// otherNames simulates the CoreDNS block with the names of the cluster, and the DNS servers of the nodes at the second
// port.
const otherNames = `
.:%[1]s {
    bind 127.0.0.1
    errors
    hosts {
        10.96.0.7 gateway.fairlead-system.svc.cluster.local
        fd00::7 gateway.fairlead-system.svc.cluster.local
    }
}
.:%[2]s {
    bind 127.0.0.1
    errors
    hosts {
        203.0.113.7 gateway.tunnels.example.com
        203.0.113.8 c1.gateway.tunnels.example.com
    }
}
`

// startCoreDNS runs CoreDNS with the Corefile and blocks with other names. It returns a resolver that uses it.
func startCoreDNS(t *testing.T) *net.Resolver {
	t.Helper()
	program := kubetest.Part(t, "coredns")
	snippet, err := os.ReadFile("Corefile")
	if err != nil {
		t.Fatal(err)
	}
	port, nodes := freePort(t), freePort(t)
	if n := bytes.Count(snippet, []byte(":53")); n != 2 {
		t.Fatalf("port 53 is %d times in the Corefile, want 2: this test would listen on another", n)
	}
	own := strings.NewReplacer(
		":53", ":"+port, "    errors\n", "    errors\n    bind 127.0.0.1\n", "/etc/resolv.conf", "127.0.0.1:"+nodes,
	).Replace(string(snippet))
	file := filepath.Join(t.TempDir(), "Corefile")
	if err := os.WriteFile(file, []byte(own+fmt.Sprintf(otherNames, port, nodes)), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, program, "-conf", file)
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		_ = cmd.Wait() // it was killed
		if t.Failed() {
			t.Log(out.String())
		}
	})
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, "127.0.0.1:"+port)
	}}
}

func freePort(t *testing.T) string {
	t.Helper()
	return strconv.Itoa(freeport.TCP(t))
}

func TestCoreDNSResolvesTunnelHostnames(t *testing.T) {
	resolver := startCoreDNS(t)
	want := []string{"10.96.0.7", "fd00::7"}
	for _, name := range []string{
		"c1.prod.tunnels.example.com.", "C2--X.Other.tunnels.example.com.",
		"one.tunnels.example.com.", "c1.gateway.tunnels.example.com.",
	} {
		kubetest.Eventually(t, "resolving "+name, func() error {
			got, err := resolver.LookupHost(t.Context(), name)
			slices.Sort(got)
			if err != nil || !slices.Equal(got, want) {
				return fmt.Errorf("%v, %w", got, err)
			}
			return nil
		})
	}
	// Edges and egress sidecars in the management cluster dial the public address, not the Service for clients.
	if got, err := resolver.LookupHost(t.Context(), "Gateway.tunnels.example.com."); err != nil ||
		!slices.Equal(got, []string{"203.0.113.7"}) {
		t.Errorf("the public address: %v, %v", got, err)
	}
	// The names of the cluster are unchanged.
	if got, err := resolver.LookupHost(t.Context(), "gateway.fairlead-system.svc.cluster.local."); err != nil ||
		len(got) != 2 {
		t.Errorf("the gateway's own name: %v, %v", got, err)
	}
	for _, name := range []string{"tunnels.example.com.", "c1.prod.tunnelsXexample.com.", "c1.prod.tunnels.example.org."} {
		if got, err := resolver.LookupHost(t.Context(), name); err == nil {
			t.Errorf("%s resolves to %v", name, got)
		}
	}
}

func installExternalDNS(ctx context.Context, config *rest.Config) error {
	data, err := os.ReadFile(filepath.Join(root, "bin", externalDNSCRD))
	if err != nil {
		return err
	}
	objects, err := kubetest.Decode(data)
	if err != nil {
		return err
	}
	admin, err := kubetest.NewClient(config)
	if err != nil {
		return err
	}
	for _, o := range objects {
		if err := admin.Create(ctx, o); err != nil {
			return err
		}
	}
	return admin.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "fairlead-system"}})
}

const externalDNSCRD = "externaldns-crd.yaml"

func TestExternalDNSAcceptsTheObjects(t *testing.T) {
	kubetest.Part(t, externalDNSCRD)
	admin, err := kubetest.NewClient(server.Config(t))
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile("external-dns-endpoint.yaml")
	if err != nil {
		t.Fatal(err)
	}
	objects, err := kubetest.Decode(data)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range objects {
		// Strict: a field that the CRD does not know is an error.
		kubetest.Eventually(t, "creating the record", func() error {
			return admin.Create(t.Context(), o.DeepCopy(), client.FieldValidation("Strict"))
		})
	}
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "fairlead-system", Name: "gateway"},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 6443}}},
	}
	if err := admin.Create(t.Context(), service); err != nil {
		t.Fatal(err)
	}
	patch, err := os.ReadFile("external-dns-service.yaml")
	if err == nil {
		patch, err = yaml.YAMLToJSON(patch)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := admin.Patch(t.Context(), service, client.RawPatch(types.StrategicMergePatchType, patch)); err != nil {
		t.Fatal(err)
	}
	if got := service.Annotations["external-dns.alpha.kubernetes.io/hostname"]; got != "*.tunnels.example.com" {
		t.Errorf("the record is for %q", got)
	}
}

// TestOneTunnelDomain: the files contain the tunnel domain of the settings, so that a search finds all places.
func TestOneTunnelDomain(t *testing.T) {
	settings, err := os.ReadFile(root + "/deploy/kubernetes/settings.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(settings, []byte("TUNNEL_DOMAIN: tunnels.example.com\n")) {
		t.Fatal("the settings have another tunnel domain: change it in this folder too")
	}
	for _, file := range []string{"Corefile", "external-dns-service.yaml", "external-dns-endpoint.yaml"} {
		data, err := os.ReadFile(file)
		if err != nil || !bytes.Contains(data, []byte("tunnels.example.com")) {
			t.Errorf("%s: %v", file, err)
		}
	}
}
