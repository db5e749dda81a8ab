package scale

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
)

// growth are figures by what they are of and size.
type growth map[figure]map[int]float64

// figure is what is measured, and of whom.
type figure struct{ name, subject string }

func (f figure) compare(other figure) int {
	return cmp.Or(cmp.Compare(f.subject, other.subject), cmp.Compare(f.name, other.name))
}

func (g growth) note(of figure, size int, value float64) {
	if g[of] == nil {
		g[of] = map[int]float64{}
	}
	g[of][size] = value
}

// fit is how a figure grows.
type fit struct {
	figure
	times float64 // from the smallest size to the largest
	order string  // O(1), O(log N) or O(N), with the line that fits best
}

// constant is how much a figure may differ between any two sizes, as a part of its mean, and still count as one that does not grow:
// times of a machine that is busy with thousands of edges differ as much.
const constant = 0.35

// fits are those of figures with at least two sizes.
func (g growth) fits() []fit {
	var all []fit
	for _, of := range slices.SortedFunc(maps.Keys(g), figure.compare) {
		sizes := slices.Sorted(maps.Keys(g[of]))
		var n, log, y []float64
		for _, size := range sizes {
			n, log, y = append(n, float64(size)), append(log, math.Log10(float64(size))), append(y, g[of][size])
		}
		if len(y) < 2 || slices.Max(y) == 0 {
			continue
		}
		all = append(all, fit{of, y[len(y)-1] / y[0], order(n, log, y)})
	}
	return all
}

// order says which of three lines fits: none that grows, or the one of N or of log N that the figures are nearer to.
func order(n, log, y []float64) string {
	mean := 0.0
	for _, v := range y {
		mean += v / float64(len(y))
	}
	if slices.Max(y)-slices.Min(y) < constant*mean || y[len(y)-1] <= y[0] {
		return fmt.Sprintf("O(1): %.3g", mean)
	}
	byN, byLog := leastSquares(n, y), leastSquares(log, y)
	if byLog.off < byN.off {
		return fmt.Sprintf("O(log N): %.3g + %.3g × log₁₀ N", byLog.base, byLog.slope)
	}
	return fmt.Sprintf("O(N): %.3g + %.3g × N", byN.base, byN.slope)
}

// line is y = base + slope × x, and the sum of the squares of what it is off.
type line struct{ base, slope, off float64 }

// leastSquares is the line nearest to points, of which it takes at least two.
func leastSquares(x, y []float64) (l line) {
	mx, my, xy, xx := 0.0, 0.0, 0.0, 0.0
	for i := range x {
		mx, my = mx+x[i]/float64(len(x)), my+y[i]/float64(len(y))
	}
	for i := range x {
		xy, xx = xy+(x[i]-mx)*(y[i]-my), xx+(x[i]-mx)*(x[i]-mx)
	}
	l.slope = xy / xx
	l.base = my - l.slope*mx
	for i := range x {
		d := y[i] - l.base - l.slope*x[i]
		l.off += d * d
	}
	return l
}

// percentile is the smallest of which so large a part is not larger.
func percentile[T cmp.Ordered](samples []T, part float64) T {
	sorted := slices.Sorted(slices.Values(samples))
	return sorted[min(len(sorted)-1, int(math.Ceil(part*float64(len(sorted))))-1)]
}
