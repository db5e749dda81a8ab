package scale

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
)

// growth holds values by figure and size.
type growth map[figure]map[int]float64

// figure is what is measured, and of which subject.
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

// fit describes how a figure grows.
type fit struct {
	figure
	times float64 // the value at the largest size divided by that at the smallest
	order string  // O(1), O(log N) or O(N), whichever fits best
}

// constant is how much a figure may differ between any two sizes, as a part of its mean, and still count as constant.
// Measured times on a machine that is busy with thousands of edges vary that much.
const constant = 0.35

// fits returns the fits of figures with at least two sizes.
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

// order returns the best fit: constant, or linear in N or in log N, whichever is nearer to the figures.
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

// line is y = base + slope × x. off is the sum of the squared deviations.
type line struct{ base, slope, off float64 }

// leastSquares returns the line with the least squared deviations from at least two points.
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

// percentile returns the smallest sample that at least the given part of the samples does not exceed.
func percentile[T cmp.Ordered](samples []T, part float64) T {
	sorted := slices.Sorted(slices.Values(samples))
	return sorted[min(len(sorted)-1, int(math.Ceil(part*float64(len(sorted))))-1)]
}
