package browser

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/eventually"
)

// Tab is one open page, with storage of its own.
type Tab struct {
	browser *Browser
	session string

	mu       sync.Mutex
	problems []string
}

// Options are how a tab is.
type Options struct {
	Width, Height int               // 1360 × 900 by default
	Dark          bool              // what prefers-color-scheme says
	Headers       map[string]string // sent with each request
	Insecure      bool              // takes any certificate
}

// Open opens a page in a new tab, which is closed with the test.
func (b *Browser) Open(t testing.TB, url string, o Options) *Tab {
	t.Helper()
	if o.Width == 0 {
		o.Width, o.Height = 1360, 900
	}
	var own, target, session struct{ BrowserContextID, TargetID, SessionID string }
	tab := &Tab{browser: b}
	b.must(t, "", "Target.createBrowserContext", nil, &own)
	b.must(t, "", "Target.createTarget", object{"url": "about:blank", "browserContextId": own.BrowserContextID}, &target)
	b.must(t, "", "Target.attachToTarget", object{"targetId": target.TargetID, "flatten": true}, &session)
	tab.session = session.SessionID
	b.mu.Lock()
	b.tabs[tab.session] = tab
	b.mu.Unlock()
	t.Cleanup(func() {
		_ = b.call(context.WithoutCancel(t.Context()), "", "Target.disposeBrowserContext", object{"browserContextId": own.BrowserContextID}, nil)
		b.mu.Lock()
		delete(b.tabs, tab.session)
		b.mu.Unlock()
	})
	for _, domain := range []string{"Page", "Runtime", "Log", "Network", "Audits", "Accessibility"} {
		tab.Call(t, domain+".enable", nil, nil)
	}
	tab.Call(t, "Emulation.setDeviceMetricsOverride", object{"width": o.Width, "height": o.Height, "deviceScaleFactor": 1, "mobile": false}, nil)
	tab.Scheme(t, o.Dark)
	if len(o.Headers) > 0 {
		tab.Call(t, "Network.setExtraHTTPHeaders", object{"headers": o.Headers}, nil)
	}
	if o.Insecure {
		tab.Call(t, "Security.setIgnoreCertificateErrors", object{"ignore": true}, nil)
	}
	tab.Go(t, url)
	return tab
}

// object is one of JSON.
type object = map[string]any

func (b *Browser) must(t testing.TB, session, method string, params, result any) {
	t.Helper()
	if err := b.call(t.Context(), session, method, params, result); err != nil {
		t.Fatal(err)
	}
}

// Call calls a method of the protocol on the tab.
func (tab *Tab) Call(t testing.TB, method string, params, result any) {
	t.Helper()
	tab.browser.must(t, tab.session, method, params, result)
}

// Go opens another address in the tab.
func (tab *Tab) Go(t testing.TB, url string) {
	t.Helper()
	var answer struct{ ErrorText string }
	tab.Call(t, "Page.navigate", object{"url": url}, &answer)
	if answer.ErrorText != "" {
		t.Fatalf("opening %s: %s", url, answer.ErrorText)
	}
}

// Scheme sets what prefers-color-scheme says.
func (tab *Tab) Scheme(t testing.TB, dark bool) {
	t.Helper()
	value := "light"
	if dark {
		value = "dark"
	}
	tab.Call(t, "Emulation.setEmulatedMedia", object{"features": []object{{"name": "prefers-color-scheme", "value": value}}}, nil)
}

// event notes what the browser complains about.
func (tab *Tab) event(m message) {
	var p struct {
		Type  string
		Args  []struct{ Value, Description json.RawMessage }
		Entry struct{ Source, Level, Text, URL string }
		Issue struct {
			Code    string
			Details json.RawMessage
		}
		ExceptionDetails struct {
			Text      string
			Exception struct{ Description string }
		}
	}
	if json.Unmarshal(m.Params, &p) != nil {
		return
	}
	switch {
	case m.Method == "Runtime.consoleAPICalled" && (p.Type == "error" || p.Type == "warning" || p.Type == "assert"):
		tab.complain("console.%s: %s", p.Type, m.Params)
	case m.Method == "Runtime.exceptionThrown":
		tab.complain("exception: %s %s", p.ExceptionDetails.Text, p.ExceptionDetails.Exception.Description)
	case m.Method == "Log.entryAdded" && (p.Entry.Level == "error" || p.Entry.Level == "warning"):
		tab.complain("%s: %s %s", p.Entry.Source, p.Entry.Text, p.Entry.URL)
	case m.Method == "Audits.issueAdded" && strings.Contains(p.Issue.Code, "ContentSecurityPolicy"):
		tab.complain("content security policy: %s", p.Issue.Details)
	}
}

func (tab *Tab) complain(format string, args ...any) {
	tab.mu.Lock()
	defer tab.mu.Unlock()
	if len(tab.problems) < 100 {
		tab.problems = append(tab.problems, fmt.Sprintf(format, args...))
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

// Eval evaluates a JavaScript expression, waits if it is a promise, and reads its value; into may be nil.
func (tab *Tab) Eval(t testing.TB, expression string, into any) {
	t.Helper()
	if err := tab.eval(t, expression, into); err != nil {
		t.Fatal(err)
	}
}

func (tab *Tab) eval(t testing.TB, expression string, into any) error {
	t.Helper()
	var answer struct {
		Result           struct{ Value json.RawMessage }
		ExceptionDetails *struct {
			Text      string
			Exception struct{ Description string }
		}
	}
	err := tab.browser.call(t.Context(), tab.session, "Runtime.evaluate", object{"expression": expression, "awaitPromise": true, "returnByValue": true}, &answer)
	switch {
	case err != nil:
		return err
	case answer.ExceptionDetails != nil:
		return fmt.Errorf("%s: %s %s", expression, answer.ExceptionDetails.Text, answer.ExceptionDetails.Exception.Description)
	case into == nil:
		return nil
	}
	return json.Unmarshal(answer.Result.Value, into)
}

// Until waits until an expression is true.
func (tab *Tab) Until(t testing.TB, patience time.Duration, expression string) {
	t.Helper()
	eventually.True(t, patience, expression, func() error {
		var ok bool
		if err := tab.eval(t, "Boolean("+expression+")", &ok); err != nil {
			return err
		}
		if !ok {
			var text string
			_ = tab.eval(t, "(document.body ? document.body.innerText : '').slice(0, 600)", &text)
			return fmt.Errorf("it is not so; the page says: %s", text)
		}
		return nil
	})
}

// keys are those that are no characters: their codes, and what they type.
var keys = map[string]struct {
	code int
	text string
}{
	"Tab": {9, ""}, "Enter": {13, "\r"}, "Escape": {27, ""}, "Space": {32, " "}, "ArrowLeft": {37, ""}, "ArrowUp": {38, ""}, "ArrowRight": {39, ""}, "ArrowDown": {40, ""},
	"Home": {36, ""}, "End": {35, ""},
}

// Press presses keys, one after the other: those with a name, "Shift+Tab", and characters.
func (tab *Tab) Press(t testing.TB, names ...string) {
	t.Helper()
	for _, name := range names {
		key, shifted := strings.CutPrefix(name, "Shift+")
		event := object{"key": key, "text": key}
		if known, ok := keys[key]; ok {
			event = object{"key": key, "code": key, "windowsVirtualKeyCode": known.code, "text": known.text}
			if key == "Space" {
				event["key"] = " "
			}
		}
		if shifted {
			event["modifiers"] = 8
		}
		event["type"] = "keyDown"
		tab.Call(t, "Input.dispatchKeyEvent", event, nil)
		event["type"] = "keyUp"
		delete(event, "text")
		tab.Call(t, "Input.dispatchKeyEvent", event, nil)
	}
}

// Type types a text.
func (tab *Tab) Type(t testing.TB, text string) {
	t.Helper()
	for _, c := range text {
		tab.Press(t, string(c))
	}
}

// Screenshot is a PNG of what is to be seen.
func (tab *Tab) Screenshot(t testing.TB) []byte {
	t.Helper()
	var answer struct{ Data string }
	tab.Call(t, "Page.captureScreenshot", object{"format": "png"}, &answer)
	data, err := base64.StdEncoding.DecodeString(answer.Data)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// Node is one of the tree that screen readers see.
type Node struct {
	Role, Name string
	Properties map[string]string
}

// Accessible are all nodes of that tree that are not left out of it, in the order of the document.
func (tab *Tab) Accessible(t testing.TB) []Node {
	t.Helper()
	type value struct{ Value any }
	var answer struct {
		Nodes []struct {
			Ignored    bool
			Role, Name value
			Properties []struct {
				Name  string
				Value value
			}
		}
	}
	tab.Call(t, "Accessibility.getFullAXTree", nil, &answer)
	var all []Node
	for _, n := range answer.Nodes {
		if n.Ignored {
			continue
		}
		node := Node{Role: text(n.Role.Value), Name: text(n.Name.Value), Properties: map[string]string{}}
		for _, p := range n.Properties {
			node.Properties[p.Name] = text(p.Value.Value)
		}
		all = append(all, node)
	}
	return all
}

func text(v any) string {
	if v == nil {
		return ""
	}
	return fmt.Sprint(v)
}
