package redact

import (
	"fmt"
	"strings"
	"testing"
)

const (
	hex64    = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	token    = "abcdef.0123456789abcdef"
	jwt      = "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJrdWJlcm5ldGVzIn0.c2lnbmF0dXJl"
	pemLine  = "MIIEpAIBAAKCAQEAtotally0made0up0line0of0base640that0is0as0long0a"
	ourToken = "flr1.abcdefghijklmnopqrstuvwxyz234567abcdefghijklmnopqrst"
)

func TestText(t *testing.T) {
	tests := map[string]struct{ in, want string }{
		"nothing secret stays as it is": {
			"[preflight] Running pre-flight checks\n\t[ERROR Port-6443]: Port 6443 is in use\n", "[preflight] Running " +
				"pre-flight checks\n\t[ERROR Port-6443]: Port 6443 is in use\n",
		},
		"a key in PEM": {
			"a\n-----BEGIN RSA PRIVATE KEY-----\n" + pemLine + "\n-----END RSA PRIVATE KEY-----\nb",
			"a\n[removed]\nb",
		},
		"a key in PEM on one line": {
			`"k": "-----BEGIN PRIVATE KEY-----\nAbc\n-----END PRIVATE KEY-----\n"`,
			`"k": "[removed]\n"`,
		},
		"a key whose end is cut off": {"a\n-----BEGIN EC PRIVATE KEY-----\nshort", "a\n[removed]"},
		"one whose beginning is":     {"short\n-----END EC PRIVATE KEY-----\nb", "[removed]\nb"},
		"lines of base64":            {"a\n" + pemLine + "\n" + pemLine + "==\nb", "a\n[removed]\n[removed]\nb"},
		"a bootstrap token": {
			"[bootstrap-token] using " + token + " for it",
			"[bootstrap-token] using [removed] for it",
		},
		"its flag": {
			"kubeadm join 10.0.0.1:6443 --token " + token + " --v 5",
			"kubeadm join 10.0.0.1:6443 --token=[removed] --v 5",
		},
		"a certificate key": {
			"--certificate-key " + hex64 + "\nkey " + hex64,
			"--certificate-key=[removed]\nkey [removed]",
		},
		"a digest is none":       {"pulling pause@sha256:" + hex64, "pulling pause@sha256:" + hex64},
		"certificateKey in YAML": {"certificateKey: " + hex64 + "\nkind: X", "certificateKey: [removed]\nkind: X"},
		"a JWT":                  {"got " + jwt + ".", "got [removed]."},
		"half a JWT":             {"got eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJrdWJlcm5ldGVz", "got [removed]"},
		"our own tokens":         {"x " + ourToken + " fl1.abcdefghijklmnopqrstuvwxyz234567", "x [removed] [removed]"},
		"a password in a URL": {
			"dial http://user:p:a@ss@proxy.corp:3128/x: refused",
			"dial http://[removed]@proxy.corp:3128/x: refused",
		},
		"a URL without one": {
			"GET https://10.0.0.1:6443/healthz?timeout=10s",
			"GET https://10.0.0.1:6443/healthz?timeout=10s",
		},
		"a signed URL": {
			"GET https://b.s3/x?X-Amz-Signature=abc&X-Amz-Date=2",
			"GET https://b.s3/x?X-Amz-Signature=[removed]",
		},
		"a header": {"> Authorization: Digest abc def\n> Host: x", "> Authorization: [removed]\n> Host: x"},
		"a header in curl": {
			`curl -H "Proxy-Authorization: Basic dXNlcjpwYXNz" x`,
			`curl -H "Proxy-Authorization: [removed]`,
		},
		"a bearer":        {"with bearer abcdefgh12345 it", "with bearer [removed] it"},
		"client-key-data": {"    client-key-data: TFMwdExTMUNSVWRKVGlCUw==\n", "    client-key-data: [removed]\n"},
		"a variable": {
			"export AWS_SECRET_ACCESS_KEY=abc/def AKIAABCDEFGHIJKLMNOP",
			"export AWS_SECRET_ACCESS_KEY=[removed]",
		},
		"a value in quotes": {`password: "one two" user: x`, `password: [removed] user: x`},
		"JSON":              {`{"token":"a\"b","n":1}`, `{"token":[removed],"n":1}`},
		"JSON within JSON": {
			`{"m":"{\"password\":\"x\\\"y, z\",\"n\":1}","k":2}`,
			`{"m":"{\"password\":[removed],\"n\":1}","k":2}`,
		},
		"JSON two levels down":  {`"{\\\"password\\\":\\\"x y\\\"}"` + "\nb", `"{\\\"password\\\":[removed]` + "\nb"},
		"a number in it":        {`"{\"token\":123456,\"n\":1}" b`, `"{\"token\":[removed] b`},
		"quotes that never end": {"user: x password: \"one two\nb", "user: x password: [removed]\nb"},
		"a block of YAML": {
			"a:\n  password: |\n    one\n\n     two\n  b: c\n",
			"a:\n  password: [removed]\n    [removed]\n  b: c\n",
		},
		"a block that is folded": {
			"- token: >-2 # mine\r\n    one\r\n  b: c",
			"- token: [removed]\n    [removed]\n  b: c",
		},
		"a block at the end":    {"secret: !!str |\n\tone", "secret: [removed]\n  [removed]\n"},
		"a block that is empty": {"token: |\n\nb: c", "token: [removed]\n\nb: c"},
		"no block":              {"a: |\n  b", "a: |\n  b"},
		"commas in a value":     {"password: a,b;c&d e", "password: [removed]"},
		"commas in a variable":  {"with PASSWORD=a,b;c&d ./run --v", "with PASSWORD=[removed] ./run --v"},
		"commas in a flag":      {"run --password a,b;c&d --v", "run --password=[removed] --v"},
		"a setting with spaces": {"  db_password = one two three\nb", "  db_password = [removed]\nb"},
		"an error about a secret": {
			`error downloading the secret: Secret "kubeadm-certs" was not found`,
			`error downloading the secret: [removed] "kubeadm-certs" was not found`,
		},
		"a URL that is not encoded": {
			"dial http://u:a/b?c#d'e@f@proxy:3128/x?y: refused",
			"dial http://[removed]@proxy:3128/x?y: refused",
		},
		"a URL signed for Azure": {
			"GET https://x.blob/y?sv=1&sig=ab%2Bc%3D&se=2 b",
			"GET https://x.blob/y?sv=1&sig=[removed]&se=2 b",
		},
		"one of them in JSON": {
			`"https://x.blob/y?sv=1\u0026sig=ab%2Bc"`,
			`"https://x.blob/y?sv=1\u0026sig=[removed]"`,
		},
		"prose about secrets": {
			`could not find secret "kubeadm-certs" in the namespace`,
			`could not find secret "kubeadm-certs" in the namespace`,
		},
		"what cloud-init made": {
			"Set the following 'random' passwords\nroot:abc\nubuntu:def\nCloud-init",
			"Set the following 'random' passwords\n[removed]\nCloud-init",
		},
		"a user of curl": {
			"+ curl -fsSL -u admin:hunter2 https://x/y\n$ curl --user='a:b c' x", "+ curl -fsSL -u [removed] https://x/y\n" +
				"$ curl --user='[removed] c' x",
		},
		"credentials of crictl": {"crictl pull --creds ci:hunter2 x", "crictl pull --creds=[removed] x"},
		"a registry's password": {`{"auths":{"r":{"auth":"Y2k6aA=="}}}`, `{"auths":{"r":{"auth":[removed]}}}`},
		"a short name":          {"with DB_PASS=hunter2 ./run", "with DB_PASS=[removed] ./run"},
		"a longer one is none":  {"3 tests passed: ok; passthrough: on", "3 tests passed: ok; passthrough: on"},
		"a token of k3s":        {"join K10" + hex64 + "::server:hunter2 now", "join [removed] now"},
		"a line of a JWT":       {"a\n" + strings.Repeat("aB3_-", 13) + "\nb", "a\n[removed]\nb"},
		"a line that separates": {strings.Repeat("-", 70), strings.Repeat("-", 70)},
		"a blob":                {"data " + strings.Repeat("aB3_", 30) + " end", "data [removed] end"},
		"the empty text":        {"", ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := Text(tc.in); got != tc.want {
				t.Errorf("got  %q\nwant %q", got, tc.want)
			}
		})
	}
}

// FuzzText puts secrets into any text. No secret may survive, and redacting twice must change nothing.
func FuzzText(f *testing.F) {
	for _, seed := range []string{
		"", "token:", "-----BEGIN", "http://a:b@", "--password", `"`, "'", "Authorization:",
		"\\", "é\xff", "[removed]",
	} {
		f.Add(seed, seed)
	}
	secrets := []string{
		token, jwt, hex64, ourToken, "--password hunter2hunter2", "password: hunter2hunter2", "http://u:hunter2hunter2@h/",
		"client-key-data: " + strings.Repeat("Zm9v", 8),
		"-----BEGIN PRIVATE KEY-----\n" + pemLine + "\n-----END PRIVATE KEY-----", strings.Repeat("Zm9v", 30),
		`{\"password\":\"hunter2hunter2\"}`, "password: |\n  hunter2hunter2\n  x", "password: x,hunter2hunter2",
		"http://u:/?#hunter2hunter2@h/", "?sig=hunter2hunter2",
	}
	bare := []string{token, jwt, hex64, ourToken, "hunter2hunter2", strings.Repeat("Zm9v", 8), pemLine}
	f.Fuzz(func(t *testing.T, before, after string) {
		for _, secret := range secrets {
			in := before + "\n" + secret + "\n" + after
			out := Text(in)
			for _, b := range bare {
				if strings.Contains(out, b) && !strings.Contains(before+after, b) {
					t.Fatalf("%q survives in %q", b, out)
				}
			}
			if again := Text(out); again != out {
				t.Fatalf("redacting again makes %q of %q", again, out)
			}
		}
	})
}

// BenchmarkText redacts the longest log that a machine reads, and worst cases. Half of a text must take about half of
// the time.
func BenchmarkText(b *testing.B) {
	for name, line := range map[string]string{
		"log": "[preflight] Reading configuration from the \"kubeadm-config\" ConfigMap in namespace " +
			"\"kube-system\"...\n", "quotes": `token="`, "escapes": `\"`,
		"blocks": "token: |\n a\n", "URLs": "a://", "names": "tokentoken", "at": "a://x@",
	} {
		for _, size := range []int{128 << 10, 256 << 10} {
			text := strings.Repeat(line, size/len(line))
			b.Run(fmt.Sprint(name, " ", size>>10, " KiB"), func(b *testing.B) {
				for b.Loop() {
					Text(text)
				}
			})
		}
	}
}
