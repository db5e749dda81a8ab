package v1alpha1_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/internal/golden"
)

// reference is the directory of the documents that are generated from this package.
const reference = "../../docs/reference/"

// constant is a name with its comment.
type constant struct{ name, value, text string }

// constants returns the constants of a file, in order.
func constants(t *testing.T, file string) (all []constant) {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range parsed.Decls {
		block, ok := d.(*ast.GenDecl)
		if !ok || block.Tok != token.CONST {
			continue
		}
		for _, s := range block.Specs {
			spec := s.(*ast.ValueSpec)
			value, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			comment := spec.Doc.Text()
			if comment == "" {
				comment = block.Doc.Text()
			}
			all = append(all, constant{spec.Names[0].Name, value, strings.Join(strings.Fields(comment), " ")})
		}
	}
	return all
}

// description returns the comment without the name that it begins with.
func (c constant) description(t *testing.T) string {
	t.Helper()
	text, ok := strings.CutPrefix(c.text, c.name)
	if !ok {
		t.Errorf("%s has the comment %q, which does not begin with its name", c.name, c.text)
	}
	text = strings.TrimSpace(strings.TrimPrefix(text, ":"))
	if text == "" {
		t.Errorf("%s has no description", c.name)
		return ""
	}
	return strings.ToUpper(text[:1]) + text[1:]
}

// TestReasonsMatchTheCode compares the documented reasons with the code. Run it with -update to rewrite the
// document.
func TestReasonsMatchTheCode(t *testing.T) {
	var b strings.Builder
	b.WriteString("# Conditions, reasons and events\n\n" +
		"<!-- Written by `make update-golden` from the comments in api/v1alpha1: change them there. -->\n\n" +
		"Reasons are part of the API: scripts may rely on them. Messages are for people, and change.\n\n" +
		"`kubectl describe tunnel` and `kubectl describe cluster` show the events. The same event again within minutes is " +
		"counted, not repeated. A new Tunnel gets an event for the first value of a condition only if it is a warning or a " +
		"success.\n")
	for _, c := range constants(t, "conditions.go") {
		switch {
		case strings.HasPrefix(c.name, "Reason"):
			fmt.Fprintf(&b, "| `%s` | %s |\n", c.value, c.description(t))
		case strings.HasPrefix(c.name, "Condition"),
			strings.HasPrefix(c.name, "ClusterCondition"),
			strings.HasPrefix(c.name, "MachineCondition"),
			strings.HasPrefix(c.name, "ServiceCondition"):
			of := "Tunnel"
			if c.name == "ConditionEgressReady" {
				of = "RemoteNetwork"
			}
			for _, kind := range []string{"Cluster", "Machine", "Service"} {
				if strings.HasPrefix(c.name, kind) {
					of = kind
				}
			}
			fmt.Fprintf(&b, "\n## %s of a %s\n\n%s\n\n", c.value, of, c.description(t))
			if of != "Cluster" {
				b.WriteString("| reason | meaning |\n|---|---|\n")
			} else {
				b.WriteString("It has the reasons of the Tunnel's condition `TunnelReady`.\n")
			}
		default:
			t.Errorf("%s is neither a condition nor a reason", c.name)
		}
	}
	b.WriteString(
		"\n## Events\n\nEach change of a condition emits an event with its reason. The events below do not belong to a " +
			"condition:\n\n| reason | meaning |\n|---|---|\n",
	)
	for _, c := range constants(t, "events.go") {
		fmt.Fprintf(&b, "| `%s` | %s |\n", c.value, c.description(t))
	}
	golden.CheckFile(t, reference+"reasons.md", []byte(b.String()))
}

// TestControllersUseDocumentedReasons finds undocumented reasons in the controllers.
func TestControllersUseDocumentedReasons(t *testing.T) {
	files, err := filepath.Glob("../../pkg/controller/*/*.go")
	if err != nil || len(files) < 20 {
		t.Fatal(err, len(files))
	}
	checked := 0
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		set := token.NewFileSet()
		parsed, err := parser.ParseFile(set, file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			var reason ast.Expr
			switch n := n.(type) {
			case *ast.CallExpr:
				if f, ok := n.Fun.(*ast.SelectorExpr); ok && f.Sel.Name == "Eventf" && len(n.Args) > 3 {
					reason = n.Args[3]
				}
			case *ast.CompositeLit:
				if kind, ok := n.Type.(*ast.SelectorExpr); ok && kind.Sel.Name == "Condition" {
					reason = keyed(n, "Reason")
				}
			}
			if reason != nil {
				checked++
				if literal, ok := reason.(*ast.BasicLit); ok {
					t.Errorf("%s: the reason %s has no constant in api/v1alpha1", set.Position(literal.Pos()), literal.Value)
				}
			}
			return true
		})
	}
	if checked < 20 {
		t.Errorf("only %d reasons were found", checked)
	}
}

func keyed(literal *ast.CompositeLit, key string) ast.Expr {
	i := slices.IndexFunc(literal.Elts, func(e ast.Expr) bool {
		pair, ok := e.(*ast.KeyValueExpr)
		if !ok {
			return false
		}
		name, ok := pair.Key.(*ast.Ident)
		return ok && name.Name == key
	})
	if i < 0 {
		return nil
	}
	return literal.Elts[i].(*ast.KeyValueExpr).Value
}
