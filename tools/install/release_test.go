package main

import (
	"archive/zip"
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// publish writes one version of two modules, one in a folder of the other, to the folder of a module proxy.
func publish(t *testing.T, proxy, version string) {
	t.Helper()
	for module, files := range map[string]map[string]string{
		"example.test/released": {
			"go.mod": "module example.test/released\n\ngo 1.26\n\nrequire example.test/released/lib v0.0.0\n\n" +
				"replace example.test/released/lib => ./lib\n",
			"go.sum":      "",
			"cmd/main.go": "package main\n\nimport \"example.test/released/lib\"\n\nfunc main() { println(lib.Text) }\n",
		},
		"example.test/released/lib": {
			"go.mod": "module example.test/released/lib\n\ngo 1.26\n",
			"lib.go": "package lib\n\nconst Text = \"lib " + version + "\"\n",
		},
	} {
		var archive bytes.Buffer
		w := zip.NewWriter(&archive)
		for name, text := range files {
			f, err := w.Create(module + "@" + version + "/" + name)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := f.Write([]byte(text)); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		at := filepath.Join(proxy, module, "@v", version)
		write(t, at+".info", `{"Version": "`+version+`"}`, 0o644)
		write(t, at+".mod", files["go.mod"], 0o644)
		write(t, at+".zip", archive.String(), 0o644)
	}
}

// useProxy makes go commands use only the modules in a folder.
func useProxy(t *testing.T, folder string) {
	t.Helper()
	t.Setenv("GOPROXY", "file://"+folder)
	t.Setenv("GOSUMDB", "off")
	t.Setenv("GOMODCACHE", t.TempDir())
	t.Cleanup(func() { // it is read-only
		if out, err := exec.Command("go", "clean", "-modcache").CombinedOutput(); err != nil {
			t.Errorf("go clean -modcache: %v: %s", err, out)
		}
	})
}

func TestAReleaseIsBuiltWithItsPublishedModules(t *testing.T) {
	proxy := t.TempDir()
	useProxy(t, proxy)
	o := options{root: t.TempDir(), cache: t.TempDir(), names: []string{"everything"}}
	for _, version := range []string{"v1.2.3", "v1.2.4"} {
		publish(t, proxy, version)
		of := release{path: "example.test/released", dir: filepath.Join(o.cache, "modules", version), version: version}
		one := part{
			name: "one-" + version, files: []string{"one"}, source: of.source(stripped(of.dir).ldflags),
			programs: []program{{"example.test/released/cmd", "one"}},
		}
		installs(t, o, []part{one})
		if got := outputOf(t, o, "one"); got != "lib "+version {
			t.Errorf("the program of %s prints %q", version, got)
		}
		sources, err := of.sources(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(filepath.Join(sources, "cmd", "main.go")); err != nil {
			t.Errorf("the files of %s: %v", version, err)
		}
		if said := installs(t, o, []part{one}); !strings.Contains(said, "everything is there") {
			t.Errorf("the second run with %s builds something:\n%s", version, said)
		}
	}
}

func TestOnlyRequestedPartsOfAReleaseAreReplaced(t *testing.T) {
	all := parts(t.TempDir())
	find := func(among []part, name string) part {
		at := slices.IndexFunc(among, func(p part) bool { return p.name == name })
		if at < 0 {
			t.Fatalf("no part %s", name)
		}
		return among[at]
	}
	want := versions{"kube-apiserver": "v1.33.13", "kubeadm": "v1.33.13", "capi-core": "v1.13.6"}
	replaced, err := want.replace(all, "/cache")
	if err != nil {
		t.Fatal(err)
	}
	apiserver, kubeadm := find(replaced, "kube-apiserver-v1.33.13"), find(replaced, "kubeadm-v1.33.13")
	if apiserver.source != kubeadm.source || apiserver.source == find(all, "kube-apiserver").source {
		t.Error("parts of one version are not built together, or are built from the pinned sources")
	}
	if apiserver.check != nil || !slices.Equal(apiserver.files, []string{"kube-apiserver"}) {
		t.Errorf("a kube-apiserver on the machine would replace that version: %+v", apiserver)
	}
	if got := find(replaced, "capi-core-v1.13.6").programs[0].pkg; got != clusterAPI {
		t.Errorf("the core manager of v1.13 is %s", got)
	}
	if got := find(replaced, "kubectl").source; got != find(all, "kubectl").source {
		t.Error("kubectl was not requested in another version")
	}
	for _, name := range []string{"etcd", "fake-kubelet", "envoy", "nothing"} {
		if _, err := (versions{name: "v1.33.13"}).replace(all, "/cache"); err == nil {
			t.Errorf("%s has another version", name)
		}
	}
	for _, text := range []string{"kubeadm", "kubeadm=1.33.13", "kubeadm=v1/../..", "=v1"} {
		if err := (versions{}).Set(text); err == nil {
			t.Errorf("-at %s is accepted", text)
		}
	}
}
