package record

import (
	"math"
	"slices"
	"strconv"
)

// Median returns the median of samples, or NaN if there are none.
func Median(samples []float64) float64 { return Quantile(samples, 0.5) }

// Quantile returns the value that a part q of the samples, between 0 and 1, does not exceed, interpolated between
// neighbours. It returns NaN if there are no samples.
func Quantile(samples []float64, q float64) float64 {
	if len(samples) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(samples))
	at := q * float64(len(sorted)-1)
	low := int(math.Floor(at))
	high := min(low+1, len(sorted)-1)
	return sorted[low] + (at-float64(low))*(sorted[high]-sorted[low])
}

// Spread returns the lower and the upper quartile of samples.
func Spread(samples []float64) (low, high float64) {
	return Quantile(samples, 0.25), Quantile(samples, 0.75)
}

// Format formats a value with three significant digits.
func Format(v float64) string {
	if v == 0 || math.IsNaN(v) || math.IsInf(v, 0) {
		return strconv.FormatFloat(v, 'g', 3, 64)
	}
	digits := 2 - int(math.Floor(math.Log10(math.Abs(v))))
	if digits <= 0 {
		scale := math.Pow(10, float64(-digits))
		return strconv.FormatFloat(math.Round(v/scale)*scale, 'f', 0, 64)
	}
	return strconv.FormatFloat(v, 'f', min(digits, 6), 64)
}
