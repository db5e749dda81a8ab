package dial_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/fairlead/fairlead/pkg/dial"
	"github.com/fairlead/fairlead/pkg/model"
)

// reach dials and returns the endpoint that answered, and how long it took.
func reach(t *testing.T, d *dial.Dialer) (model.Endpoint, time.Duration) {
	t.Helper()
	begin := time.Now()
	conn, err := d.DialContext(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	addr := netip.MustParseAddrPort(conn.RemoteAddr().String())
	return model.Endpoint{Host: addr.Addr().String(), Port: addr.Port()}, time.Since(begin)
}

func TestDialContextFindsTheAddressThatAnswers(t *testing.T) {
	good := answering(t, "127.0.0.1:0", echo)
	for name, test := range map[string]struct {
		before []model.Endpoint
		within time.Duration
	}{
		"it is the first":                          {nil, time.Second},
		"nothing listens at the earlier addresses": {[]model.Endpoint{dead(t, "127.0.0.1"), dead(t, "::1")}, time.Second},
		"the one before it swallows what it gets":  {[]model.Endpoint{blackHole(t)}, 2 * time.Second},
		"three black holes before it": {
			[]model.Endpoint{blackHole(t), blackHole(t), blackHole(t)},
			3 * time.Second,
		},
		"a name that does not exist before it": {[]model.Endpoint{{Host: "nowhere.example.com", Port: 443}}, 2 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			d := &dial.Dialer{Addresses: append(test.before, good)}
			dial.SetResolver(d, newNames(t).resolver())
			got, took := reach(t, d)
			if got != good {
				t.Errorf("came to %s, want %s", got, good)
			}
			if took > test.within {
				t.Errorf("took %s, want at most %s", took, test.within)
			}
		})
	}
}

func TestDialContextResolvesNamesAgain(t *testing.T) {
	t.Parallel()
	first, second := answering(t, "127.0.0.1:0", echo), ""
	answering(t, net.JoinHostPort("127.0.0.2", strconv.Itoa(int(first.Port))), echo)
	second = "127.0.0.2"
	dns := newNames(t)
	d := &dial.Dialer{Addresses: []model.Endpoint{{Host: "gateway.example.com", Port: first.Port}}}
	dial.SetResolver(d, dns.resolver())
	for _, want := range []string{first.Host, second, first.Host} {
		dns.set("gateway.example.com", want)
		if got, _ := reach(t, d); got.Host != want {
			t.Errorf("DNS says %s, the dial went to %s", want, got.Host)
		}
	}
	t.Run("and stays with the last answer while DNS is silent", func(t *testing.T) {
		dns.silence(true)
		got, took := reach(t, d)
		if got.Host != first.Host || took > 5*time.Second {
			t.Errorf("came to %s after %s", got.Host, took)
		}
	})
}

func TestDialContextTriesBothFamilies(t *testing.T) {
	for _, alive := range []string{"127.0.0.1", "::1"} {
		t.Run(alive, func(t *testing.T) {
			good := answering(t, net.JoinHostPort(alive, "0"), echo)
			dns := newNames(t)
			dns.set("gateway.example.com", "::1", "127.0.0.1")
			d := &dial.Dialer{Addresses: []model.Endpoint{{Host: "gateway.example.com", Port: good.Port}}}
			dial.SetResolver(d, dns.resolver())
			if got, _ := reach(t, d); got != good {
				t.Errorf("came to %s, want %s", got, good)
			}
		})
	}
}

// TestDialContextNeedsOneFamilyOfDNS has a resolver that does not answer questions about one family, which occurs in
// front of old servers.
func TestDialContextNeedsOneFamilyOfDNS(t *testing.T) {
	for host, mute := range map[string]dnsmessage.Type{"127.0.0.1": dnsmessage.TypeAAAA, "::1": dnsmessage.TypeA} {
		t.Run(mute.String(), func(t *testing.T) {
			t.Parallel()
			good := answering(t, net.JoinHostPort(host, "0"), echo)
			dns := newNames(t)
			dns.muteType(mute)
			dns.set("gateway.example.com", host)
			d := &dial.Dialer{Addresses: []model.Endpoint{{Host: "gateway.example.com", Port: good.Port}}}
			dial.SetResolver(d, dns.resolver())
			if got, took := reach(t, d); got != good || took > time.Second {
				t.Errorf("came to %s after %s", got, took)
			}
		})
	}
}

func TestDialContextForgetsAFamilyThatANameHasNoLonger(t *testing.T) {
	four := answering(t, "127.0.0.1:0", echo)
	six := answering(t, net.JoinHostPort("::1", strconv.Itoa(int(four.Port))), echo)
	dns := newNames(t)
	d := &dial.Dialer{Addresses: []model.Endpoint{{Host: "gateway.example.com", Port: four.Port}}}
	dial.SetResolver(d, dns.resolver())
	for _, want := range []model.Endpoint{six, four, six} {
		dns.set("gateway.example.com", want.Host)
		if got, _ := reach(t, d); got != want {
			t.Errorf("DNS says %s, the dial went to %s", want, got)
		}
	}
	dns.silence(true)
	if got, _ := reach(t, d); got != six {
		t.Errorf("while DNS is silent the dial went to %s, want the last answer %s", got, six)
	}
}

func TestDialContextPrefersTheAddressThatWorked(t *testing.T) {
	first := listenOn(t, "127.0.0.1:0")
	gone := endpoint(first)
	second := answering(t, "127.0.0.1:0", echo)
	d := &dial.Dialer{Addresses: []model.Endpoint{gone, second}}
	if got, _ := reach(t, d); got != gone {
		t.Fatalf("came to %s, want the first address", got)
	}
	_ = first.Close()
	if got, _ := reach(t, d); got != second {
		t.Fatalf("came to %s, want the one that is left", got)
	}
	listenOn(t, gone.String())
	if got, _ := reach(t, d); got != second {
		t.Errorf("came to %s, want the one that worked last", got)
	}
}

func TestDialContextTriesMoreAddressesLast(t *testing.T) {
	first := listenOn(t, "127.0.0.1:0")
	gone := endpoint(first)
	second := answering(t, "127.0.0.1:0", echo)
	d := &dial.Dialer{Addresses: []model.Endpoint{gone}}
	d.SetMore([]model.Endpoint{second, gone})
	if got, _ := reach(t, d); got != gone {
		t.Fatalf("came to %s, want the first address", got)
	}
	_ = first.Close()
	if got, _ := reach(t, d); got != second {
		t.Errorf("came to %s, want the additional address", got)
	}
	d.SetMore(nil)
	if conn, err := d.DialContext(t.Context()); err == nil {
		_ = conn.Close()
		t.Error("an address that was removed is still dialled")
	}
}

func TestErrorsOfDialContextExplainTheCause(t *testing.T) {
	t.Parallel()
	refused, hole := dead(t, "127.0.0.1"), blackHole(t)
	for name, test := range map[string]struct {
		in   []model.Endpoint
		want []string // substrings of the lines of the error
	}{
		"no address": {nil, []string{"no address to dial"}},
		"nothing listens": {[]model.Endpoint{refused}, []string{refused.String() + ": nothing listens there, or a firewall " +
			"rejects the connection: "}},
		"an unreachable address and a name that does not exist": {
			[]model.Endpoint{hole, {Host: "gateway.example.com", Port: 443}},
			[]string{"gateway.example.com: DNS has no address for this name: ", hole.String() + ": no answer: "},
		},
		"a name that does not resolve": {
			[]model.Endpoint{{Host: "one.example.com", Port: refused.Port}},
			[]string{"one.example.com:" + strconv.Itoa(int(refused.Port)) + " (127.0.0.1): nothing listens there"},
		},
		"no way": {[]model.Endpoint{{Host: "224.0.0.1", Port: 443}}, []string{"224.0.0.1:443: this machine has no route to " +
			"it: "}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dns := newNames(t)
			dns.set("one.example.com", "127.0.0.1")
			d := &dial.Dialer{Addresses: test.in}
			dial.SetResolver(d, dns.resolver())
			_, err := d.DialContext(t.Context())
			if err == nil {
				t.Fatal("no error")
			}
			lines := strings.Split(err.Error(), "\n")
			if len(lines) != len(test.want) {
				t.Fatalf("%d lines, want %d:\n%v", len(lines), len(test.want), err)
			}
			for n, want := range test.want {
				if !strings.HasPrefix(lines[n], want) {
					t.Errorf("line %d is %q, want it to begin with %q", n, lines[n], want)
				}
			}
		})
	}
}

func TestDialContextReportsThatDNSDoesNotAnswer(t *testing.T) {
	t.Parallel()
	dns := newNames(t)
	dns.silence(true)
	d := &dial.Dialer{Addresses: []model.Endpoint{{Host: "gateway.example.com", Port: 443}}}
	dial.SetResolver(d, dns.resolver())
	begin := time.Now()
	_, err := d.DialContext(t.Context())
	if err == nil || !strings.Contains(err.Error(), "DNS does not answer") {
		t.Errorf("error %v", err)
	}
	if took := time.Since(begin); took > 5*time.Second {
		t.Errorf("took %s", took)
	}
}

func TestDialContextEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, cancel)
	begin := time.Now()
	_, err := (&dial.Dialer{Addresses: []model.Endpoint{blackHole(t), blackHole(t)}}).DialContext(ctx)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want that of the context", err)
	}
	if took := time.Since(begin); took > 3*time.Second { // one address alone takes 5 s
		t.Errorf("took %s", took)
	}
}

func TestTheRoundTripIsKnownAfterAConnection(t *testing.T) {
	d := &dial.Dialer{Addresses: []model.Endpoint{answering(t, "127.0.0.1:0", echo)}}
	if got := d.RoundTrip(); got != 0 {
		t.Errorf("before the first connection the round trip is %s, want 0", got)
	}
	reach(t, d)
	if got := d.RoundTrip(); got <= 0 || got > time.Second {
		t.Errorf("the round trip on this machine is %s", got)
	}
}
