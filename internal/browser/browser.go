// Package browser drives a real headless Chromium for tests, by the Chrome DevTools Protocol over a pipe. In go addresses,
// keys and expressions; out come values, screenshots, the tree that screen readers see, and everything that the browser complained about.
// It knows nothing of the pages that it opens.
package browser

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

const (
	startTime = 60 * time.Second
	callTime  = 60 * time.Second
	stopTime  = 10 * time.Second
)

// Browser is one Chromium. It is safe for concurrent use.
type Browser struct {
	to      io.WriteCloser
	writing sync.Mutex

	mu      sync.Mutex
	last    int
	waiting map[int]chan message
	tabs    map[string]*Tab // by session
	ended   chan struct{}   // closed when nothing comes any more
}

// message is one of the protocol: a call, its answer, or an event.
type message struct {
	ID      int             `json:"id,omitempty"`
	Session string          `json:"sessionId,omitempty"`
	Method  string          `json:"method,omitempty"`
	Params  json.RawMessage `json:"params,omitempty"`
	Result  json.RawMessage `json:"result,omitempty"`
	Error   *struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
	} `json:"error,omitempty"`
}

// Start starts a Chromium, which ends with the test. Where there is none the test is skipped, or fails if REAL_PARTS_REQUIRED is set.
// With -short it is skipped.
func Start(t testing.TB) *Browser {
	t.Helper()
	if testing.Short() {
		t.Skip("needs a real browser, which -short leaves out")
	}
	program, err := find()
	if err != nil {
		if os.Getenv("REAL_PARTS_REQUIRED") != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	b, stop, err := start(program, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	ctx, cancel := context.WithTimeout(t.Context(), startTime)
	defer cancel()
	var version struct{ Product string }
	if err := b.call(ctx, "", "Browser.getVersion", nil, &version); err != nil {
		t.Fatalf("starting %s: %v", program, err)
	}
	t.Logf("browser: %s", version.Product)
	return b
}

// find is $CHROMIUM, or the first of the usual names.
func find() (string, error) {
	if path := os.Getenv("CHROMIUM"); path != "" {
		return path, nil
	}
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome", "google-chrome-stable"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", errors.New("no Chromium: run `make tools` as root on Debian, or install one and name it in $CHROMIUM")
}

// start runs a Chromium that is spoken to through its file descriptors 3 and 4.
func start(program, profile string) (b *Browser, stop func(), err error) {
	theirIn, ourOut, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	ourIn, theirOut, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	args := []string{
		"--headless=new", "--remote-debugging-pipe", "--user-data-dir=" + filepath.Join(profile, "profile"),
		"--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--no-default-browser-check", "--disable-extensions", "--mute-audio",
		"--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-default-apps", "--hide-scrollbars",
		"--disable-background-timer-throttling", "--disable-renderer-backgrounding", "--font-render-hinting=none", "about:blank",
	}
	if os.Geteuid() == 0 {
		args = append([]string{"--no-sandbox"}, args...) // Chromium has no sandbox for root
	}
	// Not of the test's context: the browser is asked to end first.
	cmd := exec.Command(program, args...) //nolint:noctx // see above
	cmd.ExtraFiles = []*os.File{theirIn, theirOut}
	cmd.Env = append(os.Environ(), "HOME="+profile)
	var said bytes.Buffer
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		return nil, nil, fmt.Errorf("starting %s: %w", program, err)
	}
	_, _ = theirIn.Close(), theirOut.Close()
	b = &Browser{to: ourOut, waiting: map[int]chan message{}, tabs: map[string]*Tab{}, ended: make(chan struct{})}
	go b.read(ourIn)
	return b, func() {
		ctx, cancel := context.WithTimeout(context.Background(), stopTime)
		defer cancel()
		_ = b.call(ctx, "", "Browser.close", nil, nil)
		select {
		case <-b.ended:
		case <-ctx.Done():
			_ = cmd.Process.Kill()
		}
		_, _, _ = ourOut.Close(), cmd.Wait(), ourIn.Close()
	}, nil
}

// read hands answers and events to those they are for. Messages end with a zero byte.
func (b *Browser) read(from io.Reader) {
	defer close(b.ended)
	reader := bufio.NewReaderSize(from, 1<<20)
	for {
		line, err := reader.ReadBytes(0)
		if err != nil {
			return
		}
		var m message
		if json.Unmarshal(line[:len(line)-1], &m) != nil {
			continue
		}
		b.mu.Lock()
		answer, tab := b.waiting[m.ID], b.tabs[m.Session]
		delete(b.waiting, m.ID)
		b.mu.Unlock()
		switch {
		case m.ID != 0 && answer != nil:
			answer <- m
		case m.Method != "" && tab != nil:
			tab.event(m)
		}
	}
}

// call asks the browser, or one of its tabs by its session.
func (b *Browser) call(ctx context.Context, session, method string, params, result any) error {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	answer := make(chan message, 1)
	b.mu.Lock()
	b.last++
	m := message{ID: b.last, Session: session, Method: method}
	b.waiting[m.ID] = answer
	b.mu.Unlock()
	if params != nil {
		var err error
		if m.Params, err = json.Marshal(params); err != nil {
			return err
		}
	}
	line, err := json.Marshal(m)
	if err != nil {
		return err
	}
	b.writing.Lock()
	_, err = b.to.Write(append(line, 0))
	b.writing.Unlock()
	if err != nil {
		return fmt.Errorf("%s: %w", method, err)
	}
	select {
	case <-ctx.Done():
		return fmt.Errorf("%s: %w", method, ctx.Err())
	case <-b.ended:
		return fmt.Errorf("%s: the browser has ended", method)
	case m = <-answer:
	}
	if m.Error != nil {
		return fmt.Errorf("%s: %s", method, m.Error.Message)
	}
	if result == nil {
		return nil
	}
	return json.Unmarshal(m.Result, result)
}
