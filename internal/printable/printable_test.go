package printable

import (
	"runtime"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestText(t *testing.T) {
	for in, want := range map[string]string{
		"":                          "",
		"as it is, ä and 漢":         "as it is, ä and 漢",
		"two\nlines\tand a\u00a0b":  "two lines and a b",
		"\x1b[31mred\x00\u202e\xff": " [31mred   ",
		strings.Repeat("x", 20):     strings.Repeat("x", 20),
		strings.Repeat("x", 21):     strings.Repeat("x", 20),
		strings.Repeat("ä", 11):     strings.Repeat("ä", 10),
	} {
		if got := Text(in, 20); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
}

// TestTextKeepsNothingElse: a bounded text of an outsider must not keep the memory of the whole text.
func TestTextKeepsNothingElse(t *testing.T) {
	const texts, long = 64, 1 << 20
	var kept []string
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for range texts {
		kept = append(kept, Text(strings.Repeat("x", long), 64))
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 8*long {
		t.Errorf("%d texts keep %d bytes", len(kept), grown)
	}
}

func FuzzText(f *testing.F) {
	f.Add("text\xff\n", 3)
	f.Fuzz(func(t *testing.T, in string, most int) {
		got := Text(in, most)
		control := strings.ContainsFunc(got, func(r rune) bool { return r < ' ' })
		if len(got) > max(0, most) || !utf8.ValidString(got) || control {
			t.Errorf("%q in %d bytes is %q", in, most, got)
		}
	})
}
