package sight

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"regexp"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/fairlead/fairlead/internal/browser"
	"github.com/fairlead/fairlead/test/faults"
	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/lab/netns"
	"github.com/fairlead/fairlead/test/lab/proc"
)

// chromium is the browser of all tests here.
var chromium browser.Browser

// page returns the URL of an xds-server's status page, reached as with kubectl port-forward.
func (s *sight) page(t *testing.T, i int) string {
	t.Helper()
	target := &url.URL{Scheme: "http", Host: lab.PageAddress(i)}
	server := httptest.NewServer(&httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport: &http.Transport{DialContext: s.Network.Management.DialContext},
	})
	t.Cleanup(func() {
		server.CloseClientConnections() // streams do not end by themselves
		server.Close()
	})
	return server.URL + "/"
}

// roundTrip matches the format of a round-trip time.
var roundTrip = regexp.MustCompile(`^(< 0\.1|[0-9]+(\.[0-9])?) ms$`)

// provePage checks what the status page shows about running gateways.
func (r *room) provePage(t *testing.T) {
	that(
		t,
		"the status page shows the round-trip times of the gateways, and their name and port",
		func(t *testing.T) {
			// Each server knows only the times of the gateways that report to it.
			var tabs []*browser.Tab
			for i := range r.world.XDSServers {
				tabs = append(tabs, chromium.Open(t, r.world.page(t, i)+"?namespace="+r.Namespace))
			}
			row := fmt.Sprintf(
				`[...document.querySelectorAll("tbody tr")].find((r) => r.querySelector("a").textContent === %q)`,
				r.Name,
			)
			var tab *browser.Tab
			must(t, proc.Wait(t.Context(), faults.NameTime, func(context.Context) error {
				for _, one := range tabs {
					if shown := browser.Eval[string](t, one,
						row+`?.querySelector("td.c-rtt").textContent ?? ""`); roundTrip.MatchString(
						shown,
					) {
						tab = one
						t.Logf("in the table: %s", shown)
						return nil
					}
				}
				return errors.New("no server shows a round-trip time")
			}))
			browser.Eval[chromedp.Void](t, tab, row+`.querySelector("a").click()`)
			// The table of edges shows the time of each gateway that reports here, and the facts show the median.
			tab.Until(
				t,
				faults.NameTime,
				`[...document.querySelectorAll(".part-edges td.numeric div")].some((e) => e.textContent.endsWith(" ms"))`,
			)
			for what, where := range map[string]string{
				"facts": `[...document.querySelectorAll(".part-facts dt")].find((e) => e.textContent === "Round trip")?.nextSibling.textContent ?? ""`,
				"edges": `[...document.querySelectorAll(".part-edges td.numeric div")].map((e) => e.textContent).find((s) => s !== "–") ?? ""`,
			} {
				if shown := browser.Eval[string](t, tab, where); !roundTrip.MatchString(shown) {
					t.Errorf("the %s show %q, want a round-trip time", what, shown)
				}
			}
			// Read from the Tunnel's status, because the page does not read the Secret.
			tab.Until(t, faults.NameTime, `document.querySelector(".hop[data-id=port]")`)
			for id, want := range map[string]string{"name": netns.GatewayName + " is ", "port": " accepts connections"} {
				tab.Until(
					t,
					faults.NameTime,
					fmt.Sprintf(`document.querySelector(".hop.ok[data-id=%s]")?.innerText.includes(%q)`, id, want),
				)
			}
			for _, problem := range tab.Problems() {
				t.Errorf("the browser complains: %s", problem)
			}
		},
	)
}
