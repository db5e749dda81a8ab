package tunnel

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/controller/controllertest"
	"github.com/fairlead/fairlead/pkg/controller/records"
	"github.com/fairlead/fairlead/pkg/enrol"
)

// TestAPauseKeepsNoTokenOfADeletedSecret: deleting the Secret is the response to a stolen token. A used-up token stays
// on record, and nothing is created during a pause.
func TestAPauseKeepsNoTokenOfADeletedSecret(t *testing.T) {
	record := func(token string, uses int32) v1alpha1.TokenStatus {
		return v1alpha1.TokenStatus{
			SHA256: enrol.HashToken(token), Uses: uses, MaxUses: 2,
			ExpiresAt: metav1.NewTime(time.Now().Add(time.Hour).Truncate(time.Second)),
		}
	}
	pause := func(o client.Object) { o.SetAnnotations(map[string]string{clusterv1.PausedAnnotation: ""}) }
	for name, change := range map[string]func(*clusterv1.Cluster, *v1alpha1.Tunnel) *clusterv1.Cluster{ // nil: it is gone
		"the Cluster": func(c *clusterv1.Cluster, _ *v1alpha1.Tunnel) *clusterv1.Cluster {
			c.Spec.Paused = ptr.To(true)
			return c
		},
		"the Tunnel": func(c *clusterv1.Cluster, of *v1alpha1.Tunnel) *clusterv1.Cluster {
			pause(of)
			return c
		},
		"the Cluster, and nothing is decided": func(c *clusterv1.Cluster, of *v1alpha1.Tunnel) *clusterv1.Cluster {
			pause(c)
			of.Status.ID, of.Status.Served = "", nil
			return c
		},
		"a Tunnel without a Cluster": func(_ *clusterv1.Cluster, of *v1alpha1.Tunnel) *clusterv1.Cluster {
			pause(of)
			of.OwnerReferences, of.Status.Served = nil, &v1alpha1.ServedStatus{EnrolmentOnly: true}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			cluster, of := controllertest.Served("c1", 1000)
			of.Status = v1alpha1.TunnelStatus{
				ID: of.Spec.ID, Served: &v1alpha1.ServedStatus{ClusterUID: cluster.UID},
				Tokens:           []v1alpha1.TokenStatus{record("used", 2), record("stolen", 1)},
				BootReportTokens: []v1alpha1.TokenStatus{record("report", 0)},
			}
			all := []client.Object{of, trustBundle()}
			for _, suffix := range []string{v1alpha1.BootstrapSecretSuffix, v1alpha1.BootReportSecretSuffix} {
				all = append(all, controllertest.SecretNamed(of.Namespace, of.Name+suffix))
			}
			if cluster = change(cluster, of); cluster != nil {
				all = append(all, cluster)
			}
			api := controllertest.FakeAPI(t, all...)
			r := started(t, api, api)
			check := func(stolen, reports int) {
				t.Helper()
				for range 2 {
					request := reconcile.Request{NamespacedName: client.ObjectKeyFromObject(of)}
					if _, err := r.Reconcile(t.Context(), request); err != nil {
						t.Fatal(err)
					}
				}
				now := controllertest.Read(t, api, of).Status
				if records.TokenIndex(now.Tokens, enrol.HashToken("used")) != 0 ||
					records.TokenIndex(now.Tokens, enrol.HashToken("stolen")) != stolen || len(now.BootReportTokens) != reports {
					t.Errorf("tokens %+v and %+v", now.Tokens, now.BootReportTokens)
				}
			}
			check(1, 1)
			if err := api.DeleteAllOf(t.Context(), &corev1.Secret{}, client.InNamespace(of.Namespace)); err != nil {
				t.Fatal(err)
			}
			check(-1, 0)
			var left corev1.SecretList
			if err := api.List(t.Context(), &left, client.InNamespace(of.Namespace)); err != nil || len(left.Items) > 0 {
				t.Errorf("%d Secrets are created: %v", len(left.Items), err)
			}
		})
	}
}

// TestAPausedTunnelOffersNoExpiredToken: machines then wait for the Secret that is created after the pause. While the
// Cluster is paused the Secret stays, because it may be moving.
func TestAPausedTunnelOffersNoExpiredToken(t *testing.T) {
	record := func(token string, uses int32, left time.Duration) v1alpha1.TokenStatus {
		return v1alpha1.TokenStatus{
			SHA256: enrol.HashToken(token), Uses: uses, MaxUses: 2,
			ExpiresAt: metav1.NewTime(time.Now().Add(left).Truncate(time.Second)),
		}
	}
	expired := record("token", 0, -time.Second)
	tokens := func(all ...v1alpha1.TokenStatus) []v1alpha1.TokenStatus { return all }
	for name, test := range map[string]struct {
		tokens        []v1alpha1.TokenStatus
		pausedCluster bool // in the apiserver; the cache does not have it yet
		foreign       bool // the Secret
		gone          bool
		again         bool // within an hour
	}{
		"expired":                           {tokens: tokens(expired), gone: true},
		"expired, and the one before it":    {tokens: tokens(record("old", 0, -time.Hour), expired), gone: true},
		"expired, and a used-up one":        {tokens: tokens(record("old", 2, time.Hour), expired), gone: true},
		"it ends in an hour":                {tokens: tokens(record("token", 0, time.Hour)), again: true},
		"expired, and another one is valid": {tokens: tokens(record("old", 1, time.Hour), expired), again: true},
		"it is used up":                     {tokens: tokens(record("token", 2, time.Hour)), gone: true},
		"it is used up, and another is not": {
			tokens: tokens(record("old", 1, time.Hour), record("token", 2, time.Hour)), again: true,
		},
		"it was revoked, or moved here":      {gone: true},
		"expired, in the Secret of a user":   {tokens: tokens(expired), foreign: true},
		"expired, and the Cluster is paused": {tokens: tokens(expired), pausedCluster: true},
	} {
		t.Run(name, func(t *testing.T) {
			cluster, of := controllertest.Served("c1", 1000)
			of.UID = "uid-of-tunnel"
			of.Annotations = map[string]string{clusterv1.PausedAnnotation: ""}
			of.Status = v1alpha1.TunnelStatus{
				ID: of.Spec.ID, Served: &v1alpha1.ServedStatus{ClusterUID: cluster.UID}, Tokens: test.tokens,
			}
			secret := controllertest.SecretNamed(of.Namespace, of.Name+v1alpha1.BootstrapSecretSuffix)
			fillBootstrapSecret(secret, of, map[string][]byte{v1alpha1.BootstrapTokenKey: []byte("token")})
			if test.foreign {
				secret.OwnerReferences = nil
			}
			api := controllertest.FakeAPI(t, cluster, of, secret, trustBundle())
			live := api
			if test.pausedCluster {
				paused := cluster.DeepCopy()
				paused.Spec.Paused = ptr.To(true)
				live = controllertest.FakeAPI(t, paused, of.DeepCopy(), secret.DeepCopy())
			}
			r := started(t, api, live)
			request := reconcile.Request{NamespacedName: client.ObjectKeyFromObject(of)}
			result, err := r.Reconcile(t.Context(), request)
			if err != nil {
				t.Fatal(err)
			}
			if again := result.RequeueAfter > 0 && result.RequeueAfter <= time.Hour; again != test.again {
				t.Errorf("the next reconciliation is after %s", result.RequeueAfter)
			}
			err = api.Get(t.Context(), client.ObjectKeyFromObject(secret), &corev1.Secret{})
			if apierrors.IsNotFound(err) != test.gone {
				t.Fatalf("reading Secret: %v", err)
			}
			if !test.gone {
				return
			}
			controllertest.Edit(t, api, of, func(of *v1alpha1.Tunnel) { of.Annotations = nil })
			if _, err := r.Reconcile(t.Context(), request); err != nil {
				t.Fatal(err)
			}
			now := controllertest.Read(t, api, of).Status.Tokens
			token := tokenIn(controllertest.Read(t, api, secret))
			if i := records.TokenIndex(now, enrol.HashToken(token)); token == "token" || i < 0 {
				t.Errorf("after the pause the Secret has the token %q, and on record is %+v", token, now)
			}
		})
	}
}
