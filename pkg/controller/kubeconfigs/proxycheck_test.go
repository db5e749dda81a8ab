package kubeconfigs

import (
	"context"
	"errors"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/controller/controllertest"
	"github.com/fairlead/fairlead/pkg/kubeconfig"
)

func byHTTPS(address string) v1alpha1.KubeconfigSpec {
	return v1alpha1.KubeconfigSpec{Mode: v1alpha1.KubeconfigModeHTTPSProxy, Proxy: &v1alpha1.ProxySpec{Address: address}}
}

// TestARejectingProxyIsDialledWithBackoff simulates one hour of reconciliations, one per second.
func TestARejectingProxyIsDialledWithBackoff(t *testing.T) {
	w := newSwitchWorld(t, controllertest.Config(), controllertest.OriginalServer, byHTTPS("proxy:3128"))
	dialled := map[string]int{}
	w.r.handshake = func(_ context.Context, leg proxyLeg) error {
		dialled[leg.address]++
		return errors.New("dial tcp 10.0.0.1:22: connection refused by a secret")
	}
	tunnel := w.reconcileAfter(0)
	w.check(tunnel, v1alpha1.ConditionKubeconfigReady, v1alpha1.ReasonInvalidProxy, "--dial-networks")
	for range 360 {
		w.reconcileAfter(10 * time.Second)
	}
	// At 0, 10, 30, 70, 150, 310 and 630 s, and then every ten minutes.
	if got := dialled["proxy:3128"]; got < 10 || got > 12 {
		t.Errorf("dialled %d times in an hour", got)
	}
	tunnel = w.reconcileAfter(0)
	change := func(address string) {
		tunnel.Spec.Kubeconfig = byHTTPS(address)
		if err := w.api.Update(t.Context(), tunnel); err != nil {
			t.Fatal(err)
		}
	}
	change("another:3128")
	tunnel = w.reconcileAfter(10 * time.Second)
	if dialled["another:3128"] != 1 {
		t.Errorf("another address was dialled %d times", dialled["another:3128"])
	}
	change("third:3128") // at once
	result, err := w.r.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(w.cluster)})
	if err != nil || result.RequeueAfter <= 0 || result.RequeueAfter > checkRetry || dialled["third:3128"] != 0 {
		t.Errorf("%s, %v", result.RequeueAfter, err)
	}
	w.reconcileAfter(0)
	if dialled["third:3128"] != 0 {
		t.Error("one Tunnel goes through addresses")
	}
	w.reconcileAfter(checkRetry)
	if dialled["third:3128"] != 1 {
		t.Error("a third address is not dialled")
	}
}

// TestAClockThatGoesBackProlongsNoPause sets the apiserver's clock back by an hour after a rejection and a probe.
func TestAClockThatGoesBackProlongsNoPause(t *testing.T) {
	at, key := time.Now(), client.ObjectKey{Name: "c1"}
	now := func() time.Time { return at }
	checks := newProxyChecks(now)
	checks.slots <- struct{}{}
	checks.end(key, "proxy:3128", "rejected")
	previous := newPreviousEndpoints(now, nil, dialRule{})
	previous.known[key] = &previousEndpoint{lastWorking: at}

	at = at.Add(-time.Hour)
	if refused, err := checks.begin(key, "proxy:3128"); refused != nil || err != nil {
		t.Errorf("the proxy is not dialled: %+v, %v", refused, err)
	}
	if refused, err := checks.begin(key, "another:3128"); refused != nil || err != nil {
		t.Errorf("another proxy is not dialled: %+v, %v", refused, err)
	}
	if last := previous.lastWorking(key, at); !last.Equal(at) {
		t.Errorf("the previous endpoint worked at %s, which is later than now, %s", last, at)
	}
	if last := previous.lastWorking(client.ObjectKey{Name: "c2"}, at.Add(time.Hour)); !last.Equal(at) {
		t.Errorf("a switch began at %s, which is later than now, %s", last, at)
	}
}

// TestASlowProxyDelaysNoOtherCluster: without a slot nothing is decided, and the next attempt follows soon.
func TestASlowProxyDelaysNoOtherCluster(t *testing.T) {
	w := newSwitchWorld(t, controllertest.Config(), controllertest.OriginalServer, byHTTPS("proxy:3128"))
	w.r.handshake = func(context.Context, proxyLeg) error { return nil }
	for range maxChecks {
		if _, err := w.r.checks.begin(client.ObjectKey{Name: "other"}, "other:3128"); err != nil {
			t.Fatal(err)
		}
	}
	w.reconcileAfter(0)
	result, err := w.r.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(w.cluster)})
	if err != nil || result.RequeueAfter <= 0 || result.RequeueAfter > 2*time.Second {
		t.Errorf("tried again after %s, %v", result.RequeueAfter, err)
	}
	if got := w.endpoint(); got != (kubeconfig.Endpoint{Server: controllertest.OriginalServer}) {
		t.Errorf("it leads %v", got)
	}
	_ = w.r.checks.end(client.ObjectKey{Name: "other"}, "other:3128", "")
	w.reconcileAfter(time.Second)
	if got := w.endpoint(); got.ProxyURL != "https://proxy:3128" {
		t.Errorf("it leads %v", got)
	}
}
