package e2e

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/lab/netns"
	"github.com/fairlead/fairlead/test/promise"
)

// optingIn proves what the controller creates for a Cluster.
func (w *world) optingIn(t *testing.T) {
	promise.That(t, "a Cluster without the label gets no Tunnel", w.noLabelNothing)
	promise.That(t, "a Cluster with the label owns a Tunnel with all defaults", w.tunnelOfALabelledCluster)
	promise.That(t, "two Tunnels have different random IDs", func(t *testing.T) {
		berlin, paris := w.tunnel(t, w.berlin.Cluster), w.tunnel(t, w.paris.Cluster)
		if berlin.Spec.ID == paris.Spec.ID {
			t.Errorf("both have %s", berlin.Spec.ID)
		}
	})
	promise.That(t, "the ID of a Tunnel cannot be changed", func(t *testing.T) {
		if err := w.berlin.PatchTunnel(t.Context(), map[string]any{"id": model.NewID()}); !apierrors.IsInvalid(err) {
			t.Errorf("got %v, want it refused as invalid", err)
		}
	})
	promise.That(t, "the controller keeps the fields of a Tunnel that a user sets", func(t *testing.T) {
		if mode := w.tunnel(t, w.tokyo.Cluster).Spec.Kubeconfig.Mode; mode != v1alpha1.KubeconfigModeConnect {
			t.Errorf("mode is %q, want the user's", mode)
		}
		if names := w.tunnel(t, w.berlin.Cluster).Spec.ExtraNames; len(names) != 1 || names[0] != berlinExtraName {
			t.Errorf("extra names are %q, want the user's", names)
		}
	})
	promise.That(t, "the Tunnel owns a bootstrap Secret with all that an edge needs", w.bootstrapSecret)
	promise.That(t, "only the bootstrap Secret contains the token", w.tokenOnlyInSecret)
}

func (w *world) tunnel(t *testing.T, c *lab.Cluster) *v1alpha1.Tunnel {
	t.Helper()
	tunnel, err := c.Tunnel(t.Context())
	must(t, err)
	return tunnel
}

func (w *world) noLabelNothing(t *testing.T) {
	plain := w.bareCluster(t, lab.ClusterSpec{Name: "plain", Labels: map[string]string{}})
	before, err := plain.Kubeconfig(t.Context())
	must(t, err)
	// A Cluster that is created later gets its Tunnel. By then the controller has processed the one without the label.
	later := w.bareCluster(t, lab.ClusterSpec{Name: "later"})
	_, err = later.Bootstrap(t.Context())
	must(t, err)
	if _, err := plain.Tunnel(t.Context()); !apierrors.IsNotFound(err) {
		t.Errorf("reading its Tunnel: %v, want not found", err)
	}
	if _, err := plain.Secret(t.Context(), v1alpha1.BootstrapSecretSuffix); !apierrors.IsNotFound(err) {
		t.Errorf("reading its bootstrap Secret: %v, want not found", err)
	}
	after, err := plain.Kubeconfig(t.Context())
	must(t, err)
	if string(after) != string(before) {
		t.Error("its kubeconfig changed")
	}
	must(t, later.Delete(t.Context()))
}

func (w *world) tunnelOfALabelledCluster(t *testing.T) {
	tunnel := w.tunnel(t, w.paris.Cluster)
	cluster, err := w.paris.Get(t.Context())
	must(t, err)
	if owner := metav1.GetControllerOf(tunnel); owner == nil || owner.UID != cluster.UID || owner.Kind != "Cluster" {
		t.Errorf("its owner is %+v, want the Cluster", owner)
	}
	if err := model.ValidateID(tunnel.Spec.ID); err != nil {
		t.Error(err)
	}
	if tunnel.Spec.Kubeconfig.Mode != v1alpha1.KubeconfigModeSNI {
		t.Errorf("mode is %q, want sni", tunnel.Spec.Kubeconfig.Mode)
	}
	endpoint := w.SNI.Endpoint
	if tunnel.Spec.APIServer.Address != endpoint.Addr().String() || tunnel.Spec.APIServer.Port != int32(endpoint.Port()) {
		t.Errorf("apiserver is %+v, want the Cluster's endpoint %s", tunnel.Spec.APIServer, endpoint)
	}
	if tunnel.Status.Hostname != hostname("paris") {
		t.Errorf("hostname is %q, want %q", tunnel.Status.Hostname, hostname("paris"))
	}
	if c := meta.FindStatusCondition(tunnel.Status.Conditions, v1alpha1.ConditionAccepted); c == nil ||
		c.Status != metav1.ConditionTrue {
		t.Errorf("condition Accepted is %+v, want True", c)
	}
}

func (w *world) bootstrapSecret(t *testing.T) {
	secret, err := w.berlin.Secret(t.Context(), v1alpha1.BootstrapSecretSuffix)
	must(t, err)
	tunnel := w.tunnel(t, w.berlin.Cluster)
	if !metav1.IsControlledBy(secret, tunnel) {
		t.Errorf("its owners are %+v, want the Tunnel", secret.OwnerReferences)
	}
	token := string(secret.Data[v1alpha1.BootstrapTokenKey])
	public := hostPort(netns.PublicName, netns.PublicPort)
	for key, parts := range map[string][]string{
		v1alpha1.BootstrapFileKey:    {token, public, string(domain), "BEGIN CERTIFICATE"},
		v1alpha1.BootstrapCommandKey: {token, public, string(domain), "BEGIN CERTIFICATE", "edge-agent run"},
		v1alpha1.BootstrapTokenKey:   {"fl1."},
		v1alpha1.BootstrapCAKey:      {"BEGIN CERTIFICATE"},
		v1alpha1.BootstrapGatewayKey: {public},
		v1alpha1.BootstrapDomainKey:  {string(domain)},
	} {
		for _, part := range parts {
			if part == "" || !strings.Contains(string(secret.Data[key]), part) {
				t.Errorf("key %s lacks what it must hold", key)
			}
		}
	}
}

func (w *world) tokenOnlyInSecret(t *testing.T) {
	secret, err := w.berlin.Secret(t.Context(), v1alpha1.BootstrapSecretSuffix)
	must(t, err)
	token := string(secret.Data[v1alpha1.BootstrapTokenKey])
	var maps corev1.ConfigMapList
	var events corev1.EventList
	must(t, w.Management.Client.List(t.Context(), &maps))
	must(t, w.Management.Client.List(t.Context(), &events))
	everything := fmt.Sprintf("%+v %+v %+v", w.tunnel(t, w.berlin.Cluster), maps.Items, events.Items)
	if strings.Contains(everything, token) {
		t.Error("the token is in another object")
	}
	if !strings.Contains(everything, "SHA256:") {
		t.Error("the Tunnel has no record of the token")
	}
}
