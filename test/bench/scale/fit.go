package scale

import (
	"cmp"
	"maps"
	"math"
	"slices"
)

// growth are figures by name and size.
type growth map[string]map[int]float64

func (g growth) note(name string, size int, value float64) {
	if g[name] == nil {
		g[name] = map[int]float64{}
	}
	g[name][size] = value
}

// fit is how a figure grows: with N to the power of the exponent.
type fit struct {
	name     string
	exponent float64
}

// word is the order of growth that comes next.
func (f fit) word() string {
	switch {
	case f.exponent < 0.15:
		return "O(1)"
	case f.exponent < 0.5:
		return "O(log N)"
	case f.exponent < 1.2:
		return "O(N)"
	default:
		return "more than O(N)"
	}
}

// fits are the least squares of the logarithms, of figures with at least two sizes.
func (g growth) fits() []fit {
	var all []fit
	for _, name := range slices.Sorted(maps.Keys(g)) {
		var x, y []float64
		for size, value := range g[name] {
			if value > 0 {
				x, y = append(x, math.Log(float64(size))), append(y, math.Log(value))
			}
		}
		if len(x) > 1 {
			all = append(all, fit{name, slope(x, y)})
		}
	}
	return all
}

func slope(x, y []float64) float64 {
	var mx, my, xy, xx float64
	for i := range x {
		mx, my = mx+x[i]/float64(len(x)), my+y[i]/float64(len(y))
	}
	for i := range x {
		xy, xx = xy+(x[i]-mx)*(y[i]-my), xx+(x[i]-mx)*(x[i]-mx)
	}
	return xy / xx
}

// percentile is the smallest of which so large a part is not larger.
func percentile[T cmp.Ordered](samples []T, part float64) T {
	sorted := slices.Sorted(slices.Values(samples))
	return sorted[min(len(sorted)-1, int(math.Ceil(part*float64(len(sorted))))-1)]
}
