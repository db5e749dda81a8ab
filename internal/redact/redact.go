// Package redact removes secrets from texts that people read, such as the end of a machine's boot log. Its input is a
// text of any origin. Its output is the same text without the keys, tokens and passwords that have a known form or
// follow a known name. It removes too much rather than too little; the complete log is on the machine.
package redact

import (
	"regexp"
	"strings"
)

// Mark replaces a secret.
const Mark = "[removed]"

// rule replaces the matches of an expression.
type rule struct {
	find    *regexp.Regexp
	replace string
}

// named matches the words in names of settings whose values are secret.
const named = `(?:pass(?:word|wd|phrase)|pwd|secret|token|api[-_]?key|access[-_]?key|account[-_]?key|private[-_]?key|` +
	`certificate[-_]?key|client-key-data|client-certificate-data|credential|signature|encryption[-_]?key|` +
	`auth[-_]?key|x-amz-[a-z-]+|pass\b|creds\b|auth\b)`

// key matches a name in YAML, JSON, JSON within a string of JSON, or a shell, up to its value.
const key = `[a-z0-9_.-]*` + named + `[a-z0-9_.-]*\\*["']?[ \t]*[:=][ \t]*`

// quoted matches a value in quotes. Its alternatives are: a value that has been removed already; quotes of JSON within
// a string of JSON; deeper quotes, up to the end of the line because their end cannot be determined; plain quotes; and
// quotes whose end was cut off.
const quoted = `\[removed\]|\\"(?:[^"\\\n]|\\\\(?:\\["\\]|[^"\\\n]))*\\"|\\+["'][^\n]*|` +
	`"(?:[^"\\\n]|\\.)*"|'[^'\n]*'|["'][^\n]*`

// value matches a value after a name in the middle of a line, and line a value after a name at the beginning of a line.
// Without quotes, value ends at the next space: a comma or a semicolon may be part of the secret, and the rest of the
// line is often worth reading.
const (
	value = `(?:` + quoted + `|\S+)`
	line  = `(?:` + quoted + `|[^\n]+)`
)

var rules = []rule{
	// PEM, also on one line with \n in it. If the beginning or the end of a private key was cut off, the rest is
	// removed too.
	{regexp.MustCompile(`(?s)-----BEGIN [A-Z0-9 ]+-----.*?-----END [A-Z0-9 ]+-----`), Mark},
	{regexp.MustCompile(`(?s)-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----.*`), Mark},
	{regexp.MustCompile(`(?s)\A.*-----END [A-Z0-9 ]*PRIVATE KEY-----`), Mark},
	// The lines in which cloud-init prints the passwords that it has generated.
	{regexp.MustCompile(`(Set the following 'random' passwords[^\n]*\n)(?:[^\s:]+:\S+(?:\n|\z))+`), "${1}" + Mark + "\n"},
	// Credentials in a URL. An unencoded password may contain any character but a space.
	{regexp.MustCompile(`([A-Za-z][A-Za-z0-9+.-]*://)\S*@`), "${1}" + Mark + "@"},
	// Headers: the rest of the line.
	{regexp.MustCompile(`(?i)((?:proxy-)?authorization["']?\s*[:=])[^\n]*`), "${1} " + Mark},
	{regexp.MustCompile(`(?i)((?:set-)?cookie["']?\s*:)[^\n]*`), "${1} " + Mark},
	{regexp.MustCompile(`(?i)\b(bearer|basic)[ \t]+[A-Za-z0-9._~+/=-]{8,}`), "${1} " + Mark},
	// Flags, and settings of YAML, JSON and shells.
	{regexp.MustCompile(`(?i)(--?[a-z0-9-]*` + named + `[a-z0-9-]*)(?:=|[ \t]+)` + value), "${1}=" + Mark},
	{regexp.MustCompile(`(?im)^([ \t]*(?:- +|export +)*\\*["']?` + key + `)` + line), "${1}" + Mark},
	{regexp.MustCompile(`(?i)(` + key + `)` + value), "${1}" + Mark},
	// User and password of curl and wget.
	{regexp.MustCompile(`(?i)((?:^|\s)(?:-u|--user)(?:=|[ \t]+)["']?)[^\s:"']+:\S+`), "${1}" + Mark},
	// Signed URLs of Azure, also with an & that is escaped for JSON or a URL.
	{regexp.MustCompile(`(?i)((?:\b|u0026|%26)sig(?:=|%3d))(?:\[removed\]|[^\s"'&]+)`), "${1}" + Mark},
	// Secrets that have a known form.
	{regexp.MustCompile(`eyJ[A-Za-z0-9_-]{5,}\.[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]*)?`), Mark}, // JWT
	{regexp.MustCompile(`\bflr?1\.[a-z2-7]{16,}`), Mark},                                    // Fairlead
	{regexp.MustCompile(`\bK10[0-9a-f]{64}(?:::\S+)?`), Mark},                               // k3s and RKE2
	{regexp.MustCompile(`\b[a-z0-9]{6}\.[a-z0-9]{16}\b`), Mark},                             // kubeadm's bootstrap tokens
	{regexp.MustCompile(`\b(?:AKIA|ASIA)[0-9A-Z]{16}\b`), Mark},                             // AWS
	// GitHub, GitLab, Vault
	{regexp.MustCompile(`\b(?:gh[pousr]_|github_pat_|glpat-|hv[sb]\.)[A-Za-z0-9_-]{16,}`), Mark},
	// Base64: whole lines, as in PEM or a JWT of several lines, and long blobs.
	{regexp.MustCompile(`(?m)^[ \t]*[A-Za-z0-9+/][A-Za-z0-9+/_-]{59,}={0,2}[ \t\r]*$`), Mark},
	{regexp.MustCompile(`[A-Za-z0-9+/_-]{100,}={0,2}`), Mark},
}

// hex matches kubeadm's certificate keys, and also digests of images, which are public.
var hex = regexp.MustCompile(`(?i)(sha256:)?\b[0-9a-f]{64,}\b`)

// Text returns a text without its secrets. It is idempotent. Cut a text after redacting it, not before: half of a
// secret may not be recognised.
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

// block matches the key of a YAML block scalar, whose value is the lines below it.
var block = regexp.MustCompile(
	`(?i)^([ \t]*(?:- +)*)["']?[a-z0-9_.-]*` + named +
		`[a-z0-9_.-]*["']?[ \t]*:[ \t]*(?:[!&]\S*[ \t]+)*[|>][0-9+-]*[ \t\r]*(?:#.*)?$`,
)

// withoutBlocks removes block scalars with secret names: the lines below the name that are indented further.
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

// indent returns the number of spaces and tabs at the beginning of a line.
func indent(line string) int { return len(line) - len(strings.TrimLeft(line, " \t")) }
