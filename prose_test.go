package fairlead_test

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"
)

// maxColumns is the longest line of Go code and of a document's prose. A tab counts as one column.
const maxColumns = 120

// The patterns that the counters of comments and documents find.
var (
	proseWord = regexp.MustCompile(`[A-Za-z][A-Za-z'-]*`)
	// prosePerson finds words that personify programs and values.
	prosePerson = regexp.MustCompile(`(?i)\b(who|whom|whoever|nobody|somebody)\b`)
	// proseIdiom finds inverted and elliptic constructions.
	proseIdiom = regexp.MustCompile(`(?i)\b(those|and whose|anybody|everybody|whatsoever|of which|in which|by which|` +
		`to which|for want of|as far as|no more)\b`)
	proseGenerated = regexp.MustCompile(`(?m)^// Code generated .* DO NOT EDIT\.?$`)
	proseURL       = regexp.MustCompile(`https?://`)
)

// proseLimits are the highest rates, in hits per 1,000 words.
var proseLimits = map[string]struct {
	find                *regexp.Regexp
	comments, documents float64 // zero: no limit
}{
	"person": {find: prosePerson, comments: 0.5, documents: 1.0},
	"idiom":  {find: proseIdiom, comments: 1.5},
}

// A proseHit is one finding in a file.
type proseHit struct {
	line int
	kind string // a key of proseLimits, or "wide"
	text string
}

// A proseFile holds what the counters found in one file.
type proseFile struct {
	path  string
	words int
	hits  []proseHit
}

// count returns the number of hits of a kind.
func (f *proseFile) count(kind string) (n int) {
	for _, h := range f.hits {
		if h.kind == kind {
			n++
		}
	}
	return n
}

// add counts the words of the lines and records the hits in them. The first of the lines has the number line. A phrase
// that a line break divides is found, on the line where it begins.
func (f *proseFile) add(line int, lines []string) {
	var starts []int // offsets in text at which the lines begin
	var text strings.Builder
	for _, l := range lines {
		starts = append(starts, text.Len())
		text.WriteString(strings.TrimSpace(l) + " ")
	}
	s := text.String()
	f.words += len(proseWord.FindAllString(s, -1))
	for kind, limit := range proseLimits {
		for _, at := range limit.find.FindAllStringIndex(s, -1) {
			n, found := slices.BinarySearch(starts, at[0])
			if !found {
				n--
			}
			excerpt := strings.ToValidUTF8(s[max(0, at[0]-40):min(len(s), at[1]+40)], "")
			f.hits = append(f.hits, proseHit{line + n, kind, "..." + strings.TrimSpace(excerpt) + "..."})
		}
	}
}

// wide records a line that is longer than maxColumns.
func (f *proseFile) wide(line int, text string) {
	if n := utf8.RuneCountInString(text); n > maxColumns {
		f.hits = append(f.hits, proseHit{line, "wide", fmt.Sprintf("%d columns", n)})
	}
}

// proseOfGo counts the comments and the wide lines of a Go file. It returns nil for a generated file.
func proseOfGo(path string, source []byte) (*proseFile, error) {
	if proseGenerated.Match(source) {
		return nil, nil
	}
	set := token.NewFileSet()
	parsed, err := parser.ParseFile(set, path, source, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	file := &proseFile{path: path}
	fixed := fixedLines(path, set, parsed)
	for n, line := range strings.Split(string(source), "\n") {
		// A marker of controller-gen and a directive of the compiler cannot be broken.
		if trimmed := strings.TrimSpace(line); !fixed[n+1] && !strings.HasPrefix(trimmed, "// +") &&
			!strings.HasPrefix(trimmed, "//go:") && !proseURL.MatchString(line) {
			file.wide(n+1, line)
		}
	}
	for _, group := range parsed.Comments {
		var lines []string
		for _, comment := range group.List {
			text := strings.TrimSuffix(strings.TrimPrefix(comment.Text, "/*"), "*/")
			lines = append(lines, strings.Split(strings.TrimPrefix(text, "//"), "\n")...)
		}
		file.add(set.Position(group.Pos()).Line, lines)
	}
	return file, nil
}

// promisesOfGo counts the names of a test file: the words in the names of its tests, the names of subtests and checks,
// and the keys of tables. It returns nil for other files.
func promisesOfGo(path string, source []byte) (*proseFile, error) {
	if !strings.HasSuffix(path, "_test.go") {
		return nil, nil
	}
	set := token.NewFileSet()
	parsed, err := parser.ParseFile(set, path, source, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	file := &proseFile{path: path}
	add := func(at token.Pos, text string) { file.add(set.Position(at).Line, []string{text}) }
	ast.Inspect(parsed, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			if name, isTest := strings.CutPrefix(n.Name.Name, "Test"); isTest {
				add(n.Pos(), wordOfName.ReplaceAllString(name, " $0"))
			}
		case *ast.CallExpr:
			if len(n.Args) > 1 && isCheck(n.Fun) {
				for _, arg := range n.Args[:2] {
					add(arg.Pos(), literals(arg))
				}
			}
		case *ast.KeyValueExpr:
			add(n.Pos(), literals(n.Key))
		}
		return true
	})
	return file, nil
}

// wordOfName matches the beginning of a word in the name of a test.
var wordOfName = regexp.MustCompile(`[A-Z][a-z]+|[A-Z]+`)

// isCheck reports whether a function runs a subtest or a check, with a name as its first or second argument.
func isCheck(function ast.Expr) bool {
	name := ""
	switch f := function.(type) {
	case *ast.Ident:
		name = f.Name
	case *ast.SelectorExpr:
		name = f.Sel.Name
	}
	return slices.Contains([]string{"Run", "That", "that", "attack"}, name)
}

// literals returns the string literals in an expression that is built with +. It returns "" for other expressions.
func literals(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.BinaryExpr:
		return literals(e.X) + " " + literals(e.Y)
	case *ast.BasicLit:
		if text, err := strconv.Unquote(e.Value); e.Kind == token.STRING && err == nil {
			return text
		}
	}
	return ""
}

// fixedLines returns the lines that cannot be broken: paths of imports and, in a test, raw strings such as JSON or a
// script, whose bytes matter.
func fixedLines(path string, set *token.FileSet, file *ast.File) map[int]bool {
	fixed := map[int]bool{}
	for _, spec := range file.Imports {
		fixed[set.Position(spec.Path.Pos()).Line] = true
	}
	if !strings.HasSuffix(path, "_test.go") {
		return fixed
	}
	ast.Inspect(file, func(n ast.Node) bool {
		if text, ok := n.(*ast.BasicLit); ok && strings.HasPrefix(text.Value, "`") {
			for line := set.Position(text.Pos()).Line; line <= set.Position(text.End()).Line; line++ {
				fixed[line] = true
			}
		}
		return true
	})
	return fixed
}

// proseOfMarkdown counts the prose of a document: its text without code blocks. Rows of tables and lines with a URL may
// be wide.
func proseOfMarkdown(path string, source []byte) *proseFile {
	file := &proseFile{path: path}
	code, begin := false, 0
	var paragraph []string
	flush := func() {
		file.add(begin, paragraph)
		paragraph = nil
	}
	for n, line := range strings.Split(string(source), "\n") {
		trimmed := strings.TrimSpace(line)
		fence := strings.HasPrefix(trimmed, "```")
		if fence || code || trimmed == "" {
			flush()
			code = code != fence
			continue
		}
		if len(paragraph) == 0 {
			begin = n + 1
		}
		paragraph = append(paragraph, line)
		if !strings.HasPrefix(trimmed, "|") && !proseURL.MatchString(line) {
			file.wide(n+1, line)
		}
	}
	flush()
	return file
}

func TestTheCountersFindPersonsIdiomsAndWideLines(t *testing.T) {
	long := strings.Repeat("x", maxColumns+1)
	for name, c := range map[string]struct {
		source string // of a Go file that begins with "package p", or of a document
		want   []string
		words  int
	}{
		"comments alone count": {
			source: "package p\n\n// Who asks nobody.\nvar who = \"whom\" // those\n",
			want:   []string{"3 person", "3 person", "4 idiom"}, words: 4,
		},
		"a phrase over two lines of a comment": {
			source: "package p\n\n// A list, the first\n// of\n// which is empty.\nvar a int\n",
			want:   []string{"4 idiom"}, words: 8,
		},
		"a phrase in a block comment": {
			source: "package p\n\n/*\nThe key by\nwhich it is found.\n*/\nvar a int\n",
			want:   []string{"4 idiom"}, words: 7,
		},
		"parts of words do not count":  {source: "package p\n\n// Whole wholesale.\nvar a int\n", words: 2},
		"generated files do not count": {source: "// Code generated by x. DO NOT EDIT.\npackage p // who\n"},
		"a wide line of Go":            {source: "package p\n\nvar a = \"" + long + "\"\n", want: []string{"3 wide"}},
		"a document": {
			source: "# Whom\n\nA text of\nwhich `nobody` reads a part.\n",
			want:   []string{"1 person", "3 idiom", "4 person"}, words: 9,
		},
		"a code block of a document":        {source: "```sh\nwho " + long + "\n```\nwords\n", words: 1},
		"a wide line of prose":              {source: "one two\n\n" + long + "\n", want: []string{"3 wide"}, words: 3},
		"wide rows and URLs":                {source: "| " + long + " |\n\n[a](https://b) " + long, words: 5},
		"a phrase over two lines of a list": {source: "- as far\n  as\n- no\n", want: []string{"1 idiom"}, words: 4},
	} {
		t.Run(name, func(t *testing.T) {
			file := proseOfMarkdown("d.md", []byte(c.source))
			if strings.Contains(c.source, "package p") {
				var err error
				if file, err = proseOfGo("p.go", []byte(c.source)); err != nil {
					t.Fatal(err)
				}
			}
			if file == nil {
				file = &proseFile{}
			}
			var got []string
			for _, h := range file.hits {
				got = append(got, fmt.Sprint(h.line, " ", h.kind))
			}
			slices.Sort(got)
			if !slices.Equal(got, c.want) {
				t.Errorf("hits: got %v, want %v", got, c.want)
			}
			if file.words != c.words {
				t.Errorf("got %d words, want %d", file.words, c.words)
			}
		})
	}
}

func TestTheCounterFindsPersonsInPromises(t *testing.T) {
	const source = "package p\n\nfunc TestNobodyWaits(t *testing.T) {\n\tt.Run(\"who\", nil)\n" +
		"\tthat(t, \"a client \"+\n\t\t\"whom it rejects\", nil)\n\tprint(map[string]int{\"somebody\": 1})\n" +
		"\tt.Log(\"nobody\") // who\n}\n"
	file, err := promisesOfGo("p_test.go", []byte(source))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, h := range file.hits {
		got = append(got, fmt.Sprint(h.line, " ", h.kind))
	}
	if want := []string{"3 person", "4 person", "5 person", "7 person"}; !slices.Equal(got, want) {
		t.Errorf("hits: got %v, want %v", got, want)
	}
	if file, err := promisesOfGo("p.go", []byte(source)); file != nil || err != nil {
		t.Errorf("a file without tests: %v, %v", file, err)
	}
}

// proseFiles reads all files of the repository that have the extension and that the counters check, by path.
func proseFiles(t *testing.T, extension string) map[string][]byte {
	t.Helper()
	all := map[string][]byte{}
	err := filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && slices.Contains([]string{".git", "bin", "docs/reference"}, path):
			return fs.SkipDir
		case entry.IsDir() || filepath.Ext(path) != extension:
			return nil
		case extension == ".md" && path != "README.md" && !strings.HasPrefix(path, "docs/"):
			return nil
		}
		all[path], err = os.ReadFile(path)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestCommentsAreInPlainEnglish(t *testing.T) {
	var files []*proseFile
	for path, source := range proseFiles(t, ".go") {
		file, err := proseOfGo(path, source)
		if err != nil {
			t.Fatal(err)
		}
		if file != nil {
			files = append(files, file)
		}
	}
	rates := map[string]float64{}
	for kind, limit := range proseLimits {
		rates[kind] = limit.comments
	}
	checkProse(t, files, 100_000, rates)
}

func TestPromisesAreInPlainEnglish(t *testing.T) {
	var files []*proseFile
	for path, source := range proseFiles(t, ".go") {
		file, err := promisesOfGo(path, source)
		if err != nil {
			t.Fatal(err)
		}
		if file != nil {
			files = append(files, file)
		}
	}
	checkProse(t, files, 20_000, map[string]float64{"person": 0.2, "idiom": 0.5})
}

func TestDocumentsAreInPlainEnglish(t *testing.T) {
	var files []*proseFile
	for path, source := range proseFiles(t, ".md") {
		files = append(files, proseOfMarkdown(path, source))
	}
	rates := map[string]float64{}
	for kind, limit := range proseLimits {
		if limit.documents > 0 {
			rates[kind] = limit.documents
		}
	}
	checkProse(t, files, 20_000, rates)
}

// checkProse fails the test for each kind whose rate exceeds its limit, and for wide lines. It prints every hit,
// beginning with the files that have most of them. It also fails if the files have fewer words than least, because then
// not all files were read.
func checkProse(t *testing.T, files []*proseFile, least int, limits map[string]float64) {
	t.Helper()
	words := 0
	for _, f := range files {
		words += f.words
	}
	if words < least {
		t.Errorf("the files have only %d words, fewer than %d", words, least)
	}
	for kind, limit := range limits {
		n := 0
		for _, f := range files {
			n += f.count(kind)
		}
		rate := 1000 * float64(n) / float64(max(words, 1))
		t.Logf("%s: %d hits in %d words, %.2f per 1,000, at most %.1f", kind, n, words, rate, limit)
		if rate > limit {
			t.Errorf("%s: %.2f hits per 1,000 words, more than %.1f\n%s", kind, rate, limit, worst(files, kind))
		}
	}
	if list := worst(files, "wide"); list != "" {
		t.Errorf("lines are wider than %d columns\n%s", maxColumns, list)
	}
}

// worst lists the number of hits of a kind in each file, and every hit. The files with most hits come first.
func worst(files []*proseFile, kind string) string {
	files = slices.Clone(files)
	slices.SortFunc(files, func(a, b *proseFile) int {
		if n := b.count(kind) - a.count(kind); n != 0 {
			return n
		}
		return strings.Compare(a.path, b.path)
	})
	var out strings.Builder
	for _, f := range files {
		if n := f.count(kind); n > 0 {
			fmt.Fprintf(&out, "%s: %d\n", f.path, n)
		}
		for _, h := range f.hits {
			if h.kind == kind {
				fmt.Fprintf(&out, "\t%s:%d: %s\n", f.path, h.line, h.text)
			}
		}
	}
	return out.String()
}

// replacements maps words that are not terms of the field to the terms to use instead. No function, method or type may
// have one of these words as its name.
var replacements = map[string]string{
	"bury":        "close, discard or remove",
	"dares":       "the condition that is checked, as in canRetry",
	"darkCluster": "unreachableCluster",
	"dress":       "style",
	"giveBack":    "restore",
	"lookAt":      "process or inspect",
	"makeRoom":    "evict",
	"noted":       "annotated or recorded",
	"inVain":      "failedAttempts",
	"kick":        "notify",
	"look":        "read, get, inspect, check or probe",
	"mood":        "style",
	"oldWays":     "previousEndpoints",
	"poke":        "notify",
	"rouse":       "notify",
	"say":         "log, report, print or send",
	"sayNo":       "reject or deny",
	"settle":      "resolve, converge or wait",
	"strange":     "unknown",
	"verdict":     "decision",
	"victims":     "the condition that they share, as in denied",
}

// rpcs are methods whose names are part of a protocol, by file.
var rpcs = map[string][]string{
	"pkg/diagnose/collect/serve.go": {"Look"}, // fairlead.inspect.v1.Inspect
}

// replacementOf returns the terms to use instead of a name, or "" if the name may be used. Case makes no difference.
func replacementOf(name string) string {
	for word, instead := range replacements {
		if strings.EqualFold(name, word) {
			return instead
		}
	}
	return ""
}

func TestFunctionsAndTypesHaveTermsOfTheField(t *testing.T) {
	names := map[string]bool{"look": true, "Verdict": true, "sayNo": true, "lookup": false, "dressing": false}
	for name, forbidden := range names {
		if (replacementOf(name) != "") != forbidden {
			t.Errorf("%s: got the replacement %q", name, replacementOf(name))
		}
	}
	checked := 0
	for path, source := range proseFiles(t, ".go") {
		if proseGenerated.Match(source) {
			continue
		}
		set := token.NewFileSet()
		parsed, err := parser.ParseFile(set, path, bytes.NewReader(source), parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			var name *ast.Ident
			switch n := n.(type) {
			case *ast.FuncDecl:
				name = n.Name
			case *ast.TypeSpec:
				name = n.Name
			default:
				return true
			}
			checked++
			if instead := replacementOf(name.Name); instead != "" && !slices.Contains(rpcs[path], name.Name) {
				t.Errorf("%s: rename %s: use %s", set.Position(name.Pos()), name.Name, instead)
			}
			return true
		})
	}
	if checked < 5000 {
		t.Errorf("only %d functions and types were checked", checked)
	}
}
