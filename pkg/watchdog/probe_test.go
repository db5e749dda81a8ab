package watchdog_test

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/fairlead/fairlead/pkg/watchdog"
)

// TestAnEnvoyThatReadsItsConfigurationIsKnown checks that a Probe finds the process of an Envoy that listens on its
// admin interface only, and does not answer there. This process takes its place, so it is never killed here.
func TestAnEnvoyThatReadsItsConfigurationIsKnown(t *testing.T) {
	dir := t.TempDir()
	admin := filepath.Join(dir, "admin.sock")
	probe := watchdog.NewProbe(filepath.Join(dir, "loop.sock"), admin, 1, func(context.Context) error {
		return errors.New("no answer")
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		probe.Run(ctx)
	}()
	defer func() { cancel(); <-ended }()
	if probe.Running() {
		t.Fatal("a process is known before any listens")
	}
	l, err := net.Listen("unix", admin)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for end := time.Now().Add(20 * time.Second); !probe.Running(); {
		if time.Now().After(end) {
			t.Fatal("the process that listens on the admin interface is not known after 20 s")
		}
		<-time.After(50 * time.Millisecond)
	}
}
