package install

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/test/lab/cluster"
)

// transient are the types whose objects come and go by themselves.
var transient = regexp.MustCompile(`^(events|leases|componentstatuses|podmetrics|certificatesigningrequests)\.?`)

// inventory returns all objects of a cluster, as kind namespace/name.
func (w *World) inventory(t *testing.T, c *cluster.Cluster) map[string]bool {
	t.Helper()
	types := strings.Fields(ask(t, c, "api-resources", "--verbs=list", "--output=name"))
	types = slices.DeleteFunc(types, transient.MatchString)
	all := map[string]bool{}
	for line := range strings.Lines(ask(t, c, "get", strings.Join(types, ","), "--all-namespaces",
		"--output=jsonpath={range .items[*]}{.kind} {.metadata.namespace}/{.metadata.name}{\"\\n\"}{end}")) {
		all[strings.TrimSpace(line)] = true
	}
	return all
}

// keepInventory remembers the objects before the installation.
func (w *World) keepInventory(t *testing.T) {
	t.Helper()
	w.before = w.inventory(t, w.management)
}

// added returns the objects that were not there before the installation. Drains have replaced Pods of kube-system.
func (w *World) added(t *testing.T) []string {
	t.Helper()
	now := w.inventory(t, w.management)
	maps.DeleteFunc(now, func(object string, _ bool) bool {
		return w.before[object] || strings.HasPrefix(object, "Pod kube-system/")
	})
	return slices.Sorted(maps.Keys(now))
}

// removalCommands finds the commands in docs/install.md. The first ones end with helm uninstall, which keeps objects.
var removalCommands = regexp.MustCompile(`(?s)` + "```\n" + `(kubectl delete extensionconfig [^` + "`" +
	`]*helm uninstall [^\n]*\n)([^` + "`" + `]*)` + "```")

// proveRemoval compares what helm uninstall keeps with testdata/kept.txt.
func proveRemoval(t *testing.T, w *World) {
	found := removalCommands.FindStringSubmatch(w.document(t, "install.md"))
	if found == nil {
		t.Fatal("docs/install.md has no commands for removal")
	}
	began := time.Now()
	w.run(t, w.management, found[1])
	data, err := os.ReadFile("testdata/kept.txt")
	must(t, err)
	kept := slices.DeleteFunc(strings.Split(strings.TrimSpace(string(data)), "\n"), func(line string) bool {
		return strings.HasPrefix(line, "#")
	})
	w.leaves(t, kept)
	w.run(t, w.management, found[2])
	w.leaves(t, nil)
	measured("removal_s", time.Since(began).Seconds())
}

// leaves waits until exactly some objects are left of the installation.
func (w *World) leaves(t *testing.T, want []string) {
	t.Helper()
	var left []string
	for range 15 { // Kubernetes deletes Pods and dependent objects a while later
		if left = w.added(t); slices.Equal(left, want) {
			return
		}
		time.Sleep(2 * time.Second)
	}
	t.Errorf("these objects are left:\n%s\nwant:\n%s", strings.Join(left, "\n"), strings.Join(want, "\n"))
}
