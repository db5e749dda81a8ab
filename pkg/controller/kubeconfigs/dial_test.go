package kubeconfigs

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	apimeta "k8s.io/apimachinery/pkg/api/meta"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/freeport"
	"github.com/fairlead/fairlead/pkg/controller/config"
	"github.com/fairlead/fairlead/pkg/controller/controllertest"
)

// acceptAt accepts connections and counts them.
func acceptAt(t *testing.T, address string) *atomic.Int32 {
	t.Helper()
	listener, err := net.Listen("tcp", address) //nolint:noctx // until the test ends
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	var came atomic.Int32
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			came.Add(1)
			_ = connection.Close()
		}
	}()
	return &came
}

func allowing(networks ...string) dialRule {
	rule := dialRule{never: func(netip.Addr) bool { return false }}
	for _, n := range networks {
		rule.networks = append(rule.networks, netip.MustParsePrefix(n))
	}
	return rule
}

var times = regexp.MustCompile(`[0-9-]{10}T[0-9:]{8}Z`)

// TestAddressesOfATunnelAreNotDialled names addresses in every field of a Tunnel that holds one. No connection may
// arrive there, and the conditions must not depend on whether a server listens.
func TestAddressesOfATunnelAreNotDialled(t *testing.T) {
	port, closed := freeport.TCP(t), freeport.TCP(t)
	came := acceptAt(t, fmt.Sprintf("127.0.0.1:%d", port))
	conditions := map[int]string{}
	for _, p := range []int{port, closed} {
		w := newSwitchWorld(
			t, controllertest.Config(), controllertest.OriginalServer, byHTTPS(fmt.Sprintf("127.0.0.1:%d", p)),
		)
		w.r.rule = allowing()
		w.r.previous.rule = w.r.rule
		tunnel := w.reconcileAfter(0)
		c := apimeta.FindStatusCondition(tunnel.Status.Conditions, v1alpha1.ConditionKubeconfigReady)
		conditions[p] = times.ReplaceAllString(strings.ReplaceAll(c.Message, fmt.Sprint(p), "PORT"), "TIME")
		// First a server that was named and then replaced: the server would be the previous endpoint.
		tunnel.Spec.Kubeconfig = v1alpha1.KubeconfigSpec{
			Mode: v1alpha1.KubeconfigModeAddress, Server: fmt.Sprintf("https://127.0.0.1:%d", p),
		}
		if err := w.api.Update(t.Context(), tunnel); err != nil {
			t.Fatal(err)
		}
		tunnel = w.reconcileAfter(time.Minute)
		tunnel.Spec.Kubeconfig = v1alpha1.KubeconfigSpec{Mode: v1alpha1.KubeconfigModeConnect}
		if err := w.api.Update(t.Context(), tunnel); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			tunnel = w.reconcileAfter(time.Minute)
		}
		if c := apimeta.FindStatusCondition(tunnel.Status.Conditions, switchedKind); c != nil {
			conditions[p] += times.ReplaceAllString(strings.ReplaceAll(c.Message, fmt.Sprint(p), "PORT"), "TIME")
		}
	}
	if conditions[port] != conditions[closed] {
		t.Errorf("with a server it says %q, and without %q", conditions[port], conditions[closed])
	}
	if n := came.Load(); n != 0 {
		t.Errorf("%d connections came", n)
	}
}

// TestAllowedNetworksAreDialled is the counterpart, without which the previous test would prove nothing.
func TestAllowedNetworksAreDialled(t *testing.T) {
	port := freeport.TCP(t)
	came := acceptAt(t, fmt.Sprintf("127.0.0.1:%d", port))
	w := newSwitchWorld(
		t, controllertest.Config(), controllertest.OriginalServer, byHTTPS(fmt.Sprintf("localhost:%d", port)),
	)
	w.reconcileAfter(0)
	if came.Load() == 0 {
		t.Error("nothing came")
	}
}

// TestSomeAddressesAreNeverDialled, whatever the installation allows: the rule checks the resolved address, not its
// name.
func TestSomeAddressesAreNeverDialled(t *testing.T) {
	port := freeport.TCP(t)
	came := acceptAt(t, fmt.Sprintf("127.0.0.1:%d", port))
	rule := newDialRule(
		config.Config{DialNetworks: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}},
		fmt.Sprintf("https://192.0.2.7:%d", port),
	)
	for _, known := range []bool{false, true} {
		for _, host := range []string{
			"127.0.0.1", "localhost", "::1", "::ffff:127.0.0.1", "0.0.0.0", "169.254.169.254", "fe80::1", "224.0.0.1",
			"192.0.2.7", "fd00:ec2::254", "168.63.129.16", "100.100.100.200", "64:ff9b::a9fe:a9fe",
		} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			connection, err := rule.dialer(ctx, known).DialContext(ctx, "tcp", net.JoinHostPort(host, fmt.Sprint(port)))
			cancel()
			if err == nil {
				_ = connection.Close()
			}
			if err == nil || !strings.Contains(err.Error(), errNotAllowed.Error()) {
				t.Errorf("%s: %v", host, err)
			}
		}
	}
	if n := came.Load(); n != 0 {
		t.Errorf("%d connections came", n)
	}
}
