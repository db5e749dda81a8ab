package web

import (
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// policy restricts what a browser may do with the page: run and show only files of this server, and nothing inline.
// With Trusted Types, even our own scripts cannot turn text into elements.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; " +
	"frame-ancestors 'none'; base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// secured adds the headers that every answer has.
func secured(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Frame-Options", "DENY")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Permissions-Policy", "camera=(), geolocation=(), microphone=()")
		h.Set("Cache-Control", "no-store")
		next.ServeHTTP(w, r)
	})
}

// Loopback reports whether an address to listen on can be reached only from its own machine or Pod. If so, the page
// requires no authentication: the reader has passed `kubectl port-forward`, or is on that machine.
func Loopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsLoopback()
}

// local admits requests that name this server by a loopback name. A foreign page can make a browser connect to
// 127.0.0.1 by a name of its own ("DNS rebinding"), but only under that name.
func local(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, _, err := net.SplitHostPort(r.Host)
		if err != nil {
			host = strings.Trim(r.Host, "[]")
		}
		ip, err := netip.ParseAddr(host)
		if host != "localhost" && (err != nil || !ip.IsLoopback()) {
			http.Error(
				w,
				"this page is served on loopback: open it as http://localhost:<port>, or have the proxy before it send such a "+
					"Host header",
				http.StatusMisdirectedRequest,
			)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// ownOnly rejects requests that a page of another origin makes a browser send. That page could not read the answer, but
// it would cost resources.
func ownOnly(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if site := r.Header.Get("Sec-Fetch-Site"); site == "cross-site" && r.Header.Get("Sec-Fetch-Mode") != "navigate" {
			http.Error(w, "not for other sites", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// reviewed admits readers whose bearer token the reviewer allows.
func reviewed(reviewer Reviewer, log *slog.Logger, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		if !ok || token == "" {
			w.Header().Set("WWW-Authenticate", `Bearer realm="fairlead"`)
			http.Error(w, "a bearer token of the management cluster is needed", http.StatusUnauthorized)
			return
		}
		verdict, err := reviewer.Review(r.Context(), token, r.RemoteAddr)
		switch {
		case err != nil:
			log.Warn("cannot review the reader of the page", "error", err)
			w.Header().Set("Retry-After", "5")
			http.Error(w, "the management cluster could not review your token", http.StatusServiceUnavailable)
		case verdict == TooMany:
			w.Header().Set("Retry-After", "5")
			http.Error(w, "too many different tokens from your address", http.StatusTooManyRequests)
		case verdict == Unknown:
			w.Header().Set("WWW-Authenticate", `Bearer realm="fairlead", error="invalid_token"`)
			http.Error(w, "the management cluster does not know this token", http.StatusUnauthorized)
		case verdict == Forbidden:
			http.Error(
				w, "you may not list tunnels.fairlead.dev and remotenetworks.fairlead.dev in all namespaces, which is what this "+
					"page shows", http.StatusForbidden,
			)
		default:
			next.ServeHTTP(w, r)
		}
	})
}
