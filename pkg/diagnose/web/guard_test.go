package web_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/pkg/diagnose/web"
)

// request sends one request to a handler, without a network.
func request(t *testing.T, p *web.Page, method, path string, headers map[string]string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, "http://localhost:9448"+path, http.NoBody)
	for key, value := range headers {
		r.Header.Set(key, value)
		if key == "Host" {
			r.Host = value
		}
	}
	w := httptest.NewRecorder()
	p.Handler().ServeHTTP(w, r)
	return w
}

func TestOnLoopbackOnlyALoopbackNameIsServed(t *testing.T) {
	p := newPage(t, newFleet(1), web.Config{})
	for host, want := range map[string]int{
		"localhost:9448": 200, "127.0.0.1:1": 200, "[::1]:9448": 200, "localhost": 200, "127.9.9.9": 200,
		"rebound.example.com:9448": 421, "localhost.example.com": 421, "10.0.0.1:9448": 421, "": 421,
		"127.0.0.1.example.com:80": 421,
	} {
		if got := request(t, p, "GET", "/api/fleet", map[string]string{"Host": host}); got.Code != want {
			t.Errorf("Host %q: %d, want %d", host, got.Code, want)
		}
	}
	for address, want := range map[string]bool{
		"127.0.0.1:9448": true, "[::1]:1": true, ":9448": false,
		"0.0.0.0:1": false, "localhost:1": false, "10.1.1.1:2": false, "": false,
	} {
		if web.Loopback(address) != want {
			t.Errorf("Loopback(%q) is %v", address, !want)
		}
	}
}

func TestThePageAcceptsOnlyReadsOfItsOwnOrigin(t *testing.T) {
	p := newPage(t, newFleet(1), web.Config{})
	for _, path := range []string{
		"/", "/cluster", "/api/fleet", "/api/fleet/events", "/api/cluster/events",
		"/static/main.js",
	} {
		for _, method := range []string{"POST", "PUT", "PATCH", "DELETE", "OPTIONS"} {
			if got := request(t, p, method, path, nil); got.Code != http.StatusMethodNotAllowed {
				t.Errorf("%s %s: %d", method, path, got.Code)
			}
		}
		if got := request(t, p, "HEAD", path+"?namespace=a&name=b", nil); got.Code != 200 || got.Body.Len() > 0 {
			t.Errorf("HEAD %s: %d, %d bytes", path, got.Code, got.Body.Len())
		}
		got := request(t, p, "GET", path, map[string]string{"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"})
		if got.Code != http.StatusForbidden {
			t.Errorf("%s for another site: %d", path, got.Code)
		}
		for _, header := range []string{
			"Content-Security-Policy", "X-Content-Type-Options", "Referrer-Policy",
			"Cross-Origin-Resource-Policy",
		} {
			if got.Header().Get(header) == "" {
				t.Errorf("%s has no %s", path, header)
			}
		}
	}
	for _, path := range []string{"/static/", "/static/../page.go", "/nothing", "/api/"} {
		if got := request(t, p, "GET", path, nil); got.Code == 200 {
			t.Errorf("%s: %d", path, got.Code)
		}
	}
	for _, query := range []string{
		"", "?namespace=a", "?namespace=a/b&name=c", "?namespace=a&name=..%2Fx",
		"?namespace=A&name=b",
	} {
		if got := request(t, p, "GET", "/api/cluster/events"+query, nil); got.Code != http.StatusBadRequest {
			t.Errorf("cluster %q: %d", query, got.Code)
		}
	}
}

// reviewer maps tokens to decisions.
type reviewer map[string]web.Decision

func (r reviewer) Review(_ context.Context, token, _ string) (web.Decision, error) {
	if token == "down" {
		return web.Unknown, errors.New("no apiserver")
	}
	return r[token], nil
}

func TestBeyondLoopbackEveryPathAsksForAToken(t *testing.T) {
	p := newPage(
		t, newFleet(1), web.Config{Reviewer: reviewer{"good": web.Allowed, "poor": web.Forbidden, "many": web.TooMany}},
	)
	for _, path := range []string{
		"/", "/cluster", "/static/main.js", "/api/fleet", "/api/fleet/events",
		"/api/cluster/events?namespace=a&name=b", "/nothing",
	} {
		for authorization, want := range map[string]int{
			"": 401, "Basic Z29vZA==": 401, "Bearer ": 401, "Bearer bad": 401,
			"Bearer poor": 403, "Bearer many": 429, "Bearer down": 503,
		} {
			got := request(t, p, "GET", path, map[string]string{"Authorization": authorization, "Host": "page.example.com"})
			if got.Code != want || strings.Contains(got.Body.String(), "good") {
				t.Errorf("%s with %q: %d, want %d", path, authorization, got.Code, want)
			}
		}
	}
	if got := request(t, p, "GET", "/api/fleet", map[string]string{
		"Authorization": "Bearer good",
		"Host":          "page.example.com",
	}); got.Code != 200 {
		t.Errorf("a good token: %d %s", got.Code, got.Body)
	}
}
