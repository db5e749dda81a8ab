package main

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestWithoutADatabaseTheCheckFails tries databases that cannot be read.
func TestWithoutADatabaseTheCheckFails(t *testing.T) {
	refusing := httptest.NewServer(http.NotFoundHandler())
	defer refusing.Close()
	other := httptest.NewServer(
		http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<html>sign in</html>")) }),
	)
	defer other.Close()
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	for _, database := range []string{refusing.URL, other.URL, gone.URL, "file://" + t.TempDir(), "https://[::1"} {
		if code := check(database, []string{"../..", "./cmd/..."}); code != unavailable {
			t.Errorf("with the database %s it ends with %d, want %d", database, code, unavailable)
		}
	}
	if code := check(refusing.URL, nil); code != failed {
		t.Errorf("without arguments it ends with %d", code)
	}
}

func TestLastModified(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "index"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "index", "db.json"), []byte(`{"modified":"2026-01-02T03:04:05Z"}`),
		0o600); err != nil {
		t.Fatal(err)
	}
	files := httptest.NewServer(http.FileServer(http.Dir(dir)))
	defer files.Close()
	for _, database := range []string{"file://" + dir, files.URL} {
		if got, err := lastModified(database); err != nil || !got.Equal(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)) {
			t.Errorf("%s: got %s, %v", database, got, err)
		}
	}
}
