package operations

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const document = "../../docs/operations.md"

var (
	fence = regexp.MustCompile("(?ms)^([ \t]*)```([a-z]*)\n(.*?)^[ \t]*```")
	span  = regexp.MustCompile("`([^`]+)`")
)

// sections returns the parts of a document by their headings, each up to the next heading of any level.
func sections(t *testing.T, file string) map[string]string {
	t.Helper()
	data, err := os.ReadFile(file)
	must(t, err)
	all, heading, fenced := map[string]string{}, "", false
	for line := range strings.Lines(string(data)) {
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			fenced = !fenced
		}
		if title := strings.TrimLeft(line, "#"); !fenced && title != line {
			heading = strings.TrimSpace(title)
			continue
		}
		all[heading] += line
	}
	return all
}

// blocks returns the fenced blocks of a language in a section, without the indentation of lists.
func blocks(section, language string) (all []string) {
	for _, match := range fence.FindAllStringSubmatch(section, -1) {
		if match[2] != language {
			continue
		}
		var block strings.Builder
		for line := range strings.Lines(match[3]) {
			block.WriteString(strings.TrimPrefix(line, match[1]))
		}
		all = append(all, block.String())
	}
	return all
}

// block returns one block of commands of a section of the document.
func block(t *testing.T, heading string, number int) string {
	t.Helper()
	all := blocks(sections(t, document)[heading], "sh")
	if number >= len(all) {
		t.Fatalf("the section %q has only %d blocks of commands", heading, len(all))
	}
	return all[number]
}

// command returns the command in a section's text that begins with some words.
func command(t *testing.T, heading, begin string) string {
	t.Helper()
	text := fence.ReplaceAllString(sections(t, document)[heading], "")
	for _, match := range span.FindAllStringSubmatch(text, -1) {
		if one := strings.Join(strings.Fields(match[1]), " "); strings.HasPrefix(one, begin) {
			return one
		}
	}
	t.Fatalf("the section %q does not name a command %q", heading, begin)
	return ""
}

// proven is the number of command blocks that the tests run, by section. Those about the chart run in test/install.
var proven = map[string]int{
	"Upgrade": 3, "Backup": 1, "The management cluster is lost": 2, lostCA: 1, stolenCA: 2, lostServers: 1, removing: 1,
	staleProbe:                               1,
	"From the chart back to a kustomization": 2,
}

// TestEveryDocumentedCommandIsRun proves that the tests run every command block of the document.
func TestEveryDocumentedCommandIsRun(t *testing.T) {
	found := map[string]int{}
	for heading, text := range sections(t, document) {
		if n := len(blocks(text, "sh")); n > 0 {
			found[heading] = n
		}
	}
	for _, heading := range slices.Sorted(maps.Keys(found)) {
		if proven[heading] != found[heading] {
			t.Errorf("the section %q has %d blocks of commands, and %d are run", heading, found[heading], proven[heading])
		}
	}
}
