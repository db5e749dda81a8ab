package controller

import (
	"context"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/kubetest"
	"github.com/fairlead/fairlead/pkg/controller/controllertest"
	"github.com/fairlead/fairlead/pkg/controller/objects"
	"github.com/fairlead/fairlead/pkg/enrol"
	"github.com/fairlead/fairlead/pkg/kubeconfig"
	"github.com/fairlead/fairlead/pkg/model"
)

func TestAClusterThatOptsInGetsATunnel(t *testing.T) {
	m := apiserver(t)
	ns := kubetest.NewNamespace(t, m)
	without := kubetest.Cluster(ns, "without")
	without.Labels = nil
	cluster := kubetest.Cluster(ns, "c1")
	provided := controllertest.KubeconfigSecret(t, ns, "c1", controllertest.OriginalServer)
	controllertest.Create(t, m, without, cluster, provided.DeepCopy())

	tunnel := waitReady(t, m, cluster)
	if err := model.ValidateID(tunnel.Spec.ID); err != nil || !metav1.IsControlledBy(tunnel, cluster) ||
		!controllertest.HasFinalizer(tunnel) {
		t.Errorf("id: %v, owners %v, finalizers %v", err, tunnel.OwnerReferences, tunnel.Finalizers)
	}
	if ptr.Deref(tunnel.OwnerReferences[0].BlockOwnerDeletion, false) {
		t.Error("the Tunnel blocks the deletion of its Cluster, for which it waits itself")
	}
	want := v1alpha1.TunnelSpec{
		ID: tunnel.Spec.ID, Kubeconfig: v1alpha1.KubeconfigSpec{Mode: v1alpha1.KubeconfigModeAuto},
		APIServer: v1alpha1.APIServerSpec{Address: "192.0.2.10", Port: 6443},
	}
	if diff := cmp.Diff(want, tunnel.Spec); diff != "" {
		t.Error(diff)
	}
	hostname := "c1." + ns + ".tunnels.example.com"
	if tunnel.Status.Hostname != hostname ||
		!apimeta.IsStatusConditionTrue(tunnel.Status.Conditions, v1alpha1.ConditionAccepted) {
		t.Errorf("status %+v", tunnel.Status)
	}
	served := &v1alpha1.ServedStatus{ClusterUID: cluster.UID, APIServers: []string{"192.0.2.10:6443"}}
	if diff := cmp.Diff(served, tunnel.Status.Served); diff != "" {
		t.Errorf("what the xds-servers are to serve:\n%s", diff)
	}
	checkOnlyTheEntryDiffers(t, provided, waitServer(t, m, provided, controllertest.ConnectServer(cluster)), cluster)

	bootstrap := controllertest.Read(t, m, controllertest.BootstrapOf(cluster))
	token := string(bootstrap.Data[v1alpha1.BootstrapTokenKey])
	if len(tunnel.Status.Tokens) != 1 || tunnel.Status.Tokens[0].SHA256 != enrol.HashToken(token) ||
		tunnel.Status.Tokens[0].MaxUses != 3 {
		t.Errorf("the token of the Secret is not the one on record: %+v", tunnel.Status.Tokens)
	}
	if !metav1.IsControlledBy(bootstrap, tunnel) {
		t.Errorf("owners of the bootstrap Secret: %v", bootstrap.OwnerReferences)
	}
	if err := m.Get(
		t.Context(), client.ObjectKeyFromObject(without), controllertest.TunnelNamed(without),
	); client.IgnoreNotFound(err) != nil || err == nil {
		t.Errorf("a Cluster without the label has a Tunnel: %v", err)
	}
	waitEvent(t, m, tunnel, v1alpha1.ReasonRewritten)
}

// TestTheDecisionIsRecorded changes the spec of a Tunnel. While its Cluster is paused, nothing is decided anew.
func TestTheDecisionIsRecorded(t *testing.T) {
	m := apiserver(t)
	cluster := kubetest.Cluster(kubetest.NewNamespace(t, m), "c1")
	controllertest.Create(t, m, cluster)
	tunnel := waitCondition(t, m, cluster, v1alpha1.ConditionAccepted, v1alpha1.ReasonAccepted)
	ask := func(connections int32, other string) {
		controllertest.Edit(t, m, tunnel, func(t *v1alpha1.Tunnel) {
			t.Spec.Limits.Connections, t.Spec.APIServer.Others = connections, []v1alpha1.APIServerAddress{{Address: other}}
		})
	}
	recorded := func(connections int64, other string) {
		t.Helper()
		want := &v1alpha1.ServedStatus{
			ClusterUID: cluster.UID, APIServers: []string{"192.0.2.10:6443", other},
			Limits: v1alpha1.ServedLimits{Connections: connections},
		}
		controllertest.Eventually(t, func() error {
			if diff := cmp.Diff(want, controllertest.Read(t, m, tunnel).Status.Served); diff != "" {
				return fmt.Errorf("on record is another decision:\n%s", diff)
			}
			return nil
		})
	}
	ask(7, "192.0.2.11")
	recorded(7, "192.0.2.11:6443")
	controllertest.Edit(t, m, cluster, func(c *clusterv1.Cluster) { c.Spec.Paused = ptr.To(true) })
	waitPaused(t, m, cluster, true)
	ask(9, "192.0.2.12")
	settled(t, m, cluster.Namespace)
	recorded(7, "192.0.2.11:6443")
	controllertest.Edit(t, m, cluster, func(c *clusterv1.Cluster) { c.Spec.Paused = nil })
	recorded(9, "192.0.2.12:6443")
}

func TestAPausedClusterThatHasNotOptedInIsGrantedNothing(t *testing.T) {
	m := apiserver(t)
	for label, granted := range map[string]bool{v1alpha1.TunnelEnabled: true, v1alpha1.TunnelDisabled: false} {
		cluster := kubetest.Cluster(kubetest.NewNamespace(t, m), "c1")
		cluster.Labels, cluster.Spec.Paused = map[string]string{v1alpha1.TunnelLabel: label}, ptr.To(true)
		controllertest.Create(t, m, cluster)
		tunnel := controllertest.TunnelNamed(cluster)
		objects.CompleteTunnel(tunnel, cluster)
		controllertest.Create(t, m, tunnel)
		waitPaused(t, m, cluster, true)
		settled(t, m, cluster.Namespace)
		if got := controllertest.Read(t, m, tunnel).Status.Served != nil; got != granted {
			t.Errorf("%s: granted: %v", label, got)
		}
	}
}

// checkOnlyTheEntryDiffers compares all of a Secret and all of its kubeconfig.
func checkOnlyTheEntryDiffers(t *testing.T, before, after *corev1.Secret, cluster *clusterv1.Cluster) {
	t.Helper()
	if diff := cmp.Diff(before.Labels, after.Labels); diff != "" || before.Type != after.Type ||
		len(after.OwnerReferences) != 0 {
		t.Errorf("labels %s, type %s, owners %v", diff, after.Type, after.OwnerReferences)
	}
	if got := after.Annotations[v1alpha1.OriginalServerAnnotation]; got != controllertest.OriginalServer {
		t.Errorf("original server %q", got)
	}
	was, entry, err := kubeconfig.Load(before, "c1")
	if err != nil {
		t.Fatal(err)
	}
	entry.Server, entry.TLSServerName, entry.ProxyURL = controllertest.ConnectServer(
		cluster,
	), "kubernetes", controllertest.ProxyURL
	is, _, err := kubeconfig.Load(after, "c1")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(was, is); diff != "" {
		t.Error(diff)
	}
}

// waitEvent waits for one event with this reason on a Tunnel.
func waitEvent(t *testing.T, m *management, tunnel *v1alpha1.Tunnel, reason string) {
	t.Helper()
	events := &eventsv1.EventList{}
	controllertest.Eventually(t, func() error {
		if err := m.List(t.Context(), events, client.InNamespace(tunnel.Namespace)); err != nil {
			return err
		}
		for _, e := range events.Items {
			if e.Regarding.Name == tunnel.Name && e.Reason == reason {
				return nil
			}
		}
		return fmt.Errorf("no event %s among %d", reason, len(events.Items))
	})
}

func TestOptingOutRestoresTheKubeconfigAndRemovesTheRest(t *testing.T) {
	m := apiserver(t)
	ns := kubetest.NewNamespace(t, m)
	cluster, secret := kubetest.Cluster(ns, "c1"), controllertest.KubeconfigSecret(
		t, ns, "c1", controllertest.OriginalServer,
	)
	controllertest.Create(t, m, cluster, secret.DeepCopy())
	waitReady(t, m, cluster)
	controllertest.Edit(
		t, m, cluster, func(c *clusterv1.Cluster) { c.Labels[v1alpha1.TunnelLabel] = v1alpha1.TunnelDisabled },
	)
	controllertest.WaitGone(t, m, controllertest.TunnelNamed(cluster))
	controllertest.WaitGone(t, m, controllertest.BootstrapOf(cluster))
	now := controllertest.Read(t, m, secret)
	if diff := cmp.Diff(secret.Data, now.Data); diff != "" || len(now.Annotations) != 0 {
		t.Errorf("annotations %v, data %s", now.Annotations, diff)
	}
}

func TestADeletedTunnelIsRecreatedWithAnotherID(t *testing.T) {
	m := apiserver(t)
	ns := kubetest.NewNamespace(t, m)
	cluster, secret := kubetest.Cluster(ns, "c1"), controllertest.KubeconfigSecret(
		t, ns, "c1", controllertest.OriginalServer,
	)
	controllertest.Create(t, m, cluster, secret.DeepCopy())
	first := waitReady(t, m, cluster)
	ctx, cancel := context.WithTimeout(t.Context(), kubetest.Patience)
	defer cancel()
	watch, err := m.Watch(ctx, &corev1.SecretList{}, client.InNamespace(ns), client.MatchingLabels(secret.Labels))
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Stop()
	if err := m.Delete(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	controllertest.Eventually(t, func() error {
		tunnel := controllertest.TunnelNamed(cluster)
		if err := m.Get(t.Context(), client.ObjectKeyFromObject(tunnel), tunnel); err != nil {
			return err
		}
		if tunnel.Spec.ID == first.Spec.ID {
			return fmt.Errorf("the Tunnel still has id %s", tunnel.Spec.ID)
		}
		return nil
	})
	var servers []string
	for event := range watch.ResultChan() {
		servers = append(servers, controllertest.EntryOf(t, event.Object.(*corev1.Secret)).Server)
		if n := len(servers); n > 1 && servers[n-1] == controllertest.ConnectServer(cluster) &&
			servers[n-2] == controllertest.OriginalServer {
			return // restored, then rewritten
		}
	}
	t.Errorf("the watch has ended after servers %v", servers)
}

func TestTheControllerAdoptsATunnelThatAUserCreates(t *testing.T) {
	m := apiserver(t)
	ns := kubetest.NewNamespace(t, m)
	cluster, secret := kubetest.Cluster(ns, "c1"), controllertest.KubeconfigSecret(
		t, ns, "c1", "https://api.example.org:443",
	)
	mine := controllertest.TunnelNamed(cluster)
	mine.Spec.Kubeconfig.Mode = v1alpha1.KubeconfigModeConnect
	mine.Spec.APIServer.Address = "127.0.0.1"
	controllertest.Create(t, m, mine, secret.DeepCopy(), cluster)
	tunnel := waitReady(t, m, cluster)
	if tunnel.UID != mine.UID || !metav1.IsControlledBy(tunnel, cluster) || !controllertest.HasFinalizer(tunnel) ||
		tunnel.Spec.ID == "" {
		t.Errorf("not taken over: %+v", tunnel.ObjectMeta)
	}
	if want := (v1alpha1.APIServerSpec{Address: "127.0.0.1", Port: 6443}); !cmp.Equal(tunnel.Spec.APIServer, want) {
		t.Errorf("apiServer %+v, want %+v", tunnel.Spec.APIServer, want)
	}
	entry := controllertest.EntryOf(t, controllertest.Read(t, m, secret))
	if entry.Server != "https://"+tunnel.Status.Hostname+":6443" || entry.ProxyURL != "http://10.1.1.1:3128" ||
		entry.TLSServerName != "api.example.org" {
		t.Errorf("server %s, proxy %s, name %s", entry.Server, entry.ProxyURL, entry.TLSServerName)
	}
}

func TestTheEndpointIsSetWhenTheClusterHasOne(t *testing.T) {
	m := apiserver(t)
	ns := kubetest.NewNamespace(t, m)
	cluster := kubetest.Cluster(ns, "c1")
	cluster.Spec = clusterv1.ClusterSpec{ClusterNetwork: clusterv1.ClusterNetwork{APIServerPort: 7443}}
	controllertest.Create(t, m, cluster)
	tunnel := waitCondition(t, m, cluster, v1alpha1.ConditionKubeconfigReady, v1alpha1.ReasonWaitingForSecret)
	if !cmp.Equal(tunnel.Spec.APIServer, v1alpha1.APIServerSpec{}) {
		t.Errorf("apiServer %+v before there is an endpoint", tunnel.Spec.APIServer)
	}
	controllertest.Edit(t, m, cluster, func(c *clusterv1.Cluster) {
		c.Spec.ControlPlaneEndpoint = clusterv1.APIEndpoint{Host: "api.example.org", Port: 443}
	})
	controllertest.Eventually(t, func() error {
		if got := controllertest.Read(
			t, m, tunnel,
		).Spec.APIServer; !cmp.Equal(got, v1alpha1.APIServerSpec{Address: "api.example.org", Port: 443}) {
			return fmt.Errorf("apiServer %+v", got)
		}
		return nil
	})
}

func TestATunnelOfAnotherOwnerIsNotChanged(t *testing.T) {
	m := apiserver(t)
	ns := kubetest.NewNamespace(t, m)
	cluster := kubetest.Cluster(ns, "c1")
	foreign := controllertest.TunnelNamed(cluster)
	foreign.OwnerReferences = []metav1.OwnerReference{{
		APIVersion: "v1", Kind: "ConfigMap", Name: "x", UID: "1", Controller: ptr.To(true),
	}}
	controllertest.Create(t, m, foreign, cluster)
	tunnel := waitCondition(t, m, cluster, v1alpha1.ConditionAccepted, v1alpha1.ReasonControlledByOther)
	if controllertest.HasFinalizer(tunnel) || tunnel.Spec.ID != "" {
		t.Errorf("it was changed: %+v", tunnel)
	}
}

func TestTheIDOfATunnelCannotBeChanged(t *testing.T) {
	m := apiserver(t)
	ns := kubetest.NewNamespace(t, m)
	cluster := kubetest.Cluster(ns, "c1")
	controllertest.Create(t, m, cluster)
	tunnel := waitCondition(t, m, cluster, v1alpha1.ConditionAccepted, v1alpha1.ReasonAccepted)
	for name, change := range map[string]func(*v1alpha1.Tunnel){
		"another id": func(t *v1alpha1.Tunnel) { t.Spec.ID = model.NewID() },
		"no id":      func(t *v1alpha1.Tunnel) { t.Spec.ID = "" },
		"no spec":    func(t *v1alpha1.Tunnel) { t.Spec = v1alpha1.TunnelSpec{} },
	} {
		changed := controllertest.Read(t, m, tunnel)
		change(changed)
		if err := m.Patch(t.Context(), changed, client.MergeFrom(tunnel)); err == nil {
			t.Errorf("%s: the apiserver has taken it", name)
		}
	}
}
