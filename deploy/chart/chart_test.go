// Package chart_test renders the chart with Helm, checks the effect of each value, and installs the chart into a real
// kube-apiserver. It writes the manifests that the kustomizations use.
package chart_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/yaml"

	"github.com/fairlead/fairlead/internal/kubetest"
)

const (
	root      = "../.."
	folder    = "fairlead" // the chart
	namespace = "fairlead-system"
)

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	os.Exit(server.Run(m))
}

// served are groups and versions, and a kind, of a management cluster with everything that the chart may need.
var served = []string{
	"cluster.x-k8s.io/v1beta2", "runtime.cluster.x-k8s.io/v1beta2", "cert-manager.io/v1", "monitoring.coreos.com/v1",
	"gateway.networking.k8s.io/v1", "gateway.networking.k8s.io/v1/BackendTLSPolicy",
}

// helm runs Helm with folders of its own, and returns its output and its last lines of standard error.
func helm(ctx context.Context, t *testing.T, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	var out, errs bytes.Buffer
	command := exec.CommandContext(ctx, kubetest.Part(t, "helm"), args...)
	command.Stdout, command.Stderr = &out, &errs
	home := t.TempDir()
	command.Env = append(
		os.Environ(), "HELM_CACHE_HOME="+home, "HELM_CONFIG_HOME="+home, "HELM_DATA_HOME="+home, "KUBECONFIG=/dev/null",
	)
	err = command.Run()
	return out.String(), errs.String(), err
}

// values are settings of the chart as YAML.
type values string

// minimum are the values without which nothing is rendered.
const minimum values = "tunnelDomain: tunnels.example.com"

// write writes values into a file and returns its path.
func (v values) write(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "values.yaml")
	if err := os.WriteFile(file, []byte(v), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// template runs `helm template` with values, each of which replaces the same value of the ones before.
func template(t *testing.T, all ...values) (stdout, stderr string, err error) {
	t.Helper()
	return templateIn(t, namespace, served, all...)
}

// templateIn is template for a namespace of a cluster that serves groups and versions.
func templateIn(t *testing.T, ns string, apis []string, all ...values) (stdout, stderr string, err error) {
	t.Helper()
	args := []string{"template", "fairlead", folder, "--namespace=" + ns}
	for _, version := range apis {
		args = append(args, "--api-versions="+version)
	}
	for _, v := range all {
		args = append(args, "--values="+v.write(t))
	}
	return helm(t.Context(), t, args...)
}

// objects are rendered objects by "Kind/name".
type objects map[string]*object

type object = unstructured.Unstructured

// render returns the objects of the chart with the minimum and further values.
func render(t *testing.T, all ...values) objects {
	t.Helper()
	out, stderr, err := template(t, append([]values{minimum}, all...)...)
	if err != nil {
		t.Fatalf("%v: %s", err, stderr)
	}
	return decode(t, out)
}

// rendered caches the objects of renderOnce.
var rendered = struct {
	sync.Mutex
	of map[values]objects
}{of: map[values]objects{}}

// renderOnce is render for values that several tests need. The caller does not change the objects.
func renderOnce(t *testing.T, v values) objects {
	t.Helper()
	rendered.Lock()
	defer rendered.Unlock()
	if rendered.of[v] == nil {
		rendered.of[v] = render(t, v)
	}
	return rendered.of[v]
}

// decode parses objects, of which no two may have the same kind and name.
func decode(t *testing.T, text string) objects {
	t.Helper()
	list, err := kubetest.Decode([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	all := objects{}
	for _, o := range list {
		key := o.GetKind() + "/" + o.GetName()
		if all[key] != nil {
			t.Fatalf("there are two %s", key)
		}
		all[key] = o
	}
	return all
}

// changed returns the keys of the objects that differ, or that only one side has, sorted.
func changed(before, after objects) []string {
	var keys []string
	for key, o := range after {
		if before[key] == nil || !equal(before[key].Object, o.Object) {
			keys = append(keys, key)
		}
	}
	for key := range before {
		if after[key] == nil {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

func equal(a, b any) bool { return text(a) == text(b) }

// text returns a value as YAML with sorted keys.
func text(value any) string {
	data, err := yaml.Marshal(value)
	if err != nil {
		return fmt.Sprint(err)
	}
	return strings.TrimSpace(string(data))
}

// at returns the value at a path of fields and positions, such as "spec.containers.0.image". A field with dots is in
// brackets: "metadata.labels.[a.b/c]". It is nil if there is none.
func at(value any, path string) any {
	for path != "" && value != nil {
		var field string
		if rest, ok := strings.CutPrefix(path, "["); ok {
			field, path, _ = strings.Cut(rest, "]")
			path = strings.TrimPrefix(path, ".")
		} else {
			field, path, _ = strings.Cut(path, ".")
		}
		switch v := value.(type) {
		case map[string]any:
			value = v[field]
		case []any:
			i, err := strconv.Atoi(field)
			if err != nil || i >= len(v) {
				return nil
			}
			value = v[i]
		case string: // YAML in a text
			var inner any
			if err := yaml.Unmarshal([]byte(v), &inner); err != nil {
				return nil
			}
			value = at(inner, field)
		default:
			return nil
		}
	}
	return value
}
