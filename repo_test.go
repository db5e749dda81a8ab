// Package fairlead_test checks rules for the whole repository that linters cannot check.
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

// arrows lists the packages of this module that each package may import, in the direction of the data. Packages below
// cmd and test may import all.
var arrows = map[string][]string{
	"api/v1alpha1":       nil,
	"deploy/edge":        nil,
	"deploy/monitoring":  nil,
	"internal/addresses": nil,
	"internal/browser":   {"internal/eventually"},
	"internal/caller":    {"pkg/model"},
	"internal/cli": {
		"api/v1alpha1", "internal/cli/bundle", "internal/cli/ca", "internal/cli/check", "internal/cli/config",
		"internal/cli/edge", "internal/cli/join", "internal/cli/kubeconfig", "internal/cli/management", "internal/cli/move",
		"internal/cli/network", "internal/cli/output", "internal/cli/proxy", "internal/cli/render", "internal/cli/status",
		"internal/cli/test",
		"internal/command", "internal/kubelog", "internal/version", "pkg/model",
	},
	"internal/cli/bundle": {
		"internal/cli/management", "internal/cli/output", "internal/command", "internal/redact", "internal/version",
	},
	"internal/cli/ca": {"api/v1alpha1", "internal/cli/management", "internal/cli/output", "internal/command"},
	"internal/cli/check": {
		"internal/cli/management", "internal/cli/output", "pkg/diagnose/check",
	},
	"internal/cli/config": {
		"api/v1alpha1", "internal/cli/management", "internal/cli/output", "internal/command", "pkg/decision",
		"pkg/diagnose/collect", "pkg/envoy", "pkg/envoy/peers", "pkg/model", "pkg/rollout",
	},
	"internal/cli/edge": {
		"api/v1alpha1", "internal/cli/management", "internal/cli/output", "internal/command", "pkg/diagnose/collect",
		"pkg/model", "pkg/observed",
	},
	"internal/cli/join": {"api/v1alpha1", "deploy/edge", "internal/cli/management", "internal/cli/output"},
	"internal/cli/kubeconfig": {
		"api/v1alpha1", "internal/cli/management", "internal/cli/output", "internal/disk", "pkg/kubeconfig",
	},
	"internal/cli/management": {
		"api/v1alpha1", "internal/cli/output", "internal/retry", "pkg/diagnose/check", "pkg/diagnose/collect", "pkg/model",
	},
	"internal/cli/move": {
		"api/v1alpha1", "internal/cli/join", "internal/cli/kubeconfig", "internal/cli/management", "internal/cli/output",
		"internal/command", "pkg/observed",
	},
	"internal/cli/network": {
		"api/v1alpha1", "internal/cli/join", "internal/cli/management", "internal/cli/output", "internal/command",
		"pkg/capi/egress", "pkg/envoy", "pkg/model",
	},
	"internal/cli/output": {"internal/command"},
	"internal/cli/proxy": {
		"api/v1alpha1", "internal/cli/kubeconfig", "internal/cli/management", "internal/cli/output", "internal/command",
		"internal/portforward", "internal/retry", "pkg/diagnose/collect",
	},
	"internal/cli/render": {
		"internal/cli/output", "pkg/capi/egress", "pkg/envoy", "pkg/model", "pkg/rollout", "pkg/source",
	},
	"internal/cli/status": {
		"api/v1alpha1", "internal/cli/edge", "internal/cli/management", "internal/cli/output", "pkg/diagnose/collect",
		"pkg/diagnose/summary", "pkg/kubeconfig", "pkg/observed",
	},
	"internal/cli/test": {
		"api/v1alpha1", "internal/cli/bundle", "internal/cli/check", "internal/cli/kubeconfig", "internal/cli/management",
		"internal/cli/output", "internal/cli/proxy", "internal/command", "internal/disk", "pkg/agent/edge", "pkg/certs",
		"pkg/diagnose/check", "pkg/diagnose/collect", "pkg/diagnose/explain", "pkg/diagnose/preflight",
		"pkg/diagnose/traffic", "pkg/dial", "pkg/model", "pkg/observed",
	},
	"internal/clidoc":      {"internal/golden"},
	"internal/command":     {"internal/version"},
	"internal/conntest":    nil,
	"internal/disk":        nil,
	"internal/ending":      nil,
	"internal/envoytest":   {"internal/eventually", "internal/spawn"},
	"internal/eventually":  nil,
	"internal/freeport":    {"pkg/model"},
	"internal/golden":      nil,
	"internal/heartbeat":   nil,
	"internal/informers":   {"internal/heartbeat"},
	"internal/jwttest":     nil,
	"internal/kubelog":     nil,
	"internal/kubetest":    {"api/v1alpha1", "internal/eventually", "internal/freeport"},
	"internal/limit":       nil,
	"internal/logging":     nil,
	"internal/logtest":     nil,
	"internal/memory":      nil,
	"internal/metrics":     {"internal/version"},
	"internal/portforward": nil,
	"internal/printable":   nil,
	"internal/redact":      nil,
	"internal/reporttest":  {"internal/eventually", "internal/freeport", "pkg/certs", "pkg/model", "pkg/report/v1"},
	"internal/retry":       nil,
	"internal/spawn":       nil,
	"internal/traces":      {"internal/redact", "internal/version"},
	"internal/tracetest":   nil,
	"internal/version":     nil,
	"pkg/admission":        {"pkg/model"},
	"pkg/assignment":       {"pkg/model"},
	"pkg/agent": {
		"internal/addresses", "internal/disk", "internal/heartbeat", "internal/memory", "internal/metrics",
		"internal/retry", "internal/version", "pkg/agent/edge", "pkg/agent/envoyadmin", "pkg/agent/envoyproc",
		"pkg/agent/gateway",
		"pkg/agent/identity", "pkg/agent/status",
		"pkg/certs", "pkg/dial", "pkg/envoy", "pkg/envoy/outcomes", "pkg/envoy/overload", "pkg/model", "pkg/report",
		"pkg/report/agent", "pkg/tunnels", "pkg/watchdog", "pkg/xdsproxy",
	},
	"pkg/agent/edge": {
		"internal/disk", "internal/retry", "pkg/agent/status", "pkg/agent/trips", "pkg/certs", "pkg/dial", "pkg/enrol",
		"pkg/enrol/client", "pkg/envoy", "pkg/envoy/lane", "pkg/envoy/network", "pkg/envoy/policy", "pkg/model", "pkg/probe",
		"pkg/report/agent", "pkg/report/v1",
	},
	"pkg/agent/envoyadmin": nil,
	"pkg/agent/envoyproc":  {"internal/disk", "internal/retry", "pkg/agent/envoyadmin", "pkg/envoy", "pkg/sockets"},
	"pkg/agent/gateway": {
		"internal/disk", "internal/metrics", "internal/retry", "pkg/admission", "pkg/agent/envoyadmin", "pkg/agent/trips",
		"pkg/certs", "pkg/assignment", "pkg/dial", "pkg/enrol/client", "pkg/envoy", "pkg/envoy/nearest",
		"pkg/envoy/outcomes", "pkg/envoy/peers", "pkg/envoy/policy", "pkg/envoy/record", "pkg/model",
		"pkg/report/agent", "pkg/report/v1", "pkg/sockets", "pkg/tunnels", "pkg/xdsproxy",
	},
	"pkg/agent/trips": {"internal/disk", "pkg/dial", "pkg/model"},
	"pkg/agent/identity": {
		"internal/disk", "internal/retry", "pkg/certs", "pkg/dial", "pkg/enrol/client", "pkg/envoy/sds", "pkg/model",
	},
	"pkg/agent/status": {
		"internal/version", "pkg/certs", "pkg/model", "pkg/probe", "pkg/report/agent", "pkg/report/v1", "pkg/xdsproxy",
	},
	"pkg/boot": {
		"internal/addresses", "internal/redact", "internal/retry", "pkg/certs", "pkg/enrol/client", "pkg/report",
		"pkg/report/v1",
	},
	"pkg/capi/egress":    {"api/v1alpha1"},
	"pkg/capi/hooks":     {"api/v1alpha1", "pkg/capi/inject", "pkg/model"},
	"pkg/capi/inject":    {"api/v1alpha1", "deploy/edge", "pkg/model"},
	"pkg/certs":          {"internal/disk", "internal/retry"},
	"pkg/controlchannel": {"internal/limit", "internal/metrics", "internal/retry", "pkg/certs", "pkg/model"},
	"pkg/controller": {
		"api/v1alpha1", "internal/informers", "pkg/controller/boot", "pkg/controller/ca", "pkg/controller/config",
		"pkg/controller/copies", "pkg/controller/issuers", "pkg/controller/kubeconfigs", "pkg/controller/metrics",
		"pkg/controller/network", "pkg/controller/objects", "pkg/controller/publicservice", "pkg/controller/reconciler",
		"pkg/controller/records", "pkg/controller/signer", "pkg/controller/status", "pkg/controller/tunnel",
		"pkg/controller/waves", "pkg/controller/webhook", "pkg/kubeconfig", "pkg/model", "pkg/report/view", "pkg/rollout",
	},
	"pkg/controller/boot": {
		"api/v1alpha1", "internal/redact", "pkg/controller/condition", "pkg/controller/config", "pkg/controller/objects",
		"pkg/controller/reconciler", "pkg/report", "pkg/report/v1", "pkg/report/view",
	},
	"pkg/controller/ca": {
		"api/v1alpha1", "pkg/certs", "pkg/controller/condition", "pkg/controller/config", "pkg/controller/objects",
		"pkg/controller/reconciler", "pkg/controller/records", "pkg/enrol", "pkg/model",
	},
	"pkg/controller/condition": {"api/v1alpha1", "pkg/controller/objects"},
	"pkg/controller/config":    {"pkg/kubeconfig", "pkg/model", "pkg/rollout"},
	"pkg/controller/controllertest": {
		"api/v1alpha1", "internal/kubetest", "internal/traces", "internal/tracetest", "pkg/certs", "pkg/controller/config",
		"pkg/controller/objects", "pkg/controller/reconciler", "pkg/enrol", "pkg/kubeconfig", "pkg/model", "pkg/report/v1",
		"pkg/report/view",
	},
	"pkg/controller/copies": {
		"api/v1alpha1", "pkg/certs", "pkg/controller/condition", "pkg/controller/objects", "pkg/controller/reconciler",
		"pkg/controller/records", "pkg/kubeconfig",
	},
	"pkg/controller/issuers": {
		"api/v1alpha1", "internal/retry", "pkg/controller/condition", "pkg/controller/objects", "pkg/controller/reconciler",
		"pkg/decision", "pkg/enrol/podtoken", "pkg/kubeconfig",
	},
	"pkg/controller/kubeconfigs": {
		"api/v1alpha1", "pkg/controller/condition", "pkg/controller/config", "pkg/controller/objects",
		"pkg/controller/reconciler", "pkg/controller/records", "pkg/kubeconfig", "pkg/model",
	},
	"pkg/controller/metrics": {
		"api/v1alpha1", "internal/metrics", "internal/traces", "pkg/controller/config", "pkg/controller/objects",
		"pkg/controller/reconciler", "pkg/kubeconfig", "pkg/model",
	},
	"pkg/controller/network": {
		"api/v1alpha1", "pkg/controller/condition", "pkg/controller/objects", "pkg/controller/reconciler",
		"pkg/controller/tunnel", "pkg/decision", "pkg/model",
	},
	"pkg/controller/objects": {"api/v1alpha1", "pkg/decision", "pkg/kubeconfig", "pkg/model"},
	"pkg/controller/publicservice": {
		"api/v1alpha1", "internal/retry", "pkg/controller/condition", "pkg/controller/reconciler",
	},
	"pkg/controller/reconciler": {
		"api/v1alpha1", "internal/heartbeat", "internal/retry", "internal/traces", "pkg/controller/condition",
		"pkg/controller/config", "pkg/controller/objects",
	},
	"pkg/controller/records": {
		"api/v1alpha1", "pkg/certs", "pkg/controller/config", "pkg/controller/objects", "pkg/model",
	},
	"pkg/controller/signer": {
		"api/v1alpha1", "internal/traces", "pkg/certs", "pkg/controller/ca", "pkg/controller/condition",
		"pkg/controller/config", "pkg/controller/objects", "pkg/controller/reconciler", "pkg/controller/records",
		"pkg/decision", "pkg/model",
	},
	"pkg/controller/status": {
		"api/v1alpha1", "pkg/certs", "pkg/controller/ca", "pkg/controller/condition", "pkg/controller/config",
		"pkg/controller/objects", "pkg/controller/reconciler", "pkg/controller/records", "pkg/decision", "pkg/dial",
		"pkg/model", "pkg/observed", "pkg/report/v1", "pkg/report/view",
	},
	"pkg/controller/tunnel": {
		"api/v1alpha1", "deploy/edge", "pkg/controller/ca", "pkg/controller/condition", "pkg/controller/config",
		"pkg/controller/objects", "pkg/controller/reconciler", "pkg/controller/records", "pkg/decision", "pkg/enrol",
		"pkg/kubeconfig", "pkg/model",
	},
	"pkg/controller/waves": {"api/v1alpha1", "internal/metrics", "internal/retry", "pkg/report/view", "pkg/rollout"},
	"pkg/controller/webhook": {
		"api/v1alpha1", "internal/traces", "pkg/certs", "pkg/controller/config", "pkg/controller/objects",
		"pkg/controller/reconciler", "pkg/kubeconfig",
	},
	"pkg/decision":             {"api/v1alpha1", "pkg/enrol/podtoken", "pkg/model"},
	"pkg/deltaxds":             nil,
	"pkg/deltaxds/conformance": nil,
	"pkg/diagnose/addresses":   nil,
	"pkg/diagnose/check": {
		"api/v1alpha1", "pkg/diagnose/addresses", "pkg/diagnose/collect", "pkg/diagnose/credentials",
		"pkg/diagnose/explain", "pkg/diagnose/networks", "pkg/diagnose/writers", "pkg/enrol", "pkg/envoy",
		"pkg/envoy/peers", "pkg/kubeconfig", "pkg/observed",
	},
	"pkg/diagnose/collect": {
		"internal/portforward", "internal/printable", "internal/retry", "internal/version", "pkg/diagnose/collect/v1",
		"pkg/model", "pkg/observed", "pkg/report/hub", "pkg/report/v1",
	},
	"pkg/diagnose/collect/v1":  {"pkg/report/v1"},
	"pkg/diagnose/credentials": nil,
	"pkg/diagnose/explain":     {"api/v1alpha1", "internal/redact", "pkg/model"},
	"pkg/diagnose/networks":    {"api/v1alpha1", "internal/redact", "pkg/model", "pkg/observed"},
	"pkg/diagnose/preflight": {
		"pkg/certs", "pkg/diagnose/check", "pkg/diagnose/explain", "pkg/dial", "pkg/model",
	},
	"pkg/diagnose/summary": {"api/v1alpha1", "pkg/diagnose/collect", "pkg/model", "pkg/observed"},
	"pkg/diagnose/traffic": {
		"internal/portforward", "internal/retry", "pkg/diagnose/check", "pkg/diagnose/explain",
	},
	"pkg/diagnose/web": {
		"api/v1alpha1", "internal/limit", "pkg/diagnose/check", "pkg/diagnose/summary", "pkg/model",
	},
	"pkg/diagnose/writers": nil,
	"pkg/dial":             {"internal/retry", "pkg/certs", "pkg/model"},
	"pkg/enrol":            {"pkg/model"},
	"pkg/enrol/client": {
		"internal/retry", "pkg/certs", "pkg/dial", "pkg/enrol", "pkg/enrol/v1", "pkg/model", "pkg/report/v1",
	},
	"pkg/enrol/csr":      {"api/v1alpha1", "pkg/certs", "pkg/enrol/server", "pkg/model"},
	"pkg/enrol/podtoken": {"pkg/model"},
	"pkg/enrol/server": {
		"internal/caller", "internal/limit", "internal/retry", "pkg/certs", "pkg/enrol", "pkg/enrol/podtoken",
		"pkg/enrol/v1", "pkg/model", "pkg/report/v1",
	},
	"pkg/enrol/v1": {"pkg/report/v1"},
	"pkg/envoy": {
		"pkg/assignment", "pkg/envoy/accesslog", "pkg/envoy/denylist", "pkg/envoy/front", "pkg/envoy/health",
		"pkg/envoy/lane", "pkg/envoy/multiplex", "pkg/envoy/nearest", "pkg/envoy/network", "pkg/envoy/overload",
		"pkg/envoy/peers", "pkg/envoy/record", "pkg/envoy/sds", "pkg/envoy/typed", "pkg/model",
	},
	"pkg/envoy/accesslog":  {"pkg/envoy/typed", "pkg/model"},
	"pkg/envoy/denylist":   {"pkg/model"},
	"pkg/envoy/health":     {"pkg/envoy/typed"},
	"pkg/envoy/lane":       {"pkg/envoy/typed", "pkg/model"},
	"pkg/envoy/multiplex":  {"pkg/envoy/typed"},
	"pkg/envoy/network":    {"pkg/envoy/accesslog", "pkg/envoy/typed", "pkg/model"},
	"pkg/envoy/outcomes":   {"pkg/envoy/typed"},
	"pkg/envoy/overload":   {"pkg/envoy/typed"},
	"pkg/envoy/front":      {"pkg/envoy/typed"},
	"pkg/envoy/nearest":    {"pkg/envoy/typed"},
	"pkg/envoy/peers":      {"pkg/envoy/nearest", "pkg/envoy/typed", "pkg/model"},
	"pkg/envoy/record":     {"pkg/envoy/accesslog", "pkg/envoy/typed"},
	"pkg/envoy/policy":     {"pkg/envoy", "pkg/envoy/network", "pkg/envoy/sds", "pkg/model"},
	"pkg/envoy/references": nil,
	"pkg/envoy/sds":        {"pkg/model"},
	"pkg/envoy/typed":      nil,
	"pkg/kubeconfig":       {"api/v1alpha1", "pkg/model"},
	"pkg/model":            nil,
	"pkg/observed":         {"api/v1alpha1", "pkg/model", "pkg/report/v1"},
	"pkg/probe":            {"internal/printable", "pkg/model"},
	"pkg/report": {
		"internal/addresses", "internal/printable", "internal/retry", "pkg/certs", "pkg/model", "pkg/report/v1",
	},
	"pkg/report/agent": {
		"internal/printable", "internal/retry", "pkg/model", "pkg/report", "pkg/report/v1", "pkg/tunnels",
	},
	"pkg/report/hub": {
		"internal/caller", "internal/ending", "internal/limit", "internal/metrics", "internal/printable", "internal/retry",
		"pkg/certs", "pkg/model", "pkg/observed", "pkg/report", "pkg/report/v1",
	},
	"pkg/report/v1":   nil,
	"pkg/report/view": {"internal/retry", "pkg/report", "pkg/report/v1"},
	"pkg/rollout":     {"pkg/model"},
	"pkg/sockets":     nil,
	"pkg/source": {
		"api/v1alpha1", "internal/heartbeat", "internal/informers", "internal/metrics", "pkg/decision", "pkg/enrol",
		"pkg/enrol/podtoken", "pkg/model", "pkg/rollout",
	},
	"pkg/tunnels": {
		"internal/disk", "internal/retry", "pkg/model", "pkg/sockets", "pkg/tunnels/history", "pkg/tunnels/ledger",
		"pkg/tunnels/logfile",
	},
	"pkg/tunnels/history": nil,
	"pkg/tunnels/ledger":  {"pkg/sockets"},
	"pkg/tunnels/logfile": nil,
	"pkg/watchdog":        nil,
	"pkg/xds": {
		"internal/caller", "internal/ending", "internal/limit", "internal/metrics", "internal/printable", "internal/retry",
		"internal/traces", "pkg/certs", "pkg/deltaxds", "pkg/envoy", "pkg/envoy/references", "pkg/model", "pkg/report/v1",
		"pkg/rollout", "pkg/xds/csds", "pkg/xds/feed", "pkg/xds/progress",
	},
	"pkg/xds/csds":       {"internal/printable", "pkg/diagnose/collect/v1", "pkg/model"},
	"pkg/xds/feed":       {"pkg/deltaxds", "pkg/xds/csds", "pkg/xds/progress"},
	"pkg/xds/progress":   {"internal/traces", "pkg/model", "pkg/xds/csds"},
	"pkg/xdsproxy":       {"internal/disk", "internal/retry", "pkg/xdsproxy/relay"},
	"pkg/xdsproxy/relay": nil,
}

type listed struct {
	ImportPath string
	Name       string
	Dir        string
	GoFiles    []string
	Imports    []string

	TestGoFiles, XTestGoFiles []string
	TestImports, XTestImports []string
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

// packageDoc returns the package comment of one file, or nil.
func packageDoc(t *testing.T, p listed, name string) *ast.CommentGroup {
	t.Helper()
	file, err := parser.ParseFile(
		token.NewFileSet(), filepath.Join(p.Dir, name), nil, parser.PackageClauseOnly|parser.ParseComments,
	)
	if err != nil {
		t.Fatal(err)
	}
	return file.Doc
}

// isDirective reports whether a comment contains only directives for tools.
func isDirective(doc *ast.CommentGroup) bool { return strings.TrimSpace(doc.Text()) == "" }

// claims are the files that may read the id that a Tunnel claims: to decide about it, to write it, to compare it or to
// show it. All others act on ids, and read only the id that a Tunnel holds: (*v1alpha1.Tunnel).HeldID.
var claims = []string{
	"internal/cli/config/why_verdict.go", "internal/cli/move/move.go", "pkg/diagnose/summary/row.go",
	"pkg/decision/candidate.go", "pkg/decision/network.go", "pkg/decision/prepared.go", "pkg/source/load.go",
	"pkg/controller/copies/copies.go", "pkg/controller/copies/write.go", "pkg/controller/network/network.go",
	"pkg/controller/objects/decide.go",
	"pkg/controller/reconciler/index.go", "pkg/controller/records/records.go", "pkg/controller/signer/request.go",
	"pkg/controller/status/live.go",
	"pkg/controller/tunnel/bootstrap.go", "pkg/controller/tunnel/prepared.go", "pkg/controller/tunnel/remove.go",
	"pkg/controller/tunnel/reporttoken.go",
	"pkg/controller/tunnel/tunnel.go",
}

// TestProgramsActOnHeldIDs checks uses of spec.id, which is only the claim of the Tunnel's author. A program
// that acts on a claim could end or change another Tunnel.
func TestProgramsActOnHeldIDs(t *testing.T) {
	unused := slices.Clone(claims)
	for _, p := range packages(t) {
		place := strings.TrimPrefix(p.ImportPath, modulePath)
		if strings.HasPrefix(place, "api/") || strings.HasPrefix(place, "test/") {
			continue
		}
		for _, name := range p.GoFiles {
			if place+"/"+name == "pkg/source/strip.go" { // copies spec and status
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
				case selector.Sel.Name == "ID" && of != nil && of.Sel.Name == "Spec",
					selector.Sel.Name == "ID" && of != nil && of.Sel.Name == "Status":
					t.Errorf("%s: use HeldID, the id that the Tunnel has", set.Position(n.Pos()))
				case selector.Sel.Name == "ClaimedID" && !slices.Contains(claims, place+"/"+name):
					t.Errorf("%s: does this act on the id? Then use HeldID; else add the file to the list", set.Position(n.Pos()))
				case selector.Sel.Name == "ClaimedID":
					unused = slices.DeleteFunc(unused, func(file string) bool { return file == place+"/"+name })
				}
				return true
			})
		}
	}
	for _, file := range unused {
		t.Errorf("%s does not read the claimed id: remove it from the list", file)
	}
}

// deciders are the files that may decide which Tunnel gets which name and id: the controller, and programs that work on
// objects or files without a controller. An xds-server serves what the controller has recorded.
var deciders = []string{
	"internal/cli/config/why.go",
	"pkg/controller/tunnel/names.go",
	"pkg/source/file.go",
	"pkg/source/load.go",
}

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

func TestTheModuleHasNoReplaceDirective(t *testing.T) {
	data, err := os.ReadFile("go.mod")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(data), "replace") {
		t.Error("go.mod has a replace directive: the module could not be installed or imported")
	}
}

// A package has about packageLines lines. A package with more lines has the text packageWhy and the reason in its doc
// comment, and at most packageMost lines. Tests and generated files do not count.
const (
	packageLines = 2500
	packageMost  = 3000
	packageWhy   = "more than 2,500 lines"
)

func TestPackagesStaySmall(t *testing.T) {
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
		switch {
		case lines > packageMost:
			t.Errorf("%s has %d lines, more than %d: split it by what its files are about", place, lines, packageMost)
		case lines > packageLines && !strings.Contains(docOf(t, p), packageWhy):
			t.Errorf("%s has %d lines: split it, or state in its doc comment why it has %s", place, lines, packageWhy)
		}
	}
}

// docOf returns the complete comment of a package on one line. go list would return only its first sentence.
func docOf(t *testing.T, p listed) string {
	t.Helper()
	var text strings.Builder
	for _, name := range p.GoFiles {
		text.WriteString(packageDoc(t, p, name).Text()) // Text of nil is empty
	}
	return strings.Join(strings.Fields(text.String()), " ")
}

// generated reports whether a tool has written a file.
func generated(name string) bool {
	return strings.HasSuffix(name, ".pb.go") || strings.HasPrefix(name, "zz_generated")
}

// TestFunctionsStayShort skips tests, whose tables may be long.
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

// TestProgramsOutliveThreads rejects options that kill a program when a thread of its parent ends. Envoy sets such an
// option itself unless hot restart is off. Other programs are started by package spawn, whose thread never ends.
func TestProgramsOutliveThreads(t *testing.T) {
	hotRestart, signal := "-base-"+"id", "Pdeath"+"sig:"
	for _, p := range packagesAndTests(t) {
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

// packages lists the packages of the module that have code besides tests.
func packages(t *testing.T) []listed {
	t.Helper()
	return slices.DeleteFunc(packagesAndTests(t), func(p listed) bool { return len(p.GoFiles) == 0 })
}

// packagesAndTests lists all packages of the module, also the ones that have only tests.
func packagesAndTests(t *testing.T) []listed {
	t.Helper()
	cmd := exec.CommandContext(
		t.Context(), "go", "list",
		"-json=ImportPath,Name,Dir,GoFiles,Imports,TestGoFiles,XTestGoFiles,TestImports,XTestImports", "./...",
	)
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
		all = append(all, p)
	}
	if len(all) < 5 {
		t.Fatalf("only %d packages were listed", len(all))
	}
	return all
}
