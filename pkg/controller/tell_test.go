package controller

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/kubetest"
	"github.com/fairlead/fairlead/pkg/controller/controllertest"
)

// TestEventsDescribeEachTransition checks the events that `kubectl describe` shows for the Tunnel and its Cluster.
func TestEventsDescribeEachTransition(t *testing.T) {
	m := apiserver(t)
	ns := kubetest.NewNamespace(t, m)
	cluster := kubetest.Cluster(ns, "c1")
	garbage := controllertest.KubeconfigSecret(t, ns, "c1", controllertest.OriginalServer)
	garbage.Data["value"] = []byte("garbage")
	controllertest.Create(t, m, cluster, garbage)
	tunnel := waitCondition(t, m, cluster, v1alpha1.ConditionKubeconfigReady, v1alpha1.ReasonInvalidKubeconfig)
	controllertest.Edit(t, m, tunnel, func(t *v1alpha1.Tunnel) { t.Spec.RevokedEdges = []string{"edge-lost"} })
	onTunnel, onCluster := &story{"Tunnel", string(tunnel.UID), m}, &story{"Cluster", string(cluster.UID), m}
	controllertest.Eventually(t, onTunnel.has(t, v1alpha1.ReasonInvalidKubeconfig))
	controllertest.Eventually(t, onCluster.has(t, v1alpha1.ReasonInvalidKubeconfig))
	controllertest.Edit(t, m, garbage, func(s *corev1.Secret) {
		s.Data = controllertest.KubeconfigSecret(t, ns, "c1", controllertest.OriginalServer).Data
	})
	waitCondition(t, m, cluster, v1alpha1.ConditionKubeconfigReady, v1alpha1.ReasonRewritten)
	controllertest.Eventually(t, onTunnel.has(t, v1alpha1.ReasonRewritten))
	controllertest.Edit(t, m, garbage, func(s *corev1.Secret) { s.Data["value"] = []byte("garbage again") })
	waitCondition(t, m, cluster, v1alpha1.ConditionKubeconfigReady, v1alpha1.ReasonInvalidKubeconfig)
	settled(t, m, ns)
	// A repetition is counted in the same object.
	count := 0
	for _, e := range onTunnel.events(t, ns) {
		if e.Reason == v1alpha1.ReasonInvalidKubeconfig {
			count++
		}
		if strings.Contains(e.Message, "garbage") {
			t.Errorf("an event quotes the Secret: %q", e.Message)
		}
	}
	if count != 1 {
		t.Errorf("%d events say the same", count)
	}
}

// story returns the events of an object.
type story struct {
	kind, uid string
	m         *management
}

func (s *story) events(t *testing.T, namespace string) []corev1.Event {
	t.Helper()
	var all corev1.EventList
	if err := s.m.List(t.Context(), &all, client.InNamespace(namespace)); err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	return slices.DeleteFunc(all.Items, func(e corev1.Event) bool {
		return e.InvolvedObject.Kind != s.kind || string(e.InvolvedObject.UID) != s.uid
	})
}

func (s *story) has(t *testing.T, reasons ...string) func() error {
	t.Helper()
	return func() error {
		all := s.events(t, "")
		for _, reason := range reasons {
			if !slices.ContainsFunc(all, func(e corev1.Event) bool { return e.Reason == reason }) {
				return fmt.Errorf("no event %s of the %s among %d", reason, s.kind, len(all))
			}
		}
		return nil
	}
}
