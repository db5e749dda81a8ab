package management

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/diagnose/collect"
)

const (
	// edgeImage is the image of edges without a registry, and edgeImageKey the setting with the one of an installation.
	edgeImage, edgeImageKey = "fairlead-edge", "EDGE_IMAGE"
	// imageTime bounds the look at the installation: a command that needs nothing else from it must not wait for long.
	imageTime = 10 * time.Second
)

// ImageFlags name the image of edges.
type ImageFlags struct{ image, installation string }

// AddTo adds --image and --installation. uses names the forms that have an image; empty: all have.
func (f *ImageFlags) AddTo(set *pflag.FlagSet, uses string) {
	set.StringVar(
		&f.image, "image", "", "image of edge-agent and Envoy"+uses+" (default: that in the settings of the installation)",
	)
	set.StringVar(
		&f.installation, "installation", collect.DefaultNamespace, "namespace in which Fairlead is installed, for --image",
	)
}

// Image returns the image that the user names, or else the one in the settings of the installation. If that is not
// known, it warns and returns one without a registry.
func (f *ImageFlags) Image(ctx context.Context, of *Flags, warnings io.Writer) string {
	if f.image != "" {
		return f.image
	}
	ctx, cancel := context.WithTimeout(ctx, imageTime)
	defer cancel()
	c, _, err := of.Client()
	if err == nil {
		var image string
		if image, err = imageOfEdges(ctx, c, f.installation); err == nil {
			return image
		}
	}
	_, _ = fmt.Fprintf(
		warnings, "warning: the image %s has no registry, so most nodes cannot pull it: give --image, because the "+
			"installation does not tell: %v\n", edgeImage, err,
	)
	return edgeImage
}

// imageOfEdges returns the image of edges in the settings of the installation. The controller and the runtime extension
// install the same.
func imageOfEdges(ctx context.Context, c client.Reader, installation string) (string, error) {
	var settings corev1.ConfigMap
	key := client.ObjectKey{Namespace: installation, Name: v1alpha1.SettingsConfigMapName}
	if err := c.Get(ctx, key, &settings); err != nil {
		return "", fmt.Errorf("reading ConfigMap %s: %w", key, err)
	}
	image := settings.Data[edgeImageKey]
	if !strings.Contains(image, "/") {
		return "", fmt.Errorf("%s in the ConfigMap %s is %q, without a registry", edgeImageKey, key, image)
	}
	return image, nil
}
