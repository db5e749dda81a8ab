package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/test/promise"
)

// logs proves properties of the complete logs of all of Fairlead's processes.
func (w *world) logs(t *testing.T) {
	promise.That(t, "no log contains a token or a key", func(t *testing.T) {
		hidden := []string{"PRIVATE KEY", "BEGIN CERTIFICATE"}
		for _, m := range w.members() {
			secret, err := m.Secret(t.Context(), v1alpha1.BootstrapSecretSuffix)
			must(t, err)
			hidden = append(hidden, string(secret.Data[v1alpha1.BootstrapTokenKey]))
		}
		w.noLogHolds(t, hidden...)
	})
	promise.That(t, "no process reports a data race or a panic", func(t *testing.T) {
		w.noLogHolds(t, "WARNING: DATA RACE", "panic: ", "fatal error: ", "Segmentation fault")
	})
}

// noLogHolds fails the test if a log contains one of the texts. It does not print the texts, which may be secret.
func (w *world) noLogHolds(t *testing.T, texts ...string) {
	t.Helper()
	logs, err := filepath.Glob(w.LogFile("*"))
	must(t, err)
	if len(logs) < 8 {
		t.Fatalf("there are only %d logs", len(logs))
	}
	for _, log := range logs {
		data, err := os.ReadFile(log)
		must(t, err)
		for i, text := range texts {
			if text == "" || strings.Contains(string(data), text) {
				t.Errorf("%s holds the text number %d", filepath.Base(log), i)
			}
		}
	}
}
