package clidoc

import (
	"regexp"
	"strings"
)

// line is a command line in a document.
type line struct {
	text  string
	block bool // in a block of its own; else within a sentence
}

var (
	fence  = regexp.MustCompile("(?ms)^```([a-z]*)\n(.*?)^```")
	quoted = regexp.MustCompile("`([^`\n]+)`")
	// assignment is what may stand before a command: an environment, a folder.
	assignment = regexp.MustCompile(`^([A-Z_]+=\S+|sudo|\$)\s+`)
)

// linesOf are the lines of a document that may be commands: those of blocks for a shell, and what is quoted in sentences.
func linesOf(text string) (all []line) {
	rest := fence.ReplaceAllStringFunc(text, func(block string) string {
		parts := fence.FindStringSubmatch(block)
		switch parts[1] {
		case "", "sh", "bash", "console":
			if strings.ContainsAny(parts[2], "│─▶") {
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

// argumentsOf are what a line hands to a program; ok is false where it is no command line of this program, or only its name, and
// whole where nothing was left out (…).
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
		if left(arg) || i == 0 && arg == "COMMAND" {
			return args[:i], false, i > 0
		}
	}
	return args, true, len(args) > 0
}

// left says whether a word stands for what was left out.
func left(word string) bool { return word == "…" || word == "..." }

// words splits a line as a shell does, up to where something else than the command begins.
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
