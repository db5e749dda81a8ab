package networks

import (
	"errors"
	"math"
	"testing"
	"time"
)

func TestRatioIsAgainstTheBetterMode(t *testing.T) {
	for name, test := range map[string]struct {
		better                   direction
		ours, grpcMode, httpMode []float64
		want                     float64
	}{
		"a throughput":                {higher, []float64{150, 90, 120}, []float64{50}, []float64{60}, 2},
		"a latency":                   {lower, []float64{4}, []float64{10}, []float64{2}, 0.5},
		"a count that is zero":        {count, []float64{0}, []float64{3}, []float64{1}, 2},
		"the worst outage counts":     {outage, []float64{0.25, 0.1}, []float64{0.1, 0.2, 10}, []float64{1}, 4},
		"counts that are both zero":   {count, []float64{0}, []float64{0}, []float64{5}, 1},
		"one mode failed":             {higher, []float64{30}, nil, []float64{10}, 3},
		"both modes failed":           {higher, []float64{30}, nil, nil, math.NaN()},
		"Fairlead has not been there": {higher, nil, []float64{1}, []float64{1}, math.NaN()},
	} {
		t.Run(name, func(t *testing.T) {
			f := figure{quantity{"x", "", test.better, notWorse}, nil, map[string][]float64{
				"fairlead": test.ours, grpcMode: test.grpcMode, connectMode: test.httpMode,
			}}
			got, ok := f.ratio()
			if ok == math.IsNaN(test.want) || ok && got != test.want {
				t.Errorf("ratio is %v, %v; want %v", got, ok, test.want)
			}
		})
	}
}

func TestOutageIsTheLongestSilenceOrRequest(t *testing.T) {
	killed := time.Now()
	at := func(ms int) time.Time { return killed.Add(time.Duration(ms) * time.Millisecond) }
	failure := errors.New("the tunnel ended")
	for name, test := range map[string]struct {
		done   []request
		lost   int
		outage time.Duration
		err    error
	}{
		"none succeeded for a while": {
			done: []request{{at(-30), at(10), nil}, {at(0), at(100), failure}, {at(100), at(700), nil}},
			lost: 1, outage: 690 * time.Millisecond,
		},
		"one was slow beside others": {
			done:   []request{{at(10), at(20), nil}, {at(30), at(40), nil}, {at(-20), at(45), nil}},
			outage: 65 * time.Millisecond,
		},
		"one failed before": {done: []request{{at(-30), at(-10), failure}, {at(0), at(5), nil}}, outage: 5e6, err: failure},
	} {
		t.Run(name, func(t *testing.T) {
			l := &load{cancel: func() {}, done: test.done}
			lost, outage, err := l.stop(killed)
			if lost != test.lost || outage != test.outage || !errors.Is(err, test.err) {
				t.Errorf("%d lost, outage %s, %v; want %d, %s, %v", lost, outage, err, test.lost, test.outage, test.err)
			}
		})
	}
}
