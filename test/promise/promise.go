// Package promise counts the promises of an end-to-end proof and collects its measurements. Its input is sentences with
// the checks that prove them. Its output is the last line of a run. It knows nothing about the promises.
package promise

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fairlead/fairlead/test/lab/proc"
)

// Patience bounds every wait that involves several processes.
const Patience = 30 * time.Second

// score counts the promises.
var score struct {
	sync.Mutex
	checks, failed int
}

// figures are the measurements in order.
var figures struct {
	sync.Mutex
	keys   []string
	values map[string]float64
}

// That runs one check. Its name is what the product promises. It returns whether the check passed.
func That(t *testing.T, name string, check func(t *testing.T)) bool {
	t.Helper()
	kept := t.Run(name, check)
	score.Lock()
	defer score.Unlock()
	score.checks++
	if !kept {
		score.failed++
	}
	return kept
}

// Measured records a figure. Of several values with the same key the largest counts.
func Measured(key string, value float64) {
	figures.Lock()
	defer figures.Unlock()
	if figures.values == nil {
		figures.values = map[string]float64{}
	}
	old, known := figures.values[key]
	if !known {
		figures.keys = append(figures.keys, key)
		old = value
	}
	figures.values[key] = max(old, value)
}

// Summary returns the last line of a run.
func Summary(title string) string {
	score.Lock()
	defer score.Unlock()
	figures.Lock()
	defer figures.Unlock()
	var fields []string
	for _, key := range figures.keys {
		fields = append(fields, fmt.Sprintf("%s=%.4g", key, figures.values[key]))
	}
	return fmt.Sprintf("%s: %d checks, %d failed; %s", title, score.checks, score.failed, strings.Join(fields, " "))
}

// Eventually waits until a condition returns nil, and fails the test if that takes longer than Patience.
func Eventually(t *testing.T, condition func(context.Context) error) {
	t.Helper()
	if err := proc.Wait(t.Context(), Patience, condition); err != nil {
		t.Fatal(err)
	}
}

// Never fails the test if a condition returns nil at any time within a duration.
func Never(t *testing.T, duration time.Duration, what string, condition func(context.Context) error) {
	t.Helper()
	if err := proc.Wait(t.Context(), duration, condition); err == nil {
		t.Fatal(what)
	}
}

// Must fails the test on an error.
func Must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
