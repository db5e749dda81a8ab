package world

import (
	"context"
	"fmt"
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
	found, err := w.LogsWith(but, texts...)
	promise.Must(t, err)
	for _, f := range found {
		t.Errorf("%s holds the text number %d at byte %d", f.Log, f.Text, f.At)
	}
}

// Found is a place in a log.
type Found struct {
	Log      string // the base of its name
	Text, At int    // which of the texts, and its byte
}

// LogsWith returns where the logs contain texts, each text at most once in each log. It skips the logs in but.
func (w *World) LogsWith(but []string, texts ...string) ([]Found, error) {
	logs, err := filepath.Glob(w.LogFile("*"))
	if err != nil {
		return nil, err
	}
	if len(logs) < 6 {
		return nil, fmt.Errorf("there are only %d logs", len(logs))
	}
	var found []Found
	for _, log := range logs {
		name := filepath.Base(log)
		if slices.Contains(but, strings.TrimSuffix(name, ".log")) {
			continue
		}
		data, err := os.ReadFile(log)
		if err != nil {
			return nil, err
		}
		for i, text := range texts {
			if at := strings.Index(string(data), text); at >= 0 {
				found = append(found, Found{name, i, at})
			}
		}
	}
	return found, nil
}

// Restart starts a service again with a change, and waits until it is ready.
func (w *World) Restart(t *testing.T, s *proc.Service, ready func(context.Context) error, change func(*proc.Spec)) {
	t.Helper()
	s.Hold()
	s.Change(change)
	s.Resume()
	promise.Eventually(t, ready)
}
