package condition

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestAMessageStaysShort(t *testing.T) {
	long := Shorten(strings.Repeat("ä", 40000))
	if len(long) > MaxMessage || !utf8.ValidString(long) {
		t.Errorf("%d bytes, valid: %v", len(long), utf8.ValidString(long))
	}
}
