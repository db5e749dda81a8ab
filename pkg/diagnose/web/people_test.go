package web_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/accessibility"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/fairlead/fairlead/internal/browser"
	"github.com/fairlead/fairlead/pkg/diagnose/check"
	"github.com/fairlead/fairlead/pkg/diagnose/web"
)

// press presses keys, one after the other, with or without Shift. A key that the page handles must type nothing, as on
// a keyboard: the typed text is part of the key-down event, and not a separate event as in chromedp.KeyEvent.
func press(t *testing.T, tab *browser.Tab, keys string, modifiers ...chromedp.Modifier) {
	t.Helper()
	browser.Run(t, tab, chromedp.Func(func(ctx context.Context, tab *chromedp.Target) error {
		for _, key := range keys {
			events := kb.Encode(key) // down, the typed text if any, up
			down, up := events[0], events[len(events)-1]
			down.Type, down.Text = input.DispatchKeyEventTypeKeyDown, events[len(events)-2].Text
			for _, event := range []*input.DispatchKeyEventParams{down, up} {
				chromedp.KeyModifiers(modifiers...)(event)
				if _, err := cdp.Call(ctx, tab, input.DispatchKeyEvent, *event); err != nil {
					return err
				}
			}
		}
		return nil
	}))
}

// scheme sets prefers-color-scheme: light or dark.
func scheme(colours string) chromedp.Action[chromedp.Void] {
	return chromedp.Func(func(ctx context.Context, tab *chromedp.Target) error {
		_, err := cdp.Call(
			ctx,
			tab,
			emulation.SetEmulatedMedia,
			emulation.SetEmulatedMediaParams{
				Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: colours}},
			},
		)
		return err
	})
}

// node is a node of the accessibility tree.
type node struct{ Role, Name string }

// accessible returns all visible nodes of the accessibility tree, in the order of the document.
func accessible(t *testing.T, tab *browser.Tab) (all []node) {
	t.Helper()
	tree := browser.Run(
		t,
		tab,
		func(ctx context.Context, tab *chromedp.Target) (accessibility.GetFullAXTreeResult, error) {
			return cdp.Call(ctx, tab, accessibility.GetFullAXTree, accessibility.GetFullAXTreeParams{})
		},
	)
	for _, n := range tree.Nodes {
		if !n.Ignored {
			all = append(all, node{said(n.Role), said(n.Name)})
		}
	}
	return all
}

// said returns a text of the accessibility tree; empty: there is none.
func said(v *accessibility.Value) (text string) {
	if v != nil {
		_ = json.Unmarshal(v.Value, &text)
	}
	return text
}

// Keyboard only: from the address to a Cluster's page and back.
func TestThePageWorksWithTheKeyboard(t *testing.T) {
	b := chromium(t)
	url := serve(t, newPage(t, newFleet(250), web.Config{Check: report}))
	tab := b.Open(t, url)
	tab.Until(t, patience, tableIsThere)
	const focus = `(document.activeElement.getAttribute("aria-label") || document.activeElement.id || document.activeElement.textContent).trim()`
	press(t, tab, kb.Tab)
	if got := str(t, tab, focus); got != "Skip to content" {
		t.Errorf("first is %q", got)
	}
	visible := str(
		t,
		tab,
		`(() => { const r = document.activeElement.getBoundingClientRect(), s = getComputedStyle(document.activeElement); return r.top >= 0 && s.outlineStyle !== "none" && parseFloat(s.outlineWidth) >= 2; })()`,
	)
	if visible != "true" {
		t.Error("the focus can't be seen")
	}
	var walk []string
	for range 30 {
		press(t, tab, kb.Tab)
		walk = append(walk, str(t, tab, focus))
	}
	for _, want := range []string{
		"Fairlead", "theme", "q", "namespace", "mode", "warnings", "Table of Clusters", "State",
		"Next",
	} {
		if !slices.Contains(walk, want) {
			t.Errorf("%q can't be reached: %q", want, walk)
		}
	}
	if n := slices.IndexFunc(walk, func(s string) bool { return strings.HasPrefix(s, "store-") }); n < 0 ||
		strings.HasPrefix(walk[n+1], "store-") {
		t.Errorf("the rows are not one stop: %q", walk)
	}
	do(t, tab, `document.querySelector("main").focus()`)
	press(t, tab, "/")
	press(t, tab, "lyon")
	tab.Until(t, patience, `location.search === "?q=lyon" && document.activeElement.id === "q"`)
	do(t, tab, `document.querySelector("tbody a[tabindex='0']").focus()`)
	press(t, tab, kb.ArrowDown+kb.ArrowDown+kb.ArrowUp+kb.End+kb.Home+kb.ArrowDown)
	second := str(t, tab, `document.querySelectorAll("tbody a")[1].textContent`)
	if got := str(t, tab, focus); got != second {
		t.Errorf("arrows lead to %q, want %q", got, second)
	}
	press(t, tab, kb.Enter)
	tab.Until(
		t,
		patience,
		fmt.Sprintf(`document.title === %q && document.activeElement.id === "cluster-title"`, second+" – Fairlead"),
	)
	tab.Until(t, patience, `document.querySelectorAll(".hop").length > 3`)
	press(t, tab, kb.Tab, chromedp.ModifierShift)
	press(t, tab, kb.Enter)
	tab.Until(
		t,
		patience,
		fmt.Sprintf(`location.search === "?q=lyon" && document.activeElement.textContent === %q`, second),
	)
	noProblems(t, tab)
}

func TestEveryElementHasANameForScreenReaders(t *testing.T) {
	b := chromium(t)
	fleet := newFleet(60)
	url := serve(t, newPage(t, fleet, web.Config{Check: report}))
	tab := b.Open(t, url)
	tab.Until(t, patience, tableIsThere)
	nodes := accessible(t, tab)
	for _, want := range []node{
		{Role: "RootWebArea", Name: "Fleet – Fairlead"},
		{Role: "main"},
		{Role: "banner"},
		{Role: "heading", Name: "Fleet"},
		{Role: "search"},
		{Role: "searchbox", Name: "Search"},
		{Role: "combobox", Name: "Namespace"},
		{Role: "combobox", Name: "Mode"},
		{Role: "combobox", Name: "Theme"},
		{Role: "checkbox", Name: "Only with warnings"},
		{Role: "table"},
		{Role: "columnheader", Name: "Cluster"},
		{Role: "group", Name: "Filter by state"},
		{Role: "status"},
		{Role: "log"},
	} {
		if !slices.ContainsFunc(nodes, func(n node) bool {
			return n.Role == want.Role && (want.Name == "" || strings.HasPrefix(n.Name, want.Name))
		}) {
			t.Errorf("no %s %q", want.Role, want.Name)
		}
	}
	for _, n := range nodes {
		if slices.Contains(
			[]string{"button", "link", "textbox", "searchbox", "combobox", "checkbox", "table", "region"}, n.Role,
		) &&
			n.Name == "" {
			t.Errorf("a %s has no name", n.Role)
		}
	}
	if rows := number(t, tab, `document.querySelectorAll("tbody th[scope=row]").length`); rows != 60 {
		t.Errorf("%v rows have a heading, want 60", rows)
	}
	key := fleet.first(isBroken)
	visit(t, tab, url+"cluster?namespace="+key.Namespace+"&name="+key.Name)
	tab.Until(t, patience, `document.querySelectorAll(".hop").length > 3`)
	nodes = accessible(t, tab)
	for _, want := range []string{"Hops", "Facts", "Edges", "Conditions", key.Name} {
		if !slices.ContainsFunc(nodes, func(n node) bool { return n.Role == "heading" && n.Name == want }) {
			t.Errorf("no heading %q", want)
		}
	}
	noProblems(t, tab)
	for _, colours := range []string{"light", "dark"} {
		browser.Run(t, tab, scheme(colours))
		for _, at := range []string{url, url + "cluster?namespace=" + key.Namespace + "&name=" + key.Name} {
			visit(t, tab, at)
			tab.Until(t, patience, `document.querySelectorAll(".hop.broken, tbody tr").length > 3`)
			if low := str(t, tab, contrast); low != "" {
				t.Errorf("%s, %s: contrast is too low: %s", colours, at, low)
			}
		}
	}
}

// contrast lists texts whose contrast is less than 4.5 (WCAG 2.2, success criterion 1.4.3).
const contrast = `(() => {
	const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
	const rgb = (colour) => { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1); return [...canvas.getImageData(0, 0, 1, 1).data]; };
	const light = ([r, g, b]) => { const f = (v) => ((v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * f(r) + 0.7152 * f(g) + 0.0722 * f(b); };
	const ground = (e) => { for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor); if (c[3] === 255) return c; } return [255, 255, 255]; };
	const low = new Set();
	for (const e of document.querySelectorAll("body *")) {
		if (![...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim()) || !e.checkVisibility() || e.closest(".unseen, .off, noscript, option")) continue;
		const [a, b] = [light(rgb(getComputedStyle(e).color)), light(ground(e))].sort((x, y) => y - x);
		const ratio = (a + 0.05) / (b + 0.05);
		if (ratio < 4.5) low.add(e.className + " " + e.textContent.slice(0, 20) + " " + ratio.toFixed(2));
	}
	return [...low].join("; ");
})()`

func TestTheThemeIsRemembered(t *testing.T) {
	b := chromium(t)
	url := serve(t, newPage(t, newFleet(5), web.Config{}))
	tab := b.Open(t, url, scheme("dark"))
	const ground = `getComputedStyle(document.body).backgroundColor`
	tab.Until(t, patience, tableIsThere)
	dark := str(t, tab, ground)
	browser.Run(t, tab, scheme("light"))
	if light := str(t, tab, ground); light == dark {
		t.Error("light and dark are the same")
	}
	do(
		t,
		tab,
		`(() => { const s = document.getElementById("theme"); s.value = "dark"; s.dispatchEvent(new Event("change")); })()`,
	)
	visit(t, tab, url)
	tab.Until(t, patience, tableIsThere)
	if got := str(t, tab, ground+` + document.getElementById("theme").value`); got != dark+"dark" {
		t.Errorf("after it was opened again: %s, want %s", got, dark+"dark")
	}
	noProblems(t, tab)
}

// network is that of a healthy management cluster.
type network struct{}

// Lookup implements check.Network.
func (network) Lookup(context.Context, string) ([]netip.Addr, error) {
	return []netip.Addr{netip.MustParseAddr("10.96.12.7")}, nil
}

// DialContext implements check.Network.
func (network) DialContext(context.Context, string, string) (net.Conn, error) {
	ours, theirs := net.Pipe()
	go func() { _, _ = io.Copy(io.Discard, theirs) }()
	return ours, nil
}

// With PAGE_SCREENSHOTS=<folder> this writes the pictures of docs/page.md (make page-screenshots).
func TestScreenshots(t *testing.T) {
	folder := os.Getenv("PAGE_SCREENSHOTS")
	if folder == "" {
		t.Skip("PAGE_SCREENSHOTS names no folder")
	}
	b := chromium(t)
	fleet := newFleet(10_000)
	checker := &check.Checker{Objects: fleet, Network: network{}}
	url := serve(t, newPage(t, fleet, web.Config{Check: checker.Check, Timing: web.Timing{Check: time.Minute}}))
	key := fleet.first(isBroken)
	for name, o := range map[string]struct {
		path          string
		width, height int64
		colours       string
	}{
		"page-light":   {"", 1280, 760, "light"},
		"page-dark":    {"?health=broken,warning,waiting&sort=name", 1280, 760, "dark"},
		"page-cluster": {"cluster?namespace=" + key.Namespace + "&name=" + key.Name, 1280, 1240, "light"},
		"page-narrow":  {"", 420, 760, "light"},
	} {
		tab := b.Open(t, url+o.path, chromedp.EmulateViewport(o.width, o.height), scheme(o.colours))
		tab.Until(
			t,
			patience,
			`(document.querySelectorAll(".hop").length > 3 || `+tableIsThere+`) && document.getElementById("connection").textContent === "Live"`,
		)
		if err := os.WriteFile(filepath.Join(folder, name+".png"), browser.Run(t, tab, chromedp.CaptureScreenshot()),
			0o644); err != nil {
			t.Fatal(err)
		}
	}
}
