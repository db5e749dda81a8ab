package envoyadmin

import (
	"path/filepath"
	"testing"
	"time"
)

func TestAMissingAdminInterfaceIsNotWaitedFor(t *testing.T) {
	began := time.Now()
	if _, err := (Client{Socket: filepath.Join(t.TempDir(), "x")}).WaitInfo(t.Context(), nil); err == nil ||
		time.Since(began) > Timeout {
		t.Errorf("after %v: %v", time.Since(began), err)
	}
}
