package tunnel

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/controller/controllertest"
	"github.com/fairlead/fairlead/pkg/controller/records"
	"github.com/fairlead/fairlead/pkg/enrol"
	"github.com/fairlead/fairlead/pkg/model"
)

// trustBundle returns the ConfigMap without which no Secret is delivered.
func trustBundle() *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: controllertest.Config().Namespace, Name: v1alpha1.InstallationConfigMapName},
		Data:       map[string]string{v1alpha1.TrustBundleKey: "a CA"},
	}
}

// writes counts the writes of the status of Tunnels, and lets each write of a Secret fail as deny says.
type writes struct {
	status int
	deny   func(name string) error
}

func (w *writes) funcs() interceptor.Funcs {
	refuse := func(o client.Object) error {
		if _, ok := o.(*corev1.Secret); ok {
			return w.deny(o.GetName())
		}
		return nil
	}
	return interceptor.Funcs{
		Create: func(ctx context.Context, to client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			if err := refuse(o); err != nil {
				return err
			}
			return to.Create(ctx, o, opts...)
		},
		Patch: func(
			ctx context.Context, to client.WithWatch, o client.Object, patch client.Patch, opts ...client.PatchOption,
		) error {
			if err := refuse(o); err != nil {
				return err
			}
			return to.Patch(ctx, o, patch, opts...)
		},
		SubResourcePatch: func(
			ctx context.Context, to client.Client, sub string, o client.Object, patch client.Patch,
			opts ...client.SubResourcePatchOption,
		) error {
			if _, ok := o.(*v1alpha1.Tunnel); ok {
				w.status++
			}
			return to.SubResource(sub).Patch(ctx, o, patch, opts...)
		},
	}
}

// TestASecretThatCannotBeWrittenGetsNoFurtherTokens: each new token would be a write of the status, whose event starts
// the next reconciliation at once.
func TestASecretThatCannotBeWrittenGetsNoFurtherTokens(t *testing.T) {
	tests := map[string]struct {
		deny       func(name string) error
		wantWrites int // with a cause, the condition has it from the second reconciliation on
		wantCause  string
	}{
		"denied": {deny: controllertest.Forbidden, wantWrites: 2, wantCause: "cannot be written (Forbidden)"},
		"failed": {deny: func(string) error { return controllertest.ErrCrash }, wantWrites: 1},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			cluster, tunnel := controllertest.Served("c1", 1000)
			w := &writes{deny: tc.deny}
			api := interceptor.NewClient(controllertest.FakeAPI(t, cluster, tunnel, trustBundle()), w.funcs())
			r := started(t, api, api)
			request := reconcile.Request{NamespacedName: client.ObjectKeyFromObject(tunnel)}
			var result reconcile.Result
			var err error
			for range 3 {
				result, err = r.Reconcile(t.Context(), request)
			}
			if tc.wantCause == "" && !errors.Is(err, controllertest.ErrCrash) {
				t.Errorf("got %v", err)
			}
			if tc.wantCause != "" && (err != nil || result.RequeueAfter != deniedRetry) {
				t.Errorf("next attempt after %s, %v", result.RequeueAfter, err)
			}
			tunnel = controllertest.Read(t, api, tunnel)
			if s := tunnel.Status; len(s.Tokens) != 1 || len(s.BootReportTokens) != 1 || w.status > tc.wantWrites {
				t.Errorf("%d writes, tokens %+v and %+v", w.status, s.Tokens, s.BootReportTokens)
			}
			if got := controllertest.Message(tunnel, v1alpha1.ConditionAccepted); !strings.Contains(got, tc.wantCause) {
				t.Errorf("message %q", got)
			}
			w.deny = func(string) error { return nil }
			for i := range 2 {
				result, err = r.Reconcile(t.Context(), request)
				soon := result.RequeueAfter <= time.Second
				if err != nil || soon != (i == 0 && tc.wantCause != "") { // soon, if the condition still has a cause
					t.Fatalf("next attempt after %s, %v", result.RequeueAfter, err)
				}
			}
			after := controllertest.Read(t, api, tunnel)
			secret := controllertest.Read(t, api, controllertest.BootstrapOf(cluster))
			if records.TokenIndex(after.Status.Tokens, enrol.HashToken(tokenIn(secret))) != 0 ||
				after.Status.Tokens[0] != tunnel.Status.Tokens[0] {
				t.Errorf("the token that was on record is not delivered: %+v", after.Status.Tokens)
			}
			if got := controllertest.Message(after, v1alpha1.ConditionAccepted); strings.Contains(got, "written") {
				t.Errorf("message %q", got)
			}
			if len(r.undelivered.of) != 0 {
				t.Errorf("%d Tunnels are stored, and nothing is pending", len(r.undelivered.of))
			}
		})
	}
}

// TestADeletedSecretEndsItsTokenWhileAnotherCannotBeWritten: only tokens that were in no Secret are chosen again.
func TestADeletedSecretEndsItsTokenWhileAnotherCannotBeWritten(t *testing.T) {
	cluster, tunnel := controllertest.Served("c1", 1000)
	w := &writes{deny: func(name string) error {
		if strings.HasSuffix(name, v1alpha1.BootReportSecretSuffix) {
			return controllertest.Forbidden(name)
		}
		return nil
	}}
	api := interceptor.NewClient(controllertest.FakeAPI(t, cluster, tunnel, trustBundle()), w.funcs())
	r := started(t, api, api)
	request := reconcile.Request{NamespacedName: client.ObjectKeyFromObject(tunnel)}
	step := func() string {
		t.Helper()
		if _, err := r.Reconcile(t.Context(), request); err != nil {
			t.Fatal(err)
		}
		return tokenIn(controllertest.Read(t, api, controllertest.BootstrapOf(cluster)))
	}
	first := step()
	// A change of the Secret that is denied does not make its token pending.
	deny := w.deny
	w.deny = controllertest.Forbidden
	controllertest.Edit(t, api, controllertest.BootstrapOf(cluster), func(s *corev1.Secret) { s.Labels = nil })
	step()
	w.deny = deny
	if err := api.Delete(t.Context(), controllertest.BootstrapOf(cluster)); err != nil {
		t.Fatal(err)
	}
	second := step()
	tokens := controllertest.Read(t, api, tunnel).Status.Tokens
	if second == first || records.TokenIndex(tokens, enrol.HashToken(first)) >= 0 {
		t.Errorf("the token of the deleted Secret is valid: %+v", tokens)
	}
	r.Release(model.Key(request.NamespacedName))
	if len(r.undelivered.of) != 0 {
		t.Errorf("%d Tunnels are stored, and none exists", len(r.undelivered.of))
	}
}

// TestATunnelThatIsBeingDeletedGetsNoSecret: a namespace that is being deleted permits none. A Secret that exists stays
// valid, because edges of a Cluster that is being deleted may have to enrol again.
func TestATunnelThatIsBeingDeletedGetsNoSecret(t *testing.T) {
	for name, exists := range map[string]bool{"there is none": false, "there is one": true} {
		t.Run(name, func(t *testing.T) {
			cluster, tunnel := controllertest.Served("c1", 1000)
			cluster.Finalizers, cluster.DeletionTimestamp = []string{"x.example.org/y"}, &metav1.Time{Time: time.Now()}
			tunnel.DeletionTimestamp = cluster.DeletionTimestamp
			cluster.Labels[v1alpha1.EdgeResourcesLabel] = cluster.Name
			tunnel.Status.Tokens = []v1alpha1.TokenStatus{newRecord(controllertest.Config(), "t", time.Now())}
			all, own := []client.Object{cluster, tunnel, trustBundle()}, controllertest.BootstrapOf(cluster)
			if exists {
				own.Data = tokenSecret("t").Data
				all = append(all, own)
			}
			w := &writes{deny: func(name string) error {
				if exists && name == own.Name {
					return nil
				}
				t.Errorf("a Secret %s is written", name)
				return controllertest.Forbidden(name)
			}}
			api := interceptor.NewClient(controllertest.FakeAPI(t, all...), w.funcs())
			r := started(t, api, api)
			for range 3 {
				result, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(tunnel)})
				if err != nil || exists && result.RequeueAfter < time.Minute {
					t.Fatalf("next after %s, %v", result.RequeueAfter, err)
				}
			}
			after := controllertest.Read(t, api, tunnel).Status
			if (len(after.Tokens) > 0) != exists || len(after.BootReportTokens) != 0 || w.status > 1 {
				t.Errorf("%d writes, tokens %+v and %+v", w.status, after.Tokens, after.BootReportTokens)
			}
			if after.Hostname == "" {
				t.Error("it is not served")
			}
		})
	}
}

func TestTokensWithUsesLeftAreBounded(t *testing.T) {
	config, at := controllertest.Config(), time.Now()
	old := newRecord(config, "t", at.Add(-config.TokenLifetime/2))
	status := &v1alpha1.TunnelStatus{Tokens: []v1alpha1.TokenStatus{old}}
	newest := ""
	for range 2 * maxRecords {
		var err error
		if newest, err = chooseToken(config, status, tokenSecret("t"), "", at); err != nil {
			t.Fatal(err)
		}
	}
	if len(status.Tokens) != maxRecords || status.Tokens[0] != old ||
		records.TokenIndex(status.Tokens, enrol.HashToken(newest)) < 0 {
		t.Errorf("%d records, the first %+v", len(status.Tokens), status.Tokens[0])
	}
}
