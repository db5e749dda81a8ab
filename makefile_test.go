package fairlead_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// variables returns the variables of the Makefile that are set in one line.
func variables(t *testing.T) map[string]string {
	t.Helper()
	data, err := os.ReadFile("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^([A-Z]+) *:= *(.*)$`).FindAllStringSubmatch(string(data), -1) {
		all[m[1]] = m[2]
	}
	return all
}

// among reports whether one of the patterns of `go list` matches a package.
func among(patterns, place string) bool {
	return slices.ContainsFunc(strings.Fields(patterns), func(pattern string) bool {
		begin, below := strings.CutSuffix(strings.TrimPrefix(pattern, "./"), "/...")
		return place == begin || below && strings.HasPrefix(place, begin+"/")
	})
}

// ours returns the place of a package in this module.
func ours(importPath string) string {
	if importPath+"/" == modulePath {
		return "."
	}
	return strings.TrimPrefix(importPath, modulePath)
}

// imports reports whether the tests of a package import another package of this module.
func imports(p listed, place string) bool {
	return slices.Contains(slices.Concat(p.TestImports, p.XTestImports), modulePath+place)
}

// TestPackagesRunWithTheirParts checks the lists of the Makefile: in no list, the tests of a package would be skipped
// where a real part is missing, and `make test` would succeed.
func TestPackagesRunWithTheirParts(t *testing.T) {
	lists := variables(t)
	parts := map[string]string{ // a package that starts a part, and the lists that install it
		"internal/kubetest":             lists["SERVED"] + " " + lists["MANAGED"],
		"pkg/controller/controllertest": lists["MANAGED"],
		"internal/envoytest":            lists["ENVOYS"] + " " + lists["PROXIED"],
		"internal/browser":              lists["BROWSED"],
	}
	looked := 0
	for _, p := range packagesAndTests(t) {
		place := ours(p.ImportPath)
		if strings.HasPrefix(place, "test/") {
			continue // these have a target each
		}
		for part, list := range parts {
			if !imports(p, part) {
				continue
			}
			looked++
			if !among(list, place) {
				t.Errorf("%s has tests that need %s, and no list of the Makefile runs it with that", place, part)
			}
		}
	}
	if looked < 20 {
		t.Errorf("only %d packages need a part", looked)
	}
}

// TestUpdateGoldenMissesNoFile checks that one flag rewrites all generated files, and that `make update-golden` runs
// every test that uses it.
func TestUpdateGoldenMissesNoFile(t *testing.T) {
	lists, found := variables(t), 0
	writing := regexp.MustCompile(lists["WRITING"])
	for _, p := range packagesAndTests(t) {
		place := ours(p.ImportPath)
		for _, name := range slices.Concat(p.TestGoFiles, p.XTestGoFiles) {
			data, err := os.ReadFile(filepath.Join(p.Dir, name))
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(string(data), `Bool("`+`update"`) {
				t.Errorf("%s/%s has its own flag to rewrite files: use package golden", place, name)
			}
			for _, test := range rewriting(t, name, data) {
				found++
				if !writing.MatchString(test) {
					t.Errorf("%s: %s rewrites files, and WRITING of the Makefile does not match it", place, test)
				}
				if !among(lists["UNIT"]+" ./test/sight ./test/networks", place) {
					t.Errorf("%s: %s rewrites files, and make update-golden does not run the package", place, test)
				}
			}
		}
	}
	if found < 15 {
		t.Errorf("only %d tests rewrite files", found)
	}
}

// rewriting returns the tests of a file that call package golden or clidoc to compare generated files. Tables that are
// derived from other projects, for which a test calls golden.Updating, are rewritten manually.
func rewriting(t *testing.T, name string, data []byte) (tests []string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), name, data, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range file.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok || !strings.HasPrefix(f.Name.Name, "Test") {
			continue
		}
		calls := false
		ast.Inspect(f, func(n ast.Node) bool {
			call, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			of, _ := call.X.(*ast.Ident)
			calls = calls || of != nil && (of.Name == "golden" && call.Sel.Name == "CheckFile" || of.Name == "clidoc")
			return true
		})
		if calls {
			tests = append(tests, f.Name.Name)
		}
	}
	return tests
}
