// Package redact takes secrets out of texts that people are to read, such as the end of a machine's boot log. In goes text that
// anybody may have written, out comes the same without keys, tokens and passwords, as far as those can be told by their form
// or by what stands before them. It would rather take out too much: who needs a log whole reads it on the machine.
package redact

import (
	"regexp"
	"strings"
)

// Mark is what stands in the place of a secret.
const Mark = "[removed]"

// rule replaces what an expression finds.
type rule struct {
	find    *regexp.Regexp
	replace string
}

// named are the words in the names of settings whose values are secret.
const named = `(?:pass(?:word|wd|phrase)|pwd|secret|token|api[-_]?key|access[-_]?key|account[-_]?key|private[-_]?key|certificate[-_]?key|client-key-data|` +
	`client-certificate-data|credential|signature|encryption[-_]?key|auth[-_]?key|x-amz-[a-z-]+)`

// key is a name in YAML, JSON, JSON within a string of JSON, or a shell, up to its value.
const key = `[a-z0-9_.-]*` + named + `[a-z0-9_.-]*\\*["']?[ \t]*[:=][ \t]*`

// quoted is a value in quotes: what was taken out already; quotes of JSON within a string of JSON; deeper ones, whose end can't be
// told, so that it is the rest of the line; quotes; those whose end was cut off.
const quoted = `\[removed\]|\\"(?:[^"\\\n]|\\\\(?:\\["\\]|[^"\\\n]))*\\"|\\+["'][^\n]*|"(?:[^"\\\n]|\\.)*"|'[^'\n]*'|["'][^\n]*`

// value is what follows a name in the middle of a line, line what follows one that begins it. Without quotes the first goes up to the next
// space: a comma or a semicolon may be a part of it, and often the line goes on with what is worth reading.
const (
	value = `(?:` + quoted + `|\S+)`
	line  = `(?:` + quoted + `|[^\n]+)`
)

var rules = []rule{
	// PEM, also on one line with \n in it. Of one whose end or beginning was cut off the rest goes too.
	{regexp.MustCompile(`(?s)-----BEGIN [A-Z0-9 ]+-----.*?-----END [A-Z0-9 ]+-----`), Mark},
	{regexp.MustCompile(`(?s)-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----.*`), Mark},
	{regexp.MustCompile(`(?s)\A.*-----END [A-Z0-9 ]*PRIVATE KEY-----`), Mark},
	// What cloud-init says of passwords that it has made.
	{regexp.MustCompile(`(Set the following 'random' passwords[^\n]*\n)(?:[^\s:]+:\S+(?:\n|\z))+`), "${1}" + Mark + "\n"},
	// Who somebody is in a URL. A password that nobody has encoded may have anything in it but a space.
	{regexp.MustCompile(`([A-Za-z][A-Za-z0-9+.-]*://)\S*@`), "${1}" + Mark + "@"},
	// Headers: the rest of the line.
	{regexp.MustCompile(`(?i)((?:proxy-)?authorization["']?\s*[:=])[^\n]*`), "${1} " + Mark},
	{regexp.MustCompile(`(?i)((?:set-)?cookie["']?\s*:)[^\n]*`), "${1} " + Mark},
	{regexp.MustCompile(`(?i)\b(bearer|basic)[ \t]+[A-Za-z0-9._~+/=-]{8,}`), "${1} " + Mark},
	// Flags, and settings of YAML, JSON and shells.
	{regexp.MustCompile(`(?i)(--?[a-z0-9-]*` + named + `[a-z0-9-]*)(?:=|[ \t]+)` + value), "${1}=" + Mark},
	{regexp.MustCompile(`(?im)^([ \t]*(?:- +|export +)*\\*["']?` + key + `)` + line), "${1}" + Mark},
	{regexp.MustCompile(`(?i)(` + key + `)` + value), "${1}" + Mark},
	// Signed URLs of Azure, also with their & as JSON or a URL writes it.
	{regexp.MustCompile(`(?i)((?:\b|u0026|%26)sig(?:=|%3d))(?:\[removed\]|[^\s"'&]+)`), "${1}" + Mark},
	// What is known by its form.
	{regexp.MustCompile(`eyJ[A-Za-z0-9_-]{5,}\.[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]*)?`), Mark},      // JWT
	{regexp.MustCompile(`\bflr?1\.[a-z2-7]{16,}`), Mark},                                         // ours
	{regexp.MustCompile(`\b[a-z0-9]{6}\.[a-z0-9]{16}\b`), Mark},                                  // kubeadm's bootstrap tokens
	{regexp.MustCompile(`\b(?:AKIA|ASIA)[0-9A-Z]{16}\b`), Mark},                                  // AWS
	{regexp.MustCompile(`\b(?:gh[pousr]_|github_pat_|glpat-|hv[sb]\.)[A-Za-z0-9_-]{16,}`), Mark}, // GitHub, GitLab, Vault
	// Base64: whole lines, as in PEM, and long blobs.
	{regexp.MustCompile(`(?m)^[ \t]*[A-Za-z0-9+/]{60,}={0,2}[ \t\r]*$`), Mark},
	{regexp.MustCompile(`[A-Za-z0-9+/_-]{100,}={0,2}`), Mark},
}

// hex finds kubeadm's certificate keys, but also digests, which are public and tell of images.
var hex = regexp.MustCompile(`(?i)(sha256:)?\b[0-9a-f]{64,}\b`)

// Text returns a text without its secrets. To redact it again changes nothing. Cut a text after this and not before: half of a
// secret does not look like one.
func Text(s string) string {
	s = withoutBlocks(s)
	for _, r := range rules {
		s = r.find.ReplaceAllString(s, r.replace)
	}
	return hex.ReplaceAllStringFunc(s, func(found string) string {
		if strings.HasPrefix(strings.ToLower(found), "sha256:") {
			return found
		}
		return Mark
	})
}

// block begins a value of YAML that is the lines below it.
var block = regexp.MustCompile(`(?i)^([ \t]*(?:- +)*)["']?[a-z0-9_.-]*` + named + `[a-z0-9_.-]*["']?[ \t]*:[ \t]*(?:[!&]\S*[ \t]+)*[|>][0-9+-]*[ \t\r]*(?:#.*)?$`)

// withoutBlocks takes out the lines that are the value of a secret setting: those that are further to the right than its name.
func withoutBlocks(s string) string {
	if !strings.ContainsAny(s, "|>") {
		return s
	}
	var out strings.Builder
	column := -1 // of the name, while its lines follow
	marked := false
	for line := range strings.Lines(s) {
		text := strings.TrimSpace(line)
		if column >= 0 && (text == "" && marked || text != "" && indent(line) > column) {
			if !marked {
				out.WriteString(strings.Repeat(" ", column+2) + Mark + "\n")
			}
			marked = true
			continue
		}
		out.WriteString(line)
		if text == "" && column >= 0 {
			continue
		}
		column, marked = -1, false
		if found := block.FindStringSubmatch(strings.TrimSuffix(line, "\n")); found != nil {
			column = len(found[1])
		}
	}
	return out.String()
}

// indent is how many spaces and tabs begin a line.
func indent(line string) int { return len(line) - len(strings.TrimLeft(line, " \t")) }
