package kubeconfigs

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/freeport"
	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/controller/config"
	"github.com/fairlead/fairlead/pkg/controller/controllertest"
	"github.com/fairlead/fairlead/pkg/kubeconfig"
)

func TestAnHTTPSProxyIsUsedOnlyAfterASuccessfulProbe(t *testing.T) {
	other, err := certs.NewCA("other", time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		foreign   bool
		name      string
		protocols []string
		says      string // empty: it is accepted
	}{
		"the CA of the workload cluster and the name that clients verify": {name: "kubernetes"},
		"another name of that CA": {name: "proxy.example.org", says: "--dial-networks"},
		"another CA":              {name: "kubernetes", foreign: true, says: "--dial-networks"},
		"HTTP/2":                  {name: "kubernetes", protocols: []string{"h2"}, says: "--dial-networks"},
		"no listener":             {says: "--dial-networks"},
	} {
		t.Run(name, func(t *testing.T) {
			address := freeport.Address(t)
			w := newSwitchWorld(t, controllertest.Config(), controllertest.OriginalServer, v1alpha1.KubeconfigSpec{
				Mode: v1alpha1.KubeconfigModeHTTPSProxy, TLSServerName: "kubernetes", Proxy: &v1alpha1.ProxySpec{Address: address},
			})
			ca := w.ca
			if tc.foreign {
				ca = other
			}
			if tc.name != "" {
				controllertest.ListenTLS(t, ca, address, tc.protocols, tc.name)
			}
			tunnel := w.reconcileAfter(0)
			if tc.says == "" {
				w.check(tunnel, v1alpha1.ConditionKubeconfigReady, v1alpha1.ReasonRewritten, "https://"+address)
				return
			}
			w.check(tunnel, v1alpha1.ConditionKubeconfigReady, v1alpha1.ReasonInvalidProxy, tc.says)
			w.check(tunnel, v1alpha1.ConditionKubeconfigReady, v1alpha1.ReasonInvalidProxy, "CA of the workload cluster")
			if got := w.endpoint(); got != (kubeconfig.Endpoint{Server: controllertest.OriginalServer}) ||
				tunnel.Status.Kubeconfig.Mode != "" {
				t.Errorf("the kubeconfig leads %v", got)
			}
		})
	}
}

// TestADeletedKubeconfigKeepsItsCheckedProxy: its provider writes the Secret again, and the webhook adds what is on
// record.
func TestADeletedKubeconfigKeepsItsCheckedProxy(t *testing.T) {
	const kind = v1alpha1.ConditionKubeconfigReady
	w := newSwitchWorld(t, controllertest.Config(), controllertest.OriginalServer, byHTTPS("proxy:3128"))
	w.r.handshake = func(context.Context, proxyLeg) error { return nil }
	before := w.reconcileAfter(0)
	w.check(before, kind, v1alpha1.ReasonRewritten, "https://proxy:3128")
	if err := w.api.Delete(t.Context(), controllertest.SecretNamed("prod", "c1"+kubeconfig.Suffix)); err != nil {
		t.Fatal(err)
	}
	after := w.reconcileAfter(0)
	w.check(after, kind, v1alpha1.ReasonWaitingForSecret, "")
	if before.Status.Kubeconfig.ProxyURL == "" || !cmp.Equal(after.Status.Kubeconfig, before.Status.Kubeconfig) {
		t.Errorf("on record is %+v, and before it %+v", after.Status.Kubeconfig, before.Status.Kubeconfig)
	}
	w.setSpec(byHTTPS("another:3128"))
	if after = w.reconcileAfter(0); after.Status.Kubeconfig.Mode != "" {
		t.Errorf("without a CA another proxy is on record: %+v", after.Status.Kubeconfig)
	}
}

// TestAnUnreadableKubeconfigProvesNoProxy: a proxy that is on record counts as checked.
func TestAnUnreadableKubeconfigProvesNoProxy(t *testing.T) {
	const kind = v1alpha1.ConditionKubeconfigReady
	w := newSwitchWorld(t, controllertest.Config(), controllertest.OriginalServer, byHTTPS("proxy:3128"))
	write := func(data []byte) *v1alpha1.Tunnel {
		secret := w.secret()
		secret.Data[kubeconfig.Key] = data
		if err := w.api.Update(t.Context(), secret); err != nil {
			t.Fatal(err)
		}
		return w.reconcileAfter(checkRetry)
	}
	good, bad := w.secret().Data[kubeconfig.Key], []byte("a: {")
	w.r.handshake = func(context.Context, proxyLeg) error { return errors.New("nothing listens") }
	tunnel := write(bad)
	w.check(tunnel, kind, v1alpha1.ReasonInvalidKubeconfig, "cannot parse")
	if got := tunnel.Status.Kubeconfig; got.Mode != "" || got.ProxyURL != "" {
		t.Errorf("a proxy that was never checked is on record: %+v", got)
	}
	w.check(write(good), kind, v1alpha1.ReasonInvalidProxy, "--dial-networks")

	// One that was checked stays on record.
	w.r.handshake = func(context.Context, proxyLeg) error { return nil }
	before := w.reconcileAfter(time.Minute)
	w.check(before, kind, v1alpha1.ReasonRewritten, "https://proxy:3128")
	tunnel = write(bad)
	w.check(tunnel, kind, v1alpha1.ReasonInvalidKubeconfig, "cannot parse")
	if got := tunnel.Status.Kubeconfig; got.ProxyURL == "" || !cmp.Equal(got, before.Status.Kubeconfig) {
		t.Errorf("on record is %+v, and before it %+v", got, before.Status.Kubeconfig)
	}
}

func TestWithoutTunnelsOnlyKubeconfigsAreWritten(t *testing.T) {
	config := config.Config{NoTunnels: true, Namespace: "fairlead-system"}
	if err := config.Validate(); err != nil {
		t.Fatal(err)
	}
	w := newSwitchWorld(
		t, config, controllertest.OriginalServer,
		v1alpha1.KubeconfigSpec{Mode: v1alpha1.KubeconfigModeHTTPProxy, Proxy: &v1alpha1.ProxySpec{Address: "proxy:3128"}},
	)
	tunnel := w.reconcileAfter(0)
	w.check(tunnel, v1alpha1.ConditionAccepted, v1alpha1.ReasonNotTunnelled, "")
	w.check(tunnel, v1alpha1.ConditionKubeconfigReady, v1alpha1.ReasonRewritten, "http://proxy:3128")
	if got := w.endpoint(); got != (kubeconfig.Endpoint{Server: controllertest.OriginalServer, ProxyURL: "http://proxy:3128"}) {
		t.Errorf("the kubeconfig leads %v", got)
	}
	tunnel.Spec.Kubeconfig = v1alpha1.KubeconfigSpec{Mode: v1alpha1.KubeconfigModeAuto}
	if err := w.api.Update(t.Context(), tunnel); err != nil {
		t.Fatal(err)
	}
	tunnel = w.reconcileAfter(time.Second)
	w.check(tunnel, v1alpha1.ConditionAccepted, v1alpha1.ReasonTunnelsOff, "this installation makes no tunnels")
	w.check(tunnel, v1alpha1.ConditionKubeconfigReady, v1alpha1.ReasonNotAccepted, "")
	if got := w.endpoint(); got != (kubeconfig.Endpoint{Server: controllertest.OriginalServer}) ||
		tunnel.Status.Kubeconfig.Mode != "" {
		t.Errorf("the kubeconfig leads %v", got)
	}
	if err := w.api.Delete(t.Context(), tunnel); err != nil {
		t.Fatal(err)
	}
	w.cluster.Labels = nil
	if err := w.api.Update(t.Context(), w.cluster); err != nil {
		t.Fatal(err)
	}
	if _, err := w.tunnels.Reconcile(
		t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(w.cluster)},
	); err != nil {
		t.Fatal(err)
	}
	if err := w.api.Get(t.Context(), client.ObjectKeyFromObject(tunnel), tunnel); client.IgnoreNotFound(err) != nil ||
		err == nil {
		t.Errorf("the Tunnel is still there: %v", err)
	}
}
