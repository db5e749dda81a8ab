package tunnel

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	addonsv1 "sigs.k8s.io/cluster-api/api/addons/v1beta2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/cluster-api/core/reconcilers/clusterresourceset"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/controller/controllertest"
	"github.com/fairlead/fairlead/pkg/controller/objects"
	"github.com/fairlead/fairlead/pkg/controller/reconciler"
)

// resourceWorld is a management cluster in memory with a Cluster that requests a Secret for a ClusterResourceSet, and
// Cluster API's own reconciler of ClusterResourceSets. The workload cluster is a real kube-apiserver.
type resourceWorld struct {
	client.WithWatch
	workload client.WithWatch
	r        *Reconciler
	capi     *clusterresourceset.Reconciler
	cluster  *clusterv1.Cluster
	tunnel   *v1alpha1.Tunnel
	set      *addonsv1.ClusterResourceSet
}

func newResourceWorld(t *testing.T, image string) *resourceWorld {
	t.Helper()
	scheme, err := objects.NewScheme()
	if err != nil {
		t.Fatal(err)
	}
	if err := addonsv1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	cluster, tunnel := controllertest.Served("c1", 1000)
	tunnel.UID = "uid-of-the-tunnel"
	cluster.Labels[v1alpha1.EdgeResourcesLabel] = "c1"
	cluster.Status.Conditions = []metav1.Condition{{
		Type: clusterv1.ClusterControlPlaneInitializedCondition, Status: metav1.ConditionTrue, Reason: "x",
	}}
	set := &addonsv1.ClusterResourceSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: "prod", Name: "c1-edges", UID: "uid-of-the-set"},
		Spec: addonsv1.ClusterResourceSetSpec{
			Strategy:        string(addonsv1.ClusterResourceSetStrategyReconcile),
			ClusterSelector: metav1.LabelSelector{MatchLabels: map[string]string{v1alpha1.EdgeResourcesLabel: "c1"}},
			Resources: []addonsv1.ResourceRef{{
				Kind: string(addonsv1.SecretClusterResourceSetResourceKind), Name: "c1" + v1alpha1.EdgeResourcesSecretSuffix,
			}},
		},
	}
	w := &resourceWorld{workload: controllertest.APIServer(t), cluster: cluster, tunnel: tunnel, set: set}
	w.WithWatch = fake.NewClientBuilder().WithScheme(scheme).WithObjects(cluster, tunnel, set).
		WithStatusSubresource(&v1alpha1.Tunnel{}, set).Build()
	config := controllertest.Config()
	config.EdgeImage = image
	w.r = &Reconciler{Deps: reconciler.Deps{
		Config: config, Client: w, Live: w, Now: time.Now, Log: slog.New(slog.DiscardHandler),
	}}
	w.capi = &clusterresourceset.Reconciler{
		Client:       w,
		ClusterCache: clustercache.NewFakeClusterCache(w.workload, client.ObjectKeyFromObject(cluster)),
	}
	return w
}

// Deliver writes the Secret with a token.
func (w *resourceWorld) deliver(t *testing.T, token string) {
	t.Helper()
	file := bootstrapFile{Gateway: "gw.example.com:443", TunnelDomain: "tunnels.example.com", Token: token, CA: "ca"}
	if err := w.r.deliverResources(t.Context(), w.cluster, w.tunnel, file); err != nil {
		t.Fatal(err)
	}
}

// apply lets Cluster API apply the Secret. Its first reconciliations add a finalizer and a condition.
func (w *resourceWorld) apply(t *testing.T) {
	t.Helper()
	for range 3 {
		if _, err := w.capi.Reconcile(t.Context(), reconcile.Request{
			NamespacedName: client.ObjectKeyFromObject(w.set),
		}); err != nil {
			t.Fatal(err)
		}
	}
	set := controllertest.Read(t, w, w.set)
	for _, c := range set.Status.Conditions {
		if c.Type == addonsv1.ClusterResourceSetResourcesAppliedCondition && c.Status == metav1.ConditionTrue {
			return
		}
	}
	t.Fatalf("not applied: %+v", set.Status)
}

// bootstrap returns the bootstrap file in the workload cluster.
func (w *resourceWorld) bootstrap(t *testing.T) string {
	t.Helper()
	secret := controllertest.Read(t, w.workload, controllertest.SecretNamed(edgeName, edgeName+"-bootstrap"))
	return string(secret.Data[v1alpha1.BootstrapFileKey])
}

func (w *resourceWorld) secret(t *testing.T) *corev1.Secret {
	t.Helper()
	return controllertest.Read(t, w, controllertest.SecretNamed("prod", "c1"+v1alpha1.EdgeResourcesSecretSuffix))
}

// TestClusterAPIAppliesTheEdgeResources with its own reconciler: first the bootstrap file alone, then whole edges, and
// each new token.
func TestClusterAPIAppliesTheEdgeResources(t *testing.T) {
	w := newResourceWorld(t, "")
	w.deliver(t, "fl1.first")
	w.apply(t)
	if file := w.bootstrap(t); !strings.Contains(file, "fl1.first") || !strings.Contains(file, w.tunnel.Spec.ID) {
		t.Errorf("the bootstrap file is %q", file)
	}
	// Cluster API makes the ClusterResourceSet an owner. Removing it would make both write in turn for ever.
	if owners := w.secret(t).OwnerReferences; len(owners) != 2 {
		t.Errorf("the owners are %v", owners)
	}
	before := w.secret(t).ResourceVersion
	w.deliver(t, "fl1.first")
	if after := w.secret(t); after.ResourceVersion != before || len(after.OwnerReferences) != 2 {
		t.Errorf("an equal Secret is written again: %v", after.OwnerReferences)
	}
	w.r.Config.EdgeImage = "registry.example.com/edge@sha256:00"
	w.deliver(t, "fl1.second")
	w.apply(t)
	if file := w.bootstrap(t); !strings.Contains(file, "fl1.second") {
		t.Errorf("the bootstrap file is %q after a new token", file)
	}
	named := metav1.ObjectMeta{Namespace: edgeName, Name: edgeName}
	deployment := controllertest.Read(t, w.workload, &appsv1.Deployment{ObjectMeta: named})
	pod := deployment.Spec.Template.Spec
	if pod.Containers[0].Image != "registry.example.com/edge@sha256:00" {
		t.Errorf("the image is %s", pod.Containers[0].Image)
	}
	audience := ""
	for _, v := range pod.Volumes {
		if v.Projected != nil {
			audience = v.Projected.Sources[0].ServiceAccountToken.Audience
		}
	}
	if audience != "fairlead.dev/"+w.tunnel.Spec.ID {
		t.Errorf("the audience is %q", audience)
	}
	controllertest.Read(t, w.workload, &corev1.ServiceAccount{ObjectMeta: named})
	controllertest.Read(t, w.workload, &policyv1.PodDisruptionBudget{ObjectMeta: named})
	w.deliver(t, "fl1.third")
	w.apply(t) // also patches a Deployment that the apiserver has defaulted
	if file := w.bootstrap(t); !strings.Contains(file, "fl1.third") {
		t.Errorf("the bootstrap file is %q after another token", file)
	}
}

// TestOnlyAClusterThatRequestsItHasEdgeResources: the Secret contains a token, which a ClusterResourceSet may bring to
// every Cluster that it selects.
func TestOnlyAClusterThatRequestsItHasEdgeResources(t *testing.T) {
	for name, change := range map[string]func(*resourceWorld){
		"without the label": func(w *resourceWorld) {
			delete(w.cluster.Labels, v1alpha1.EdgeResourcesLabel)
		},
		"with the name of another":        func(w *resourceWorld) { w.cluster.Labels[v1alpha1.EdgeResourcesLabel] = "c2" },
		"while its Tunnel waits for it":   func(w *resourceWorld) { w.cluster = nil },
		"after the end of its own Tunnel": func(w *resourceWorld) {},
	} {
		w := newResourceWorld(t, "")
		w.deliver(t, "fl1.token")
		if s := w.secret(t); s.Type != resourceSetType ||
			s.Labels[v1alpha1.BootstrapLabel] != v1alpha1.BootstrapResources {
			t.Fatalf("the Secret is of type %s with the labels %v", s.Type, s.Labels)
		}
		change(w)
		if w.cluster != nil && w.cluster.Labels[v1alpha1.EdgeResourcesLabel] == "c1" {
			if err := w.r.deleteBootstrapSecret(t.Context(), w.tunnel); err != nil {
				t.Fatal(err)
			}
		} else {
			w.deliver(t, "fl1.token")
		}
		var left corev1.SecretList
		if err := w.List(context.Background(), &left, client.InNamespace("prod")); err != nil || len(left.Items) > 0 {
			t.Errorf("a Cluster %s has %d Secrets, %v", name, len(left.Items), err)
		}
	}
}

// TestASecretOfAUserIsNotReplaced: neither its type, which is immutable, nor its owner.
func TestASecretOfAUserIsNotReplaced(t *testing.T) {
	w := newResourceWorld(t, "")
	own := controllertest.SecretNamed("prod", "c1"+v1alpha1.EdgeResourcesSecretSuffix)
	own.Type, own.Data = corev1.SecretTypeOpaque, map[string][]byte{"mine": []byte("x")}
	controllertest.Create(t, w, own)
	err := w.r.deliverResources(t.Context(), w.cluster, w.tunnel, bootstrapFile{Token: "fl1.token"})
	if err == nil || !strings.Contains(err.Error(), "delete it") || strings.Contains(err.Error(), "fl1") {
		t.Errorf("got %v", err)
	}
	if now := w.secret(t); string(now.Data["mine"]) != "x" || len(now.OwnerReferences) > 0 {
		t.Errorf("it was changed: %v", now.OwnerReferences)
	}
	if err := w.r.deleteResources(t.Context(), w.tunnel); err != nil {
		t.Fatal(err)
	}
	w.secret(t)
}
