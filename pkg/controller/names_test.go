package controller

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/kubetest"
	"github.com/fairlead/fairlead/pkg/controller/controllertest"
	"github.com/fairlead/fairlead/pkg/kubeconfig"
)

func TestABadExtraNameIsReportedAndAllOthersAreServed(t *testing.T) {
	tests := map[string]struct{ name, wantField string }{
		"below the tunnel domain": {name: "control.tunnels.example.com", wantField: "spec.extraNames[0]"},
		"the tunnel domain":       {name: "tunnels.example.com", wantField: `spec.extraNames[0]: "tunnels.example.com"`},
	}
	m := apiserver(t)
	ns := kubetest.NewNamespace(t, m)
	n := 0
	for name, tc := range tests {
		n++
		cluster := kubetest.Cluster(ns, fmt.Sprintf("c%d", n))
		t.Run(name, func(t *testing.T) {
			tunnel := controllertest.TunnelNamed(cluster)
			tunnel.Spec.ExtraNames = []string{tc.name}
			secret := controllertest.KubeconfigSecret(t, ns, cluster.Name, controllertest.OriginalServer)
			controllertest.Create(t, m, tunnel, secret.DeepCopy(), cluster)
			tunnel = waitCondition(t, m, cluster, v1alpha1.ConditionAccepted, v1alpha1.ReasonInvalidExtraName)
			if got := controllertest.Message(tunnel, v1alpha1.ConditionAccepted); !strings.Contains(got, tc.wantField) {
				t.Errorf("message %q, want one with %q", got, tc.wantField)
			}
			waitReady(t, m, cluster)
		})
	}
}

// nextSecond waits until a new object is younger: creation times have whole seconds, and at the same age the name
// decides.
func nextSecond(t *testing.T, than client.Object) {
	t.Helper()
	controllertest.Eventually(t, func() error {
		if !time.Now().Truncate(time.Second).After(than.GetCreationTimestamp().Time) {
			return fmt.Errorf("the second has not passed")
		}
		return nil
	})
}

func TestAnEditGivesAnOlderTunnelNoNameOfAnother(t *testing.T) {
	m := apiserver(t)
	ns := kubetest.NewNamespace(t, m)
	shared := "api-" + ns + ".example.org"
	older, younger := kubetest.Cluster(ns, "older"), kubetest.Cluster(ns, "younger")
	controllertest.Create(t, m, older)
	first := waitCondition(t, m, older, v1alpha1.ConditionAccepted, v1alpha1.ReasonAccepted)
	nextSecond(t, first)
	second := controllertest.TunnelNamed(younger)
	second.Spec.ExtraNames = []string{shared}
	controllertest.Create(t, m, second, younger)
	holder := waitCondition(t, m, younger, v1alpha1.ConditionAccepted, v1alpha1.ReasonAccepted)
	record := []string{holder.Status.Hostname, shared}
	if !slices.Equal(holder.Status.Names, record) || holder.Status.ID != holder.Spec.ID {
		t.Errorf("on record are %v and %s, want %v and %s", holder.Status.Names, holder.Status.ID, record, holder.Spec.ID)
	}

	controllertest.Edit(t, m, first, func(t *v1alpha1.Tunnel) { t.Spec.ExtraNames = []string{shared} })
	refused := waitCondition(t, m, older, v1alpha1.ConditionAccepted, v1alpha1.ReasonInvalidExtraName)
	if got := controllertest.Message(refused, v1alpha1.ConditionAccepted); !strings.Contains(got, ns+"/younger") ||
		slices.Contains(refused.Status.Names, shared) {
		t.Errorf("message %q, names %v", got, refused.Status.Names)
	}
	settled(t, m, ns)
	if now := controllertest.Read(
		t, m, holder,
	); !apimeta.IsStatusConditionTrue(now.Status.Conditions, v1alpha1.ConditionAccepted) ||
		!slices.Equal(now.Status.Names, record) {
		t.Errorf("the holder has lost the name: %+v", now.Status)
	}
	controllertest.Edit(t, m, second, func(t *v1alpha1.Tunnel) { t.Spec.ExtraNames = nil })
	first = waitCondition(t, m, older, v1alpha1.ConditionAccepted, v1alpha1.ReasonAccepted)
	if !slices.Contains(first.Status.Names, shared) {
		t.Errorf("the name that was given up is not on record: %v", first.Status.Names)
	}
}

func TestAnEditGivesAnOlderTunnelNoIDOfAnother(t *testing.T) {
	m := apiserver(t)
	ns := kubetest.NewNamespace(t, m)
	older, younger := kubetest.Cluster(ns, "older"), kubetest.Cluster(ns, "younger")
	first := controllertest.TunnelNamed(older) // there is no Cluster yet, so no controller chooses an id
	controllertest.Create(t, m, first)
	nextSecond(t, first)
	controllertest.Create(t, m, younger)
	victim := waitCondition(t, m, younger, v1alpha1.ConditionAccepted, v1alpha1.ReasonAccepted)
	controllertest.Edit(t, m, first, func(t *v1alpha1.Tunnel) { t.Spec.ID = victim.Spec.ID })
	controllertest.Create(t, m, older)
	refused := waitCondition(t, m, older, v1alpha1.ConditionAccepted, v1alpha1.ReasonNameTaken)
	if got := controllertest.Message(refused, v1alpha1.ConditionAccepted); !strings.Contains(got, "spec.id") ||
		refused.Status.ID != "" || refused.Status.Names != nil {
		t.Errorf("message %q, on record %v and %q", got, refused.Status.Names, refused.Status.ID)
	}
	settled(t, m, ns)
	if now := controllertest.Read(
		t, m, victim,
	); !apimeta.IsStatusConditionTrue(now.Status.Conditions, v1alpha1.ConditionAccepted) ||
		now.Status.ID != victim.Spec.ID {
		t.Errorf("the victim has lost its id: %+v", now.Status)
	}
}

func TestTheOlderTunnelKeepsANameUntilItGivesItUp(t *testing.T) {
	m := apiserver(t)
	ns := kubetest.NewNamespace(t, m)
	shared := "api-" + ns + ".example.org"
	older, younger := kubetest.Cluster(ns, "z-older"), kubetest.Cluster(ns, "a-younger")
	first := controllertest.TunnelNamed(older)
	first.Spec.ExtraNames = []string{shared}
	controllertest.Create(t, m, first, older)
	waitCondition(t, m, older, v1alpha1.ConditionAccepted, v1alpha1.ReasonAccepted)
	second := controllertest.TunnelNamed(younger)
	second.Spec.ExtraNames = []string{shared}
	nextSecond(t, first)
	controllertest.Create(t, m, second, younger)
	refused := waitCondition(t, m, younger, v1alpha1.ConditionAccepted, v1alpha1.ReasonInvalidExtraName)
	if got := controllertest.Message(refused, v1alpha1.ConditionAccepted); !strings.Contains(got, ns+"/z-older") {
		t.Errorf("message %q does not name the Tunnel that has the name", got)
	}
	controllertest.Edit(t, m, first, func(t *v1alpha1.Tunnel) { t.Spec.ExtraNames = nil })
	waitCondition(t, m, younger, v1alpha1.ConditionAccepted, v1alpha1.ReasonAccepted)
}

func TestAClusterWithoutUsableHostnameKeepsItsKubeconfig(t *testing.T) {
	m := apiserver(t)
	ns := kubetest.NewNamespace(t, m)
	long := kubetest.Cluster(ns, strings.Repeat("c", 64))
	secret := controllertest.KubeconfigSecret(t, ns, long.Name, controllertest.OriginalServer)
	secret.Labels[clusterv1.ClusterNameLabel] = "long" // a label has room for 63 bytes
	controllertest.Create(t, m, long, secret.DeepCopy())
	tunnel := waitCondition(t, m, long, v1alpha1.ConditionAccepted, v1alpha1.ReasonInvalidName)
	if got := controllertest.Message(tunnel, v1alpha1.ConditionAccepted); !strings.HasPrefix(got, "metadata.name") ||
		tunnel.Status.Hostname != "" {
		t.Errorf("message %q, hostname %q", got, tunnel.Status.Hostname)
	}
	waitCondition(t, m, long, v1alpha1.ConditionKubeconfigReady, v1alpha1.ReasonNotAccepted)
	if now := controllertest.Read(t, m, secret); controllertest.EntryOf(t, now).Server != controllertest.OriginalServer ||
		len(now.Annotations) != 0 {
		t.Errorf("the kubeconfig was written: %v", now.Annotations)
	}
	settled(t, m, ns)
	if err := m.Get(
		t.Context(), client.ObjectKeyFromObject(controllertest.BootstrapOf(long)), &corev1.Secret{},
	); !apierrors.IsNotFound(err) {
		t.Errorf("edges are invited to a Tunnel that is not served: %v", err)
	}
}

func TestOnlyOneOfTwoClustersGetsAHostname(t *testing.T) {
	m := apiserver(t)
	ns := kubetest.NewNamespace(t, m)
	// Both result in a--b as the first label. The first one on record keeps it; pkg/decision defines the order of two that
	// come together.
	keeps, loses := kubetest.Cluster(ns, "a--b"), kubetest.Cluster(ns, "a.b")
	controllertest.Create(t, m, keeps)
	waitCondition(t, m, keeps, v1alpha1.ConditionAccepted, v1alpha1.ReasonAccepted)
	controllertest.Create(t, m, loses)
	waitCondition(t, m, loses, v1alpha1.ConditionAccepted, v1alpha1.ReasonNameTaken)
}

func TestATunnelThatIsNoLongerAcceptedRestoresItsKubeconfig(t *testing.T) {
	m := apiserver(t)
	ns := kubetest.NewNamespace(t, m)
	cluster, secret := kubetest.Cluster(ns, "c1"), controllertest.KubeconfigSecret(
		t, ns, "c1", controllertest.OriginalServer,
	)
	controllertest.Create(t, m, cluster, secret.DeepCopy())
	tunnel := waitReady(t, m, cluster)
	controllertest.Edit(t, m, tunnel, func(t *v1alpha1.Tunnel) { t.Spec.APIServer.Address = "no..address" })
	if now := waitCondition(
		t, m, cluster, v1alpha1.ConditionAccepted, v1alpha1.ReasonInvalidAPIServer,
	); now.Status.Names != nil || now.HeldID() == "" {
		t.Errorf(
			"on record are %v and %q, while nothing is served: the id stays the Tunnel's", now.Status.Names, now.Status.ID,
		)
	}
	waitServer(t, m, secret, controllertest.OriginalServer)
	controllertest.Edit(t, m, tunnel, func(t *v1alpha1.Tunnel) { t.Spec.APIServer.Address = "192.0.2.11" })
	waitServer(t, m, secret, controllertest.ConnectServer(cluster))
}

// TestAnEndpointThatIsNoAddressIsReported: Cluster API accepts it, a Tunnel does not.
func TestAnEndpointThatIsNoAddressIsReported(t *testing.T) {
	m := apiserver(t)
	cluster := kubetest.Cluster(kubetest.NewNamespace(t, m), "c1")
	cluster.Spec.ControlPlaneEndpoint.Host = "https://api.example.com"
	controllertest.Create(t, m, cluster)
	waitCondition(t, m, cluster, v1alpha1.ConditionAccepted, v1alpha1.ReasonInvalidAPIServer)
	controllertest.Edit(t, m, cluster, func(c *clusterv1.Cluster) {
		c.Spec.ControlPlaneEndpoint.Host = "api.example.com"
	})
	tunnel := waitCondition(t, m, cluster, v1alpha1.ConditionAccepted, v1alpha1.ReasonAccepted)
	if got := tunnel.Spec.APIServer.Address; got != "api.example.com" {
		t.Errorf("the address of the apiserver is %q", got)
	}
}

func TestABadKubeconfigDoesNotAffectOtherClusters(t *testing.T) {
	m := apiserver(t)
	ns := kubetest.NewNamespace(t, m)
	bad, good := kubetest.Cluster(ns, "bad"), kubetest.Cluster(ns, "good")
	garbage := controllertest.KubeconfigSecret(t, ns, "bad", controllertest.OriginalServer)
	garbage.Data[kubeconfig.Key] = []byte("password: hunter2: {")
	controllertest.Create(
		t, m, garbage, bad, controllertest.KubeconfigSecret(t, ns, "good", controllertest.OriginalServer), good,
	)
	tunnel := waitCondition(t, m, bad, v1alpha1.ConditionKubeconfigReady, v1alpha1.ReasonInvalidKubeconfig)
	if got := controllertest.Message(tunnel, v1alpha1.ConditionKubeconfigReady); strings.Contains(got, "hunter2") {
		t.Errorf("message %q quotes the Secret", got)
	}
	waitReady(t, m, good)
	controllertest.Edit(t, m, bad, func(c *clusterv1.Cluster) { c.Labels[v1alpha1.TunnelLabel] = v1alpha1.TunnelDisabled })
	controllertest.WaitGone(t, m, tunnel) // what cannot be read cannot be restored, and must not keep the Tunnel
}
