package boot

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/eventually"
	"github.com/fairlead/fairlead/pkg/certs"
	enrolclient "github.com/fairlead/fairlead/pkg/enrol/client"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
)

const patience = 10 * time.Second

var errDown = errors.New("the gateways are down")

// follow runs a Reporter and returns a function that waits for its end.
func follow(t *testing.T, c Config) (ended func() error) {
	t.Helper()
	c.pace = quick
	done := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { done <- New(c).Run(ctx) }()
	t.Cleanup(cancel)
	return func() error {
		t.Helper()
		select {
		case err := <-done:
			return err
		case <-time.After(patience):
			t.Fatal("it has not ended")
			return nil
		}
	}
}

func (s *server) reaches(t *testing.T, state reportv1.BootState, step string) {
	t.Helper()
	eventually.True(t, patience, step, func() error {
		if r := s.last(); r.GetState() != state || r.GetStep() != step {
			return errors.New(r.String())
		}
		return nil
	})
}

func TestABootIsFollowedToItsEnd(t *testing.T) {
	m, s := newMachine(t), newServer()
	s.answer = enrolclient.Answer{Next: time.Hour, Watched: true}
	done := filepath.Join(m.root, "var/lib/fairlead/boot-reported")
	c := Config{Root: m.root, Send: s.send, DoneFile: done, Repeat: 100 * time.Millisecond}
	ended := follow(t, c)
	s.reaches(t, running, "before kubeadm")
	m.cloud("init")
	s.reaches(t, running, "cloud-init init")
	m.cloud("modules-final")
	m.append(cloudLogPath, logBegin+logPreflight)
	s.reaches(t, running, "kubeadm preflight")
	m.append(cloudLogPath, logJoined)
	m.succeed()
	s.reaches(t, running, "after kubeadm")
	s.answer.Next = 0
	m.cloud("")
	s.reaches(t, succeeded, "bootstrapped")
	before := s.count()
	if err := ended(); err != nil {
		t.Error(err)
	}
	if s.count() == before {
		t.Error("the end was told once: whoever was away has missed it")
	}
	if _, err := os.Stat(done); err != nil {
		t.Error(err)
	}
	count := s.count()
	if err := follow(t, c)(); err != nil || s.count() != count {
		t.Errorf("after it was told it is told again: %v", err)
	}
}

func TestAnOutageLosesNothing(t *testing.T) {
	m, s := newMachine(t), newServer()
	s.err = errDown
	m.cloud("", scriptsError)
	m.write(cloudLogPath, logBegin+logPortInUse)
	ended := follow(t, Config{Root: m.root, Send: s.send, Repeat: time.Second})
	for range 5 {
		<-s.wake
	}
	s.set(nil)
	s.reaches(t, failed, "kubeadm preflight")
	s.set(errDown) // restarts, and loses its state
	for range 3 {
		<-s.wake
	}
	count := s.count()
	s.set(nil)
	eventually.True(t, patience, "it is reported again", func() error {
		if s.count() == count {
			return errors.New("not yet")
		}
		return nil
	})
	if err := ended(); err != nil {
		t.Error(err)
	}
}

func TestALateSuccessIsReported(t *testing.T) {
	m, s := newMachine(t), newServer()
	m.cloud("")
	m.write(cloudLogPath, logBegin+logPortInUse)
	follow(t, Config{Root: m.root, Send: s.send})
	s.reaches(t, failed, "kubeadm preflight")
	m.succeed() // repaired manually
	s.reaches(t, succeeded, "bootstrapped")
}

// TestARunWithoutAServerEnds ends without an error, after which systemd would restart it for ever, and logs this once.
func TestARunWithoutAServerEnds(t *testing.T) {
	m, s := newMachine(t), newServer()
	s.err = errDown
	var log bytes.Buffer
	err := follow(t, Config{
		Root: m.root, Send: s.send, Deadline: 10 * time.Millisecond, Repeat: 50 * time.Millisecond, Log: slog.New(
			slog.NewTextHandler(&log, nil)),
	})()
	if err != nil || strings.Count(log.String(), "result of the boot was not accepted") != 1 ||
		!strings.Contains(log.String(), errDown.Error()) {
		t.Errorf("got %v, log:\n%s", err, log.String())
	}
}

// TestARunWithoutCredentialsEnds has the unit in an image on a machine whose Cluster does not use it: it ends, with
// one line.
func TestARunWithoutCredentialsEnds(t *testing.T) {
	before := func(m *machine) {
		m.write(kubeletConfPath, "kind: Config\n")
		old := time.Unix(1600000000, 0)
		if err := os.Chtimes(filepath.Join(m.root, kubeletConfPath), old, old); err != nil {
			t.Fatal(err)
		}
	}
	tests := map[string]struct {
		make     func(*machine)
		deadline time.Duration
	}{
		"in a later boot":   {before, time.Hour},
		"in the first boot": {(*machine).succeed, 50 * time.Millisecond},
		"no Node at all":    {func(*machine) {}, 50 * time.Millisecond},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			m, s := newMachine(t), newServer()
			tc.make(m)
			s.err = fmt.Errorf("%w: no file", ErrNotAsked)
			var log bytes.Buffer
			err := follow(
				t,
				Config{
					Root:     m.root,
					Send:     s.send,
					Deadline: tc.deadline,
					Repeat:   time.Hour,
					Log:      slog.New(slog.NewTextHandler(&log, nil)),
				},
			)()
			if err != nil || strings.Count(log.String(), "\n") != 1 || !strings.Contains(log.String(), "level=INFO") {
				t.Errorf("got %v, log:\n%s", err, log.String())
			}
		})
	}
}

// TestABootAfterTheBootstrapIsNotReported has a machine of RKE2 or k3s that boots again: its sentinel file is lost.
func TestABootAfterTheBootstrapIsNotReported(t *testing.T) {
	const before, booted = 1600000000, 1700000000
	tests := map[string]struct {
		mark, booted int64 // Unix times
		make         func(*machine)
		step         string // of the result; empty: nothing is sent
	}{
		"cloud-init has ended": {before, booted, func(m *machine) { m.cloud("") }, ""},
		"cloud-init is off":    {before, booted, func(*machine) {}, ""},
		"cloud-init hangs":     {before, booted, func(m *machine) { m.cloud("modules-final") }, ""},
		"cloud-init reports errors": {before, booted, func(m *machine) {
			m.cloud("", "ntp is missing")
			m.write(cloudLogPath, logBegin+"error: unknown shorthand flag\n")
		}, ""},
		"the sentinel file exists": {before, booted, func(m *machine) { m.cloud(""); m.succeed() }, "bootstrapped"},
		"kubeadm has begun, and left no kubelet.conf": {before, booted, func(m *machine) {
			m.cloud("")
			m.write(cloudLogPath, logBegin+logPreflight+logBegin)
		}, "before kubeadm"},
		"kubeadm was to run, and left nothing": {before, booted, func(m *machine) {
			m.cloud("")
			m.write("var/lib/cloud/instances/i-1/"+commandsScript, "#!/bin/sh\nkubeadm join --config /run/kubeadm/join.yaml\n")
		}, "before kubeadm"},
		"something else was to run": {before, booted, func(m *machine) {
			m.cloud("")
			m.write("var/lib/cloud/instances/i-1/"+commandsScript, "#!/bin/sh\nsystemctl start rke2-server\n")
		}, ""},
		"the commands ran in this boot": {booted + 35, booted, func(m *machine) { m.cloud("") }, "before kubeadm"},
		"in the first boot the clock was set forward": {
			booted + 35, booted + 1e7, func(m *machine) { m.cloud("") }, "before kubeadm",
		},
		"in the first boot the clock was set back": {
			before, before - 35, func(m *machine) { m.cloud("") }, "before kubeadm",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			m, s := newMachine(t), newServer()
			m.write("proc/stat", fmt.Sprintf("btime %d\n", tc.booted))
			m.write("var/lib/cloud/instances/i-1/"+commandsMark, "1: 1600000000.0\n")
			at, root := time.Unix(tc.mark, 0), filepath.Join(m.root, "var/lib/cloud")
			if err := errors.Join(
				os.Chtimes(filepath.Join(root, "instances/i-1", commandsMark), at, at),
				os.Symlink("/var/lib/cloud/instances/i-1", filepath.Join(root, "instance")),
			); err != nil {
				t.Fatal(err)
			}
			tc.make(m)
			err := follow(t, Config{
				Root: m.root, Send: s.send, Deadline: 100 * time.Millisecond, Repeat: 50 * time.Millisecond,
			})()
			if err != nil || s.last().GetStep() != tc.step || (s.count() == 0) != (tc.step == "") {
				t.Errorf("%d reports, the last one %v: %v", s.count(), s.last(), err)
			}
		})
	}
}

// TestCredentialsThatArriveLateAreUsed shows that a machine whose credentials arrive late still reports.
func TestCredentialsThatArriveLateAreUsed(t *testing.T) {
	m, s := newMachine(t), newServer()
	s.err = ErrNotAsked
	follow(t, Config{Root: m.root, Send: s.send, Deadline: patience})
	for range 3 {
		<-s.wake
	}
	s.set(nil)
	s.reaches(t, running, "before kubeadm")
}

func TestOnce(t *testing.T) {
	m, s := newMachine(t), newServer()
	s.err = errDown
	r := New(Config{Root: m.root, Send: s.send, pace: quick})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	go func() {
		<-s.wake
		<-s.wake
		s.set(nil)
	}()
	report, err := Failed("disks", filepath.Join(m.root, "proc/uptime"))
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Once(ctx, report); err != nil {
		t.Fatal(err)
	}
	if got := s.last(); got.GetState() != failed || got.GetStep() != "disks" || got.GetTail() != "12.34 40.00\n" ||
		got.GetSequence() != 12340 ||
		got.GetBootId() == "" ||
		got.GetMachine().GetHostname() == "" {
		t.Errorf("got %v", got)
	}
	s.set(certs.ErrRefused)
	if err := r.Once(ctx, report); !errors.Is(err, certs.ErrRefused) {
		t.Errorf("got %v", err)
	}
	if _, err := Failed("x", filepath.Join(m.root, "nothing")); err == nil {
		t.Error("a log that is not there is no error")
	}
}
