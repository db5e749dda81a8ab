package controller

import (
	"context"
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/kubetest"
	"github.com/fairlead/fairlead/pkg/controller/controllertest"
)

// TestARejectedTunnelEndsNothingOfAnother has an attacker's Tunnel claim the id of a victim in another namespace. It is
// rejected, requests no copies, and is deleted: through its Cluster, by opting out, or directly.
func TestARejectedTunnelEndsNothingOfAnother(t *testing.T) {
	m := apiserver(t)
	victim := kubetest.Cluster(kubetest.NewNamespace(t, m), "victim")
	controllertest.Create(
		t, m, victim, controllertest.KubeconfigSecret(t, victim.Namespace, "victim", controllertest.OriginalServer),
	)
	waitReady(t, m, victim)
	askFor(t, m, victim, v1alpha1.KubeconfigCopy{Name: "copy", Exec: &v1alpha1.ExecAudience{Command: "login"}})
	waitCopies(t, m, victim, v1alpha1.ReasonCopiesWritten, "1 copy")
	id := controllertest.Read(t, m, controllertest.TunnelNamed(victim)).Spec.ID
	copied := controllertest.Read(t, m, controllertest.SecretNamed(victim.Namespace, "copy"))

	ends := map[string]func(t *testing.T, cluster client.Object, tunnel *v1alpha1.Tunnel){
		"its Tunnel is deleted": func(t *testing.T, _ client.Object, tunnel *v1alpha1.Tunnel) { deleteObject(t, m, tunnel) },
		"its Cluster is deleted": func(
			t *testing.T, cluster client.Object, _ *v1alpha1.Tunnel,
		) {
			deleteObject(t, m, cluster)
		},
		"its Cluster opts out": func(t *testing.T, cluster client.Object, _ *v1alpha1.Tunnel) {
			controllertest.Edit(
				t, m, cluster,
				func(o client.Object) { o.SetLabels(map[string]string{v1alpha1.TunnelLabel: v1alpha1.TunnelDisabled}) },
			)
		},
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			attacker := kubetest.Cluster(kubetest.NewNamespace(t, m), "attacker")
			tunnel := controllertest.TunnelNamed(attacker)
			tunnel.Spec.ID = id
			controllertest.Create(t, m, tunnel, attacker)
			refused := waitCondition(t, m, attacker, v1alpha1.ConditionAccepted, v1alpha1.ReasonNameTaken)
			if refused.HeldID() != "" {
				t.Errorf("the attacker holds the id %s", refused.HeldID())
			}
			uid := refused.UID
			end(t, attacker, refused)
			controllertest.Eventually(t, func() error {
				now := controllertest.TunnelNamed(attacker)
				if err := m.Get(t.Context(), client.ObjectKeyFromObject(now), now); client.IgnoreNotFound(err) == nil &&
					(err != nil || now.UID != uid) {
					return nil
				}
				return errStillThere
			})
			check := time.After(500 * time.Millisecond)
			for done := false; !done; {
				select {
				case <-check:
					done = true
				default:
				}
				record := &corev1.ConfigMap{
					ObjectMeta: metav1.ObjectMeta{
						Namespace: controllertest.Config().Namespace, Name: v1alpha1.EndedTunnelsConfigMapName,
					},
				}
				if err := m.Get(
					context.WithoutCancel(t.Context()), client.ObjectKeyFromObject(record), record,
				); client.IgnoreNotFound(err) != nil {
					t.Fatal(err)
				}
				if _, ended := record.Data[id]; ended {
					t.Fatal("the victim's id is on record as ended")
				}
			}
			if now := controllertest.Read(t, m, controllertest.SecretNamed(victim.Namespace, "copy")); now.UID != copied.UID {
				t.Error("the victim's copy was deleted, and made again")
			}
			if now := controllertest.Read(t, m, controllertest.TunnelNamed(victim)); now.HeldID() != id {
				t.Errorf("the victim holds %q", now.HeldID())
			}
		})
	}
}

var errStillThere = errors.New("it is still there")

func deleteObject(t *testing.T, m *management, o client.Object) {
	t.Helper()
	if err := m.Delete(t.Context(), o); err != nil {
		t.Fatal(err)
	}
}
