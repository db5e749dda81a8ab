// Package fairlead_test checks what linters can't: rules that hold for the repository as a whole.
package fairlead_test

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const modulePath = "github.com/fairlead/fairlead/"

// arrows is the direction of data: a package may import of ours what stands behind it, and nothing else. Packages
// below cmd and test may import all.
var arrows = map[string][]string{
	"api/v1alpha1":            nil,
	"deploy/edge":             nil,
	"deploy/monitoring":       nil,
	"internal/browser":        {"internal/eventually"},
	"internal/caller":         {"pkg/model"},
	"internal/cli":            {"api/v1alpha1", "internal/cli/bundle", "internal/cli/ca", "internal/cli/check", "internal/cli/config", "internal/cli/edge", "internal/cli/join", "internal/cli/kubeconfig", "internal/cli/management", "internal/cli/move", "internal/cli/output", "internal/cli/render", "internal/cli/status", "internal/command", "internal/kubelog", "internal/version", "pkg/model"},
	"internal/cli/bundle":     {"internal/cli/management", "internal/cli/output", "internal/command", "internal/redact", "internal/version"},
	"internal/cli/ca":         {"api/v1alpha1", "internal/cli/management", "internal/cli/output", "internal/command"},
	"internal/cli/check":      {"api/v1alpha1", "internal/cli/management", "internal/cli/output", "pkg/diagnose/check", "pkg/diagnose/collect"},
	"internal/cli/config":     {"api/v1alpha1", "internal/cli/management", "internal/cli/output", "internal/command", "pkg/decision", "pkg/diagnose/collect", "pkg/model"},
	"internal/cli/edge":       {"api/v1alpha1", "internal/cli/management", "internal/cli/output", "internal/command", "pkg/diagnose/collect", "pkg/model"},
	"internal/cli/join":       {"api/v1alpha1", "deploy/edge", "internal/cli/management", "internal/cli/output"},
	"internal/cli/kubeconfig": {"api/v1alpha1", "internal/cli/management", "internal/cli/output", "internal/disk", "pkg/kubeconfig"},
	"internal/cli/management": {"api/v1alpha1", "internal/cli/output", "pkg/diagnose/collect"},
	"internal/cli/move":       {"api/v1alpha1", "internal/cli/edge", "internal/cli/join", "internal/cli/kubeconfig", "internal/cli/management", "internal/cli/output", "internal/command"},
	"internal/cli/output":     {"internal/command"},
	"internal/cli/render":     {"internal/cli/output", "pkg/envoy", "pkg/model", "pkg/source"},
	"internal/cli/status":     {"api/v1alpha1", "internal/cli/edge", "internal/cli/management", "internal/cli/output", "pkg/diagnose/collect", "pkg/diagnose/summary", "pkg/kubeconfig"},
	"internal/clidoc":         {"internal/golden"},
	"internal/command":        nil,
	"internal/disk":           nil,
	"internal/ending":         nil,
	"internal/envoytest":      {"internal/eventually", "internal/spawn"},
	"internal/eventually":     nil,
	"internal/freeport":       nil,
	"internal/golden":         nil,
	"internal/heartbeat":      nil,
	"internal/informers":      {"internal/heartbeat"},
	"internal/kubelog":        nil,
	"internal/kubetest":       {"api/v1alpha1", "internal/eventually"},
	"internal/limit":          nil,
	"internal/logging":        nil,
	"internal/metrics":        {"internal/version"},
	"internal/redact":         nil,
	"internal/retry":          nil,
	"internal/spawn":          nil,
	"internal/traces":         {"internal/redact", "internal/version"},
	"internal/tracetest":      nil,
	"internal/version":        nil,
	"pkg/admission":           {"pkg/model"},
	"pkg/agent":               {"internal/disk", "internal/heartbeat", "internal/metrics", "internal/retry", "internal/version", "pkg/agent/edge", "pkg/agent/envoyadmin", "pkg/agent/envoyproc", "pkg/agent/gateway", "pkg/agent/identity", "pkg/agent/status", "pkg/certs", "pkg/dial", "pkg/envoy", "pkg/model", "pkg/report", "pkg/tunnels", "pkg/watchdog", "pkg/xdsproxy"},
	"pkg/agent/edge":          {"internal/disk", "pkg/agent/status", "pkg/certs", "pkg/dial", "pkg/enrol", "pkg/enrol/client", "pkg/envoy", "pkg/envoy/policy", "pkg/model", "pkg/probe", "pkg/report", "pkg/report/v1"},
	"pkg/agent/envoyadmin":    nil,
	"pkg/agent/envoyproc":     {"internal/disk", "internal/retry", "pkg/agent/envoyadmin", "pkg/envoy", "pkg/tunnels"},
	"pkg/agent/gateway":       {"internal/disk", "internal/metrics", "internal/retry", "pkg/admission", "pkg/agent/envoyadmin", "pkg/certs", "pkg/dial", "pkg/enrol/client", "pkg/envoy", "pkg/envoy/policy", "pkg/model", "pkg/report", "pkg/report/v1", "pkg/tunnels", "pkg/xdsproxy"},
	"pkg/agent/identity":      {"internal/disk", "internal/retry", "pkg/certs", "pkg/dial", "pkg/enrol/client", "pkg/envoy", "pkg/model"},
	"pkg/agent/status":        {"internal/version", "pkg/certs", "pkg/model", "pkg/probe", "pkg/report", "pkg/report/v1", "pkg/xdsproxy"},
	"pkg/boot":                {"internal/redact", "internal/retry", "pkg/certs", "pkg/enrol/client", "pkg/report", "pkg/report/v1"},
	"pkg/capi/hooks":          {"api/v1alpha1", "pkg/capi/inject", "pkg/model"},
	"pkg/capi/inject":         {"api/v1alpha1", "deploy/edge", "pkg/model"},
	"pkg/certs":               {"internal/disk", "internal/retry"},
	"pkg/controlchannel":      {"internal/limit", "internal/metrics", "internal/retry", "pkg/certs", "pkg/model"},
	"pkg/controller":          {"api/v1alpha1", "internal/heartbeat", "internal/informers", "internal/metrics", "internal/redact", "internal/traces", "pkg/certs", "pkg/decision", "pkg/dial", "pkg/enrol", "pkg/kubeconfig", "pkg/model", "pkg/report", "pkg/report/v1"},
	"pkg/decision":            {"api/v1alpha1", "pkg/model"},
	"pkg/diagnose/check":      {"api/v1alpha1", "internal/redact", "pkg/diagnose/collect", "pkg/enrol", "pkg/kubeconfig"},
	"pkg/diagnose/collect":    {"api/v1alpha1", "internal/version", "pkg/diagnose/collect/v1", "pkg/model", "pkg/report", "pkg/report/v1"},
	"pkg/diagnose/collect/v1": {"pkg/report/v1"},
	"pkg/diagnose/summary":    {"api/v1alpha1", "pkg/diagnose/collect"},
	"pkg/diagnose/web":        {"api/v1alpha1", "internal/limit", "pkg/diagnose/check", "pkg/diagnose/summary", "pkg/model"},
	"pkg/dial":                {"internal/retry", "pkg/certs", "pkg/model"},
	"pkg/enrol":               {"pkg/model"},
	"pkg/enrol/client":        {"internal/retry", "pkg/certs", "pkg/dial", "pkg/enrol", "pkg/enrol/v1", "pkg/model", "pkg/report/v1"},
	"pkg/enrol/csr":           {"api/v1alpha1", "pkg/certs", "pkg/enrol/server", "pkg/model"},
	"pkg/enrol/server":        {"internal/caller", "internal/limit", "internal/retry", "pkg/certs", "pkg/enrol", "pkg/enrol/v1", "pkg/model", "pkg/report/v1"},
	"pkg/enrol/v1":            {"pkg/report/v1"},
	"pkg/envoy":               {"pkg/model"},
	"pkg/envoy/policy":        {"pkg/envoy", "pkg/model"},
	"pkg/kubeconfig":          {"api/v1alpha1", "pkg/model"},
	"pkg/model":               nil,
	"pkg/probe":               {"pkg/model"},
	"pkg/report":              {"internal/caller", "internal/ending", "internal/limit", "internal/metrics", "internal/retry", "pkg/certs", "pkg/model", "pkg/report/v1", "pkg/tunnels"},
	"pkg/report/v1":           nil,
	"pkg/source":              {"api/v1alpha1", "internal/heartbeat", "internal/informers", "internal/metrics", "pkg/decision", "pkg/enrol", "pkg/model"},
	"pkg/tunnels":             {"internal/disk", "internal/retry", "pkg/model"},
	"pkg/watchdog":            nil,
	"pkg/xds":                 {"internal/caller", "internal/ending", "internal/limit", "internal/metrics", "internal/retry", "internal/traces", "pkg/certs", "pkg/envoy", "pkg/model", "pkg/xds/csds", "pkg/xds/progress"},
	"pkg/xds/csds":            {"pkg/diagnose/collect/v1", "pkg/model"},
	"pkg/xds/progress":        {"internal/traces", "pkg/model", "pkg/xds/csds"},
	"pkg/xdsproxy":            {"internal/disk", "internal/retry"},
}

type listed struct {
	ImportPath string
	Name       string
	Dir        string
	GoFiles    []string
	Imports    []string

	TestGoFiles, XTestGoFiles []string
}

func TestImportsFollowTheArrows(t *testing.T) {
	unseen := maps.Clone(arrows)
	for _, p := range packages(t) {
		place := strings.TrimPrefix(p.ImportPath, modulePath)
		if strings.HasPrefix(place, "cmd/") || strings.HasPrefix(place, "test/") {
			continue
		}
		allowed, known := arrows[place]
		delete(unseen, place)
		if !known {
			t.Errorf("%s: not in the list of arrows: decide what it may import", place)
			continue
		}
		for _, imported := range p.Imports {
			if ours, ok := strings.CutPrefix(imported, modulePath); ok && !slices.Contains(allowed, ours) {
				t.Errorf("%s imports %s, which points against the flow of data", place, ours)
			}
		}
		for _, unused := range allowed {
			if !slices.Contains(p.Imports, modulePath+unused) {
				t.Errorf("%s may import %s and does not: remove the arrow", place, unused)
			}
		}
	}
	for place := range unseen {
		t.Errorf("%s is no package: remove its arrows", place)
	}
}

func TestEveryPackageHasOneDocComment(t *testing.T) {
	for _, p := range packages(t) {
		var documented []string
		for _, name := range p.GoFiles {
			if doc := packageDoc(t, p, name); doc != nil && !isDirective(doc) {
				documented = append(documented, name)
			}
		}
		if len(documented) != 1 && !strings.HasSuffix(p.ImportPath, "/v1") {
			t.Errorf("%s: %d files have a package comment (%v), want one", p.ImportPath, len(documented), documented)
		}
	}
}

// packageDoc returns the package comment of one file; nil: it has none.
func packageDoc(t *testing.T, p listed, name string) *ast.CommentGroup {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, name), nil, parser.PackageClauseOnly|parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	return file.Doc
}

// isDirective says whether a comment is for tools alone.
func isDirective(doc *ast.CommentGroup) bool { return strings.TrimSpace(doc.Text()) == "" }

// claims are the files that may look at which id a Tunnel claims: to decide whose it is, to write it, to compare it or
// to show it. All others act on ids, and see only those that a Tunnel has: (*v1alpha1.Tunnel).HeldID.
var claims = []string{
	"internal/cli/config/why_verdict.go", "internal/cli/move/move.go", "pkg/diagnose/summary/row.go", "pkg/decision/candidate.go", "pkg/decision/prepared.go", "pkg/source/load.go",
	"pkg/controller/bootstrap.go", "pkg/controller/boottoken.go", "pkg/controller/copies.go", "pkg/controller/copieswrite.go", "pkg/controller/decide.go",
	"pkg/controller/index.go", "pkg/controller/live.go", "pkg/controller/prepared.go", "pkg/controller/remove.go", "pkg/controller/request.go", "pkg/controller/tunnel.go",
}

// TestProgramsActOnIDsThatTunnelsHave: spec.id is what the writer of a Tunnel claims. A program that acts on it ends or
// changes what belongs to another Tunnel.
func TestProgramsActOnIDsThatTunnelsHave(t *testing.T) {
	for _, p := range packages(t) {
		place := strings.TrimPrefix(p.ImportPath, modulePath)
		if strings.HasPrefix(place, "api/") || strings.HasPrefix(place, "test/") {
			continue
		}
		for _, name := range p.GoFiles {
			if place+"/"+name == "pkg/source/strip.go" { // which copies spec and status
				continue
			}
			set := token.NewFileSet()
			file, err := parser.ParseFile(set, filepath.Join(p.Dir, name), nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(file, func(n ast.Node) bool {
				selector, ok := n.(*ast.SelectorExpr)
				if !ok {
					return true
				}
				of, _ := selector.X.(*ast.SelectorExpr)
				switch {
				case selector.Sel.Name == "ID" && of != nil && of.Sel.Name == "Spec", selector.Sel.Name == "ID" && of != nil && of.Sel.Name == "Status":
					t.Errorf("%s: use HeldID, the id that the Tunnel has", set.Position(n.Pos()))
				case selector.Sel.Name == "ClaimedID" && !slices.Contains(claims, place+"/"+name):
					t.Errorf("%s: does this act on the id? Then use HeldID; else add the file to the list", set.Position(n.Pos()))
				}
				return true
			})
		}
	}
}

// deciders are the files that may decide which Tunnel gets which name and id: the controller, and what works on objects
// or files without one. An xds-server serves what the controller has recorded.
var deciders = []string{"internal/cli/config/why.go", "pkg/controller/registry.go", "pkg/source/file.go", "pkg/source/load.go"}

func TestOneProgramDecides(t *testing.T) {
	used := 0
	for _, p := range packages(t) {
		place := strings.TrimPrefix(p.ImportPath, modulePath)
		for _, name := range p.GoFiles {
			data, err := os.ReadFile(filepath.Join(p.Dir, name))
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(string(data), "decision.Names") {
				continue
			}
			if used++; !slices.Contains(deciders, place+"/"+name) {
				t.Errorf("%s/%s decides about names: read the decision that the controller has recorded", place, name)
			}
		}
	}
	if used != len(deciders) {
		t.Errorf("%d files decide about names, and %d are listed", used, len(deciders))
	}
}

func TestTheModuleReplacesNothing(t *testing.T) {
	data, err := os.ReadFile("go.mod")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(data), "replace") {
		t.Error("go.mod has a replace directive: nobody could install or import the module")
	}
}

// A package has about packageLines lines. One with more says in its doc comment why it has more than 2,500 lines, and has at
// most packageMost. Tests and generated files do not count.
const (
	packageLines = 2500
	packageMost  = 3000
	packageWhy   = "more than 2,500 lines"
)

// oversized are the packages that are still to be split, with the lines that each may have until then.
var oversized = map[string]int{
	"pkg/controller": 8500,
	"pkg/report":     3450,
}

func TestPackagesStaySmall(t *testing.T) {
	unseen := maps.Clone(oversized)
	for _, p := range packages(t) {
		place, lines := strings.TrimPrefix(p.ImportPath, modulePath), 0
		for _, name := range p.GoFiles {
			if generated(name) {
				continue
			}
			data, err := os.ReadFile(filepath.Join(p.Dir, name))
			if err != nil {
				t.Fatal(err)
			}
			lines += strings.Count(string(data), "\n")
		}
		most, excepted := oversized[place]
		delete(unseen, place)
		switch {
		case excepted && lines <= packageLines:
			t.Errorf("%s has %d lines: remove it from the list of those to be split", place, lines)
		case excepted && lines > most:
			t.Errorf("%s has %d lines, more than %d: it is to be split, and does not grow until then", place, lines, most)
		case !excepted && lines > packageMost:
			t.Errorf("%s has %d lines, more than %d: split it by what its files are about", place, lines, packageMost)
		case !excepted && lines > packageLines && !strings.Contains(docOf(t, p), packageWhy):
			t.Errorf("%s has %d lines: split it, or say in its doc comment why it has %s", place, lines, packageWhy)
		}
	}
	for place := range unseen {
		t.Errorf("%s is no package: remove it from the list of those to be split", place)
	}
}

// docOf is the whole comment of a package, on one line: go list gives its first sentence alone.
func docOf(t *testing.T, p listed) string {
	t.Helper()
	var text strings.Builder
	for _, name := range p.GoFiles {
		text.WriteString(packageDoc(t, p, name).Text()) // of nil: nothing
	}
	return strings.Join(strings.Fields(text.String()), " ")
}

// generated says whether a tool has written a file.
func generated(name string) bool {
	return strings.HasSuffix(name, ".pb.go") || strings.HasPrefix(name, "zz_generated")
}

// TestFunctionsStayShort leaves out tests, whose tables may be long.
func TestFunctionsStayShort(t *testing.T) {
	const limit = 60
	looked := 0
	for _, p := range packages(t) {
		for _, name := range p.GoFiles {
			if generated(name) {
				continue
			}
			set := token.NewFileSet()
			file, err := parser.ParseFile(set, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range file.Decls {
				f, ok := d.(*ast.FuncDecl)
				if !ok || f.Body == nil {
					continue
				}
				looked++
				if lines := set.Position(f.End()).Line - set.Position(f.Pos()).Line + 1; lines > limit {
					t.Errorf("%s: %s has %d lines, more than %d", set.Position(f.Pos()), f.Name.Name, lines, limit)
				}
			}
		}
	}
	if looked < 1000 {
		t.Errorf("only %d functions were looked at", looked)
	}
}

// TestProgramsOutliveThreads keeps out what kills a program when a thread of its parent ends. Envoy asks for that by
// itself unless hot restart is off. Other programs are started by package spawn, whose thread does not end.
func TestProgramsOutliveThreads(t *testing.T) {
	hotRestart, signal := "-base-"+"id", "Pdeath"+"sig:"
	for _, p := range packages(t) {
		for _, name := range slices.Concat(p.GoFiles, p.TestGoFiles, p.XTestGoFiles) {
			data, err := os.ReadFile(filepath.Join(p.Dir, name))
			if err != nil {
				t.Fatal(err)
			}
			text := string(data)
			if strings.Contains(text, hotRestart) {
				t.Errorf("%s/%s starts an Envoy with hot restart: use --disable-hot-restart", p.ImportPath, name)
			}
			if strings.Contains(text, signal) && p.Name != "spawn" && !strings.Contains(text, "spawn.") {
				t.Errorf("%s/%s sets a parent death signal and does not use package spawn", p.ImportPath, name)
			}
		}
	}
}

// packages lists all packages of the module.
func packages(t *testing.T) []listed {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-json=ImportPath,Name,Dir,GoFiles,Imports,TestGoFiles,XTestGoFiles", "./...")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("listing packages: %v", err)
	}
	var all []listed
	for decoder := json.NewDecoder(strings.NewReader(string(out))); decoder.More(); {
		var p listed
		if err := decoder.Decode(&p); err != nil {
			t.Fatal(err)
		}
		if len(p.GoFiles) > 0 {
			all = append(all, p)
		}
	}
	if len(all) < 5 {
		t.Fatalf("only %d packages were listed", len(all))
	}
	return all
}
