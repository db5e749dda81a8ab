package management

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/pkg/diagnose/collect"
)

const (
	// edgeImage is the image of edges without a registry, serverImage that of xds-servers.
	edgeImage, serverImage = "fairlead-edge", "fairlead-xds-server"
	// imageTime bounds the look at the installation: a command that needs nothing else from it must not wait for long.
	imageTime = 10 * time.Second
)

// ImageFlags name the image of edges.
type ImageFlags struct{ image, installation string }

// AddTo adds --image and --installation. uses names the forms that have an image; empty: all have.
func (f *ImageFlags) AddTo(set *pflag.FlagSet, uses string) {
	set.StringVar(
		&f.image, "image", "", "image of edge-agent and Envoy"+uses+" (default: "+edgeImage+
			" from the registry of the installation, in the same version)",
	)
	set.StringVar(
		&f.installation, "installation", collect.DefaultNamespace, "namespace in which Fairlead is installed, for --image",
	)
}

// Image returns the image that the user names, or else the one that belongs to the xds-servers of the installation. If
// that is not known, it warns and returns one without a registry.
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

// imageOfEdges returns the image of edges from the same registry and with the same tag as that of the xds-servers.
func imageOfEdges(ctx context.Context, c client.Reader, installation string) (string, error) {
	var servers appsv1.Deployment
	key := client.ObjectKey{Namespace: installation, Name: "xds-server"}
	if err := c.Get(ctx, key, &servers); err != nil {
		return "", fmt.Errorf("reading Deployment %s: %w", key, err)
	}
	containers := servers.Spec.Template.Spec.Containers
	i := slices.IndexFunc(containers, func(of corev1.Container) bool { return of.Name == key.Name })
	if i < 0 {
		return "", fmt.Errorf("the Deployment %s has no container %s", key, key.Name)
	}
	image := containers[i].Image
	slash := strings.LastIndexByte(image, '/') + 1
	switch name, tag, _ := strings.Cut(image[slash:], ":"); {
	case slash == 0:
		return "", fmt.Errorf("its image %s has no registry", image)
	case strings.Contains(image, "@"):
		return "", errors.New("its images are pinned by digest")
	case name != serverImage || tag == "":
		return "", fmt.Errorf("its image %s is not %s with a tag", image, serverImage)
	default:
		return image[:slash] + edgeImage + ":" + tag, nil
	}
}
