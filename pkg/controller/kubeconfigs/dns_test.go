package kubeconfigs

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/controller/config"
	"github.com/fairlead/fairlead/pkg/controller/controllertest"
	"github.com/fairlead/fairlead/pkg/controller/objects"
	"github.com/fairlead/fairlead/pkg/kubeconfig"
)

func TestResolver(t *testing.T) {
	const gateway = "gw.example.com"
	notFound, broken := &net.DNSError{Err: "no such host", IsNotFound: true}, errors.New("broken")
	timeout := &net.DNSError{Err: "timeout", IsTimeout: true}
	// found is the content of DNS: addresses, or an error.
	type found map[string]any
	tests := map[string]struct {
		mode    config.TunnelDNS
		gateway string // empty: the name above
		in      found
		want    answer
	}{
		"yes without a lookup": {mode: config.TunnelDNSYes, want: yes},
		"no without a lookup":  {mode: config.TunnelDNSNo, want: no},
		"the gateway's address": {
			in: found{controllertest.Hostname: []string{"10.1.1.1"}, gateway: []string{"10.1.1.1"}}, want: yes,
		},
		"one of the gateway's addresses": {
			in: found{controllertest.Hostname: []string{"10.1.1.2"}, gateway: []string{"10.1.1.1", "10.1.1.2"}}, want: yes,
		},
		"all of the gateway's addresses in another order": {
			in:   found{controllertest.Hostname: []string{"10.1.1.2", "10.1.1.1"}, gateway: []string{"10.1.1.1", "10.1.1.2"}},
			want: yes,
		},
		"a web server's address": {
			in: found{controllertest.Hostname: []string{"203.0.113.80"}, gateway: []string{"10.1.1.1"}}, want: no,
		},
		"the gateway's address and another": {
			in: found{controllertest.Hostname: []string{"10.1.1.1", "203.0.113.80"}, gateway: []string{"10.1.1.1"}}, want: no,
		},
		"no address at all": {
			in: found{controllertest.Hostname: []string(nil), gateway: []string{"10.1.1.1"}}, want: no,
		},
		"the gateway is an address": {
			gateway: "10.1.1.1", in: found{controllertest.Hostname: []string{"10.1.1.1"}}, want: yes,
		},
		"the gateway is another address": {
			gateway: "10.1.1.1", in: found{controllertest.Hostname: []string{"203.0.113.80"}}, want: no,
		},
		"the gateway is the same address in other words": {
			gateway: "2001:DB8:0::1", in: found{controllertest.Hostname: []string{"2001:db8::1"}}, want: yes,
		},
		"the gateway is the same address, mapped into IPv6": {
			gateway: "::ffff:10.1.1.1", in: found{controllertest.Hostname: []string{"10.1.1.1"}}, want: yes,
		},
		"a name that is not there": {
			in: found{controllertest.Hostname: notFound, gateway: []string{"10.1.1.1"}}, want: no,
		},
		"a server that does not answer": {
			in: found{controllertest.Hostname: timeout, gateway: []string{"10.1.1.1"}}, want: unknown,
		},
		"any other error": {
			in: found{controllertest.Hostname: broken, gateway: []string{"10.1.1.1"}}, want: unknown,
		},
		"an address that is none": {
			in: found{controllertest.Hostname: []string{"x"}, gateway: []string{"10.1.1.1"}}, want: unknown,
		},
		"the gateway's name is not there": {
			in: found{controllertest.Hostname: []string{"10.1.1.1"}, gateway: notFound}, want: unknown,
		},
		"neither name is there": {in: found{controllertest.Hostname: notFound, gateway: notFound}, want: unknown},
		"no answer for the gateway's name": {
			in: found{controllertest.Hostname: []string{"10.1.1.1"}, gateway: timeout}, want: unknown,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			r := &resolver{mode: tc.mode, now: time.Now, lookup: func(_ context.Context, host string) ([]string, error) {
				switch a := tc.in[host].(type) {
				case []string:
					return a, nil
				case error:
					return nil, a
				}
				t.Errorf("asked for %s", host)
				return nil, broken
			}}
			if r.mode == "" {
				r.mode = config.TunnelDNSAuto
			}
			if tc.gateway == "" {
				tc.gateway = gateway
			}
			if got := r.resolves(t.Context(), controllertest.Hostname, tc.gateway); got != tc.want {
				t.Errorf("got %d, want %d", got, tc.want)
			}
		})
	}
}

func TestAFailedDNSServerIsNotQueriedForEveryCluster(t *testing.T) {
	for name, gateway := range map[string]string{"the hostname's": "10.1.1.1", "the gateway's": "gw.example.com"} {
		asked, at := 0, time.Now()
		r := &resolver{mode: config.TunnelDNSAuto, now: func() time.Time { return at }, lookup: func(
			ctx context.Context, _ string,
		) ([]string, error) {
			asked++
			if until, ok := ctx.Deadline(); !ok || time.Until(until) > lookupTimeout {
				t.Errorf("a lookup may last until %s", until)
			}
			return nil, context.DeadlineExceeded
		}}
		for range 5 {
			if got := r.resolves(t.Context(), controllertest.Hostname, gateway); got != unknown {
				t.Errorf("%s: got %d", name, got)
			}
		}
		at = at.Add(lookupPause)
		r.resolves(t.Context(), controllertest.Hostname, gateway)
		if asked != 2 {
			t.Errorf("%s: asked %d times, want once and once more after the pause", name, asked)
		}
	}
}

// TestANameWithoutAnAnswerPausesOnlyItsOwner: the owner of a namespace chooses names, and the servers of their zones.
func TestANameWithoutAnAnswerPausesOnlyItsOwner(t *testing.T) {
	const gateway, foreign = "10.1.1.1", "api.broken.example"
	at, asked, broken := time.Now(), map[string]int{}, foreign
	r := &resolver{mode: config.TunnelDNSAuto, now: func() time.Time { return at }, lookup: func(
		_ context.Context, host string,
	) ([]string, error) {
		asked[host]++
		if host == broken {
			return nil, context.DeadlineExceeded
		}
		return []string{gateway}, nil
	}}
	for range 3 {
		if got := r.leadsTo(t.Context(), "team-a", foreign, gateway); got != unknown {
			t.Errorf("a name without an answer: got %d", got)
		}
		if got := r.resolves(t.Context(), controllertest.Hostname, gateway); got != yes {
			t.Errorf("a tunnel hostname: got %d", got)
		}
		if got := r.leadsTo(t.Context(), "team-b", "api.example.com", gateway); got != yes {
			t.Errorf("a name of another owner: got %d", got)
		}
		if got := r.leadsTo(t.Context(), "team-a", "api.example.com", gateway); got != unknown {
			t.Errorf("another name of the same owner: got %d", got)
		}
	}
	if asked[foreign] != 1 {
		t.Errorf("the servers of a name that do not answer were asked %d times", asked[foreign])
	}
	// The zone of tunnel hostnames is the installation's. Without it, DNS is down.
	at, broken = at.Add(lookupPause), controllertest.Hostname
	r.resolves(t.Context(), controllertest.Hostname, gateway)
	if got := r.leadsTo(t.Context(), "team-b", "api.example.com", gateway); got != unknown {
		t.Errorf("while DNS is down: got %d", got)
	}
	if len(r.pausedUntil) != 1 {
		t.Errorf("%d pauses are kept, although all but one have ended", len(r.pausedUntil))
	}
}

func TestACallerThatDoesNotWaitPausesNoLookups(t *testing.T) {
	asked := 0
	r := &resolver{mode: config.TunnelDNSAuto, now: time.Now, lookup: func(
		ctx context.Context, _ string,
	) ([]string, error) {
		asked++
		<-ctx.Done()
		return nil, ctx.Err()
	}}
	for range 2 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		if got := r.resolves(ctx, controllertest.Hostname, "10.1.1.1"); got != unknown {
			t.Errorf("got %d", got)
		}
		cancel()
	}
	if asked != 2 {
		t.Errorf("asked %d times, want twice", asked)
	}
}

func TestBothLookupsShareOneDeadline(t *testing.T) {
	var deadlines []time.Time
	r := &resolver{mode: config.TunnelDNSAuto, now: time.Now, lookup: func(
		ctx context.Context, _ string,
	) ([]string, error) {
		until, _ := ctx.Deadline()
		deadlines = append(deadlines, until)
		return []string{"10.1.1.1"}, nil
	}}
	if got := r.resolves(t.Context(), controllertest.Hostname, "gw.example.com"); got != yes || len(deadlines) != 2 ||
		!deadlines[0].Equal(deadlines[1]) {
		t.Errorf("got %d, deadlines %v", got, deadlines)
	}
}

func TestTheHostnameIsComparedWithTheAPIServerAddress(t *testing.T) {
	for address, want := range map[string]answer{"10.1.1.1": yes, "203.0.113.80": no} {
		cluster, tunnel := controllertest.Served("c1", 1000)
		tunnel.Status.Hostname = controllertest.Hostname
		r := kubeconfigsOf(withTunnels(t, controllertest.FakeAPI(t), nil))
		r.resolver = &resolver{mode: config.TunnelDNSAuto, now: time.Now, lookup: func(
			context.Context, string,
		) ([]string, error) {
			return []string{address}, nil
		}}
		o := objects.Group{Cluster: cluster, Tunnel: tunnel}
		if got := r.resolves(
			t.Context(), &decision{}, o, kubeconfig.Choice{Mode: v1alpha1.KubeconfigModeSNI, Name: controllertest.Hostname},
		); got != (want == yes) {
			t.Errorf("%s: got %v, want %d", address, got, want)
		}
	}
}

// TestNamesOfOwnersDoNotTakeAllWorkers: each owner's first lookup may wait for servers that do not answer.
func TestNamesOfOwnersDoNotTakeAllWorkers(t *testing.T) {
	const gateway = "10.1.1.1"
	waiting, release := make(chan struct{}), make(chan struct{})
	r := &resolver{mode: config.TunnelDNSAuto, now: time.Now, lookup: func(
		ctx context.Context, host string,
	) ([]string, error) {
		switch {
		case strings.HasPrefix(host, "slow"):
			waiting <- struct{}{}
			<-release
		case strings.HasPrefix(host, "silent"):
			<-ctx.Done()
			return nil, ctx.Err()
		}
		return []string{gateway}, nil
	}}
	var group sync.WaitGroup
	for i := range maxAsking {
		group.Go(func() { r.leadsTo(t.Context(), fmt.Sprintf("team-%d", i), "slow.example", gateway) })
		<-waiting
	}
	if got := r.leadsTo(t.Context(), "another", "api.example.com", gateway); got != yes {
		t.Errorf("one more owner whose servers answer: got %d", got)
	}
	began := time.Now()
	if got := r.leadsTo(t.Context(), "one more", "silent.example", gateway); got != unknown {
		t.Errorf("one more owner whose servers do not answer: got %d", got)
	}
	if took := time.Since(began); took > lookupTimeout/2 {
		t.Errorf("it took a worker for %s", took)
	}
	if got := r.resolves(t.Context(), controllertest.Hostname, gateway); got != yes {
		t.Errorf("a tunnel hostname: got %d", got)
	}
	close(release)
	group.Wait()
	if got := r.leadsTo(t.Context(), "another", "api.example.com", gateway); got != yes {
		t.Errorf("afterwards: got %d", got)
	}
}
