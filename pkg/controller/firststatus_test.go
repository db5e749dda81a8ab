package controller

import (
	"context"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/kubetest"
	"github.com/fairlead/fairlead/pkg/controller/controllertest"
	"github.com/fairlead/fairlead/pkg/controller/kubeconfigs"
	"github.com/fairlead/fairlead/pkg/controller/reconciler"
	"github.com/fairlead/fairlead/pkg/controller/records"
	"github.com/fairlead/fairlead/pkg/controller/status"
	"github.com/fairlead/fairlead/pkg/controller/tunnel"
	reportview "github.com/fairlead/fairlead/pkg/report/view"
)

// oneGateway is a status.View of an installation to which no edge is connected.
type oneGateway struct{}

// Tunnel implements status.View.
func (oneGateway) Tunnel(string) reportview.Live {
	return reportview.Live{Known: true, Gateways: []string{"gateway-0"}}
}

const conditionApplied = "apply status of Cluster"

// countingAPI returns an in-memory apiserver, and the kinds of writes that it receives.
func countingAPI(t *testing.T, all ...client.Object) (api client.WithWatch, writes *[]string) {
	t.Helper()
	writes = &[]string{}
	note := func(what string) { *writes = append(*writes, what) }
	return interceptor.NewClient(controllertest.FakeAPI(t, all...), interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.CreateOption) error {
			switch o.(type) {
			case *v1alpha1.Tunnel:
				note("create Tunnel")
			case *corev1.Secret:
				note("create Secret")
			default:
				note("create another object")
			}
			return c.Create(ctx, o, options...)
		},
		Patch: func(
			ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, options ...client.PatchOption,
		) error {
			note("patch")
			return c.Patch(ctx, o, p, options...)
		},
		SubResourcePatch: func(
			ctx context.Context, c client.Client, of string, o client.Object, p client.Patch,
			options ...client.SubResourcePatchOption,
		) error {
			note("patch " + of + " of Tunnel")
			return c.SubResource(of).Patch(ctx, o, p, options...)
		},
		SubResourceApply: func(
			_ context.Context, _ client.Client, _ string, _ runtime.ApplyConfiguration, _ ...client.SubResourceApplyOption,
		) error {
			if !slices.Contains(*writes, conditionApplied) { // it would come again, because this apiserver does not store it
				note(conditionApplied)
			}
			return nil
		},
	}), writes
}

// TestTheFirstStatusIsOneWrite runs the three reconcilers that write the status of a Tunnel, one after the other.
func TestTheFirstStatusIsOneWrite(t *testing.T) {
	cluster := kubetest.Cluster("prod", "c1")
	cluster.UID = "uid-of-c1"
	config := controllertest.Config()
	trust := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: config.Namespace, Name: v1alpha1.InstallationConfigMapName},
		Data:       map[string]string{v1alpha1.TrustBundleKey: string(controllertest.NewCA(t).CertPEM())},
	}
	api, writes := countingAPI(t, cluster, trust)
	recorder := events.NewFakeRecorder(100)
	d := reconciler.Deps{
		Config: config, Client: api, Live: api, Recorder: recorder, Log: slog.New(slog.DiscardHandler), Now: time.Now,
	}
	ended := records.NewEndedTunnels(api, api, config.Namespace, time.Now)
	tunnels := tunnel.New(d, ended, kubeconfigs.NewRestorer(d), nil)
	writer := kubeconfigs.New(d, tunnels, "https://192.0.2.1:6443")
	live := status.New(d, oneGateway{}, ended)
	tunnels.Complete(writer.Initial, live.Initial)
	request := reconcile.Request{NamespacedName: client.ObjectKeyFromObject(cluster)}
	for range 2 { // the second time nothing is left to write
		for _, r := range []reconcile.Reconciler{tunnels, writer, live} {
			if _, err := r.Reconcile(t.Context(), request); err != nil {
				t.Fatal(err)
			}
		}
	}
	want := []string{
		"create Tunnel", "patch status of Tunnel", "create Secret", "create Secret", conditionApplied,
	}
	if diff := cmp.Diff(want, *writes); diff != "" {
		t.Error(diff)
	}
	first := &v1alpha1.Tunnel{}
	if err := api.Get(t.Context(), request.NamespacedName, first); err != nil {
		t.Fatal(err)
	}
	for kind, reason := range map[string]string{
		v1alpha1.ConditionAccepted:        v1alpha1.ReasonAccepted,
		v1alpha1.ConditionKubeconfigReady: v1alpha1.ReasonWaitingForSecret,
		v1alpha1.ConditionKubeconfigMode:  v1alpha1.ReasonNoEvidence,
		v1alpha1.ConditionTunnelReady:     v1alpha1.ReasonNoTunnel,
		v1alpha1.ConditionReady:           v1alpha1.ReasonNotReady,
	} {
		if c := apimeta.FindStatusCondition(first.Status.Conditions, kind); c == nil || c.Reason != reason {
			t.Errorf("%s is %+v, want the reason %s", kind, c, reason)
		}
	}
	if first.Status.Kubeconfig.Mode == "" || len(first.Status.Tokens) != 1 {
		t.Errorf("the record is %+v", first.Status)
	}
	if n := len(recorder.Events); n > 0 {
		t.Errorf("%d events about a Tunnel that is only new, the first: %s", n, <-recorder.Events)
	}
}
