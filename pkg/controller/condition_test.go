package controller

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestAMessageStaysShort(t *testing.T) {
	long := shorten(strings.Repeat("ä", 40000))
	if len(long) > maxMessage || !utf8.ValidString(long) {
		t.Errorf("%d bytes, valid: %v", len(long), utf8.ValidString(long))
	}
}
