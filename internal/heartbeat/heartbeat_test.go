package heartbeat_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fairlead/fairlead/internal/heartbeat"
)

// code returns the status and the body of a liveness probe.
func code(m *heartbeat.Monitor) (int, string) {
	answer := httptest.NewRecorder()
	m.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/healthz", http.NoBody))
	return answer.Code, answer.Body.String()
}

func TestWorkThatDoesNotEndIsStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := heartbeat.New()
		short, long := m.Begin("short", heartbeat.Limit), m.Begin("long", heartbeat.CallLimit)
		time.Sleep(heartbeat.Limit)
		if got, body := code(m); got != http.StatusOK {
			t.Errorf("at the limit: %d %s", got, body)
		}
		time.Sleep(time.Second)
		if got, body := code(m); got != http.StatusServiceUnavailable || !strings.Contains(body, "short is stuck") ||
			strings.Contains(body, "long") {
			t.Errorf("after the limit: %d %s", got, body)
		}
		short()
		if got, body := code(m); got != http.StatusOK {
			t.Errorf("after its end: %d %s", got, body)
		}
		long()
	})
}

func TestAProbeThatDoesNotEndIsStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := heartbeat.New()
		free := make(chan struct{}, 1) // a channel as a lock: waiting for a mutex would stop the fake clock
		free <- struct{}{}
		ctx, stop := context.WithCancel(t.Context())
		go func() { _ = m.Run(ctx, map[string]func(){"state": func() { <-free; free <- struct{}{} }}) }()
		time.Sleep(time.Hour)
		if got, body := code(m); got != http.StatusOK {
			t.Errorf("while all is well: %d %s", got, body)
		}
		<-free
		time.Sleep(time.Minute)
		if got, body := code(m); got != http.StatusServiceUnavailable || !strings.Contains(body, "state is stuck") {
			t.Errorf("with a deadlock: %d %s", got, body)
		}
		free <- struct{}{}
		stop()
	})
}

func TestAReportedFaultLastsUntilTheCheckPasses(t *testing.T) {
	m := heartbeat.New()
	m.Report("informer", errors.New("the informer is stuck"))
	if got, body := code(m); got != http.StatusServiceUnavailable || !strings.Contains(body, "the informer is stuck") {
		t.Errorf("with a report: %d %s", got, body)
	}
	m.Report("another", nil)
	if got, _ := code(m); got != http.StatusServiceUnavailable {
		t.Errorf("after another check's report of nothing: %d", got)
	}
	m.Report("informer", nil)
	if got, body := code(m); got != http.StatusOK {
		t.Errorf("after a report of nothing: %d %s", got, body)
	}
	(*heartbeat.Monitor)(nil).Report("informer", errors.New("the informer is stuck")) // does nothing
}

func TestSystemdIsNotifiedWhileNothingIsStuck(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notify")
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	t.Setenv("NOTIFY_SOCKET", path)
	t.Setenv("WATCHDOG_USEC", "60000")
	m := heartbeat.New()
	end := m.Begin("work", 0) // stuck at once
	go func() { _ = m.Run(t.Context(), nil) }()
	read := func(wait time.Duration) string {
		buffer := make([]byte, 64)
		if err := socket.SetReadDeadline(time.Now().Add(wait)); err != nil {
			t.Fatal(err)
		}
		n, _, err := socket.ReadFrom(buffer)
		if err != nil {
			return ""
		}
		return string(buffer[:n])
	}
	if got := read(300 * time.Millisecond); got != "" {
		t.Errorf("with work that is stuck: %q", got)
	}
	end()
	if got := read(10 * time.Second); got != "WATCHDOG=1" {
		t.Errorf("got %q", got)
	}
	if err := heartbeat.Notify("READY=1"); err != nil {
		t.Error(err)
	}
}
