package web_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/performance"
	"github.com/chromedp/chromedp"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/browser"
	"github.com/fairlead/fairlead/pkg/diagnose/web"
)

// patience is long enough for a busy machine.
const patience = 60 * time.Second

// shared is the browser of all tests here. Each test has its own tabs.
var shared browser.Browser

func TestMain(m *testing.M) {
	code := m.Run()
	shared.Stop()
	os.Exit(code)
}

// chromium returns the browser and marks the test as parallel: these tests spend more time waiting than computing. It
// skips the test with -short.
func chromium(t *testing.T) *browser.Browser {
	t.Helper()
	if testing.Short() {
		t.Skip("needs a real browser, which -short leaves out")
	}
	t.Parallel()
	return &shared
}

// serve serves a page on loopback until the test ends.
func serve(t *testing.T, p *web.Page) (url string) {
	t.Helper()
	url, _ = serveAt(t, p, "127.0.0.1:0")
	return url
}

func serveAt(t *testing.T, p *web.Page, address string) (url string, stop func()) {
	t.Helper()
	listener, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.Serve(ctx, listener, nil) }()
	stop = func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		ended <- nil
	}
	t.Cleanup(stop)
	return "http://" + listener.Addr().String() + "/", stop
}

// isBroken reports whether no gateway has a tunnel of a workload cluster.
func isBroken(t *v1alpha1.Tunnel) bool {
	return len(t.Status.Edges) > 0 && len(t.Status.Edges[0].Gateways) == 0
}

// noProblems fails the test if the browser has reported a violation of the policy, an exception, or an error in the
// console.
func noProblems(t *testing.T, tab *browser.Tab) {
	t.Helper()
	for _, problem := range tab.Problems() {
		t.Errorf("the browser complains: %s", problem)
	}
}

const tableIsThere = `document.querySelectorAll("table.fleet tbody tr").length > 0`

// number evaluates an expression that is a number.
func number(t *testing.T, tab *browser.Tab, expression string) float64 {
	t.Helper()
	return browser.Eval[float64](t, tab, expression)
}

func str(t *testing.T, tab *browser.Tab, expression string) string {
	t.Helper()
	return browser.Eval[string](t, tab, "String("+expression+")")
}

// do evaluates an expression for its side effects.
func do(t *testing.T, tab *browser.Tab, expression string) {
	t.Helper()
	browser.Eval[chromedp.Void](t, tab, expression)
}

// visit opens another address in a tab.
func visit(t *testing.T, tab *browser.Tab, url string) {
	t.Helper()
	browser.Run(t, tab, chromedp.Navigate(url))
}

func TestTenThousandRowsAreQuick(t *testing.T) {
	b := chromium(t)
	url := serve(t, newPage(t, newFleet(10_000), web.Config{Check: report}))
	tab := b.Open(t, url)
	tab.Until(t, patience, `performance.getEntriesByName("fleet-loaded").length`)
	loaded := number(t, tab, `performance.getEntriesByName("fleet-loaded")[0].startTime`)
	size := number(
		t,
		tab,
		`performance.getEntriesByType("resource").find((r) => r.name.endsWith("/api/fleet")).encodedBodySize`,
	)
	// Each is from the key to the next painted frame.
	const measured = `(async () => {
		const input = document.getElementById("q"), times = [];
		for (const text of ["s", "st", "store-1", "store-12", "osaka", "407", "osaka connect", "nothing at all", ""]) {
			const began = performance.now();
			input.value = text;
			input.dispatchEvent(new Event("input", {bubbles: true}));
			await new Promise((done) => requestAnimationFrame(() => setTimeout(done, 0)));
			times.push(performance.now() - began);
		}
		return times.sort((a, b) => a - b);
	})()`
	before := cpu(t, tab)
	times := browser.Eval[[]float64](t, tab, measured)
	each := 1000 * (cpu(t, tab) - before) / float64(len(times))
	t.Logf(
		"10,000 rows: %.0f ms until they are there, %.0f kB on the way; from a key to the filtered table %.0f ms in the "+
			"median, %.0f ms at most, of which %.0f ms CPU on the average",
		loaded,
		size/1000,
		times[len(times)/2],
		times[len(times)-1],
		each,
	)
	// People perceive 100 ms as fast. The elapsed time depends on the load of the machine, so CPU time decides.
	if each > 400 || times[len(times)/2] > 10_000 || loaded > 60_000 || size > 1_000_000 {
		t.Errorf("too slow or too large")
	}
	do(
		t,
		tab,
		`document.getElementById("q").value = "407", document.getElementById("q").dispatchEvent(new Event("input"))`,
	)
	tab.Until(t, patience, `document.getElementById("count").textContent.endsWith(" of 10,000 Clusters")`)
	if got := number(t, tab, `document.querySelectorAll("table.fleet tbody tr").length`); got != 100 {
		t.Errorf("%v rows are drawn, want 100", got)
	}
	noProblems(t, tab)
}

// cpu returns the CPU time of the page's main thread, in s.
func cpu(t *testing.T, tab *browser.Tab) float64 {
	t.Helper()
	metrics := browser.Run(t, tab, func(ctx context.Context, tab *chromedp.Target) ([]*performance.Metric, error) {
		if _, err := cdp.Call(ctx, tab, performance.Enable,
			performance.EnableParams{TimeDomain: performance.EnableTimeDomainThreadTicks}); err != nil {
			return nil, err
		}
		answer, err := cdp.Call(ctx, tab, performance.GetMetrics, cdp.Empty{})
		return answer.Metrics, err
	})
	for _, m := range metrics {
		if m.Name == "TaskDuration" {
			return m.Value
		}
	}
	t.Fatal("the browser does not tell its CPU time")
	return 0
}

func TestFiltersAreInTheAddress(t *testing.T) {
	b := chromium(t)
	url := serve(t, newPage(t, newFleet(1200), web.Config{Check: report}))
	tab := b.Open(t, url+"?q=store&namespace=lyon-3&health=broken,warning&mode=connect&sort=name&order=desc")
	tab.Until(t, patience, tableIsThere)
	for expression, want := range map[string]string{
		`document.getElementById("q").value`:         "store",
		`document.getElementById("namespace").value`: "lyon-3",
		`document.getElementById("mode").value`:      "connect",
		`document.querySelector("[data-health=broken]").ariaPressed + document.querySelector("[data-health=ok]").ariaPressed`:                                                                 "truefalse",
		`document.querySelector("[aria-sort=descending]").textContent`:                                                                                                                        "Cluster",
		`[...document.querySelectorAll("tbody tr")].every((r) => r.querySelector(".c-namespace").textContent === "lyon-3" && /Broken|Warning/.test(r.cells[0].textContent))`:                  "true",
		`(() => { const names = [...document.querySelectorAll("tbody a")].map((a) => a.textContent); return names.length > 1 && names.join() === names.slice().sort().reverse().join(); })()`: "true",
	} {
		if got := str(t, tab, expression); got != want {
			t.Errorf("%s: %s, want %s", expression, got, want)
		}
	}
	do(t, tab, `document.querySelector("[data-health=broken]").click()`)
	if got := str(t, tab, "location.search"); !strings.Contains(got, "health=warning&") {
		t.Errorf("address %s", got)
	}
	do(t, tab, "history.back()")
	tab.Until(t, patience, `document.querySelector("[data-health=broken]").ariaPressed === "true"`)
	do(t, tab, `[...document.querySelectorAll("button")].find((b) => b.textContent === "Clear filters").click()`)
	tab.Until(t, patience, `location.search === "" && document.getElementById("count").textContent === "1,200 Clusters"`)
	do(t, tab, `[...document.querySelectorAll(".pager a")].find((a) => a.textContent === "Last").click()`)
	tab.Until(
		t,
		patience,
		`location.search === "?page=12" && document.querySelector("[aria-current=page]").textContent === "1,101–1,200 of 1,200"`,
	)
	noProblems(t, tab)
}

func TestAHostileNameStaysText(t *testing.T) {
	b := chromium(t)
	fleet := newFleet(3)
	const evil = `<img src=x onerror="document.title='owned'"><script>document.title='owned'</script>"'` + "`" + `<b>x`
	key := fleet.first(func(*v1alpha1.Tunnel) bool { return true })
	fleet.change(key, func(t *v1alpha1.Tunnel) *v1alpha1.Tunnel {
		t.Status.Hostname = evil
		t.Status.Kubeconfig.Server = "javascript:alert(1)//" + evil
		t.Status.Kubeconfig.Mode = v1alpha1.KubeconfigMode(evil)
		t.Status.Edges[0].Host, t.Status.Edges[0].LastError, t.Status.Edges[0].NodeID = evil, evil, "CN="+evil
		return broken(t, evil)
	})
	url := serve(t, newPage(t, fleet, web.Config{Check: report}))
	tab := b.Open(t, url)
	tab.Until(t, patience, tableIsThere)
	const clean = `document.querySelectorAll("main img, main script, main b:not(.hop b), main [onerror], a[href^=javascript]").length === 0 && !document.title.includes("owned")`
	if got := str(t, tab, clean+` && document.body.innerText.includes("<img src=x onerror=")`); got != "true" {
		t.Error("the table has an element that a message made")
	}
	visit(t, tab, url+"cluster?namespace="+key.Namespace+"&name="+key.Name)
	tab.Until(t, patience, `document.querySelectorAll(".hop").length > 3 && document.body.innerText.includes("onerror=")`)
	if got := str(t, tab, clean); got != "true" {
		t.Error("the page of the Cluster has an element that a message made")
	}
	visit(t, tab, url+"cluster?namespace=%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E&name=%3Cimg%20src%3Dx%3E")
	tab.Until(t, patience, `document.querySelector("h1")?.textContent === "<img src=x>"`)
	noProblems(t, tab)
	// The counterpart: a violation of the policy is detected.
	visit(t, tab, url)
	tab.Until(t, patience, tableIsThere)
	do(
		t,
		tab,
		`(() => { const s = document.createElement("img"); s.src = "data:image/png;base64,AAAA"; document.body.append(s); })()`,
	)
	tab.Until(t, patience, `document.images.length === 1 && document.images[0].complete`)
	if len(tab.Problems()) == 0 {
		t.Error("a violation of the policy goes unseen")
	}
}

func TestTheTableUpdatesAndReconnects(t *testing.T) {
	b := chromium(t)
	fleet := newFleet(60)
	p := newPage(t, fleet, web.Config{Check: report})
	url, stop := serveAt(t, p, "127.0.0.1:0")
	tab := b.Open(t, url)
	tab.Until(t, patience, tableIsThere+` && document.getElementById("connection").textContent === "Live"`)
	do(t, tab, `window.stays = document.querySelector("table.fleet"); window.shift = 0;
		new PerformanceObserver((list) => { for (const e of list.getEntries()) if (!e.hadRecentInput) window.shift += e.value; }).observe({type: "layout-shift", buffered: true})`)
	key := fleet.first(func(t *v1alpha1.Tunnel) bool { return !isBroken(t) && t.Status.Hostname != "" })
	row := fmt.Sprintf(
		`[...document.querySelectorAll("tbody tr")].find((r) => r.querySelector("a").textContent === %q)`,
		key.Name,
	)
	fleet.change(key, func(t *v1alpha1.Tunnel) *v1alpha1.Tunnel { return broken(t, "the cable was cut") })
	p.Changed(t.Context(), fleet, key)
	tab.Until(t, patience, row+`.innerText.includes("the cable was cut")`)
	tab.Until(t, patience, `document.getElementById("announcer").textContent.includes("is now Broken: the cable was cut")`)
	tab.Until(
		t,
		patience,
		`document.querySelector("tbody tr a").textContent === `+fmt.Sprintf(
			"%q",
			key.Name,
		)+` || document.querySelector("tbody tr").innerText.includes("Broken")`,
	)
	noProblems(t, tab)
	if shift := number(t, tab, "window.shift"); shift > 0.1 { // 0.1 is the limit for "good" at web.dev
		t.Errorf("what is shown has moved: cumulative layout shift %.3f", shift)
	}

	// Another server replaces the first: its cursors are different.
	stop()
	tab.Until(t, patience, `document.getElementById("connection").textContent !== "Live"`)
	fleet.change(key, func(t *v1alpha1.Tunnel) *v1alpha1.Tunnel { return healthy(t.Namespace, t.Name) })
	second := newPage(t, fleet, web.Config{Check: report})
	serveAt(t, second, strings.TrimSuffix(strings.TrimPrefix(url, "http://"), "/"))
	tab.Until(
		t,
		patience,
		`document.getElementById("connection").textContent === "Live" && `+row+`.innerText.includes("OK")`,
	)
	fleet.change(key, func(*v1alpha1.Tunnel) *v1alpha1.Tunnel { return nil })
	second.Changed(t.Context(), fleet, key)
	tab.Until(t, patience, `!`+row+` && window.stays.isConnected`)
}

func TestARejectedReaderSeesTheReasonAndConnectsLater(t *testing.T) {
	b := chromium(t)
	p := newPage(t, newFleet(40), web.Config{Check: report})
	url, d := serve(t, p), document(t, p)
	leave := crowd(t, url, d.Rows, 0)
	tab := b.Open(t, fmt.Sprintf("%scluster?namespace=%s&name=%s", url, d.Rows[20][0], d.Rows[20][1]))
	const notice = `document.getElementById("refusal").innerText`
	tab.Until(
		t,
		patience,
		notice+`.includes("the pages of 16 Clusters are open") && document.getElementById("connection").textContent === "Rejected, retrying"`,
	)
	if got := str(t, tab, `document.querySelector(".verdict").innerText`); !strings.Contains(
		got,
		"The objects of this Cluster are not read yet",
	) {
		t.Errorf("instead of its state it says %q", got)
	}
	leave[0]()
	tab.Until(
		t,
		patience,
		`document.querySelectorAll(".hop[data-id]").length > 3 && `+notice+` === "" && document.getElementById("connection").textContent === "Live"`,
	)
	for _, problem := range tab.Problems() {
		if !strings.Contains(problem, "503") { // the browser reports each answer that is an error
			t.Errorf("the browser complains: %s", problem)
		}
	}
}
