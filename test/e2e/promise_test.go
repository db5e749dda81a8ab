package e2e

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fairlead/fairlead/test/lab"
)

// patience bounds every wait for something that takes several processes.
const patience = 30 * time.Second

// score counts the promises.
var score struct {
	sync.Mutex
	checks, failed int
}

// promise runs one check. Its name is what the product promises.
func promise(t *testing.T, name string, check func(t *testing.T)) bool {
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

// figures are what was measured, in the order in which it was.
var figures measured

type measured struct {
	sync.Mutex
	keys   []string
	values map[string]float64
}

// set notes a figure. Of several with one key the largest counts.
func (m *measured) set(key string, value float64) {
	m.Lock()
	defer m.Unlock()
	if m.values == nil {
		m.values = map[string]float64{}
	}
	old, known := m.values[key]
	if !known {
		m.keys = append(m.keys, key)
	}
	m.values[key] = max(old, value)
}

// summary is the last line of a run.
func summary() string {
	score.Lock()
	defer score.Unlock()
	figures.Lock()
	defer figures.Unlock()
	var fields []string
	for _, key := range figures.keys {
		fields = append(fields, fmt.Sprintf("%s=%.4g", key, figures.values[key]))
	}
	return fmt.Sprintf("verify main: %d checks, %d failed; %s", score.checks, score.failed, strings.Join(fields, " "))
}

// eventually fails the test unless a condition holds in time.
func eventually(t *testing.T, condition func(context.Context) error) {
	t.Helper()
	if err := lab.Wait(t.Context(), patience, condition); err != nil {
		t.Fatal(err)
	}
}

// never fails the test if a condition holds at any time within a duration.
func never(t *testing.T, duration time.Duration, what string, condition func(context.Context) error) {
	t.Helper()
	if err := lab.Wait(t.Context(), duration, condition); err == nil {
		t.Fatal(what)
	}
}

// must fails the test on an error.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
