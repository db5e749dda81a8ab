package management

import (
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/fairlead/fairlead/api/v1alpha1"
)

func TestTheImageOfTheInstallation(t *testing.T) {
	const base = "registry.example.com:5000/fairlead/"
	for image, want := range map[string]bool{
		base + "fairlead-edge:v0.1.0":                       true,
		base + "mirrored@sha256:" + strings.Repeat("0", 64): true,
		"fairlead-edge:dev":                                 false, // no registry
		"":                                                  false,
	} {
		settings := &corev1.ConfigMap{Data: map[string]string{edgeImageKey: image}}
		settings.Namespace, settings.Name = "tunnels", v1alpha1.SettingsConfigMapName
		c := fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).WithObjects(settings).Build()
		if got, err := imageOfEdges(t.Context(), c, "tunnels"); (err == nil) != want || want && got != image {
			t.Errorf("%s: got %q, %v", image, got, err)
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
