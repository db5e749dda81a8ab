package management

import (
	"path/filepath"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
)

func TestTheImageOfTheInstallation(t *testing.T) {
	const base = "registry.example.com:5000/fairlead/"
	for image, want := range map[string]string{
		base + "fairlead-xds-server:v0.1.0":                            base + "fairlead-edge:v0.1.0",
		"ghcr.io/fairlead-xds-server:dev":                              "ghcr.io/fairlead-edge:dev",
		"fairlead-xds-server:dev":                                      "", // of deploy/kubernetes: no registry
		base + "fairlead-xds-server":                                   "",
		base + "fairlead-xds-server@sha256:" + strings.Repeat("0", 64): "", // the digest of edges is another one
		base + "fairlead-xds-server:v1@sha256:00":                      "",
		base + "mirrored:v0.1.0":                                       "",
	} {
		servers := &appsv1.Deployment{}
		servers.Namespace, servers.Name = "tunnels", "xds-server"
		servers.Spec.Template.Spec.Containers = []corev1.Container{
			{Name: "sidecar", Image: "registry.example.com/other/fairlead-xds-server:v9"}, {Name: "xds-server", Image: image},
		}
		c := fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).WithObjects(servers).Build()
		if got, err := imageOfEdges(t.Context(), c, "tunnels"); got != want || (err == nil) != (want != "") {
			t.Errorf("%s: got %q, %v, want %q", image, got, err, want)
		}
		if got, err := imageOfEdges(t.Context(), c, "fairlead-system"); err == nil {
			t.Errorf("another namespace: got %s", got)
		}
	}
}

func TestAnImageWithoutAnInstallation(t *testing.T) {
	none := &Flags{Kubeconfig: filepath.Join(t.TempDir(), "none")}
	for named, want := range map[string]string{"ghcr.io/edge:v1": "ghcr.io/edge:v1", "": edgeImage} {
		var warnings strings.Builder
		f := ImageFlags{image: named}
		if got := f.Image(t.Context(), none, &warnings); got != want {
			t.Errorf("--image=%s: got %q", named, got)
		}
		if warned := strings.HasPrefix(warnings.String(), "warning: ") &&
			strings.Contains(warnings.String(), "give --image"); warned != (named == "") {
			t.Errorf("--image=%s: %q", named, warnings.String())
		}
	}
}
