package dial_test

import (
	"bufio"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/pkg/dial"
	"github.com/fairlead/fairlead/pkg/model"
)

func TestParseProxy(t *testing.T) {
	for name, test := range map[string]struct{ in, want, wantErr string }{
		"none":                             {"", "", ""},
		"a URL":                            {"http://proxy.example:3128", "http://proxy.example:3128", ""},
		"a URL with a slash":               {"http://proxy.example:3128/", "http://proxy.example:3128", ""},
		"host and port as the environment": {"proxy.example:3128", "http://proxy.example:3128", ""},
		"no port":                          {"http://proxy.example", "http://proxy.example:80", ""},
		"TLS and no port":                  {"https://proxy.example", "https://proxy.example:443", ""},
		"IPv6":                             {"http://[2001:db8::1]:3128", "http://[2001:db8::1]:3128", ""},
		"credentials are not shown":        {"http://u:secret@proxy.example:3128", "http://proxy.example:3128", ""},
		"SOCKS": {
			"socks5://u:secret@proxy.example:1080", "",
			`scheme "socks5" is invalid: must be http or https`,
		},
		"a path": {
			"http://u:secret@proxy.example:3128/proxy.pac", "",
			"is not like http://host:port",
		},
		"no URL, and no quote of it":        {"http://u:secret@proxy.example:port", "", "is not like http://host:port"},
		"a host that is none":               {"http://u:secret@proxy_:3128%", "", "is not like http://host:port"},
		"an escape that is none":            {"http://u:sec%ret@proxy:3128", "", "is not like http://host:port"},
		"a port that is none":               {"http://u:secret@proxy.example:99999", "", `port "99999"`},
		"a space in the name of the host":   {"http://u:secret@pro xy:3128", "", "is not like http://host:port"},
		"a line break in the user's name":   {"http://u\n:secret@proxy:3128", "", "is not like http://host:port"},
		"credentials without a host at all": {"http://u:secret@", "", "is not like http://host:port"},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := dial.ParseProxy(test.in, "", nil)
			if test.wantErr == "" && err != nil ||
				test.wantErr != "" && (err == nil || !strings.Contains(err.Error(), test.wantErr)) {
				t.Fatalf("error %v, want %q", err, test.wantErr)
			}
			if got := p.String(); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
			if text := fmt.Sprintf("%v %+v %#v %v", p, p, p, err); strings.Contains(text, "secret") ||
				strings.Contains(text, "sec%ret") {
				t.Errorf("the password is in %s", text)
			}
		})
	}
}

func TestProxied(t *testing.T) {
	for name, test := range map[string]struct {
		noProxy   string
		addresses []string
		want      bool
	}{
		"nothing is excepted":          {"", []string{"gateway.example.com:443"}, true},
		"the name":                     {"gateway.example.com", []string{"gateway.example.com:443"}, false},
		"a domain":                     {"a.example, .example.com", []string{"gateway.example.com:443"}, false},
		"another domain":               {"ample.com", []string{"gateway.example.com:443"}, true},
		"a name with another port":     {"gateway.example.com:8443", []string{"gateway.example.com:443"}, true},
		"a network":                    {"10.0.0.0/8", []string{"10.1.2.3:443"}, false},
		"an IPv6 network":              {"2001:db8::/32", []string{"[2001:db8::1]:443"}, false},
		"another network":              {"10.0.0.0/8", []string{"192.0.2.1:443"}, true},
		"all":                          {"*", []string{"gateway.example.com:443"}, false},
		"loopback, always":             {"", []string{"127.0.0.1:443", "[::1]:443", "localhost:443"}, false},
		"one of two goes by the proxy": {"10.0.0.0/8", []string{"10.1.2.3:443", "gateway.example.com:443"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("HTTPS_PROXY", "http://proxy.example:3128")
			t.Setenv("https_proxy", "")
			t.Setenv("NO_PROXY", test.noProxy)
			t.Setenv("no_proxy", "")
			environment, err := dial.ProxyFromEnvironment(nil)
			if err != nil {
				t.Fatal(err)
			}
			explicit, err := dial.ParseProxy("http://proxy.example:3128", test.noProxy, nil)
			if err != nil {
				t.Fatal(err)
			}
			for _, proxy := range []dial.Proxy{environment, explicit} {
				d := &dial.Dialer{Proxy: proxy}
				for _, address := range test.addresses {
					e, err := model.ParseEndpoint(address)
					if err != nil {
						t.Fatal(err)
					}
					d.Addresses = append(d.Addresses, e)
				}
				if got := d.Proxied(); got != test.want {
					t.Errorf("got %t, want %t", got, test.want)
				}
			}
			if (&dial.Dialer{Addresses: []model.Endpoint{{Host: "gateway.example.com", Port: 443}}}).Proxied() {
				t.Error("a way without a proxy is proxied")
			}
		})
	}
}

func TestCredentialsFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "credentials")
	read := dial.CredentialsFile(path)
	if _, _, err := read(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("error of a file that isn't there: %v", err)
	}
	for name, test := range map[string]struct{ in, user, password, wantErr string }{
		"one line":                  {"alice:open sesame\n", "alice", "open sesame", ""},
		"a colon in the password":   {"alice:a:b", "alice", "a:b", ""},
		"a line break of Windows":   {"alice:x\r\n", "alice", "x", ""},
		"no colon":                  {"secret", "", "", "is not one line user:password"},
		"two lines":                 {"alice:secret\nbob:secret\n", "", "", "is not one line user:password"},
		"more than credentials are": {"alice:" + strings.Repeat("secret", 1000), "", "", "is not one line user:password"},
	} {
		t.Run(name, func(t *testing.T) {
			if err := os.WriteFile(path, []byte(test.in), 0o600); err != nil {
				t.Fatal(err)
			}
			user, password, err := read() // the same function as for the cases before
			if user != test.user || password != test.password {
				t.Errorf("got %q and %q", user, password)
			}
			if test.wantErr == "" && err != nil ||
				test.wantErr != "" && (err == nil || !strings.Contains(err.Error(), test.wantErr)) {
				t.Errorf("error %v, want %q", err, test.wantErr)
			}
			if err != nil && strings.Contains(err.Error(), "secret") {
				t.Errorf("the password is in %v", err)
			}
		})
	}
}

// throughProxy dials an address that must be dialled through the proxy at another address.
func throughProxy(t testing.TB, proxy model.Endpoint) (net.Conn, error) {
	t.Helper()
	p, err := dial.ParseProxy("http://"+proxy.String(), "", nil)
	if err != nil {
		t.Fatal(err)
	}
	return (&dial.Dialer{Addresses: []model.Endpoint{{Host: "gateway.example.com", Port: 443}}, Proxy: p}).DialContext(
		t.Context(),
	)
}

func TestAnswersOfAProxyAreExplained(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		answer string // empty: none, until the other side gives up
		want   string
	}{
		"credentials, and only such that are not spoken": {
			"HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: Negotiate\r\nProxy-Authenticate: NTLM " +
				"x\r\nContent-Length: 0\r\n\r\n",
			`it requires "Negotiate, NTLM", and only Basic is supported`,
		},
		"credentials": {
			"HTTP/1.1 407 Auth\r\nProxy-Authenticate: Basic realm=\"x\"\r\n\r\n",
			"it requires a user and a password, and none are configured",
		},
		"forbidden, with a page": {
			"HTTP/1.1 403 Forbidden\r\nX-Squid-Error: ERR_ACCESS_DENIED 0\r\n\r\n<html>...",
			`"403 Forbidden": it does not allow this address and port; it reports "ERR_ACCESS_DENIED 0"`,
		},
		"bad gateway, and text": {
			"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 20\r\n\r\n\nno route\x1b[31m to it\nmore",
			`"502 Bad Gateway": it cannot reach this address; it reports "no route\x1b[31m to it"`,
		},
		"no CONNECT": {"HTTP/1.1 405 Method Not Allowed\r\nContent-Length: 0\r\n\r\n", "it does not support CONNECT"},
		"a captive portal": {
			"HTTP/1.1 302 Found\r\nLocation: http://login.example/\r\n\r\n",
			`to "http://login.example/": it is not a proxy, or the network requires a login first`,
		},
		"no HTTP": {"SSH-2.0-OpenSSH_9.9\r\n", `the answer is not from an HTTP proxy: it begins with "SSH-2.0-OpenSSH_9.9"`},
		"TLS":     {"\x15\x03\x01\x00\x02\x02\x46", "it is TLS; if it is a proxy, its URL must begin with https://"},
		"a head without end": {
			"HTTP/1.1 200 OK\r\n" + strings.Repeat("X-A: "+strings.Repeat("a", 57)+"\r\n", 300),
			"its header has more than 16384 bytes",
		},
		"a head that ends midway": {"HTTP/1.1 200 O", "reading the proxy's answer"},
		"a head that is none":     {"HTTP/x.y 2000\r\n\r\n", `the answer is not from an HTTP proxy: "HTTP/x.y 2000"`},
		"silence":                 {"", "the proxy accepted the connection, but did not answer in time"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			proxy := answering(t, "127.0.0.1:0", func(conn net.Conn) {
				readOnce(conn)
				_, _ = conn.Write([]byte(test.answer))
				if test.answer == "" {
					hold(conn)
				}
			})
			begin := time.Now()
			_, err := throughProxy(t, proxy)
			if err == nil ||
				!strings.Contains(err.Error(), "gateway.example.com:443 through the proxy at "+proxy.String()+": ") ||
				!strings.Contains(err.Error(), test.want) {
				t.Errorf("the error is\n%v\nwant one that says %q", err, test.want)
			}
			if err != nil && (len(err.Error()) > 600 || strings.Contains(err.Error(), "\x1b")) {
				t.Errorf("the error quotes without bounds: %q", err)
			}
			if took := time.Since(begin); took > 11*time.Second {
				t.Errorf("took %s", took)
			}
		})
	}
	t.Run("nothing listens", func(t *testing.T) {
		if _, err := throughProxy(t, dead(t, "127.0.0.1")); err == nil ||
			!strings.Contains(err.Error(), "nothing listens there") {
			t.Error(err)
		}
	})
	t.Run("a cut", func(t *testing.T) {
		proxy := answering(t, "127.0.0.1:0", readOnce)
		if _, err := throughProxy(t, proxy); err == nil ||
			!strings.Contains(err.Error(), "closed the connection without an answer") {
			t.Error(err)
		}
	})
}

// TestBytesAfterTheAnswerAreNotLost has a proxy that sends the first bytes of the server together with its answer.
func TestBytesAfterTheAnswerAreNotLost(t *testing.T) {
	proxy := answering(t, "127.0.0.1:0", func(conn net.Conn) {
		readOnce(conn)
		_, _ = conn.Write([]byte("HTTP/1.1 200 Connection established\r\nX: y\r\n\r\nhello"))
	})
	conn, err := throughProxy(t, proxy)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if got, err := io.ReadAll(conn); string(got) != "hello" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	if _, ok := conn.(*net.TCPConn); !ok {
		t.Errorf("the connection is a %T: the kernel can't copy from it", conn)
	}
}

// TestAProxyWithTLS has a proxy whose URL is https://.
func TestAProxyWithTLS(t *testing.T) {
	target := answering(t, "127.0.0.1:0", echo)
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sent := &http.Request{Header: http.Header{"Authorization": r.Header["Proxy-Authorization"]}}
		user, password, _ := sent.BasicAuth()
		if r.Method != http.MethodConnect || r.Host != "gateway.example.com:443" || user != "alice" ||
			password != "open sesame" {
			http.Error(w, "not this", http.StatusForbidden)
			return
		}
		up, err := net.Dial("tcp", target.String())
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		defer up.Close()
		down, _, _ := http.NewResponseController(w).Hijack()
		defer down.Close()
		_, _ = io.WriteString(down, "HTTP/1.1 200 OK\r\n\r\n")
		go func() { _, _ = io.Copy(up, down) }()
		_, _ = io.Copy(down, up)
	}))
	defer server.Close()
	p, err := dial.ParseProxy("https://alice:open%20sesame@"+server.Listener.Addr().String(), "", nil)
	if err != nil {
		t.Fatal(err)
	}
	d := &dial.Dialer{Addresses: []model.Endpoint{{Host: "gateway.example.com", Port: 443}}, Proxy: p}
	if _, err := d.DialContext(t.Context()); err == nil ||
		!strings.Contains(err.Error(), "starting TLS with the proxy itself") {
		t.Errorf("a proxy that nobody vouches for: %v", err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	dial.SetRoots(&d.Proxy, roots)
	conn, err := d.DialContext(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, _ = io.WriteString(conn, "ping\n")
	if line, err := bufio.NewReader(conn).ReadString('\n'); line != "ping\n" {
		t.Errorf("got %q, %v", line, err)
	}
}
