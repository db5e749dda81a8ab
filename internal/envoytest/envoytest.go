// Package envoytest finds, validates and runs a real Envoy for tests. Its input is a configuration as YAML, which must
// have its admin interface on the Unix socket admin.sock. The package knows nothing else about the configuration.
package envoytest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/eventually"
	"github.com/fairlead/fairlead/internal/spawn"
)

// Patience is how long a test waits, on a busy machine, for something that should happen at once.
const Patience = 20 * time.Second

// Path returns the Envoy to test with: ENVOY_PATH, or else bin/envoy of the repository. Without an Envoy the test is
// skipped, or fails if ENVOY_REQUIRED is set. With -short the test is skipped.
func Path(t testing.TB) string {
	t.Helper()
	if testing.Short() {
		t.Skip("needs a real Envoy, which -short leaves out")
	}
	path := os.Getenv("ENVOY_PATH")
	if path == "" {
		path = filepath.Join(repository(t), "bin", "envoy")
	}
	if _, err := os.Stat(path); err == nil {
		return path
	}
	if os.Getenv("ENVOY_REQUIRED") != "" {
		t.Fatalf("no Envoy at %s: run `make envoy` or set ENVOY_PATH", path)
	}
	t.Skipf("no Envoy at %s: run `make envoy` or set ENVOY_PATH", path)
	return ""
}

// repository returns the folder of go.mod, which is the folder of the package under test or one above it.
func repository(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for ; dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
	}
	t.Fatal("no go.mod above the test")
	return ""
}

// Validate fails the test if Envoy rejects the configuration or warns about deprecated fields.
func Validate(t testing.TB, config []byte) {
	t.Helper()
	dir := Dir(t)
	write(t, dir, config)
	ctx, cancel := context.WithTimeout(t.Context(), Patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, Path(t), "--mode", "validate", "-c", "envoy.yaml", "-l", "warning")
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("Envoy refuses the configuration: %v\n%s", err, out)
	}
	if strings.Contains(strings.ToLower(string(out)), "deprecated") {
		t.Errorf("Envoy warns:\n%s", out)
	}
}

// Dir makes a folder that is removed after the test. Its path is shorter than that of t.TempDir, because the path of a
// Unix socket has at most 107 bytes.
func Dir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "envoy") //nolint:usetesting // the path must be short, see above
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func write(t testing.TB, dir string, config []byte) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, "envoy.yaml"), config, 0o600); err != nil {
		t.Fatal(err)
	}
}

// Envoy is a running Envoy.
type Envoy struct {
	dir  string
	cmd  *exec.Cmd
	done chan struct{} // closed when the process has ended
}

// Start runs Envoy in a folder that holds the Unix sockets named in the configuration, and returns when Envoy reports
// that it is live. Envoy has one worker unless args set another concurrency. It is killed after the test. If the test
// failed, its log is printed.
func Start(t testing.TB, dir string, config []byte, args ...string) *Envoy {
	t.Helper()
	write(t, dir, config)
	log, err := os.OpenFile(filepath.Join(dir, "envoy.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	e := &Envoy{dir: dir, done: make(chan struct{})}
	// CommandContext would not do: t.Context is cancelled before cleanup functions run, and these may still query
	// Envoy.
	if !slices.Contains(args, "--concurrency") { // Envoy accepts the flag only once
		args = append(args, "--concurrency", "1")
	}
	e.cmd = exec.Command(
		Path(t),
		append([]string{"-c", "envoy.yaml", "--disable-hot-restart", "-l", "warning"}, args...)...)
	e.cmd.Dir, e.cmd.Stdout, e.cmd.Stderr = dir, log, log
	e.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := spawn.Start(e.cmd); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = e.cmd.Wait()
		close(e.done)
	}()
	t.Cleanup(func() {
		e.Kill()
		if t.Failed() {
			t.Logf("log of Envoy %d:\n%s", e.cmd.Process.Pid, e.Log(t))
		}
	})
	Eventually(t, "Envoy is live", func() error {
		state, err := e.Admin(t.Context(), http.MethodGet, "/ready")
		if err == nil && strings.TrimSpace(state) != "LIVE" {
			err = fmt.Errorf("it is %s", state)
		}
		return errors.Join(err, e.ended())
	})
	return e
}

// Kill ends Envoy with SIGKILL and waits for its end.
func (e *Envoy) Kill() {
	_ = e.cmd.Process.Kill()
	<-e.done
}

// PID returns the process id.
func (e *Envoy) PID() int { return e.cmd.Process.Pid }

// Log returns everything that Envoy has logged.
func (e *Envoy) Log(t testing.TB) string {
	t.Helper()
	log, err := os.ReadFile(filepath.Join(e.dir, "envoy.log"))
	if err != nil {
		t.Fatal(err)
	}
	return string(log)
}

// Admin sends a request to the admin interface and returns the body of the response.
func (e *Envoy) Admin(ctx context.Context, method, path string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, "http://admin"+path, nil)
	if err != nil {
		return "", err
	}
	transport := &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(e.dir, "admin.sock"))
		},
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return string(body), err
}

// Sum returns the sum of Envoy's counters and gauges whose names match a regular expression.
func (e *Envoy) Sum(t testing.TB, filter string) (sum int) {
	t.Helper()
	stats, err := e.Admin(t.Context(), http.MethodGet, "/stats?filter="+filter)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(stats) {
		_, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		one, err := strconv.Atoi(value)
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		sum += one
	}
	return sum
}

func (e *Envoy) ended() error {
	select {
	case <-e.done:
		return fmt.Errorf("the process ended: %v", e.cmd.ProcessState)
	default:
		return nil
	}
}

// Eventually repeats a condition until it returns nil. It fails the test if that takes longer than Patience.
func Eventually(t testing.TB, what string, condition func() error) {
	t.Helper()
	eventually.True(t, Patience, what, condition)
}
