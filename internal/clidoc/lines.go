package clidoc

import (
	"regexp"
	"strings"
)

// line is a command line in a document.
type line struct {
	text  string
	block bool // in a code block; otherwise within a sentence
}

var (
	fence  = regexp.MustCompile("(?ms)^```([a-z]*)\n(.*?)^```")
	quoted = regexp.MustCompile("`([^`\n]+)`")
	// assignment matches what may precede a command: environment variables, sudo and a prompt.
	assignment = regexp.MustCompile(`^([A-Z_]+=\S+|sudo|\$)\s+`)
)

// linesOf returns the lines of a document that may be commands: the lines of shell code blocks, and code spans within
// sentences.
func linesOf(text string) (all []line) {
	rest := fence.ReplaceAllStringFunc(text, func(block string) string {
		parts := fence.FindStringSubmatch(block)
		switch parts[1] {
		case "", "sh", "bash", "console":
			if strings.ContainsAny(parts[2], "│─▶█") {
				return "\n" // a picture
			}
			for l := range strings.Lines(strings.ReplaceAll(parts[2], "\\\n", " ")) {
				all = append(all, line{strings.TrimSpace(l), true})
			}
		}
		return "\n"
	})
	for _, match := range quoted.FindAllStringSubmatch(rest, -1) {
		all = append(all, line{match[1], false})
	}
	return all
}

// argumentsOf returns the arguments that a line passes to a program. ok is false if the line is no command line of this
// program, or only its name. whole is true if nothing is left out (…).
func argumentsOf(program string, l line) (args []string, whole, ok bool) {
	text := l.text
	for assignment.MatchString(text) {
		text = assignment.ReplaceAllString(text, "")
	}
	text = strings.TrimPrefix(strings.TrimPrefix(text, "kubectl "), "bin/")
	rest, ok := strings.CutPrefix(text, program+" ")
	if !ok {
		return nil, false, false
	}
	args = words(rest)
	for i, arg := range args {
		if isEllipsis(arg) || i == 0 && arg == "COMMAND" {
			return args[:i], false, i > 0
		}
	}
	return args, true, len(args) > 0
}

// isEllipsis reports whether a word stands for arguments that are left out.
func isEllipsis(word string) bool { return word == "…" || word == "..." }

// words splits a line as a shell does, up to the end of the first command.
func words(text string) (all []string) {
	var word strings.Builder
	var quote rune
	begun := false
	end := func() {
		if begun {
			all = append(all, word.String())
		}
		word.Reset()
		begun = false
	}
	for _, r := range text {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote != 0:
			word.WriteRune(r)
		case r == '\'' || r == '"':
			quote, begun = r, true
		case strings.ContainsRune("|<>;&)", r), r == '#' && !begun:
			end()
			return all
		case r == ' ':
			end()
		default:
			word.WriteRune(r)
			begun = true
		}
	}
	end()
	return all
}
