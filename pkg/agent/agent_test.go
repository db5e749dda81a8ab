package agent

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/eventually"
	"github.com/fairlead/fairlead/pkg/envoy/record"
)

func TestAKilledEnvoyRestartsAtOnce(t *testing.T) {
	l := newGateway(newWorld(t))
	l.serve()
	l.agent()
	first, _ := l.serving()
	for range 2 {
		began := time.Now()
		if err := syscall.Kill(first, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		second, _ := l.serving(first)
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("it took %v", took)
		}
		first = second
	}
	if _, issued := l.counts(); issued != 1 {
		t.Errorf("%d leaves were issued, want 1", issued)
	}
}

func TestEnvoyOutlivesItsAgentAndIsTakenOverByTheNext(t *testing.T) {
	l := newGateway(newWorld(t))
	l.serve()
	l.agent().end(t, syscall.SIGKILL) // before or after it has a certificate: the next agent must handle either
	first := l.agent()
	pid, serial := l.serving()
	first.end(t, syscall.SIGKILL)
	if got, err := l.served(); err != nil || got != serial {
		t.Fatalf("without an agent Envoy serves %s, %v", got, err)
	}
	tokens, _ := l.counts()

	l.set(func() { l.life = 3 * time.Second })
	second := l.agent()
	l.logged("adopting the running Envoy", 1)
	if now, _ := l.serving(); now != pid {
		t.Errorf("Envoy %d was replaced by %d", pid, now)
	}
	if got, _ := l.counts(); got != tokens {
		t.Errorf("the agent enrolled again with a valid leaf on disk")
	}
	second.end(t, syscall.SIGHUP)
	if now, err := l.admin().PID(); err != nil || now != pid {
		t.Errorf("after SIGHUP Envoy is %d, %v", now, err)
	}
	third := l.agent()
	l.logged("adopting the running Envoy", 2)
	l.ready()
	third.end(t, syscall.SIGTERM)
	if pid, err := l.admin().PID(); err == nil {
		t.Errorf("after SIGTERM Envoy %d goes on", pid)
	}
}

// TestAnEnvoyThatDoesNotListenYetIsTakenOver: an agent that is killed meanwhile must leave no Envoy that nobody knows.
func TestAnEnvoyThatDoesNotListenYetIsTakenOver(t *testing.T) {
	script := func(l *place, format string, args ...any) {
		path := filepath.Join(t.TempDir(), "envoy")
		if err := os.WriteFile(path, fmt.Appendf([]byte("#!/bin/sh\n"), format, args...), 0o700); err != nil {
			t.Fatal(err)
		}
		l.child.Envoy = path
	}
	begin := func(l *place) {
		l.serve()
		first := l.agent()
		l.logged("Envoy started", 1)
		first.end(t, syscall.SIGKILL)
		if pid, err := l.admin().PID(); err == nil {
			t.Fatalf("Envoy %d listens already", pid)
		}
	}
	t.Run("when it listens", func(t *testing.T) {
		l := newGateway(newWorld(t))
		script(l, "sleep 3 3>&-\nexec %s \"$@\"\n", l.child.Envoy)
		begin(l)
		l.agent()
		l.logged("adopting the running Envoy", 1)
		l.logged("Envoy started", 1)
		l.serving()
	})
	t.Run("to stop it with the agent", func(t *testing.T) {
		l := newGateway(newWorld(t))
		script(l, "exec sleep 600\n")
		begin(l)
		var pid int
		for line := range strings.Lines(l.read(l.log)) {
			if _, value, found := strings.Cut(line, "pid="); found && strings.Contains(line, "Envoy started") {
				_, _ = fmt.Sscan(value, &pid)
			}
		}
		if err := syscall.Kill(pid, 0); pid == 0 || err != nil {
			t.Fatalf("process %d does not run: %v", pid, err)
		}
		second := l.agent()
		l.logged("waiting for an Envoy that starts", 1)
		second.end(t, syscall.SIGTERM)
		envoytest.Eventually(t, "that process ends", func() error {
			if err := syscall.Kill(pid, 0); err == nil {
				return fmt.Errorf("%d goes on", pid)
			}
			return nil
		})
	})
}

func TestAnEnvoyThatWasTakenOverGetsEachNewLeaf(t *testing.T) {
	l := newGateway(newWorld(t))
	l.life = 6 * time.Second // renewed after 4 s
	l.serve()
	first := l.agent()
	pid, serial := l.serving()
	first.end(t, syscall.SIGKILL)
	l.agent()
	for range 2 {
		old := serial
		envoytest.Eventually(t, "Envoy serves a new leaf", func() (err error) {
			if serial, err = l.served(); err == nil && serial == old {
				err = fmt.Errorf("it serves %s still", old)
			}
			return err
		})
	}
	if now, _ := l.serving(); now != pid {
		t.Errorf("Envoy %d was replaced by %d", pid, now)
	}
	if tokens, _ := l.counts(); tokens != 1 {
		t.Errorf("%d tokens were shown, want 1: a leaf is renewed by its key", tokens)
	}
}

func TestAnEnvoyWithAnotherConfigurationIsReplaced(t *testing.T) {
	l := newGateway(newWorld(t))
	l.serve()
	first := l.agent()
	pid, _ := l.serving()
	first.end(t, syscall.SIGKILL)
	l.child.Concurrency = 2
	l.agent()
	l.serving(pid)
	if fd, err := unix.PidfdOpen(pid, 0); err == nil { // otherwise there is no such process
		defer unix.Close(fd)
		eventually.True(t, envoytest.Patience, "the old Envoy has ended", func() error {
			// The descriptor is readable when the process has ended: pidfd_open(2).
			if n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0); n != 1 {
				return fmt.Errorf("Envoy %d goes on beside the new one: %w", pid, err)
			}
			return nil
		})
	}
	if files, err := filepath.Glob(filepath.Join(l.child.StateDir, "envoy-*.yaml")); err != nil || len(files) != 1 {
		t.Errorf("there are the bootstraps %v, %v", files, err)
	}
}

func TestAnEnvoyThatHangsIsReplaced(t *testing.T) {
	l := newGateway(newWorld(t))
	l.child.Adopt = time.Second
	l.serve()
	first := l.agent()
	pid, _ := l.serving()
	first.end(t, syscall.SIGKILL)
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	l.agent()
	l.serving(pid)
}

func TestAnAgentWaitsForTheControlChannel(t *testing.T) {
	l := newGateway(newWorld(t))
	l.agent()
	l.logged("connection refused", 1)
	if status := answer(l, "/healthz"); status != http.StatusOK {
		t.Errorf("/healthz answers %d", status)
	}
	if status := answer(l, "/readyz"); status != http.StatusServiceUnavailable {
		t.Errorf("without a certificate /readyz answers %d", status)
	}
	l.serve()
	l.serving()
	if status := answer(l, "/readyz"); status != http.StatusOK {
		t.Errorf("/readyz answers %d", status)
	}
	l.logged("connection refused", 1) // each reason is logged once
}

func answer(l *place, path string) int {
	code, _ := l.get(path)
	return code
}

func TestATokenThatIsReplacedIsReadAgain(t *testing.T) {
	l := newGateway(newWorld(t))
	l.serve()
	l.write(l.child.TokenFile, "fl1.wrong")
	l.agent()
	l.logged("unknown, has expired or is used up", 1)
	l.write(l.child.TokenFile, l.token)
	l.serving()
	if log := l.read(l.log); strings.Contains(log, l.token) || strings.Contains(log, "PRIVATE KEY") {
		t.Error("the log has a secret in it")
	}
}

func TestOnlyItsOwnerReadsTheStateFolder(t *testing.T) {
	l := newGateway(newWorld(t))
	l.serve()
	l.agent()
	l.serving()
	dir := l.child.StateDir
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%s: %v, %v", dir, info.Mode(), err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		want := os.FileMode(0o600)
		if entry.IsDir() {
			want = 0o700
		}
		if entry.Name() == record.TunnelLog {
			continue // Envoy's own file, in a restricted folder
		}
		if info, err := entry.Info(); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v", entry.Name(), info.Mode(), err)
		}
	}
	if len(entries) < 7 { // key, leaf, trust bundle, bootstrap, cache, two sockets
		t.Errorf("there are only %v", entries)
	}
}
