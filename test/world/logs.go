package world

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/test/lab/proc"
	"github.com/fairlead/fairlead/test/promise"
)

// Logs proves things about every process of ours by what it wrote, from its start to now. Of those that are named a test has
// killed the Envoy in a way that looks like a crash.
func (w *World) Logs(t *testing.T, crashed ...string) {
	promise.That(t, "no log holds a key, a certificate or a token", func(t *testing.T) {
		w.NoLogHolds(t, nil, "PRIVATE KEY", "BEGIN CERTIFICATE", "fl1.")
	})
	promise.That(t, "no process has panicked, and no Envoy has crashed", func(t *testing.T) {
		w.NoLogHolds(t, nil, "WARNING: DATA RACE", "panic: ", "fatal error: ", "assert failure")
		w.NoLogHolds(t, crashed, "Caught Segmentation fault")
	})
}

// NoLogHolds fails the test if a log holds one of the texts, which may be secret.
func (w *World) NoLogHolds(t *testing.T, but []string, texts ...string) {
	t.Helper()
	logs, err := filepath.Glob(w.LogFile("*"))
	promise.Must(t, err)
	if len(logs) < 6 {
		t.Fatalf("there are only %d logs", len(logs))
	}
	for _, log := range logs {
		if slices.Contains(but, strings.TrimSuffix(filepath.Base(log), ".log")) {
			continue
		}
		data, err := os.ReadFile(log)
		promise.Must(t, err)
		for i, text := range texts {
			if at := strings.Index(string(data), text); at >= 0 {
				t.Errorf("%s holds the text number %d at byte %d", filepath.Base(log), i, at)
			}
		}
	}
}

// Restart starts a service again with something changed, and waits until it is ready.
func (w *World) Restart(t *testing.T, s *proc.Service, ready func(context.Context) error, change func(*proc.Spec)) {
	t.Helper()
	s.Hold()
	s.Change(change)
	s.Resume()
	promise.Eventually(t, ready)
}
