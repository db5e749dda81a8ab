package fairlead_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/constant"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/internal/golden"
	"github.com/fairlead/fairlead/internal/metrics"
)

// Where the strings that scripts depend on are defined. Fields of JSON are found in arguments of a struct named view in
// the packages of the command line, and in the tagged structs of the page.
const (
	reasonsPlace = "api/v1alpha1"
	pagePlace    = "pkg/diagnose/web"
	errorType    = modulePath + "internal/command.Error"
)

// commandPlaces are the packages of the fairlead command.
var commandPlaces = []string{"internal/cli/..."}

// commandOf maps the function that makes a view to the command that prints it.
var commandOf = map[string]string{
	"connectivityView": "fairlead test connectivity",
	"preflightView":    preflightTitle,
	"rotationView":     "fairlead ca status",
	"run":              "fairlead check CLUSTER",
	"throughView":      "fairlead test through",
	"fleetReport":      "fairlead check --all",
	"dumpView":         "fairlead config dump",
	"syncView":         "fairlead config sync",
	"view":             "fairlead config why",
	"edgesView":        "fairlead edge list",
	"networksView":     "fairlead network list",
	"fleetTable":       "fairlead status",
	"clusterPage":      "fairlead status CLUSTER",
	"versionCommand":   "fairlead version",
}

// valuesFrom maps fields of commands to the packages with the constants that they may have. Without an entry, that is
// the package of the type.
var valuesFrom = map[string]map[string][]string{
	"fairlead test connectivity": {
		"clusters[].first":      {"internal/cli/test", "pkg/diagnose/check", "pkg/diagnose/traffic"},
		"clusters[].tests[].id": {"internal/cli/test", "pkg/diagnose/traffic"},
	},
	preflightTitle: {"tests[].id": {"pkg/diagnose/preflight"}},
}

// preflightTitle names two commands with the same output.
const preflightTitle = "fairlead test preflight` and `fairlead test edge-preflight"

// TestAPIListMatchesTheCode compares the list of all strings and numbers that scripts depend on with the code. A
// change of that list is a change of the API. Run it with -update to rewrite the list.
func TestAPIListMatchesTheCode(t *testing.T) {
	l := &apiList{t: t, packages: load(t)}
	l.line("# API of names\n\n<!-- Written by `make update-golden` from the code: change it there. -->\n\n" +
		"For authors of scripts, alerts and dashboards: every name that Fairlead keeps stable. A release that renames or " +
		"removes one\nsays so in its notes. Texts of messages are not in this list, and change.\n\n" +
		"[Reasons](reasons.md), [fields of objects](fields.md) and [metrics](../metrics.md) have pages that explain them. " +
		"The flags\n" +
		"are on the page of each program: [fairlead](fairlead.md), [controller](controller.md), " +
		"[xds-server](xds-server.md),\n" +
		"[gateway-agent](gateway-agent.md), [edge-agent](edge-agent.md), [runtime-extension](runtime-extension.md).")
	l.reasons()
	l.metrics()
	l.exitCodes()
	l.commands()
	l.page()
	golden.CheckFile(t, "docs/reference/api.md", []byte(l.text.String()))
}

// apiList is the document while it is written.
type apiList struct {
	t        *testing.T
	packages []*typed
	text     strings.Builder
}

// typed is a package of this module with its types.
type typed struct {
	PkgPath   string
	Fset      *token.FileSet
	Syntax    []*ast.File
	Types     *types.Package
	TypesInfo *types.Info
}

// load type-checks the packages that define the API. Their imports come from the compiler's export data.
func load(t *testing.T) (all []*typed) {
	t.Helper()
	args := []string{
		"list",
		"-export",
		"-deps",
		"-json=ImportPath,Dir,GoFiles,Export,DepOnly",
		"./" + reasonsPlace,
		"./" + pagePlace,
	}
	for _, place := range commandPlaces {
		args = append(args, "./"+place)
	}
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("listing packages: %v", err)
	}
	exports, ours := map[string]string{}, []compiled{}
	for decoder := json.NewDecoder(strings.NewReader(string(out))); decoder.More(); {
		var p compiled
		if err := decoder.Decode(&p); err != nil {
			t.Fatal(err)
		}
		if exports[p.ImportPath] = p.Export; !p.DepOnly {
			ours = append(ours, p)
		}
	}
	set := token.NewFileSet()
	from := importer.ForCompiler(set, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
	for _, p := range ours {
		all = append(all, p.check(t, set, from))
	}
	return all
}

// compiled is the output of go list for a package.
type compiled struct {
	ImportPath, Dir, Export string
	GoFiles                 []string
	DepOnly                 bool
}

// check type-checks a package.
func (p compiled) check(t *testing.T, set *token.FileSet, from types.Importer) *typed {
	t.Helper()
	all := &typed{PkgPath: p.ImportPath, Fset: set, TypesInfo: &types.Info{
		Types: map[ast.Expr]types.TypeAndValue{}, Uses: map[*ast.Ident]types.Object{}, Defs: map[*ast.Ident]types.Object{},
	}}
	for _, name := range p.GoFiles {
		file, err := parser.ParseFile(set, filepath.Join(p.Dir, name), nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		all.Syntax = append(all.Syntax, file)
	}
	config := types.Config{Importer: from}
	var err error
	if all.Types, err = config.Check(p.ImportPath, set, all.Syntax, all.TypesInfo); err != nil {
		t.Fatal(err)
	}
	return all
}

func (l *apiList) line(format string, args ...any) {
	if len(args) > 0 {
		format = fmt.Sprintf(format, args...)
	}
	l.text.WriteString(format + "\n")
}

// in returns the packages at some places. It fails the test if there is none.
func (l *apiList) in(places ...string) (found []*typed) {
	l.t.Helper()
	for _, p := range l.packages {
		at := strings.TrimPrefix(p.PkgPath, modulePath)
		if slices.ContainsFunc(places, func(place string) bool {
			below, all := strings.CutSuffix(place, "/...")
			return at == below || all && strings.HasPrefix(at, below+"/")
		}) {
			found = append(found, p)
		}
	}
	if len(found) == 0 {
		l.t.Fatalf("there is no package at %q", places)
	}
	return found
}

// constantsOf returns the constants of a package with one of the prefixes, by name.
func constantsOf(p *typed, prefixes ...string) (all []*types.Const) {
	for _, name := range p.Types.Scope().Names() {
		c, ok := p.Types.Scope().Lookup(name).(*types.Const)
		if ok && slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(name, prefix) }) {
			all = append(all, c)
		}
	}
	return all
}

// reasons lists the types and reasons of conditions, and the reasons of events.
func (l *apiList) reasons() {
	p := l.in(reasonsPlace)[0]
	for _, kind := range []struct {
		title    string
		prefixes []string
	}{
		{"Types of conditions", []string{"Condition", "ClusterCondition", "MachineCondition", "ServiceCondition"}},
		{"Reasons of conditions", []string{"Reason"}},
		{"Reasons of events that are about no condition", []string{"Event"}},
	} {
		var values []string
		for _, c := range constantsOf(p, kind.prefixes...) {
			values = append(values, "`"+constant.StringVal(c.Val())+"`")
		}
		slices.Sort(values)
		values = slices.Compact(values)
		if len(values) < 3 {
			l.t.Errorf("%s: found only %q", kind.title, values)
		}
		l.line("\n## %s\n", kind.title)
		for _, value := range values {
			l.line("- %s", value)
		}
	}
}

// metrics lists the names, types and labels of all of Fairlead's metrics.
func (l *apiList) metrics() {
	l.line("\n## Metrics\n\n| name | type | labels |\n|---|---|---|")
	all := metrics.All()
	slices.SortFunc(all, func(a, b metrics.Metric) int { return cmp.Compare(a.Name, b.Name) })
	for _, m := range all {
		l.line("| `%s` | %s | %s |", m.Name, m.Kind, strings.Join(m.Labels, ", "))
	}
}

// exitCodes lists the exit codes of commands, with the comments of their constants. Errors without a code get 1 in
// internal/command, and success is 0.
func (l *apiList) exitCodes() {
	codes := map[string][]string{}
	for _, p := range l.in(commandPlaces...) {
		for _, file := range p.Syntax {
			ast.Inspect(file, func(n ast.Node) bool {
				literal, ok := n.(*ast.CompositeLit)
				if !ok || p.TypesInfo.TypeOf(literal).String() != errorType {
					return true
				}
				code := identOf(keyed(literal, "Code"))
				if code == nil {
					l.t.Errorf("%s: the exit code is no constant with a comment", p.Fset.Position(literal.Pos()))
					return true
				}
				c, ok := p.TypesInfo.Uses[code].(*types.Const)
				if !ok {
					l.t.Errorf("%s: the exit code is no constant with a comment", p.Fset.Position(literal.Pos()))
					return true
				}
				codes[c.Val().String()] = append(codes[c.Val().String()], commentOf(l.in(commandPlaces...), c))
				return true
			})
		}
	}
	if len(codes) < 2 {
		l.t.Errorf("found only the exit codes %v", codes)
	}
	l.line(
		"\n## Exit codes of fairlead\n\nEvery other program ends with 0, or with 1 after an error.\n\n| code | meaning " +
			"|\n|---|---|",
	)
	l.line("| 0 | the command has succeeded |")
	for _, code := range slices.Sorted(maps.Keys(codes)) {
		slices.Sort(codes[code])
		l.line("| %s | %s |", code, strings.Join(slices.Compact(codes[code]), "; "))
	}
	l.line("| other | the exit code of COMMAND in `fairlead proxy CLUSTER -- COMMAND` and " +
		"`fairlead test through -- COMMAND` |")
}

// keyed returns the value of a key in a literal, or nil.
func keyed(literal *ast.CompositeLit, key string) ast.Expr {
	for _, e := range literal.Elts {
		if pair, ok := e.(*ast.KeyValueExpr); ok {
			if name, ok := pair.Key.(*ast.Ident); ok && name.Name == key {
				return pair.Value
			}
		}
	}
	return nil
}

// identOf returns the identifier of an expression, without the name of its package, or nil if it is anything else.
func identOf(e ast.Expr) *ast.Ident {
	if selector, ok := e.(*ast.SelectorExpr); ok {
		return selector.Sel
	}
	name, _ := e.(*ast.Ident)
	return name
}

// commentOf returns the comment beside the definition of a constant.
func commentOf(all []*typed, of types.Object) (comment string) {
	for _, p := range all {
		for _, file := range p.Syntax {
			ast.Inspect(file, func(n ast.Node) bool {
				spec, ok := n.(*ast.ValueSpec)
				if ok && slices.ContainsFunc(spec.Names, func(name *ast.Ident) bool { return name.Pos() == of.Pos() }) {
					comment = strings.TrimSpace(spec.Doc.Text() + spec.Comment.Text())
				}
				return true
			})
		}
	}
	return comment
}

// commands lists the fields that each command prints with -o json and -o yaml.
func (l *apiList) commands() {
	l.line(
		"\n## JSON of the commands\n\nEvery command that takes `-o` prints these fields with `-o json`, and the same with " +
			"`-o yaml`. A field with `?` is left\nout where it is empty. `[]` is a list, `{}` an object with any names.",
	)
	sections := map[string][]string{}
	for _, p := range l.in(commandPlaces...) {
		for _, file := range p.Syntax {
			for _, d := range file.Decls {
				f, ok := d.(*ast.FuncDecl)
				if !ok {
					continue
				}
				ast.Inspect(f, func(n ast.Node) bool {
					literal, ok := n.(*ast.CompositeLit)
					if !ok || !isView(p.TypesInfo.TypeOf(literal)) || keyed(literal, "Data") == nil {
						return true
					}
					title, known := commandOf[f.Name.Name]
					if !known {
						l.t.Errorf("%s: say in commandOf which command prints this", p.Fset.Position(literal.Pos()))
					}
					if sections[title] != nil {
						l.t.Errorf("%s: commandOf gives the name %q to two views", p.Fset.Position(literal.Pos()), title)
					}
					sections[title] = l.withValues(p, title, fieldsOfExpr(p, keyed(literal, "Data")))
					if len(sections[title]) == 0 {
						l.t.Errorf("%s: no fields were found", p.Fset.Position(literal.Pos()))
					}
					return true
				})
			}
		}
	}
	for function, title := range commandOf {
		if sections[title] == nil {
			l.t.Errorf("commandOf has the function %s, which makes no view", function)
		}
	}
	for _, title := range slices.Sorted(maps.Keys(sections)) {
		l.section("`"+title+"`", sections[title])
	}
}

// withValues replaces the values of the fields in valuesFrom. p is the package of the command.
func (l *apiList) withValues(p *typed, title string, fields []string) []string {
	const idType = modulePath + "pkg/diagnose/check.ID"
	for i, field := range fields {
		path := strings.Split(field, "`")[1]
		places := valuesFrom[title][path]
		if places == nil {
			if strings.HasSuffix(path, "tests[].id") {
				l.t.Errorf("say in valuesFrom which packages have the values of %s of %s", path, title)
			}
			continue
		}
		var all []string
		for _, place := range places {
			from := append(slices.Clip(p.Types.Imports()), p.Types)
			at := slices.IndexFunc(from, func(one *types.Package) bool { return one.Path() == modulePath+place })
			if at < 0 {
				l.t.Errorf("valuesFrom: %s does not import %s", p.PkgPath, place)
				continue
			}
			found := stringsOf(from[at].Scope(), func(of types.Type) bool { return types.TypeString(of, nil) == idType })
			if len(found) == 0 {
				l.t.Errorf("valuesFrom: %s has no constant of type %s", place, idType)
			}
			all = append(all, found...)
		}
		head, _, _ := strings.Cut(field, ": ")
		fields[i] = head + valueList(all)
	}
	return fields
}

// isView reports whether a type is the struct that commands print.
func isView(of types.Type) bool {
	named, ok := of.(*types.Named)
	return ok && strings.EqualFold(named.Obj().Name(), "view") && strings.HasPrefix(named.Obj().Pkg().Path(), modulePath)
}

// page lists the names of columns, and the fields that the status page receives.
func (l *apiList) page() {
	p := l.in(pagePlace)[0]
	l.line("\n## JSON of the status page\n\nThe table's rows are arrays in the order of these columns:\n")
	columns := 0
	for _, file := range p.Syntax {
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok || spec.Names[0].Name != "columns" || len(spec.Values) != 1 {
				return true
			}
			for _, e := range spec.Values[0].(*ast.CompositeLit).Elts {
				l.line("- `%s`", constant.StringVal(p.TypesInfo.Types[e].Value))
				columns++
			}
			return true
		})
	}
	if columns < 3 {
		l.t.Errorf("found %d columns of the page", columns)
	}
	found := 0
	for _, name := range p.Types.Scope().Names() {
		object, ok := p.Types.Scope().Lookup(name).(*types.TypeName)
		if !ok {
			continue
		}
		if fields := fieldsOf(object.Type()); tagged(object.Type()) {
			l.section(name, fields)
			found++
		}
	}
	if found < 3 {
		l.t.Errorf("found %d documents of the page", found)
	}
}

func (l *apiList) section(title string, fields []string) {
	l.line("\n### %s\n", title)
	for _, field := range fields {
		l.line("- %s", field)
	}
}

// tagged reports whether a type is a struct with JSON names.
func tagged(of types.Type) bool {
	s, ok := of.Underlying().(*types.Struct)
	for i := 0; ok && i < s.NumFields(); i++ {
		if reflect.StructTag(s.Tag(i)).Get("json") != "" {
			return true
		}
	}
	return false
}

// fieldsOfExpr returns the fields of the value that an expression is encoded as. The keys of a map literal are fields.
func fieldsOfExpr(p *typed, e ast.Expr) []string {
	literal, ok := e.(*ast.CompositeLit)
	if _, isMap := p.TypesInfo.TypeOf(e).Underlying().(*types.Map); !ok || !isMap {
		return fieldsOf(p.TypesInfo.TypeOf(e))
	}
	of := map[string]types.Type{}
	for _, element := range literal.Elts {
		pair := element.(*ast.KeyValueExpr)
		of[constant.StringVal(p.TypesInfo.Types[pair.Key].Value)] = p.TypesInfo.TypeOf(pair.Value)
	}
	w := walk{}
	for _, key := range slices.Sorted(maps.Keys(of)) {
		w.value(key, "", of[key])
	}
	return w.fields
}

// fieldsOf returns the paths of all fields in the JSON of a type, with their kinds.
func fieldsOf(of types.Type) []string {
	w := walk{}
	w.inside("", of)
	return w.fields
}

// walk traverses a type like encoding/json.
type walk struct {
	fields []string
	above  []types.Type // structs that contain the current type, which may contain itself
}

// value adds a field and its content.
func (w *walk) value(path, optional string, of types.Type) {
	if kind := scalar(of); kind != "" {
		w.fields = append(w.fields, fmt.Sprintf("`%s`%s %s", path, optional, kind))
		return
	}
	switch under := deref(of).Underlying().(type) {
	case *types.Slice:
		w.value(path+"[]", optional, under.Elem())
	case *types.Array:
		w.value(path+"[]", optional, under.Elem())
	case *types.Map:
		w.value(path+"{}", optional, under.Elem())
	default:
		w.fields = append(w.fields, fmt.Sprintf("`%s`%s object", path, optional))
		w.inside(path, of)
	}
}

// inside adds the fields of a struct.
func (w *walk) inside(path string, of types.Type) {
	of = deref(of)
	s, ok := of.Underlying().(*types.Struct)
	if !ok || slices.ContainsFunc(w.above, func(above types.Type) bool { return types.Identical(above, of) }) {
		return
	}
	w.above = append(w.above, of)
	defer func() { w.above = w.above[:len(w.above)-1] }()
	for i := range s.NumFields() {
		field := s.Field(i)
		name, flags, _ := strings.Cut(reflect.StructTag(s.Tag(i)).Get("json"), ",")
		switch {
		case name == "-" || !field.Exported() && !field.Embedded():
			continue
		case field.Embedded() && name == "":
			w.inside(path, field.Type())
			continue
		}
		optional := ""
		if strings.Contains(flags, "omit") {
			optional = "?"
		}
		w.value(strings.TrimPrefix(path+"."+cmp.Or(name, field.Name()), "."), optional, field.Type())
	}
}

// scalar returns the kind of a JSON value, or an empty string for objects and lists. For a type with constants it lists
// these.
func scalar(of types.Type) string {
	of = deref(of)
	switch types.TypeString(of, nil) {
	case "time.Time", "k8s.io/apimachinery/pkg/apis/meta/v1.Time":
		return "time"
	case "encoding/json.RawMessage":
		return "any value"
	case "[]byte":
		return "base64"
	}
	switch under := of.Underlying().(type) {
	case *types.Basic:
		return basic(under) + values(of)
	case *types.Interface:
		return "any value"
	}
	return ""
}

func basic(b *types.Basic) string {
	switch info := b.Info(); {
	case info&types.IsString != 0:
		return "string"
	case info&types.IsBoolean != 0:
		return "boolean"
	case info&types.IsInteger != 0:
		return "integer"
	}
	return "number"
}

// values lists the constants of a string type.
func values(of types.Type) string {
	named, ok := of.(*types.Named)
	if !ok || basic(of.Underlying().(*types.Basic)) != "string" {
		return ""
	}
	return valueList(stringsOf(named.Obj().Pkg().Scope(), func(c types.Type) bool { return types.Identical(c, of) }))
}

// stringsOf returns the values of the string constants of a scope whose types are selected.
func stringsOf(scope *types.Scope, selected func(types.Type) bool) (all []string) {
	for _, name := range scope.Names() {
		if c, ok := scope.Lookup(name).(*types.Const); ok && selected(c.Type()) && c.Val().Kind() == constant.String {
			all = append(all, constant.StringVal(c.Val()))
		}
	}
	return all
}

// valueList returns values for the end of a field; empty: there are none.
func valueList(all []string) string {
	if len(all) == 0 {
		return ""
	}
	quoted := make([]string, len(all))
	for i, value := range all {
		quoted[i] = "`" + value + "`"
	}
	slices.Sort(quoted)
	return ": " + strings.Join(slices.Compact(quoted), ", ")
}

func deref(of types.Type) types.Type {
	of = types.Unalias(of)
	if pointer, ok := of.(*types.Pointer); ok {
		return types.Unalias(pointer.Elem())
	}
	return of
}
