package record

import (
	"path/filepath"
	"testing"
)

func TestALaterResultReplacesAnEarlier(t *testing.T) {
	dir := t.TempDir()
	for _, value := range []float64{1, 2} {
		log, err := New(dir, "path")
		if err != nil {
			t.Fatal(err)
		}
		log.Add(
			Result{
				Name:    "throughput",
				Subject: "direct",
				Params:  map[string]string{"streams": "8"},
				Unit:    "MB/s",
				Samples: []float64{value, 7, 9 * value},
			},
		)
		if value == 1 {
			log.Add(
				Result{Name: "throughput", Subject: "direct", Params: map[string]string{"streams": "1"}, Unit: "MB/s", Value: 5},
			)
		}
		if err := log.Close(); err != nil {
			t.Fatal(err)
		}
	}
	file, err := Load(filepath.Join(dir, "path.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	if len(file.Results) != 2 || file.Results[0].Samples[0] != 2 || file.Results[1].Value != 5 {
		t.Errorf("results: %+v", file.Results)
	}
	if m := file.Machines[file.Results[0].Run]; m.Cores < 1 || m.Go == "" {
		t.Errorf("no facts of the machine: %+v", m)
	}
	if got := file.Results[0].Value; got != 7 {
		t.Errorf("value is %v, want the median, 7", got)
	}
}

func TestQuantile(t *testing.T) {
	samples := []float64{4, 1, 3, 2, 5}
	for q, want := range map[float64]float64{0: 1, 0.5: 3, 1: 5, 0.25: 2, 0.9: 4.6} {
		if got := Quantile(samples, q); got != want {
			t.Errorf("quantile %v is %v, want %v", q, got, want)
		}
	}
}
