package chart_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/kubetest"
)

// pack makes a package of the chart, as `make chart` does, and returns its path.
func pack(t *testing.T, version, registry string) string {
	t.Helper()
	kubetest.Part(t, "helm")
	dir := t.TempDir()
	out, err := exec.CommandContext(
		t.Context(), root+"/tools/chart/package.sh", version, registry, dir,
	).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return filepath.Join(dir, "fairlead-"+strings.TrimPrefix(version, "v")+".tgz")
}

func TestThePackageIsReproducible(t *testing.T) {
	if out, stderr, err := helm(t.Context(), t, "lint", "--strict", folder, "--values="+minimum.write(t),
		"--set=checkAPIs=false"); err != nil {
		t.Errorf("helm lint: %v: %s%s", err, out, stderr)
	}
	var packages []string
	for range 2 {
		data, err := os.ReadFile(pack(t, "1.2.3", ""))
		if err != nil {
			t.Fatal(err)
		}
		packages = append(packages, string(data))
		if err := os.Chtimes(folder+"/Chart.yaml", time.Now(), time.Now()); err != nil { // as in another clone
			t.Fatal(err)
		}
	}
	if packages[0] != packages[1] {
		t.Error("two packages differ")
	}
}

// TestTheChartComesFromARegistry pushes the package to a registry on loopback, and renders the chart from there with
// nothing but the one required value. Its images come from the same registry, with the tag that `make images` gives
// them: a release has a v before its number, and `make images` rejects a version without it.
func TestTheChartComesFromARegistry(t *testing.T) {
	address := registry(t)
	for _, arguments := range [][2]string{{"v1.2.3", "http://" + address}, {"1.2.4", address}} {
		number := strings.TrimPrefix(arguments[0], "v")
		file := pack(t, arguments[0], arguments[1])
		if out, stderr, err := helm(t.Context(), t, "push", file, "oci://"+address+"/charts", "--plain-http"); err != nil {
			t.Fatalf("%v: %s%s", err, out, stderr)
		}
		out, stderr, err := helm(
			t.Context(), t, "template", "fairlead", "oci://"+address+"/charts/fairlead", "--version="+number, "--plain-http",
			"--namespace="+namespace, "--set=tunnelDomain=tunnels.example.com", "--api-versions=cluster.x-k8s.io/v1beta2",
		)
		if err != nil {
			t.Fatalf("%v: %s", err, stderr)
		}
		image := at(decode(t, out)[gateway].Object, container+"image")
		if want := address + "/fairlead-gateway:v" + number; image != want {
			t.Errorf("the image of the gateways is %v, want %s", image, want)
		}
	}
}

var listens = regexp.MustCompile(`serving on port (\d+)`)

// registry starts an OCI registry on loopback for one test, and returns its host:port.
func registry(t *testing.T) string {
	t.Helper()
	command := exec.CommandContext(t.Context(), kubetest.Part(t, "registry"), "-port=0")
	stderr, err := command.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = command.Process.Kill() // it may have ended with the context
		_ = command.Wait()
	})
	port, err := portOf(stderr)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("localhost:%s", port)
}

// portOf reads the log of the registry until it has its port, and discards the rest in the background.
func portOf(log io.Reader) (string, error) {
	lines := bufio.NewReader(log)
	var all strings.Builder
	for {
		line, err := lines.ReadString('\n')
		all.WriteString(line)
		if match := listens.FindStringSubmatch(line); match != nil {
			go func() { _, _ = io.Copy(io.Discard, lines) }() // ends with the process
			return match[1], nil
		}
		if err != nil {
			return "", errors.Join(fmt.Errorf("the registry does not start: %s", all.String()), err)
		}
	}
}

// helmCommand matches a documented command with the chart of the registry.
var helmCommand = regexp.MustCompile(`(?m)^helm .* oci://registry\.example\.com/fairlead/charts/fairlead .*\\\n.*$`)

// testDocumentedCommands runs the commands of the README and of docs/install.md with a registry on loopback.
func testDocumentedCommands(t *testing.T) {
	address := registry(t)
	file := pack(t, "v0.1.0", "http://"+address)
	if out, stderr, err := helm(t.Context(), t, "push", file, "oci://"+address+"/charts", "--plain-http"); err != nil {
		t.Fatalf("%v: %s%s", err, out, stderr)
	}
	connection := "--kubeconfig=" + kubeconfig(t, server.Config(t))
	folder := t.TempDir()
	var commands []string
	for _, page := range []string{"README.md", "docs/install.md"} {
		data, err := os.ReadFile(filepath.Join(root, page))
		if err != nil {
			t.Fatal(err)
		}
		found := helmCommand.FindAllString(string(data), -1)
		if len(found) == 0 {
			t.Errorf("%s has no command", page)
		}
		commands = append(commands, found...)
		if all := valuesOf(t, string(data)); len(all) > 0 {
			if err := os.WriteFile(filepath.Join(folder, "fairlead-values.yaml"), []byte(all[0]), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	for i, command := range commands {
		if slices.Contains(commands[:i], command) {
			continue
		}
		command = strings.Replace(
			command, "oci://registry.example.com/fairlead/charts/fairlead", "oci://"+address+"/charts/fairlead --plain-http", 1,
		)
		// The server has no types of the Prometheus Operator.
		command += " --set=metrics.operator=false " + connection
		run := exec.CommandContext(t.Context(), "bash", "-c", command)
		run.Dir = folder
		path := filepath.Dir(kubetest.Part(t, "helm")) + ":" + os.Getenv("PATH")
		run.Env = append(os.Environ(), "PATH="+path, "HELM_CACHE_HOME="+folder)
		if out, err := run.CombinedOutput(); err != nil || !strings.Contains(string(out), "gateway.tunnels.example.com") {
			t.Fatalf("%s\n%v: %s", command, err, out)
		}
	}
	if _, stderr, err := helm(
		t.Context(), t, "uninstall", "fairlead", connection, "--namespace="+namespace,
	); err != nil {
		t.Fatalf("%v: %s", err, stderr)
	}
}
