package kubeconfigs

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/api/v1alpha1"
)

// row is a package and a test that docs/kubeconfigs.md names.
var row = regexp.MustCompile("`((?:test|pkg|cmd)/[a-z/]+)` (Test[A-Za-z]+)((?:/[A-Za-z0-9_-]+)*)")

// TestEveryRowHasItsTest looks for each test that stands behind a row of the document.
func TestEveryRowHasItsTest(t *testing.T) {
	const root = "../.."
	text, err := os.ReadFile(filepath.Join(root, "docs", "kubeconfigs.md"))
	must(t, err)
	_, table, found := strings.Cut(string(text), "| mode | control-plane provider | event | test |")
	if !found {
		t.Fatal("the document has no table of tests")
	}
	rows := 0
	for line := range strings.Lines(table) {
		if !strings.HasPrefix(line, "| ") {
			continue
		}
		rows++
		named := row.FindAllStringSubmatch(line, -1)
		if len(named) == 0 && !strings.Contains(line, "| *not shown*") {
			t.Errorf("no test stands behind the row %s", line)
		}
		for _, match := range named {
			dir := filepath.Join(root, match[1])
			if !hasText(t, dir, "func "+match[2]+"(t *testing.T)") {
				t.Errorf("%s has no test %s", match[1], match[2])
			}
			for _, sub := range strings.FieldsFunc(match[3], func(r rune) bool { return r == '/' }) {
				isMode := v1alpha1.KubeconfigMode(sub) == v1alpha1.KubeconfigModeSNI || v1alpha1.KubeconfigMode(sub) == v1alpha1.KubeconfigModeConnect
				if name := `"` + strings.ReplaceAll(sub, "_", " "); !isMode && !hasText(t, dir, name+`"`) && !hasText(t, dir, name+" ") {
					t.Errorf("%s %s has no subtest %s", match[1], match[2], sub)
				}
			}
		}
	}
	if rows < 10 {
		t.Errorf("the table has only %d rows", rows)
	}
}

// hasText says whether a text is in the tests of a package.
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
