// Package promise counts what an end-to-end proof promises, and what it measures on the way. In go sentences with the
// checks that stand behind them, out comes the last line of a run. It knows nothing of what is promised.
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

// Patience bounds every wait for something that takes several processes.
const Patience = 30 * time.Second

// score counts the promises.
var score struct {
	sync.Mutex
	checks, failed int
}

// figures are what was measured, in the order in which it was.
var figures struct {
	sync.Mutex
	keys   []string
	values map[string]float64
}

// That runs one check. Its name is what the product promises.
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

// Measured notes a figure. Of several with one key the largest counts.
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

// Summary is the last line of a run.
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

// Eventually fails the test unless a condition holds in time.
func Eventually(t *testing.T, condition func(context.Context) error) {
	t.Helper()
	if err := proc.Wait(t.Context(), Patience, condition); err != nil {
		t.Fatal(err)
	}
}

// Never fails the test if a condition holds at any time within a duration.
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
