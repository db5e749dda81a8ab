package kubeconfigs

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/api/v1alpha1"
)

// row matches a package and a test that docs/kubeconfigs-reference.md names.
var row = regexp.MustCompile("`((?:test|pkg|cmd)/[a-z/]+)` (Test[A-Za-z]+)((?:/[A-Za-z0-9_-]+)*)")

// TestEveryDocumentedRowHasATest checks that every test that a row of the document names exists.
func TestEveryDocumentedRowHasATest(t *testing.T) {
	const root = "../.."
	text, err := os.ReadFile(filepath.Join(root, "docs", "kubeconfigs-reference.md"))
	must(t, err)
	_, table, found := strings.Cut(string(text), "| mode | control-plane provider | event | test |")
	if !found {
		t.Fatal("the document has no table of tests")
	}
	rows, shown := 0, combinations{}
	for line := range strings.Lines(table) {
		if !strings.HasPrefix(line, "| ") {
			continue
		}
		rows++
		shown.note(line)
		named := row.FindAllStringSubmatch(line, -1)
		if len(named) == 0 {
			t.Errorf("no test stands behind the row %s", line)
		}
		for _, match := range named {
			dir := filepath.Join(root, match[1])
			if !hasText(t, dir, "func "+match[2]+"(t *testing.T)") {
				t.Errorf("%s has no test %s", match[1], match[2])
			}
			for _, sub := range strings.FieldsFunc(match[3], func(r rune) bool { return r == '/' }) {
				isMode := slices.Contains(modes, sub)
				if name := `"` + strings.ReplaceAll(sub, "_", " "); !isMode && !hasText(t, dir, name+`"`) &&
					!hasText(t, dir, name+" ") {
					t.Errorf("%s %s has no subtest %s", match[1], match[2], sub)
				}
			}
		}
	}
	if rows < 10 {
		t.Errorf("the table has only %d rows", rows)
	}
	for _, event := range []string{"created", "rotated", "rewritten", "moved", "opted out"} {
		for _, mode := range modes {
			if !shown[mode+" "+event] {
				t.Errorf("no row has mode %s %s", mode, event)
			}
		}
	}
	for provider, events := range map[string][]string{
		"KCP": {"created", "adopted", "rotated", "moved", "opted out"}, "Kamaji": {"created", "rewritten", "opted out"},
		"EKS":  {"created", "rewritten", "opted out"},
		"RKE2": {"created", "rotated", "rewritten", "opted out"}, "Talos": {"created", "rotated", "rewritten", "opted out"},
	} {
		for _, event := range events {
			if !shown[provider+" "+event] {
				t.Errorf("no row has provider %s %s", provider, event)
			}
		}
	}
}

// modes are the modes of a kubeconfig.
var modes = []string{
	string(
		v1alpha1.KubeconfigModeSNI,
	), string(v1alpha1.KubeconfigModeConnect), string(v1alpha1.KubeconfigModeHTTPProxy), string(
		v1alpha1.KubeconfigModeHTTPSProxy),
	string(v1alpha1.KubeconfigModeSOCKS5), string(v1alpha1.KubeconfigModeAddress),
}

// combinations holds which modes and providers have a row for an event.
type combinations map[string]bool

// note adds a row: | modes | providers | events, with more words after the first of each | test |.
func (c combinations) note(line string) {
	columns := strings.Split(line, "|")
	if len(columns) < 4 {
		return
	}
	subjects := list(columns[1])
	if len(subjects) == 1 && subjects[0] == "each" {
		subjects = modes
	}
	for _, event := range list(columns[3]) {
		for _, one := range append(slices.Clone(subjects), list(columns[2])...) {
			c[one+" "+event] = true
		}
	}
}

// list splits a column.
func list(column string) (all []string) {
	for part := range strings.FieldsFuncSeq(column, func(r rune) bool { return r == ',' || r == ';' }) {
		all = append(all, strings.Trim(part, " `"))
	}
	return all
}

// hasText reports whether the tests of a package contain a text.
func hasText(t *testing.T, dir, part string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	must(t, err)
	for _, file := range files {
		text, err := os.ReadFile(file)
		must(t, err)
		if strings.Contains(string(text), part) {
			return true
		}
	}
	return false
}
