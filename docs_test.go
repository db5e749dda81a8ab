package fairlead_test

import (
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
)

var (
	docFence   = regexp.MustCompile("(?ms)^[ \t]*```[a-z]*\n(.*?)^[ \t]*```")
	docSpan    = regexp.MustCompile("`[^`\n]*`")
	docLink    = regexp.MustCompile(`\]\(([^()\s]+)\)|(?:src|srcset|href)="([^"]+)"`)
	docHeading = regexp.MustCompile(`(?m)^#{1,6} +(.+?)\s*$`)
	docMake    = regexp.MustCompile("(?m)^`?(?:[A-Z_]+=\\S+ )*make ([a-z0-9.-]+)")
	makeTarget = regexp.MustCompile(`(?m)^([a-z0-9.-]+):`)
	// docStray matches what is useless to a reader who has only this repository.
	docStray = regexp.MustCompile(`(?i)/(?:root|Users|work)/|\bissues? #?\d|\bhelper [A-Z]\b|\b(?:TODO|FIXME|XXX)\b`)
)

// documents returns all Markdown files of the repository by path.
func documents(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && slices.Contains([]string{".git", "bin"}, path):
			return fs.SkipDir
		case filepath.Ext(path) != ".md":
			return nil
		}
		text, err := os.ReadFile(path)
		all[path] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// linksOf returns the targets of a document's links and pictures.
func linksOf(text string) (all []string) {
	text = docSpan.ReplaceAllString(docFence.ReplaceAllString(text, ""), "")
	for _, match := range docLink.FindAllStringSubmatch(text, -1) {
		all = append(all, match[1]+match[2])
	}
	return all
}

// anchorsOf returns the anchors of a document's headings, as GitHub makes them.
func anchorsOf(text string) map[string]bool {
	all := map[string]bool{}
	for _, match := range docHeading.FindAllStringSubmatch(docFence.ReplaceAllString(text, ""), -1) {
		anchor := anchorOf(match[1])
		for n := 1; all[anchor]; n++ {
			anchor = fmt.Sprintf("%s-%d", anchorOf(match[1]), n)
		}
		all[anchor] = true
	}
	return all
}

func anchorOf(heading string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
			return unicode.ToLower(r)
		}
		return -1
	}, heading)
}

// target returns the path and the anchor of a link in a document. ok is false if it leads out of the repository.
func target(t *testing.T, from, link string) (path, anchor string, ok bool) {
	t.Helper()
	u, err := url.Parse(link)
	if err != nil {
		t.Errorf("%s: link %s: %v", from, link, err)
		return "", "", false
	}
	if u.Scheme != "" {
		return "", "", false
	}
	if u.Path == "" {
		return from, u.Fragment, true
	}
	return filepath.Join(filepath.Dir(from), u.Path), u.Fragment, true
}

func TestLinksInDocumentsResolve(t *testing.T) {
	all, looked := documents(t), 0
	for from, text := range all {
		for _, link := range linksOf(text) {
			path, anchor, ok := target(t, from, link)
			if !ok {
				continue
			}
			looked++
			if _, err := os.Stat(path); err != nil {
				t.Errorf("%s: link %s: there is no %s", from, link, path)
			} else if anchor != "" && !anchorsOf(all[path])[anchor] {
				t.Errorf("%s: link %s: %s has no heading for #%s", from, link, path, anchor)
			}
		}
	}
	if looked < 100 {
		t.Errorf("only %d links were found", looked)
	}
}

// TestDocumentsAreLinkedFromTheIndex checks that docs/README.md leads to every document and picture, and that README.md
// leads to docs/README.md.
func TestDocumentsAreLinkedFromTheIndex(t *testing.T) {
	all := documents(t)
	seen := map[string]bool{"README.md": true, "docs/README.md": false}
	for queue := []string{"README.md", "docs/README.md"}; len(queue) > 0; queue = queue[1:] {
		from := queue[0]
		for _, link := range linksOf(all[from]) {
			path, _, ok := target(t, from, link)
			if !ok || seen[path] {
				continue
			}
			seen[path] = true
			if from != "README.md" && all[path] != "" { // from the README only the link to the index counts
				queue = append(queue, path)
			}
		}
		if from == "README.md" {
			if !seen["docs/README.md"] {
				t.Error("README.md does not lead to docs/README.md")
			}
			seen = map[string]bool{"docs/README.md": true}
		}
	}
	err := filepath.WalkDir("docs", func(path string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() && !seen[path] {
			t.Errorf("%s: nothing that docs/README.md leads to links it", path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestDocumentsNameTargetsOfTheMakefile(t *testing.T) {
	makefile, err := os.ReadFile("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	targets := map[string]bool{}
	for _, match := range makeTarget.FindAllStringSubmatch(string(makefile), -1) {
		targets[match[1]] = true
	}
	looked := 0
	for from, text := range documents(t) {
		code := strings.Join(append(docFence.FindAllString(text, -1), docSpan.FindAllString(text, -1)...), "\n")
		for _, match := range docMake.FindAllStringSubmatch(code, -1) {
			if looked++; !targets[match[1]] {
				t.Errorf("%s: make %s: the Makefile has no such target", from, match[1])
			}
		}
	}
	if looked < 20 {
		t.Errorf("only %d commands were found", looked)
	}
}

func TestDocumentsAreSelfContained(t *testing.T) {
	for from, text := range documents(t) {
		for _, stray := range docStray.FindAllString(text, -1) {
			t.Errorf("%s says %q, which means nothing to a reader", from, stray)
		}
	}
}

// TestDocumentsNameExistingTests keeps the documents from naming a test that has been renamed or removed.
func TestDocumentsNameExistingTests(t *testing.T) {
	named := regexp.MustCompile("`(Test[A-Z][A-Za-z0-9]+)`")
	there := map[string]bool{}
	err := filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		data, err := os.ReadFile(path)
		for _, found := range regexp.MustCompile(`(?m)^func (Test\w+)\(`).FindAllStringSubmatch(string(data), -1) {
			there[found[1]] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for path, text := range documents(t) {
		for _, found := range named.FindAllStringSubmatch(text, -1) {
			if !there[found[1]] {
				t.Errorf("%s names %s, which does not exist", path, found[1])
			}
		}
	}
}

// TestTheTestedVersionsAreDocumented compares the table of the installation page with the combinations that
// `make test-matrix` runs.
func TestTheTestedVersionsAreDocumented(t *testing.T) {
	list, err := os.ReadFile("tools/matrix/versions.txt")
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for line := range strings.Lines(string(list)) {
		if versions := strings.Fields(line); !strings.HasPrefix(line, "#") {
			want = append(want, "| "+strings.Join(versions, " | ")+" |")
		}
	}
	row := regexp.MustCompile(`(?m)^\| v[.0-9]+ \| v[.0-9]+ \| v[.0-9]+ \|`)
	got := row.FindAllString(documents(t)["docs/install.md"], -1)
	if len(want) == 0 || !slices.Equal(got, want) {
		t.Errorf("docs/install.md has the rows\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestDecisionsAreComplete: every decision record has all sections, and the number in its heading is that of its file.
func TestDecisionsAreComplete(t *testing.T) {
	records, err := filepath.Glob("docs/decisions/[0-9]*.md")
	if err != nil || len(records) == 0 {
		t.Fatalf("decision records: %v, %v", records, err)
	}
	for i, path := range records {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if want := fmt.Sprintf("%04d-", i+1); !strings.HasPrefix(filepath.Base(path), want) {
			t.Errorf("%s: the name does not begin with %s: two records have one number, or one is missing", path, want)
		}
		if want := fmt.Sprintf("# %d. ", i+1); !strings.HasPrefix(string(text), want) {
			t.Errorf("%s: does not begin with %q", path, want)
		}
		at := 0
		for _, section := range []string{
			"\nStatus: ", "\n## Context\n", "\n## Decision\n", "\n## Consequences\n",
			"\n## Evidence\n",
		} {
			next := strings.Index(string(text), section)
			if next < at {
				t.Errorf("%s: no %q after the previous section", path, strings.TrimSpace(section))
			}
			at = next
		}
	}
}

// TestGlossaryIsShort: the project has at most 25 words of its own, in alphabetical order.
func TestGlossaryIsShort(t *testing.T) {
	text, err := os.ReadFile("docs/glossary.md")
	if err != nil {
		t.Fatal(err)
	}
	var words []string
	for _, match := range regexp.MustCompile(`(?m)^### (.+)$`).FindAllStringSubmatch(string(text), -1) {
		words = append(words, strings.ToLower(match[1]))
	}
	if len(words) == 0 || len(words) > 25 {
		t.Errorf("the glossary has %d words, and may have 1 to 25", len(words))
	}
	if !slices.IsSorted(words) {
		t.Errorf("not in alphabetical order: %q", words)
	}
}

// TestObservedChangesAreWaitedFor: `fairlead test through` observes until its command ends. Helm without --wait, and
// kubectl rollout restart, end before any Pod is replaced.
func TestObservedChangesAreWaitedFor(t *testing.T) {
	looked := 0
	for path, text := range documents(t) {
		for line := range strings.Lines(text) {
			_, observed, ok := strings.Cut(line, "test through ")
			if !ok {
				continue
			}
			if strings.Contains(observed, "-- helm upgrade") {
				looked++
				if !strings.Contains(observed, "--wait") || !strings.Contains(observed, "--timeout=") {
					t.Errorf("%s: Helm does not wait for its timeout or at all: %s", path, line)
				}
			}
			if _, after, ok := strings.Cut(observed, "rollout restart"); ok {
				looked++
				if !strings.Contains(after, "rollout status") {
					t.Errorf("%s: no rollout status follows: %s", path, line)
				}
			}
		}
	}
	if looked < 4 {
		t.Errorf("only %d commands were found", looked)
	}
}

// TestNoDocumentAppliesSingleManifests: the manifests have images without a registry, and no settings of the user. A
// gateway that gets them does not start again.
func TestNoDocumentAppliesSingleManifests(t *testing.T) {
	single := regexp.MustCompile(
		`(?i)apply\s.*deploy/kubernetes/(controller|xds-server|gateway)\.yaml|apply[a-z ]+.?deploy/kubernetes.? again`,
	)
	for path, text := range documents(t) {
		for _, found := range single.FindAllString(text, -1) {
			t.Errorf("%s: %s: apply the installation again", path, found)
		}
	}
}

// TestRemovalsBeginWithControlPlanes: Pods of hosted control planes do not start without a Secret that goes with the
// Tunnel of their apiservers.
func TestRemovalsBeginWithControlPlanes(t *testing.T) {
	const removal, first = "delete tunnels --all", "apiserver-egress.md#remove-it"
	const workers = "hosted-control-planes.md#3-workers"
	looked := 0
	for path, text := range documents(t) {
		for _, at := range docFence.FindAllStringIndex(text, -1) {
			if !strings.Contains(text[at[0]:at[1]], removal) {
				continue
			}
			if looked++; !strings.Contains(text[:at[0]], first) {
				t.Errorf("%s: no link to %s precedes %s", path, first, removal)
			}
			if path == "docs/operations.md" && !strings.Contains(text[:at[0]], workers) {
				t.Errorf("%s: no link to %s precedes %s", path, workers, removal)
			}
		}
	}
	if looked < 3 {
		t.Errorf("only %d removals were found", looked)
	}
}

// TestTheTokenOfADaemonSetIsBounded: its Secret is a copy of one token, so machines that are added later need another.
func TestTheTokenOfADaemonSetIsBounded(t *testing.T) {
	for _, path := range []string{"docs/edge.md", "docs/reference/fairlead.md", "deploy/edge/daemonset.yaml"} {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		found := strings.Join(strings.Fields(strings.ReplaceAll(string(text), "#", "")), " ")
		if !strings.Contains(found, "--token-uses") || !strings.Contains(found, "when machines are added or replaced") {
			t.Errorf("%s does not tell how many machines enrol with the token of a DaemonSet, and what to do then", path)
		}
	}
	if text := documents(t)["docs/mixed-clusters.md"]; !regexp.MustCompile(
		`(?m)^\| a machine is added \|.*DaemonSet.*again`,
	).MatchString(text) {
		t.Error("docs/mixed-clusters.md needs nothing for a machine that is added to a DaemonSet")
	}
}
