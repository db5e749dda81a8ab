package bundle

import (
	"io"
	"strings"
	"testing"
)

func TestTheEndOfALogIsKept(t *testing.T) {
	for name, tc := range map[string]struct {
		in   string
		want string
		cut  bool
	}{
		"nothing":          {"", "", false},
		"a short log":      {"one\ntwo\n", "one\ntwo\n", false},
		"exactly the most": {"0123456\n", "0123456\n", false},
		"a long log":       {strings.Repeat("old\n", 10) + "one\ntwo\n", "two\n", true},
		"one long line":    {strings.Repeat("x", 30) + "\n", "", true},
	} {
		for _, step := range []int{1, 3, 100} {
			e := &end{most: 8}
			for in := tc.in; in != ""; in = in[min(step, len(in)):] {
				if _, err := io.WriteString(e, in[:min(step, len(in))]); err != nil {
					t.Fatal(err)
				}
			}
			if got, cut := e.lines(); string(got) != tc.want || cut != tc.cut {
				t.Errorf("%s, %d bytes at a time: %q, %t", name, step, got, cut)
			}
		}
	}
}
