package install

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/test/lab/cluster"
	"github.com/fairlead/fairlead/test/lab/workspace"
)

// source is the source code of one version, of which a test makes images that it loads into clusters. So two versions
// are packaged in the same way, also if the older one has no images of its own.
type source struct {
	dir      string // of the repository
	tag      string // of the images
	programs string // the folder of the programs, which are linked statically
}

// built are the programs by the names of their images.
var built = map[string]string{
	"controller": "controller", "xds-server": "xds-server", "gateway": "gateway-agent", "edge": "edge-agent",
	"cli": "fairlead",
}

// thisSource returns the version under test.
func thisSource(t *testing.T) source {
	t.Helper()
	root, err := workspace.FindRoot()
	must(t, err)
	return newSource(t, root, "head")
}

// newSource builds the programs of a repository.
func newSource(t *testing.T, dir, tag string) source {
	t.Helper()
	s := source{dir: dir, tag: tag, programs: t.TempDir()}
	args := []string{"build", "-trimpath", "-ldflags=-s -w", "-o", s.programs}
	for _, name := range slices.Sorted(maps.Values(built)) {
		args = append(args, "./cmd/"+name)
	}
	build := exec.CommandContext(t.Context(), "go", args...)
	build.Dir, build.Env = dir, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building the programs of %s: %v\n%s", dir, err, out)
	}
	return s
}

// load makes images and loads them into the registry of a cluster, as fairlead-<name>:<tag>.
func (s source) load(t *testing.T, c *cluster.Cluster, names ...string) {
	t.Helper()
	const bin = "/usr/local/bin/"
	for _, name := range names {
		program := built[name]
		files := []cluster.File{
			{From: filepath.Join(s.programs, program), To: bin + program, NetAdmin: name == "gateway"},
		}
		if name == "gateway" || name == "edge" {
			files = append(files, envoyFiles(t, c, bin)...)
		}
		image, err := cluster.Image(bin+program, files...)
		must(t, err)
		must(t, c.LoadImage(t.Context(), image, "fairlead-"+name+":"+s.tag))
	}
}

// envoyFiles returns Envoy and the libraries of this machine that it links.
func envoyFiles(t *testing.T, c *cluster.Cluster, bin string) []cluster.File {
	t.Helper()
	envoy, err := filepath.EvalSymlinks(c.Parts.RealPath("envoy"))
	must(t, err)
	out, err := exec.CommandContext(t.Context(), "ldd", envoy).Output()
	must(t, err)
	files := []cluster.File{{From: envoy, To: bin + "envoy"}}
	for field := range strings.FieldsSeq(string(out)) {
		if filepath.IsAbs(field) {
			files = append(files, cluster.File{From: field, To: field})
		}
	}
	if len(files) < 3 {
		t.Fatalf("Envoy links only %q", out)
	}
	return files
}

// try runs a script as an administrator of a cluster does: with its kubeconfig, in the network of its control plane,
// with Helm, kubectl and the programs of a version.
func (s source) try(ctx context.Context, c *cluster.Cluster, script string) error {
	ctx, cancel := context.WithTimeout(ctx, commandTime)
	defer cancel()
	cmd := c.Namespace.Command(ctx, "bash", "-euo", "pipefail", "-c", script)
	cmd.Dir = s.dir
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.Kubeconfig(), "HOME="+c.Dir,
		"PATH="+s.programs+":"+c.Parts.Real+":"+os.Getenv("PATH"))
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", script, err, out)
	}
	return nil
}

// shell is try for a script that must succeed.
func (s source) shell(t *testing.T, c *cluster.Cluster, script string) {
	t.Helper()
	must(t, s.try(t.Context(), c, script))
}

// bootstrap returns the id of the Tunnel, and copies its bootstrap file into the namespace of edges.
func (w *World) bootstrap(t *testing.T) (id string) {
	t.Helper()
	secret := &corev1.Secret{}
	eventually(t, func(ctx context.Context) error {
		return w.management.Client.Get(ctx, types.NamespacedName{
			Namespace: shops, Name: "paris" + v1alpha1.BootstrapSecretSuffix,
		}, secret)
	})
	file := struct{ ID string }{}
	must(t, yaml.Unmarshal(secret.Data[v1alpha1.BootstrapFileKey], &file))
	must(t, w.workload.Client.Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: edgeNamespace, Name: "fairlead-edge-bootstrap"},
		Data:       map[string][]byte{"bootstrap.yaml": secret.Data[v1alpha1.BootstrapFileKey]},
	}))
	return file.ID
}

// The namespaces of the installation and of edges, and the host of the address at which edges reach the gateways.
const (
	ownNamespace  = "fairlead-system"
	edgeNamespace = "fairlead-edge"
	publicHost    = "gateway.example.com"
)

// edges returns the manifest of edges of a version for a Tunnel.
func (s source) edges(t *testing.T, id string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(s.dir, "deploy/edge/deployment.yaml"))
	must(t, err)
	image := "image: fairlead-edge:" + s.tag
	manifest := strings.NewReplacer("TUNNEL_ID", id, "image: fairlead-edge\n", image+"\n").Replace(string(data))
	if !strings.Contains(manifest, image) {
		t.Fatalf("the manifest of edges has another image:\n%s", manifest)
	}
	return manifest
}

// waitEdges waits until all edges of the Deployment run and are ready.
func (w *World) waitEdges(t *testing.T) {
	t.Helper()
	ask(t, w.workload, "--namespace="+edgeNamespace, "rollout", "status", "deployment/fairlead-edge", "--timeout=280s")
}

// waitServers waits until all programs of the installation run and are ready.
func (w *World) waitServers(t *testing.T) {
	t.Helper()
	for _, name := range []string{"deployment/controller", "deployment/xds-server", "statefulset/gateway"} {
		ask(t, w.management, "--namespace="+ownNamespace, "rollout", "status", name, "--timeout=280s")
	}
}
