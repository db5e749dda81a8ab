// Package printable makes a text that others have chosen fit for logs, tables and objects. In: any text and a bound;
// out: one line of printable characters. It does not remove secrets: internal/redact does.
package printable

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// Text returns the first characters of a text, at most that many bytes. Characters that are not printable, or not
// UTF-8, are replaced by spaces. What is cut off is not kept in memory.
func Text(text string, most int) string {
	text = strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, text)
	if len(text) <= most {
		return text
	}
	end := max(0, most)
	for end > 0 && !utf8.RuneStart(text[end]) {
		end--
	}
	return strings.Clone(text[:end])
}
