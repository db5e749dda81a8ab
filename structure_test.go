package fairlead_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	docPath = regexp.MustCompile(`\b(?:api|cmd|deploy|docs|internal|pkg|test)/[A-Za-z0-9_./<>-]*[A-Za-z0-9_>]`)
	// docStep is a row of a walkthrough: a file and functions in it.
	docStep = regexp.MustCompile("(?m)^\\| `([^`]+\\.go)` \\| ([^|]+) \\|")
	docCode = regexp.MustCompile("`([^`]+)`")
)

// section returns the text below a heading of the second level, up to the next one.
func section(t *testing.T, path, heading string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(text), "\n## "+heading+"\n")
	if !ok {
		t.Fatalf("%s has no section %q", path, heading)
	}
	rest, _, _ = strings.Cut(rest, "\n## ")
	return rest
}

// TestTheStructureInTheDocumentsExists compares what the documents state about the structure with the tree: each path,
// and each function in its file. What is moved or renamed fails here until the documents follow.
func TestTheStructureInTheDocumentsExists(t *testing.T) {
	paths, functions := 0, 0
	for _, of := range [][2]string{
		{"docs/architecture.md", "Packages"}, {"docs/architecture.md", "Through the code"}, {
			"docs/development.md",
			"Where the next feature goes",
		},
	} {
		text := section(t, of[0], of[1])
		for _, path := range docPath.FindAllString(text, -1) {
			paths++
			path, _, _ = strings.Cut(path, "/<") // cmd/<program>
			if _, err := os.Stat(filepath.FromSlash(path)); err != nil {
				t.Errorf("%s, %q: there is no %s", of[0], of[1], path)
			}
		}
		for _, step := range docStep.FindAllStringSubmatch(text, -1) {
			declared := functionsOf(t, step[1])
			for _, name := range docCode.FindAllStringSubmatch(step[2], -1) {
				if functions++; !declared[name[1]] {
					t.Errorf("%s, %q: %s has no function %s", of[0], of[1], step[1], name[1])
				}
			}
		}
	}
	if paths < 100 || functions < 60 {
		t.Errorf("only %d paths and %d functions were found", paths, functions)
	}
}

// functionsOf are the functions of a file, and its methods as Type.name.
func functionsOf(t *testing.T, path string) map[string]bool {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), filepath.FromSlash(path), nil, parser.SkipObjectResolution)
	if err != nil {
		t.Errorf("reading functions: %v", err)
		return nil
	}
	all := map[string]bool{}
	for _, d := range file.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok {
			continue
		}
		name := f.Name.Name
		if f.Recv != nil {
			name = receiver(f.Recv.List[0].Type) + "." + name
		}
		all[name] = true
	}
	return all
}

// receiver is the name of the type of a method.
func receiver(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.Ident:
		return e.Name
	}
	return ""
}
