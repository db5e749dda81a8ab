package xdsproxy_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/internal/eventually"
)

// trials is the file that counts the trials of unproven resources.
const trials = "trials"

// untried waits until that file does not exist.
func (b *bed) untried(t testing.TB) {
	t.Helper()
	eventually.True(t, patience, "no trial is on record", func() error {
		if slices.Contains(files(t, b.dir), trials) {
			return errors.New("one is")
		}
		return nil
	})
}

// again returns the next agent, after one that died with its Envoy.
func again(t *testing.T, dir string, s *server) (*bed, *envoy) {
	t.Helper()
	bed := newBed(t, dir)
	bed.follow(t, "a", s, nil)
	e := bed.envoy(t, nil)
	e.subscribe(t, cds, lds)
	return bed, e
}

func TestCrashesThatTakeTheAgentWithThem(t *testing.T) {
	tests := map[string]struct {
		begin func(t *testing.T, dir string) (*server, string)
		crash func(t *testing.T, e *envoy)
	}{
		"when the new is on disk": {
			func(t *testing.T, dir string) (*server, string) {
				t.Helper()
				bed, s, good := crashing(t, dir)
				bed.stop()
				return s, good
			},
			func(t *testing.T, e *envoy) { t.Helper(); e.until(t, cds, "c1", "c2") },
		},
		"before Envoy has accepted it": {
			func(t *testing.T, dir string) (*server, string) {
				t.Helper()
				s, good := running(t, dir)
				return s, good
			},
			func(t *testing.T, e *envoy) {
				t.Helper()
				for r := e.receive(t); !slices.Contains(names(r), "c2"); r = e.receive(t) {
					e.answer(t, r)
				}
			},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			s, good := test.begin(t, dir)
			for range 2 {
				bed, e := again(t, dir, s)
				test.crash(t, e)
				bed.file(t, trials) // before Envoy gets it
				expect(t, "refused", bed.State("a").Refused, "")
				e.kill()
				bed.stop()
			}
			bed, e := again(t, dir, s)
			e.until(t, cds, "c1")
			e.until(t, lds, "l")
			expect(t, "version", e.have[cds]["c1"], good)
			bed.file(t, "a.clusters.cache", "Envoy ended 3 times")
			if got := bed.State("a").Refused; !strings.Contains(got, "c1, c2") {
				t.Errorf("the reason is %q", got)
			}
			bed.Ran()
			bed.untried(t)
			s.set(t, cluster("c1", 3))
			e.until(t, cds, "c1", "c2")
		})
	}
}

// running leaves the cache of an edge that ran well with c1, and whose Envoy ended once with c2 and another c1 before
// it accepted them.
func running(t *testing.T, dir string) (s *server, good string) {
	t.Helper()
	s = newServer(t, named(cluster("c1", 1)), named(listener("l")))
	bed, e := again(t, dir, s)
	e.until(t, cds, "c1")
	e.until(t, lds, "l")
	bed.file(t, "a.listeners.cache", "l")
	bed.Ran()
	bed.file(t, "a.clusters.good", e.have[cds]["c1"])
	bed.file(t, "a.listeners.good", "l")
	if slices.Contains(files(t, dir), trials) {
		t.Error("there was nothing to go back to, and that counts")
	}
	if err := s.caches[cds].UpdateResources(named(cluster("c1", 2), cluster("c2", 1)), nil); err != nil {
		t.Fatal(err)
	}
	expect(t, "sent", names(e.receive(t)), []string{"c1", "c2"})
	if !slices.Contains(files(t, dir), trials) {
		t.Error("Envoy has what is new, and that is not on record")
	}
	e.kill()
	bed.stop()
	return s, e.have[cds]["c1"]
}

func TestEndsThatAreNotTheFaultOfResources(t *testing.T) {
	tests := map[string]func(b *bed, e *envoy){
		"Envoy had run for a while":    func(b *bed, e *envoy) { b.Ran(); e.kill() },
		"Envoy was ended by its agent": func(b *bed, e *envoy) { e.kill(); b.Ended() },
	}
	for name, end := range tests {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			bed, s, _ := crashing(t, dir)
			bed.stop()
			for range 4 {
				bed, e := again(t, dir, s)
				e.until(t, cds, "c1", "c2")
				e.until(t, lds, "l")
				end(bed, e)
				bed.untried(t)
				bed.stop()
			}
		})
	}
}

func TestAKilledAgentIsNotACrashOfEnvoy(t *testing.T) {
	dir := t.TempDir()
	bed, s, _ := crashing(t, dir)
	bed.stop()
	bed, e := again(t, dir, s)
	e.until(t, cds, "c1", "c2")
	e.until(t, lds, "l")
	for range 4 {
		bed.stop()
		bed = newBed(t, dir)
		bed.follow(t, "a", s, nil)
		e = bed.envoy(t, e.have)
		e.subscribe(t, cds, lds)
		e.next(t)
		e.next(t)
		s.set(t, cluster("c3", 1))
		e.until(t, cds, "c1", "c2", "c3")
		if err := s.caches[cds].DeleteResource("c3"); err != nil {
			t.Fatal(err)
		}
		e.until(t, cds, "c1", "c2")
	}
	expect(t, "refused", bed.State("a").Refused, "")
	e.kill()
	expect(t, "back after two", bed.Crashed(), false)
	expect(t, "back after three", bed.crash(t, "c1", "c2"), true)
}

func TestAnUnusableRecordOfTrialsCountsAsNone(t *testing.T) {
	spoils := map[string]func(data []byte) []byte{
		"empty":       func([]byte) []byte { return nil },
		"truncated":   func(data []byte) []byte { return data[:len(data)-1] },
		"too long":    func(data []byte) []byte { return append(data, data...) },
		"another one": func(data []byte) []byte { return []byte(strings.Replace(string(data), "\n3", "\n2", 1)) },
		"one bit off": func(data []byte) []byte { data[len(data)/2] ^= 1; return data },
	}
	dir := t.TempDir()
	bed, s, _ := crashing(t, dir)
	bed.stop()
	for range 2 {
		bed, e := again(t, dir, s)
		e.until(t, cds, "c1", "c2")
		e.kill()
		bed.stop()
	}
	path := filepath.Join(dir, trials)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for name, spoil := range spoils {
		t.Run(name, func(t *testing.T) {
			if err := os.WriteFile(path, spoil(slices.Clone(whole)), 0o600); err != nil {
				t.Fatal(err)
			}
			bed := newBed(t, dir)
			expect(t, "log lines", bed.log.Count("level=ERROR", path), 1)
			expect(t, "back after one", bed.crash(t, "c1", "c2"), false)
			expect(t, "refused", bed.State("a").Refused, "")
			bed.stop()
		})
	}
}

func TestAnUnwritableRecordOfTrialsIsReported(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, trials+".tmp", "in"), 0o700); err != nil {
		t.Fatal(err)
	}
	bed, _, _ := crashing(t, dir) // Envoy does not wait for the disk
	bed.Crashed()
	bed.crash(t, "c1", "c2")
	expect(t, "back after three", bed.crash(t, "c1", "c2"), true)
	eventually.True(t, patience, "it is logged once", func() error {
		if n := bed.log.Count("level=ERROR", "is a directory"); n != 1 {
			return fmt.Errorf("%d lines", n)
		}
		return nil
	})
}
