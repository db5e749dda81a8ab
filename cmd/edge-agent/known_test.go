package main

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/pkg/agent"
	"github.com/fairlead/fairlead/pkg/agent/edge"
)

// started returns the configuration and the credential of an edge that starts with a bootstrap file, and its log.
func started(t *testing.T, stateDir, path string) (edge.Config, edge.Credential, string) {
	t.Helper()
	var log bytes.Buffer
	o := options{bootstraps: []string{path}, proxyGiven: true, log: slog.New(slog.NewTextHandler(&log, nil))}
	o.agent.StateDir = stateDir
	edges, err := o.edges()
	if err != nil {
		t.Fatal(err)
	}
	credential, err := edges[0].Credential()
	if err != nil {
		t.Fatal(err)
	}
	return edges[0], credential, log.String()
}

func TestAnEdgeStartsWithoutItsBootstrapFile(t *testing.T) {
	spoil := func(data string) func(t *testing.T, path string) {
		return func(t *testing.T, path string) { write(t, filepath.Dir(path), filepath.Base(path), data) }
	}
	tests := map[string]func(t *testing.T, path string){
		"a removed file": func(t *testing.T, path string) {
			t.Helper()
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		},
		"a file that is empty":       spoil(""),
		"a file that is half copied": spoil(bootstrap[:strings.Index(bootstrap, "gateway")]),
		"a file that is no YAML":     spoil("\x00\x00"),
	}
	for name, end := range tests {
		t.Run(name, func(t *testing.T) {
			state := t.TempDir()
			path := write(t, t.TempDir(), "bootstrap.yaml", bootstrap)
			before, credential, log := started(t, state, path)
			if log != "" {
				t.Errorf("with the file it logs %s", log)
			}
			end(t, path)
			after, recalled, log := started(t, state, path)
			if after.Domain != before.Domain || join(after.Dialer.Addresses) != join(before.Dialer.Addresses) ||
				join(after.Gateways) != join(before.Gateways) {
				t.Errorf("got %+v, want %+v", after, before)
			}
			if recalled.ID != credential.ID || !bytes.Equal(recalled.CA, credential.CA) || recalled.Token != "" {
				t.Errorf("the credential is %+v, want that of before without its token", recalled)
			}
			if !strings.Contains(log, path) {
				t.Errorf("it does not say that the file is of no use: %q", log)
			}
		})
	}
}

func TestTheCopyOfAReplacedFileIsUpdated(t *testing.T) {
	state := t.TempDir()
	path := write(t, t.TempDir(), "bootstrap.yaml", bootstrap)
	edge, _, _ := started(t, state, path)
	write(t, filepath.Dir(path), filepath.Base(path), strings.ReplaceAll(bootstrap, "gw.", "gw2."))
	if _, err := edge.Credential(); err != nil { // read as before each enrolment
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if edge, _, _ = started(t, state, path); join(edge.Dialer.Addresses) != "gw2.example.com:443" {
		t.Errorf("the way is to %s", join(edge.Dialer.Addresses))
	}
}

func TestTheCopyOfAFileHasNoTokenAndIsPrivate(t *testing.T) {
	state := t.TempDir()
	started(t, state, write(t, t.TempDir(), "bootstrap.yaml", bootstrap))
	files := records(t, state)
	if len(files) != 1 {
		t.Fatalf("there are %v", files)
	}
	data, err := os.ReadFile(files[0])
	if err != nil || bytes.Contains(data, []byte("fl1.file")) {
		t.Errorf("the token is in it, or %v:\n%s", err, data)
	}
	for path, want := range map[string]os.FileMode{files[0]: 0o600, filepath.Dir(files[0]): 0o700} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v", path, info.Mode(), err)
		}
	}
}

func TestADamagedCopyIsIgnored(t *testing.T) {
	state := t.TempDir()
	one := write(t, t.TempDir(), "one.yaml", bootstrap)
	started(t, state, one)
	record := records(t, state)[0]
	whole, err := os.ReadFile(record)
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string][]byte{
		"empty":           nil,
		"torn":            whole[:len(whole)-5],
		"with another id": bytes.Replace(whole, []byte("aaaa"), []byte("bbbb"), 1),
	}
	for name, data := range tests {
		t.Run(name, func(t *testing.T) {
			write(t, filepath.Dir(record), filepath.Base(record), string(data))
			if err := os.Rename(one, one+".gone"); err != nil {
				t.Fatal(err)
			}
			o := options{bootstraps: []string{one}, proxyGiven: true, agent: agent.Config{StateDir: state}}
			if _, err := o.edges(); err == nil || !strings.Contains(err.Error(), "no such file") {
				t.Errorf("without the file it starts by a record that is damaged: %v", err)
			}
			if err := os.Rename(one+".gone", one); err != nil {
				t.Fatal(err)
			}
			started(t, state, one)
			if now, err := os.ReadFile(record); err != nil || !bytes.Equal(now, whole) {
				t.Errorf("the record is not whole again: %v", err)
			}
		})
	}
}

func TestEachFileHasItsOwnCopy(t *testing.T) {
	state, dir := t.TempDir(), t.TempDir()
	one, two := write(t, dir, "one.yaml", bootstrap), write(
		t, dir, "two.yaml", strings.ReplaceAll(bootstrap, "aaa", "bbb"),
	)
	for _, path := range []string{one, two} {
		started(t, state, path)
	}
	if err := os.Remove(two); err != nil {
		t.Fatal(err)
	}
	if _, credential, _ := started(t, state, one); credential.ID != "aaaaaaaaaaaaaaaaaaaaaaaa" || credential.Token == "" {
		t.Errorf("the file that is there gives %+v", credential)
	}
	if _, credential, _ := started(t, state, two); credential.ID != "bbbbbbbbbbbbbbbbbbbbbbbb" {
		t.Errorf("the other gives %+v", credential)
	}
}

func TestAnEdgeStartsWithoutAWritableStateFolder(t *testing.T) {
	file := write(t, t.TempDir(), "state", "a file, in which there can be no folder")
	if _, credential, log := started(t, file, write(t, t.TempDir(), "bootstrap.yaml",
		bootstrap)); credential.Token == "" ||
		strings.Count(log, "\n") != 1 {
		t.Errorf("got %+v, and the log %q", credential, log)
	}
}

func records(t *testing.T, stateDir string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(stateDir, knownFolder, "*"))
	if err != nil {
		t.Fatal(err)
	}
	return files
}
