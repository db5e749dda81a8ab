package copies

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/controller/controllertest"
	"github.com/fairlead/fairlead/pkg/controller/objects"
	"github.com/fairlead/fairlead/pkg/controller/reconciler"
)

// TestARejectedCopyDoesNotDelayOthers: removals and reports continue too.
func TestARejectedCopyDoesNotDelayOthers(t *testing.T) {
	for name, tc := range map[string]struct {
		err    error
		says   string
		failed bool
	}{
		"by a quota":       {err: controllertest.Forbidden("refused"), says: "Forbidden"},
		"by the namespace": {err: apierrors.NewBadRequest("a policy's words, hunter2"), says: "BadRequest"},
		"by a failure of its own": {
			err: apierrors.NewInternalError(errors.New("hunter2")), says: "retrying", failed: true,
		},
		"because it has too much": {err: apierrors.NewTooManyRequests("hunter2", 1), says: "retrying", failed: true},
	} {
		t.Run(name, func(t *testing.T) {
			cluster, tunnel := controllertest.Served("c1", 1000)
			exec := &v1alpha1.ExecAudience{Command: "kubelogin"}
			tunnel.Spec.Kubeconfig.Copies = []v1alpha1.KubeconfigCopy{{Name: "refused", Exec: exec}, {Name: "fine", Exec: exec}}
			tunnel.Status.Hostname, tunnel.Status.Kubeconfig.Mode = "c1.prod.tunnels.example.com", v1alpha1.KubeconfigModeConnect
			old := controllertest.SecretNamed("prod", "old")
			old.Labels = map[string]string{v1alpha1.CopyLabel: tunnel.Spec.ID}
			old.Annotations = map[string]string{v1alpha1.RequestTunnelAnnotation: "prod/c1"}
			api := controllertest.FakeAPI(
				t, cluster, tunnel, old, controllertest.KubeconfigSecret(t, "prod", "c1", controllertest.OriginalServer),
			)
			refusing := interceptor.NewClient(api, interceptor.Funcs{
				Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
					if o.GetName() == "refused" {
						return tc.err
					}
					return c.Create(ctx, o, opts...)
				},
			})
			r := &Reconciler{
				Deps: reconciler.Deps{
					Config: controllertest.Config(), Client: refusing, Live: api, Recorder: events.NewFakeRecorder(10),
					Log: slog.New(slog.DiscardHandler), Now: time.Now,
				},
				labelled: api,
			}
			result, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(tunnel)})
			if (err != nil) != tc.failed ||
				(err == nil && (result.RequeueAfter < copyRetry || result.RequeueAfter > 2*copyRetry)) {
				t.Errorf("tried again after %s, %v", result.RequeueAfter, err)
			}
			if err := api.Get(t.Context(), client.ObjectKey{Namespace: "prod", Name: "fine"}, &corev1.Secret{}); err != nil {
				t.Errorf("the other copy: %v", err)
			}
			if err := api.Get(t.Context(), client.ObjectKeyFromObject(old), &corev1.Secret{}); !apierrors.IsNotFound(err) {
				t.Errorf("a copy that is not wanted any more stays: %v", err)
			}
			if err := api.Get(t.Context(), client.ObjectKeyFromObject(tunnel), tunnel); err != nil {
				t.Fatal(err)
			}
			c := apimeta.FindStatusCondition(tunnel.Status.Conditions, v1alpha1.ConditionCopiesReady)
			if c == nil || apimeta.IsStatusConditionTrue(tunnel.Status.Conditions, c.Type) ||
				!strings.Contains(c.Message, tc.says) || strings.Contains(c.Message, "hunter2") {
				t.Errorf("condition %+v", c)
			}
			if all := tunnel.Status.Kubeconfig.Copies; len(all) != 2 || all[0].Error == "" || all[1].Error != "" {
				t.Errorf("status %+v", all)
			}
		})
	}
}

// TestARejectedCopyReportsTheCertificateThatItHas, and not the new one, which is discarded.
func TestARejectedCopyReportsTheCertificateThatItHas(t *testing.T) {
	now := time.Now()
	ca, err := certs.NewCA("kubernetes", now, 30*24*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	key, err := ca.KeyPEM()
	if err != nil {
		t.Fatal(err)
	}
	signer := controllertest.SecretNamed("prod", "c1-ca")
	signer.Data = map[string][]byte{corev1.TLSCertKey: ca.CertPEM(), corev1.TLSPrivateKeyKey: key}
	cluster, tunnel := controllertest.Served("c1", 1000)
	user := &v1alpha1.ClientCertificateAudience{CommonName: "alice", ExpirationSeconds: 36000}
	tunnel.Spec.Kubeconfig.Copies = []v1alpha1.KubeconfigCopy{{Name: "old", ClientCertificate: user}}
	tunnel.Status.Hostname, tunnel.Status.Kubeconfig.Mode = controllertest.Hostname, v1alpha1.KubeconfigModeConnect
	api := controllertest.FakeAPI(
		t, cluster, tunnel, signer, controllertest.KubeconfigSecret(t, "prod", "c1", controllertest.OriginalServer),
	)
	var denial error
	denying := interceptor.NewClient(api, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			if denial != nil {
				return denial
			}
			return c.Create(ctx, o, opts...)
		},
		Patch: func(
			ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption,
		) error {
			if denial != nil {
				return denial
			}
			return c.Patch(ctx, o, p, opts...)
		},
	})
	r := &Reconciler{
		Deps: reconciler.Deps{
			Config: controllertest.Config(), Client: denying, Live: api, Recorder: events.NewFakeRecorder(10),
			Log: slog.New(slog.DiscardHandler), Now: func() time.Time { return now },
		}, labelled: api,
	}
	status := func() []v1alpha1.KubeconfigCopyStatus {
		t.Helper()
		result, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(tunnel)})
		if objects.Denied(denial) && (err != nil || result.RequeueAfter > 2*copyRetry) {
			t.Errorf("tried again after %s, %v", result.RequeueAfter, err)
		}
		return controllertest.Read(t, api, tunnel).Status.Kubeconfig.Copies
	}
	first := status()
	if len(first) != 1 || first[0].CertificateNotAfter == nil || first[0].Error != "" {
		t.Fatalf("status %+v", first)
	}
	now = now.Add(9 * time.Hour) // the certificate is due
	controllertest.Edit(t, api, controllertest.TunnelNamed(cluster), func(o *v1alpha1.Tunnel) {
		o.Spec.Kubeconfig.Copies = append(
			o.Spec.Kubeconfig.Copies, v1alpha1.KubeconfigCopy{Name: "new", ClientCertificate: user},
		)
	})
	for _, denial = range []error{controllertest.Forbidden("copy"), apierrors.NewInternalError(controllertest.ErrCrash)} {
		got := status()
		if len(got) != 2 || !got[0].CertificateNotAfter.Equal(first[0].CertificateNotAfter) ||
			got[1].CertificateNotAfter != nil || got[0].Error == "" || got[1].Error == "" {
			t.Errorf("after %v: status %+v, and before it %+v", denial, got, first)
		}
	}
}

// TestTheStatusOfACopyReportsWhyItDoesNotWork: in mode sni, clients verify a name that the certificate may lack.
func TestTheStatusOfACopyReportsWhyItDoesNotWork(t *testing.T) {
	const host = "c1.prod.tunnels.example.com"
	for name, tc := range map[string]struct {
		mode   v1alpha1.KubeconfigMode
		names  []string // in the certificate that the edge observes
		reason string
	}{
		"sni, and the certificate has the hostname": {
			v1alpha1.KubeconfigModeSNI, []string{"kubernetes", host}, v1alpha1.ReasonCopiesWritten,
		},
		"sni, and it has not": {
			v1alpha1.KubeconfigModeSNI, []string{"kubernetes"}, v1alpha1.ReasonCertificateLacksHostname,
		},
		"sni, and no edge has reported the certificate": {v1alpha1.KubeconfigModeSNI, nil, v1alpha1.ReasonCopiesWritten},
		"connect": {
			v1alpha1.KubeconfigModeConnect, []string{"kubernetes"}, v1alpha1.ReasonCopiesWritten,
		},
		"connect, and it has a name of its own": {
			v1alpha1.KubeconfigModeConnect, []string{"api.example.org"}, v1alpha1.ReasonCertificateLacksHostname,
		},
	} {
		t.Run(name, func(t *testing.T) {
			cluster, tunnel := controllertest.Served("c1", 1000)
			tunnel.Spec.Kubeconfig.Copies = []v1alpha1.KubeconfigCopy{{
				Name: "copy", Mode: tc.mode, Exec: &v1alpha1.ExecAudience{Command: "kubelogin"},
			}}
			tunnel.Status.Hostname, tunnel.Status.Kubeconfig.Mode = host, v1alpha1.KubeconfigModeConnect
			tunnel.Status.Edges = []v1alpha1.EdgeStatus{{
				NodeID: "CN=e1", Gateways: []v1alpha1.EdgeGatewayStatus{{Name: "gateway-0"}},
				APIServer: &v1alpha1.EdgeAPIServerStatus{CertificateNames: tc.names},
			}}
			api := controllertest.FakeAPI(
				t, cluster, tunnel, controllertest.KubeconfigSecret(t, "prod", "c1", controllertest.OriginalServer),
			)
			r := &Reconciler{
				Deps: reconciler.Deps{
					Config: controllertest.Config(), Client: api, Live: api, Recorder: events.NewFakeRecorder(10),
					Log: slog.New(slog.DiscardHandler), Now: time.Now,
				}, labelled: api,
			}
			if _, err := r.Reconcile(
				t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(tunnel)},
			); err != nil {
				t.Fatal(err)
			}
			if err := api.Get(t.Context(), client.ObjectKey{Namespace: "prod", Name: "copy"}, &corev1.Secret{}); err != nil {
				t.Errorf("the copy: %v", err)
			}
			if err := api.Get(t.Context(), client.ObjectKeyFromObject(tunnel), tunnel); err != nil {
				t.Fatal(err)
			}
			c := apimeta.FindStatusCondition(tunnel.Status.Conditions, v1alpha1.ConditionCopiesReady)
			if c == nil || c.Reason != tc.reason {
				t.Errorf("condition %+v, want %s", c, tc.reason)
			}
		})
	}
}
