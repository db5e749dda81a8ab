package kubeconfigs

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/controller/controllertest"
	"github.com/fairlead/fairlead/pkg/kubeconfig"
)

// newWaitingWorld is a Cluster with an original kubeconfig. initialized is the state of its control plane.
func newWaitingWorld(t *testing.T, initialized bool, when v1alpha1.KubeconfigSwitch) *switchWorld {
	t.Helper()
	w := newSwitchWorld(
		t, controllertest.Config(), controllertest.OriginalServer, v1alpha1.KubeconfigSpec{Switch: when},
	)
	if initialized {
		w.cluster.Status.Initialization.ControlPlaneInitialized = ptr.To(true)
		if err := w.api.Update(t.Context(), w.cluster); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

// observe sets conditions that other controllers write.
func (w *switchWorld) observe(status metav1.ConditionStatus, kinds ...string) {
	w.t.Helper()
	tunnel := controllertest.TunnelNamed(w.cluster)
	if err := w.api.Get(w.t.Context(), client.ObjectKeyFromObject(w.cluster), tunnel); err != nil {
		w.t.Fatal(err)
	}
	for _, kind := range kinds {
		apimeta.SetStatusCondition(
			&tunnel.Status.Conditions, metav1.Condition{Type: kind, Status: status, Reason: "Test"},
		)
	}
	if err := w.api.Status().Update(w.t.Context(), tunnel); err != nil {
		w.t.Fatal(err)
	}
}

var original = kubeconfig.Endpoint{Server: controllertest.OriginalServer}

func TestAnInitializedClusterKeepsItsKubeconfigUntilTheTunnelIsReady(t *testing.T) {
	const kind = v1alpha1.ConditionKubeconfigReady
	w := newWaitingWorld(t, true, "")
	tunnel := w.reconcileAfter(0)
	w.check(tunnel, kind, v1alpha1.ReasonWaitingForTunnel, "original server")
	if got := w.endpoint(); got != original || tunnel.Status.Kubeconfig.Mode != "" {
		t.Fatalf("without an edge the kubeconfig leads %v, and on record is %+v", got, tunnel.Status.Kubeconfig)
	}
	w.observe(metav1.ConditionTrue, v1alpha1.ConditionTunnelReady)
	w.observe(metav1.ConditionFalse, v1alpha1.ConditionAPIServerReachable)
	w.check(w.reconcileAfter(time.Hour), kind, v1alpha1.ReasonWaitingForTunnel, "")
	if got := w.endpoint(); got != original {
		t.Fatalf("with an unreachable apiserver the kubeconfig leads %v", got)
	}
	w.observe(metav1.ConditionTrue, v1alpha1.ConditionAPIServerReachable)
	w.check(w.reconcileAfter(0), kind, v1alpha1.ReasonRewritten, "")
	through := w.endpoint()
	if through == original {
		t.Fatal("with a healthy tunnel the kubeconfig has its original server")
	}
	w.observe(metav1.ConditionFalse, v1alpha1.ConditionTunnelReady, v1alpha1.ConditionAPIServerReachable)
	w.check(w.reconcileAfter(time.Hour), kind, v1alpha1.ReasonRewritten, "")
	if got := w.endpoint(); got != through {
		t.Errorf("after the loss of the tunnel the kubeconfig leads %v", got)
	}
}

// switches are which kubeconfigs wait for the tunnel.
var switches = map[string]struct {
	initialized bool
	when        v1alpha1.KubeconfigSwitch
	waits       bool
}{
	"auto, before the control plane is initialized":       {false, v1alpha1.KubeconfigSwitchAuto, false},
	"auto, after the control plane is initialized":        {true, v1alpha1.KubeconfigSwitchAuto, true},
	"the default, after it is initialized":                {true, "", true},
	"when-ready, before the control plane is initialized": {false, v1alpha1.KubeconfigSwitchWhenReady, true},
	"immediate, after the control plane is initialized":   {true, v1alpha1.KubeconfigSwitchImmediate, false},
}

func TestAKubeconfigSwitchesAsTheTunnelRequests(t *testing.T) {
	for name, test := range switches {
		t.Run(name, func(t *testing.T) {
			w := newWaitingWorld(t, test.initialized, test.when)
			w.reconcileAfter(0)
			if got := w.endpoint(); (got == original) != test.waits {
				t.Errorf("the kubeconfig leads %v", got)
			}
		})
	}
}

// setSpec changes how the kubeconfig is written, as a user does.
func (w *switchWorld) setSpec(spec v1alpha1.KubeconfigSpec) {
	w.t.Helper()
	tunnel := controllertest.TunnelNamed(w.cluster)
	if err := w.api.Get(w.t.Context(), client.ObjectKeyFromObject(w.cluster), tunnel); err != nil {
		w.t.Fatal(err)
	}
	tunnel.Spec.Kubeconfig = spec
	if err := w.api.Update(w.t.Context(), tunnel); err != nil {
		w.t.Fatal(err)
	}
}

func TestAKubeconfigKeepsAProxyOrAnAddressUntilTheTunnelIsReady(t *testing.T) {
	const kind = v1alpha1.ConditionKubeconfigReady
	address := v1alpha1.KubeconfigSpec{Mode: v1alpha1.KubeconfigModeAddress, Server: "https://lb.example.org:6443"}
	proxy, auto := byProxy("proxy:3128", ""), v1alpha1.KubeconfigSpec{}
	sni := v1alpha1.KubeconfigSpec{Mode: v1alpha1.KubeconfigModeSNI}
	whenReady := v1alpha1.KubeconfigSpec{Switch: v1alpha1.KubeconfigSwitchWhenReady}
	immediate := v1alpha1.KubeconfigSpec{Switch: v1alpha1.KubeconfigSwitchImmediate}
	other := v1alpha1.KubeconfigSpec{Mode: address.Mode, Server: "https://b.example.org"}
	for name, test := range map[string]struct {
		before      v1alpha1.KubeconfigSpec
		initialized bool
		after       v1alpha1.KubeconfigSpec
		waits       bool
	}{
		"auto, from a proxy":                     {proxy, true, auto, true},
		"sni, from a proxy":                      {proxy, true, sni, true},
		"auto, from an address":                  {address, true, auto, true},
		"auto, before the first machine":         {address, false, auto, false},
		"when-ready, before the first machine":   {address, false, whenReady, true},
		"immediate, from an address":             {address, true, immediate, false},
		"another address, which needs no tunnel": {address, true, other, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWaitingWorld(t, test.initialized, "")
			w.setSpec(test.before)
			before := w.reconcileAfter(0)
			w.check(before, kind, v1alpha1.ReasonRewritten, "")
			by := w.endpoint()
			w.setSpec(test.after)
			tunnel := w.reconcileAfter(0)
			if got := w.endpoint(); (got == by) != test.waits {
				t.Fatalf("after the change the kubeconfig leads %v, and before it %v", got, by)
			}
			if !test.waits {
				w.check(tunnel, kind, v1alpha1.ReasonRewritten, "")
				return
			}
			w.check(tunnel, kind, v1alpha1.ReasonWaitingForTunnel, "keeps the mode "+string(test.before.Mode))
			if tunnel.Status.Kubeconfig.Mode != test.before.Mode {
				t.Errorf("on record is %+v", tunnel.Status.Kubeconfig)
			}
			w.restart()
			if w.reconcileAfter(time.Hour); w.endpoint() != by {
				t.Errorf("after a restart the kubeconfig leads %v", w.endpoint())
			}
			w.replaceSecret()
			w.check(w.reconcileAfter(0), kind, v1alpha1.ReasonWaitingForTunnel, "keeps the mode "+string(test.before.Mode))
			if got := w.endpoint(); got != by {
				t.Errorf("after its provider has written it again the kubeconfig leads %v", got)
			}
			restore := w.deleteSecret()
			w.check(w.reconcileAfter(0), kind, v1alpha1.ReasonWaitingForSecret, "")
			restore()
			if w.reconcileAfter(0); w.endpoint() != by {
				t.Errorf("after its Secret was missing the kubeconfig leads %v", w.endpoint())
			}
			w.observe(metav1.ConditionTrue, v1alpha1.ConditionTunnelReady, v1alpha1.ConditionAPIServerReachable)
			tunnel = w.reconcileAfter(0)
			w.check(tunnel, kind, v1alpha1.ReasonRewritten, "through the tunnel")
			if got := w.endpoint(); got == by || got.ProxyURL == by.ProxyURL && by.ProxyURL != "" {
				t.Errorf("with a healthy tunnel the kubeconfig leads %v", got)
			}
		})
	}
}

// replaceSecret writes the kubeconfig as Kamaji does: anew, while no replica of the webhook answers.
func (w *switchWorld) replaceSecret() {
	w.t.Helper()
	secret := controllertest.SecretNamed("prod", "c1"+kubeconfig.Suffix)
	controllertest.Edit(w.t, w.api, secret, func(s *corev1.Secret) {
		s.Annotations, s.Data = nil, controllertest.KubeconfigSecret(w.t, "prod", "c1", controllertest.OriginalServer).Data
	})
}

// TestAKubeconfigThatLostTheCredentialsOfItsProxySaysSo: the Tunnel names them no more, so nothing has them.
func TestAKubeconfigThatLostTheCredentialsOfItsProxySaysSo(t *testing.T) {
	const kind, lost = v1alpha1.ConditionKubeconfigReady, "credentials of the proxy are lost"
	w := newWaitingWorld(t, true, "")
	credentials := controllertest.SecretNamed("prod", "proxy")
	credentials.Type, credentials.Data = corev1.SecretTypeBasicAuth, map[string][]byte{
		corev1.BasicAuthUsernameKey: []byte("capi"), corev1.BasicAuthPasswordKey: []byte("hunter2"),
	}
	controllertest.Create(t, w.api, credentials)
	w.setSpec(byProxy("proxy:3128", "proxy"))
	w.reconcileAfter(0)
	by := kubeconfig.Endpoint{Server: controllertest.OriginalServer, ProxyURL: "http://capi:hunter2@proxy:3128"}
	if got := w.endpoint(); got != by {
		t.Fatalf("the kubeconfig leads %v", got)
	}
	w.setSpec(v1alpha1.KubeconfigSpec{})
	if tunnel := w.reconcileAfter(0); strings.Contains(controllertest.Message(tunnel, kind), lost) || w.endpoint() != by {
		t.Errorf("the kubeconfig leads %v, and the condition is %q", w.endpoint(), controllertest.Message(tunnel, kind))
	}
	w.replaceSecret()
	w.check(w.reconcileAfter(0), kind, v1alpha1.ReasonWaitingForTunnel, lost)
	if got := w.endpoint(); got != original {
		t.Errorf("without credentials the kubeconfig leads %v", got)
	}
}

// clusterctl move copies a Secret that leads through the tunnel, and loses the status of the Tunnel.
func TestAKubeconfigThatLeadsThroughTheTunnelDoesNotWaitAfterAMove(t *testing.T) {
	w := newWaitingWorld(t, true, v1alpha1.KubeconfigSwitchImmediate)
	tunnel := w.reconcileAfter(0)
	through := w.endpoint()
	tunnel.Spec.Kubeconfig.Switch = v1alpha1.KubeconfigSwitchAuto
	if err := w.api.Update(t.Context(), tunnel); err != nil {
		t.Fatal(err)
	}
	tunnel.Status = v1alpha1.TunnelStatus{}
	if err := w.api.Status().Update(t.Context(), tunnel); err != nil {
		t.Fatal(err)
	}
	w.restart()
	w.check(w.reconcileAfter(0), v1alpha1.ConditionKubeconfigReady, v1alpha1.ReasonRewritten, "")
	if got := w.endpoint(); got != through {
		t.Errorf("after the move the kubeconfig leads %v instead of %v", got, through)
	}
}

// A decision that was recorded before the Secret exists would apply to the Secret as soon as it is written.
func TestAKubeconfigThatIsWrittenLaterWaitsForTheTunnel(t *testing.T) {
	const kind = v1alpha1.ConditionKubeconfigReady
	for name, test := range switches {
		t.Run(name, func(t *testing.T) {
			w := newWaitingWorld(t, test.initialized, test.when)
			restore := w.deleteSecret()
			tunnel := w.reconcileAfter(0)
			w.check(tunnel, kind, v1alpha1.ReasonWaitingForSecret, "")
			if mode := tunnel.Status.Kubeconfig.Mode; (mode == "") != test.waits {
				t.Errorf("without the Secret the mode on record is %q", mode)
			}
			restore()
			reason := v1alpha1.ReasonRewritten
			if test.waits {
				reason = v1alpha1.ReasonWaitingForTunnel
			}
			w.check(w.reconcileAfter(0), kind, reason, "")
			if got := w.endpoint(); (got == original) != test.waits {
				t.Errorf("without an edge the kubeconfig leads %v", got)
			}
		})
	}
}

// deleteSecret deletes the kubeconfig, and returns what writes it again as its provider does.
func (w *switchWorld) deleteSecret() (restore func()) {
	w.t.Helper()
	secret := controllertest.SecretNamed("prod", "c1"+kubeconfig.Suffix)
	if err := w.api.Get(w.t.Context(), client.ObjectKeyFromObject(secret), secret); err != nil {
		w.t.Fatal(err)
	}
	if err := w.api.Delete(w.t.Context(), secret.DeepCopy()); err != nil {
		w.t.Fatal(err)
	}
	return func() {
		w.t.Helper()
		secret.ResourceVersion, secret.Annotations = "", nil
		secret.Data = controllertest.KubeconfigSecret(w.t, "prod", "c1", controllertest.OriginalServer).Data
		if err := w.api.Create(w.t.Context(), secret); err != nil {
			w.t.Fatal(err)
		}
	}
}
