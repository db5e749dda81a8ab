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

// Logs proves properties of the complete logs of all of Fairlead's processes. crashed names the agents whose Envoy a
// test has killed in a way that looks like a crash.
func (w *World) Logs(t *testing.T, crashed ...string) {
	promise.That(t, "no log contains a key, a certificate or a token", func(t *testing.T) {
		w.NoLogHolds(t, nil, "PRIVATE KEY", "BEGIN CERTIFICATE", "fl1.")
	})
	promise.That(t, "no process panics and no Envoy crashes", func(t *testing.T) {
		w.NoLogHolds(t, nil, "WARNING: DATA RACE", "panic: ", "fatal error: ", "assert failure")
		w.NoLogHolds(t, crashed, "Caught Segmentation fault")
	})
}

// NoLogHolds fails the test if a log contains one of the texts. It does not print the texts, which may be secret. It
// skips the logs in but.
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

// Restart starts a service again with a change, and waits until it is ready.
func (w *World) Restart(t *testing.T, s *proc.Service, ready func(context.Context) error, change func(*proc.Spec)) {
	t.Helper()
	s.Hold()
	s.Change(change)
	s.Resume()
	promise.Eventually(t, ready)
}
