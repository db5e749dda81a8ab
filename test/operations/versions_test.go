package operations

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/fairlead/fairlead/test/lab/workspace"
	"github.com/fairlead/fairlead/test/versions"
)

// version is a version of Fairlead: its repository, its programs, and the tag of its images.
type version struct {
	repository, programs, tag string
}

func (v version) program(name string) string { return filepath.Join(v.programs, name) }

// newest returns the version under test.
func newest() version {
	root, err := filepath.Abs("../..")
	if err != nil {
		panic(err) // the working directory was deleted
	}
	programs, err := filepath.Abs(cmp.Or(os.Getenv(workspace.BinEnv), filepath.Join(root, "bin")))
	if err != nil {
		panic(err)
	}
	return version{repository: root, programs: programs, tag: "v2"}
}

// oldVersion builds the programs of an earlier version.
func oldVersion(t *testing.T, v versions.Version) version {
	t.Helper()
	b, err := v.Build(t.Context())
	must(t, err)
	return version{repository: b.Repository, programs: b.Programs, tag: "v1"}
}

// byTag makes the kubelet start the version in the image tag of a Pod. A program exits at once if it does not know its
// arguments.
func (o *operations) byTag(versions ...version) func(context.Context, *corev1.PodTemplateSpec) error {
	return func(ctx context.Context, template *corev1.PodTemplateSpec) error {
		container := template.Spec.Containers[0]
		name, tag, _ := strings.Cut(container.Image[strings.LastIndex(container.Image, "/")+1:], ":")
		name = strings.TrimPrefix(name, "fairlead-")
		if name == "gateway" {
			name = "gateway-agent"
		}
		for _, v := range versions {
			if v.tag != tag {
				continue
			}
			known, err := workspace.KnownArguments(ctx, v.program(name), container.Args)
			if err != nil {
				return err
			}
			if len(known) < len(container.Args) {
				return fmt.Errorf("%s of %s ends at once: of %q it knows only %q", name, tag, container.Args, known)
			}
			o.UsePrograms(v.programs)
			return nil
		}
		return fmt.Errorf("there is no image %s", container.Image)
	}
}
