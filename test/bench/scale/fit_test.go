package scale

import (
	"math"
	"strings"
	"testing"
)

func TestFits(t *testing.T) {
	for want, f := range map[string]func(n float64) float64{
		"O(1)":     func(n float64) float64 { return 5 + math.Mod(n, 7)/10 },
		"O(log N)": func(n float64) float64 { return 1 + 2*math.Log10(n) },
		"O(N)":     func(n float64) float64 { return 70 + 0.03*n },
	} {
		g := growth{}
		for _, n := range []int{100, 1_000, 5_000, 10_000} {
			g.note(figure{"x", "y"}, n, f(float64(n)))
		}
		if fits := g.fits(); len(fits) != 1 || !strings.HasPrefix(fits[0].order, want+":") {
			t.Errorf("%v, want %s", fits, want)
		}
	}
}
