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

	"github.com/fairlead/fairlead/internal/envoytest"
)

func TestEnvoyIsBackAtOnceAfterAKill(t *testing.T) {
	l := newGatewayLab(t)
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
	l := newGatewayLab(t)
	l.serve()
	l.agent().end(t, syscall.SIGKILL) // before or after it has a certificate: the next one has to cope with either
	first := l.agent()
	pid, serial := l.serving()
	first.end(t, syscall.SIGKILL)
	if got, err := l.served(); err != nil || got != serial {
		t.Fatalf("without an agent Envoy serves %s, %v", got, err)
	}
	tokens, _ := l.counts()

	l.set(func() { l.life = 3 * time.Second })
	second := l.agent()
	l.logged("taking it over", 1)
	if now, _ := l.serving(); now != pid {
		t.Errorf("Envoy %d was replaced by %d", pid, now)
	}
	if got, _ := l.counts(); got != tokens {
		t.Errorf("the agent enrolled again with a valid leaf on disk")
	}
	second.end(t, syscall.SIGTERM)
	if pid, err := l.admin().pid(); err == nil {
		t.Errorf("after SIGTERM Envoy %d goes on", pid)
	}
}

func TestAnEnvoyThatWasTakenOverGetsEachNewLeaf(t *testing.T) {
	l := newGatewayLab(t)
	l.serve()
	l.life = 6 * time.Second // renewed after 4 s
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

func TestAnEnvoyThatWasStartedOtherwiseIsReplaced(t *testing.T) {
	l := newGatewayLab(t)
	l.serve()
	first := l.agent()
	pid, _ := l.serving()
	first.end(t, syscall.SIGKILL)
	l.child.Config.Concurrency = 2
	l.agent()
	l.serving(pid)
	if old, err := follow(pid); err == nil { // else there is no such process
		select {
		case <-old.done:
		case <-time.After(envoytest.Patience):
			t.Errorf("Envoy %d goes on beside the new one", pid)
		}
	}
	if files, err := filepath.Glob(filepath.Join(l.child.Config.StateDir, "envoy-*.yaml")); err != nil || len(files) != 1 {
		t.Errorf("there are the bootstraps %v, %v", files, err)
	}
}

func TestAnEnvoyThatHangsIsReplaced(t *testing.T) {
	l := newGatewayLab(t)
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
	l := newGatewayLab(t)
	l.agent()
	l.logged("connection refused", 1)
	if status := l.status("/healthz"); status != http.StatusOK {
		t.Errorf("/healthz answers %d", status)
	}
	if status := l.status("/readyz"); status != http.StatusServiceUnavailable {
		t.Errorf("without a certificate /readyz answers %d", status)
	}
	l.serve()
	l.serving()
	if status := l.status("/readyz"); status != http.StatusOK {
		t.Errorf("/readyz answers %d", status)
	}
	l.logged("connection refused", 1) // each reason once
}

func (l *gatewayLab) status(path string) int {
	l.t.Helper()
	request, err := http.NewRequestWithContext(l.t.Context(), http.MethodGet, "http://"+l.child.Config.HealthListen+path, http.NoBody)
	if err != nil {
		l.t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		l.t.Fatal(err)
	}
	defer response.Body.Close()
	return response.StatusCode
}

func TestATokenThatIsReplacedIsReadAgain(t *testing.T) {
	l := newGatewayLab(t)
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
	l := newGatewayLab(t)
	l.serve()
	l.agent()
	l.serving()
	dir := l.child.Config.StateDir
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%s: %v, %v", dir, info.Mode(), err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		if info, err := entry.Info(); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", entry.Name(), info.Mode(), err)
		}
	}
	if len(entries) < 6 { // key, leaf, trust bundle, lock, bootstrap, two sockets
		t.Errorf("there are only %v", entries)
	}
}

func TestTwoAgentsDoNotShareAFolder(t *testing.T) {
	dir := t.TempDir()
	unlock, err := lock(dir)
	if err != nil {
		t.Fatal(err)
	}
	a, err := New(Config{Role: Edge{Domain: domain}, StateDir: dir, Envoy: os.Args[0]}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "another agent") {
		t.Errorf("got %v", err)
	}
	unlock()
	unlock, err = lock(dir)
	if err != nil {
		t.Fatal(err)
	}
	unlock()
}

func TestNewRefuses(t *testing.T) {
	tests := map[string]struct {
		in      Config
		wantErr string
	}{
		"no state folder":                      {wantErr: "state folder"},
		"a folder too long for sockets":        {in: Config{StateDir: "/" + strings.Repeat("a", 100)}, wantErr: "too long by 5"},
		"a negative number of Envoy's workers": {in: Config{StateDir: "/a", Concurrency: -1}, wantErr: "workers"},
		"a program that is not there":          {in: Config{StateDir: "/a", Envoy: "/a/envoy"}, wantErr: "looking for Envoy"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if _, err := New(tc.in, nil); err == nil || !strings.Contains(err.Error(), tc.wantErr) {
				t.Errorf("got %v, want an error with %q", err, tc.wantErr)
			}
		})
	}
}
