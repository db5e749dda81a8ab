package agent

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/fairlead/fairlead/internal/envoytest"
)

func TestWhileNoEnvoyStartsTheNewestWantedIsTaken(t *testing.T) {
	dir := t.TempDir()
	started := filepath.Join(dir, "started")
	s := newSupervisor(slog.New(slog.DiscardHandler))
	broken := launch{dir: dir, program: filepath.Join(dir, "none"), config: "envoy-0.yaml"}
	for range 3 { // nobody reads them yet
		s.want(broken)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- s.run(ctx) }()
	for range 100 {
		s.want(broken)
	}
	s.want(launch{dir: dir, program: "/bin/sh", config: "envoy-1.yaml", args: []string{"-c", "touch started; exec sleep 1000"}})
	envoytest.Eventually(t, "the newest is started", func() error {
		_, err := os.Stat(started)
		return err
	})
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestApplyFailsWithoutEnvoyAndWorksWithItAgain(t *testing.T) {
	c := newControl(t)
	dir := t.TempDir()
	program := filepath.Join(dir, "envoy")
	i := newIdentities(t, edgeOf(domain)(c))
	c.save(i.store, c.fresh(edgeSubject))
	a := &Agent{config: Config{Role: i.role, StateDir: dir, Envoy: program, EnvoyLogLevel: "warning", Concurrency: 1}}
	sds, envoys := newSecretServer(), newSupervisor(slog.New(slog.DiscardHandler))
	if err := a.apply(i.store, sds, envoys); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without a program: got %v", err)
	}
	if len(sds.cache.GetResources()) != 2 || len(envoys.wanted) != 0 {
		t.Error("Envoy gets no new leaf, or is to be replaced by nothing")
	}
	if err := os.WriteFile(program, []byte("#!/bin/sh\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	for range 2 { // does not block
		if err := a.apply(i.store, sds, envoys); err != nil || len(envoys.wanted) != 1 {
			t.Errorf("with a program: got %v", err)
		}
	}
}
