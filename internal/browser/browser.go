// Package browser starts the Chromium that tools/install provides, for tests that drive it through chromedp. Its input
// is an address and chromedp actions. Its output is their values, and every problem that the browser reports. It knows
// nothing about the pages that it opens.
package browser

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/audits"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/fairlead/fairlead/internal/eventually"
)

// callTime bounds one action, such as evaluating an expression or opening an address, on a busy machine.
const callTime = 60 * time.Second

// stopTime is how long the browser may take to exit by itself.
const stopTime = 10 * time.Second

// Browser is one Chromium for all tests of a program. It starts when a test opens the first page. It is safe for
// concurrent use, and its zero value is ready to use.
type Browser struct {
	start sync.Once
	ctx   context.Context
	stop  func()
	err   error
}

// Stop ends the browser. TestMain calls it after all tests.
func (b *Browser) Stop() {
	if b.stop != nil {
		b.stop()
	}
}

// begin starts the browser.
func (b *Browser) begin() {
	program, err := find()
	if err != nil {
		b.err = err
		return
	}
	home, err := os.MkdirTemp("", "browser-")
	if err != nil {
		b.err = err
		return
	}
	// only root has no sandbox
	allocator, end := chromedp.NewExecAllocator(context.Background(), append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(program), chromedp.Env("HOME="+home), chromedp.DisableGPU,
		chromedp.Flag("disable-component-update", true), chromedp.Flag("font-render-hinting", "none"))...)
	b.ctx, _ = chromedp.NewContext(allocator)
	b.stop = func() {
		ctx, cancel := context.WithTimeout(b.ctx, stopTime)
		defer cancel()
		_ = chromedp.Cancel(ctx) // asks the browser and its processes to exit; a process that does not exit is killed
		end()
		_ = os.RemoveAll(home)
	}
	b.err = chromedp.Do(b.ctx)
}

// find returns the path in $CHROMIUM, or else the first of the usual names that is in PATH.
func find() (string, error) {
	if path := os.Getenv("CHROMIUM"); path != "" {
		return path, nil
	}
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome", "google-chrome-stable"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", errMissing
}

var errMissing = errors.New("no Chromium: run `make tools` as root on Debian, or install one and name it in $CHROMIUM")

// Tab is one open page with its own storage.
type Tab struct {
	ctx context.Context

	mu       sync.Mutex
	problems []string
}

// Open opens a page in a new tab of 1360 × 900 pixels after the setup actions have run. The tab is closed when the test
// ends. Without Chromium the test is skipped, or fails if REAL_PARTS_REQUIRED is set.
func (b *Browser) Open(t testing.TB, url string, setup ...chromedp.Action[chromedp.Void]) *Tab {
	t.Helper()
	b.start.Do(b.begin)
	switch {
	case errors.Is(b.err, errMissing) && os.Getenv("REAL_PARTS_REQUIRED") == "":
		t.Skip(b.err)
	case b.err != nil:
		t.Fatalf("starting a browser: %v", b.err)
	}
	tab := &Tab{}
	var cancel context.CancelFunc
	tab.ctx, cancel = chromedp.NewContext(b.ctx, chromedp.WithNewBrowserContext(), chromedp.WithListener(tab.listen))
	t.Cleanup(cancel)
	if err := chromedp.Do(tab.ctx); err != nil { // the tab's context must outlive the timeout below
		t.Fatalf("opening a tab: %v", err)
	}
	Run(t, tab, chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, audits.Enable, cdp.Empty{})
		return err
	}))
	Run(t, tab, chromedp.Steps(append([]chromedp.Action[chromedp.Void]{chromedp.EmulateViewport(1360, 900)}, setup...)...))
	Run(t, tab, chromedp.Navigate(url))
	return tab
}

// Run runs one chromedp action in a tab and returns its value. It fails the test on an error.
func Run[T any](t testing.TB, tab *Tab, action chromedp.Action[T]) T {
	t.Helper()
	value, err := run(tab, action)
	if err != nil {
		t.Fatal(err)
	}
	return value
}

func run[T any](tab *Tab, action chromedp.Action[T]) (T, error) {
	ctx, cancel := context.WithTimeout(tab.ctx, callTime)
	defer cancel()
	return chromedp.Run(ctx, action)
}

// Eval evaluates a JavaScript expression, awaits it if it is a promise, and returns its value.
func Eval[T any](t testing.TB, tab *Tab, expression string) T {
	t.Helper()
	value, err := run(tab, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	if err != nil {
		t.Fatalf("%s: %v", expression, err)
	}
	return value
}

// Until waits until a JavaScript expression is true. It fails the test if that takes longer than patience.
func (tab *Tab) Until(t testing.TB, patience time.Duration, expression string) {
	t.Helper()
	eventually.True(t, patience, expression, func() error {
		is, err := run(tab, chromedp.Evaluate[bool]("Boolean("+expression+")"))
		if err == nil && !is {
			text, _ := run(tab, chromedp.Evaluate[string]("(document.body ? document.body.innerText : '').slice(0, 600)"))
			err = fmt.Errorf("it is not so; the page says: %s", text)
		}
		return err
	})
}

// listen records the problems that the browser reports.
func (tab *Tab) listen(event any) {
	var problem string
	switch e := event.(type) {
	case *runtime.EventConsoleAPICalled:
		if e.Type == "error" || e.Type == "warning" || e.Type == "assert" {
			problem = "console." + string(e.Type) + ":"
			for _, a := range e.Args {
				problem += fmt.Sprintf(" %s%s", a.Value, a.Description)
			}
		}
	case *runtime.EventExceptionThrown:
		problem = "exception: " + e.ExceptionDetails.Text
		if e.ExceptionDetails.Exception != nil {
			problem += " " + e.ExceptionDetails.Exception.Description
		}
	case *log.EventEntryAdded:
		if e.Entry.Level == "error" || e.Entry.Level == "warning" {
			problem = fmt.Sprintf("%s: %s %s", e.Entry.Source, e.Entry.Text, e.Entry.URL)
		}
	case *audits.EventIssueAdded:
		if strings.Contains(string(e.Issue.Code), "ContentSecurityPolicy") {
			problem = fmt.Sprintf("content security policy: %+v", e.Issue.Details)
		}
	}
	tab.mu.Lock()
	defer tab.mu.Unlock()
	if problem != "" && len(tab.problems) < 100 {
		tab.problems = append(tab.problems, problem)
	}
}

// Problems returns the exceptions, the errors and warnings of the console, and the violations of the content security
// policy since the last call.
func (tab *Tab) Problems() []string {
	tab.mu.Lock()
	defer tab.mu.Unlock()
	all := tab.problems
	tab.problems = nil
	return all
}
