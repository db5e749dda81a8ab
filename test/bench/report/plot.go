package report

import (
	"bytes"
	"fmt"
	"html"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/fairlead/fairlead/test/bench/record"
)

// The picture's size and margins, in pixels.
const (
	width, height            = 760, 380
	left, right, top, bottom = 70, 170, 34, 50
)

// colours can also be distinguished by colour-blind readers (the palette of Okabe and Ito).
var colours = []string{"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999933"}

func (t table) svg() []byte {
	var out bytes.Buffer
	fmt.Fprintf(
		&out,
		`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">`+"\n",
		width,
		height,
	)
	fmt.Fprintf(&out, `<rect width="%d" height="%d" fill="white"/>`+"\n", width, height)
	fmt.Fprintf(
		&out,
		`<text x="%d" y="20" font-size="14">%s (%s)</text>`+"\n",
		left,
		html.EscapeString(t.title()),
		html.EscapeString(t.unit),
	)
	y := t.scaleY()
	for _, tick := range y.ticks() {
		at := y.pixel(tick)
		fmt.Fprintf(
			&out,
			`<path d="M%d %.1fH%d" stroke="#ddd"/><text x="%d" y="%.1f" text-anchor="end">%s</text>`+"\n",
			left,
			at,
			width-right,
			left-6,
			at+4,
			record.Format(tick),
		)
	}
	if t.plot == "lines" {
		t.lines(&out, y)
	} else {
		t.bars(&out, y)
	}
	fmt.Fprintf(&out, `<path d="M%d %dV%dH%d" fill="none" stroke="black"/>`+"\n", left, top, height-bottom, width-right)
	fmt.Fprintf(
		&out,
		`<text x="%d" y="%d" text-anchor="middle">%s</text>`+"\n",
		left+(width-right-left)/2,
		height-12,
		html.EscapeString(strings.Join(t.settings.rows, ", ")),
	)
	for i, c := range t.columns {
		at := top + 8 + 18*i
		fmt.Fprintf(
			&out,
			`<rect x="%d" y="%d" width="12" height="12" fill="%s"/><text x="%d" y="%d">%s</text>`+"\n",
			width-right+14,
			at,
			colour(i),
			width-right+32,
			at+10,
			html.EscapeString(c),
		)
	}
	out.WriteString("</svg>\n")
	return out.Bytes()
}

func colour(i int) string { return colours[i%len(colours)] }

// bars draws groups of bars, one for each row of the table.
func (t table) bars(out *bytes.Buffer, y scale) {
	group := float64(width-right-left) / float64(len(t.rows))
	bar := group * 0.8 / float64(len(t.columns))
	for i, row := range t.rows {
		begin := left + group*float64(i) + group*0.1
		for j, c := range t.columns {
			r, ok := t.cells[[2]string{row, c}]
			if !ok {
				continue
			}
			at := y.pixel(r.Value)
			fmt.Fprintf(
				out,
				`<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="%s"/>`+"\n",
				begin+bar*float64(j),
				at,
				bar*0.94,
				float64(height-bottom)-at,
				colour(j),
			)
		}
		fmt.Fprintf(
			out,
			`<text x="%.1f" y="%d" text-anchor="middle">%s</text>`+"\n",
			begin+group*0.4,
			height-bottom+16,
			html.EscapeString(row),
		)
	}
}

// lines draws lines along the rows. The first parameter of each row is a number.
func (t table) lines(out *bytes.Buffer, y scale) {
	var at []float64
	for _, row := range t.rows {
		v, _ := strconv.ParseFloat(leading(row), 64)
		at = append(at, v)
	}
	x := scale{
		low:         slices.Min(at),
		high:        slices.Max(at),
		logarithmic: strings.Contains(t.log, "x"),
		from:        left + 10,
		to:          width - right - 10,
	}
	for j, c := range t.columns {
		var points []string
		for i, row := range t.rows {
			if r, ok := t.cells[[2]string{row, c}]; ok {
				px, py := x.pixel(at[i]), y.pixel(r.Value)
				points = append(points, fmt.Sprintf("%.1f,%.1f", px, py))
				fmt.Fprintf(out, `<circle cx="%.1f" cy="%.1f" r="3" fill="%s"/>`+"\n", px, py, colour(j))
			}
		}
		fmt.Fprintf(
			out,
			`<polyline points="%s" fill="none" stroke="%s" stroke-width="2"/>`+"\n",
			strings.Join(points, " "),
			colour(j),
		)
	}
	for i, row := range t.rows {
		fmt.Fprintf(
			out,
			`<text x="%.1f" y="%d" text-anchor="middle">%s</text>`+"\n",
			x.pixel(at[i]),
			height-bottom+16,
			html.EscapeString(row),
		)
	}
}

// scale maps values to pixels.
type scale struct {
	low, high   float64
	logarithmic bool
	from, to    float64 // pixels of low and high
}

func (t table) scaleY() scale {
	y := scale{
		logarithmic: strings.Contains(t.log, "y"),
		from:        height - bottom,
		to:          top,
		high:        math.SmallestNonzeroFloat64,
		low:         math.MaxFloat64,
	}
	for _, r := range t.cells {
		y.high = max(y.high, r.Value)
		if r.Value > 0 {
			y.low = min(y.low, r.Value)
		}
	}
	if y.logarithmic {
		y.low, y.high = math.Pow(10, math.Floor(math.Log10(y.low))), math.Pow(10, math.Ceil(math.Log10(y.high)))
		return y
	}
	y.low, y.high = 0, y.high*1.05
	return y
}

func (s scale) pixel(v float64) float64 {
	part := 0.0
	switch {
	case s.high == s.low:
	case s.logarithmic:
		part = (math.Log(max(v, s.low)) - math.Log(s.low)) / (math.Log(s.high) - math.Log(s.low))
	default:
		part = (v - s.low) / (s.high - s.low)
	}
	return s.from + part*(s.to-s.from)
}

// ticks returns round values: about five of a linear scale, the powers of ten of a logarithmic one.
func (s scale) ticks() []float64 {
	var ticks []float64
	if s.logarithmic {
		for v := s.low; v <= s.high*1.001; v *= 10 {
			ticks = append(ticks, v)
		}
		return ticks
	}
	step := math.Pow(10, math.Floor(math.Log10(s.high/2)))
	for s.high/step > 6 {
		step *= 2
	}
	for i := 0; float64(i)*step <= s.high; i++ {
		ticks = append(ticks, float64(i)*step)
	}
	return ticks
}
