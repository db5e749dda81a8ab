// Package browser starts the Chromium that tools/install provides, for tests that drive it by chromedp. In go addresses and chromedp's
// actions; out come their values, and everything that the browser complained about. It knows nothing of the pages that it opens.
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

// callTime bounds one action, such as to evaluate an expression or to open an address, on a machine that is busy.
const callTime = 60 * time.Second

// stopTime is for how long a browser may take to end by itself.
const stopTime = 10 * time.Second

// Browser is one Chromium for all tests of a program. It starts with the first page that a test opens, and is safe for concurrent use. Its zero
// value is good.
type Browser struct {
	start sync.Once
	ctx   context.Context
	stop  func()
	err   error
}

// Stop ends the browser. It is for TestMain, after all tests.
func (b *Browser) Stop() {
	if b.stop != nil {
		b.stop()
	}
}

// begin starts the program.
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
	allocator, end := chromedp.NewExecAllocator(context.Background(), append(chromedp.DefaultExecAllocatorOptions[:], // which have no sandbox for root alone
		chromedp.ExecPath(program), chromedp.Env("HOME="+home), chromedp.DisableGPU,
		chromedp.Flag("disable-component-update", true), chromedp.Flag("font-render-hinting", "none"))...)
	b.ctx, _ = chromedp.NewContext(allocator)
	b.stop = func() {
		ctx, cancel := context.WithTimeout(b.ctx, stopTime)
		defer cancel()
		_ = chromedp.Cancel(ctx) // it is asked to end, with all of its processes; what does not is killed
		end()
		_ = os.RemoveAll(home)
	}
	b.err = chromedp.Do(b.ctx)
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
	return "", errMissing
}

var errMissing = errors.New("no Chromium: run `make tools` as root on Debian, or install one and name it in $CHROMIUM")

// Tab is one open page, with storage of its own.
type Tab struct {
	ctx context.Context

	mu       sync.Mutex
	problems []string
}

// Open opens a page in a new tab of 1360 × 900, which is closed with the test, after it has been set up by actions. Where there is no Chromium the test is
// skipped, or fails if REAL_PARTS_REQUIRED is set.
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
	if err := chromedp.Do(tab.ctx); err != nil { // its context must outlive what is bounded below
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

// Run does one of chromedp's actions in a tab.
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

// Eval evaluates a JavaScript expression, waits if it is a promise, and reads its value.
func Eval[T any](t testing.TB, tab *Tab, expression string) T {
	t.Helper()
	value, err := run(tab, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	if err != nil {
		t.Fatalf("%s: %v", expression, err)
	}
	return value
}

// Until waits until an expression is true.
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

// listen notes what the browser complains about.
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

// Problems are exceptions, errors and warnings in the console, and violations of the content security policy since the last call.
func (tab *Tab) Problems() []string {
	tab.mu.Lock()
	defer tab.mu.Unlock()
	all := tab.problems
	tab.problems = nil
	return all
}
