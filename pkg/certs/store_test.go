package certs_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/fairlead/fairlead/pkg/certs"
)

func openStore(t *testing.T, dir string) *certs.Store {
	t.Helper()
	store, err := certs.OpenStore(dir)
	if err != nil {
		t.Fatal(err)
	}
	return store
}

func save(t *testing.T, store *certs.Store, ca *certs.CA) certs.Identity {
	t.Helper()
	identity := newIdentity(t, ca, now, time.Hour)
	if err := store.Save(identity, ca.CertPEM()); err != nil {
		t.Fatal(err)
	}
	return identity
}

// serial returns the serial number of the store's identity, or "" if it has none.
func serial(t *testing.T, store *certs.Store) string {
	t.Helper()
	identity, err := store.Identity()
	if errors.Is(err, certs.ErrNoIdentity) {
		return ""
	}
	if err != nil {
		t.Fatal(err)
	}
	return identity.Serial()
}

func TestAStoreReturnsTheSavedIdentity(t *testing.T) {
	dir, ca := filepath.Join(t.TempDir(), "state"), newCA(t)
	store := openStore(t, dir)
	if got := serial(t, store); got != "" {
		t.Errorf("an empty store gives %s", got)
	}
	want := save(t, store, ca)
	for name, s := range map[string]*certs.Store{"the same": store, "the next": openStore(t, dir)} {
		if got := serial(t, s); got != want.Serial() {
			t.Errorf("%s: got %q, want %q", name, got, want.Serial())
		}
		if string(s.Bundle()) != string(ca.CertPEM()) {
			t.Errorf("%s: another trust bundle", name)
		}
	}
	store.Clear()
	if got := serial(t, store); got != "" {
		t.Errorf("after Forget the store gives %s", got)
	}
}

func TestNoOtherUserCanReadAKey(t *testing.T) {
	dir := t.TempDir() // has a mode such as 0755
	save(t, openStore(t, dir), newCA(t))
	for path, want := range map[string]os.FileMode{dir: 0o700, filepath.Join(dir, certs.KeyFile): 0o600} {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if got := info.Mode().Perm(); got != want {
			t.Errorf("%s has mode %v, want %v", path, got, want)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != 3 {
		t.Errorf("there are %v, want key, leaf and trust bundle", entries)
	}
}

func TestACrashWhileSavingLosesNothing(t *testing.T) {
	ca := newCA(t)
	tests := map[string]struct {
		// mix combines the files of an old and a new identity into what a crash leaves
		mix  map[string]string
		want string
	}{
		"before the key was replaced": {mix: map[string]string{"leaf.pem.next": "new/leaf.pem"}, want: "old"},
		"after the key was replaced": {
			mix:  map[string]string{"leaf.pem.next": "new/leaf.pem", "key.pem": "new/key.pem"},
			want: "new",
		},
		"after all was replaced": {
			mix:  map[string]string{"leaf.pem": "new/leaf.pem", "key.pem": "new/key.pem"},
			want: "new",
		},
		"a key without its certificate": {mix: map[string]string{"key.pem": "new/key.pem"}},
		"a key that was cut off":        {mix: map[string]string{"key.pem": ""}},
		"no trust bundle":               {mix: map[string]string{"trust.pem": ""}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			serials := map[string]string{
				"old": save(t, openStore(t, dir), ca).Serial(),
				"new": save(t, openStore(t, filepath.Join(dir, "new")), ca).Serial(),
			}
			for to, from := range tc.mix {
				var data []byte
				if from != "" {
					var err error
					if data, err = os.ReadFile(filepath.Join(dir, from)); err != nil {
						t.Fatal(err)
					}
				}
				if err := os.WriteFile(filepath.Join(dir, to), data, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if got := serial(t, openStore(t, dir)); got != serials[tc.want] {
				t.Errorf("got %q, want %q of %v", got, tc.want, serials)
			}
			// Another crash, after the next Write has replaced only the next leaf.
			if err := os.WriteFile(filepath.Join(dir, "leaf.pem.next"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
			if got := serial(t, openStore(t, dir)); got != serials[tc.want] {
				t.Errorf("after another crash: got %q, want %q of %v", got, tc.want, serials)
			}
		})
	}
}

func TestAnUnusableIdentityIsNotSaved(t *testing.T) {
	ca := newCA(t)
	store := openStore(t, t.TempDir())
	want := save(t, store, ca)
	checkError(t, store.Save(certs.Identity{}, ca.CertPEM()), "no identity")
	checkError(t, store.Save(newIdentity(t, ca, now, time.Hour), []byte("x")), "trust bundle")
	if got := serial(t, store); got != want.Serial() {
		t.Errorf("got %q, want %q", got, want.Serial())
	}
}
