package ca

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/kubetest"
	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/controller/config"
	"github.com/fairlead/fairlead/pkg/controller/controllertest"
	"github.com/fairlead/fairlead/pkg/controller/reconciler"
	"github.com/fairlead/fairlead/pkg/controller/records"
	"github.com/fairlead/fairlead/pkg/model"
)

// newInstallation returns the facts of a controller that has just begun to lead.
func newInstallation(api client.Client, config config.Config, now func() time.Time) *Reconciler {
	ended := records.NewEndedTunnels(api, api, config.Namespace, now)
	return &Reconciler{
		Deps: reconciler.Deps{
			Config: config, Client: api, Live: api, Log: slog.New(slog.DiscardHandler), Now: now,
			Recorder: events.NewFakeRecorder(100),
		},
		ended: ended,
	}
}

// world is one installation in its own namespace with a fake clock.
type world struct {
	t      *testing.T
	m      client.WithWatch
	config config.Config
	clock  time.Time
	fail   *failOnce
	r      *Reconciler
}

// failOnce fails one write by its number: before it reaches the apiserver, or after it so that only the answer is lost.
type failOnce struct {
	number, count int
	after         bool
}

func (f *failOnce) write(do func() error) error {
	f.count++
	if f.count != f.number {
		return do()
	}
	if f.after {
		if err := do(); err != nil {
			return err
		}
	}
	return controllertest.ErrCrash
}

func newWorld(t *testing.T, m client.WithWatch) *world {
	t.Helper()
	config := controllertest.Config()
	config.Namespace = kubetest.NewNamespace(t, m)
	config.CAOverlap = 48 * time.Hour
	w := &world{t: t, m: m, config: config, clock: time.Now().Truncate(time.Second), fail: &failOnce{}}
	w.restart()
	return w
}

// restart simulates a crash: only the state in the apiserver remains.
func (w *world) restart() {
	api := interceptor.NewClient(w.m, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			return w.fail.write(func() error { return c.Create(ctx, o, opts...) })
		},
		Patch: func(
			ctx context.Context, c client.WithWatch, o client.Object, patch client.Patch, opts ...client.PatchOption,
		) error {
			return w.fail.write(func() error { return c.Patch(ctx, o, patch, opts...) })
		},
	})
	w.r = newInstallation(api, w.config, func() time.Time { return w.clock })
}

// reconcile performs what is due, also after a crash.
func (w *world) reconcile() {
	w.t.Helper()
	for {
		_, err := w.r.Reconcile(w.t.Context(), reconcile.Request{})
		if err == nil {
			return
		}
		if !errors.Is(err, controllertest.ErrCrash) {
			w.t.Fatal(err)
		}
		w.restart()
	}
}

func (w *world) published() *corev1.ConfigMap {
	w.t.Helper()
	return controllertest.Read(
		w.t, w.m,
		&corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: w.config.Namespace, Name: v1alpha1.InstallationConfigMapName},
		},
	)
}

func (w *world) rotation() (out v1alpha1.CARotation) {
	w.t.Helper()
	if err := json.Unmarshal([]byte(w.published().Data[v1alpha1.CARotationKey]), &out); err != nil {
		w.t.Fatal(err)
	}
	return out
}

func (w *world) state() caState {
	w.t.Helper()
	state, secret, err := readCAState(w.t.Context(), w.m, w.config.Namespace)
	if err != nil || secret == nil {
		w.t.Fatalf("no state: %v", err)
	}
	return state
}

func (w *world) secret(name string) *corev1.Secret {
	w.t.Helper()
	return controllertest.Read(
		w.t, w.m, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.config.Namespace, Name: name}},
	)
}

// checkOut checks that the published bundle contains every CA that signs.
func (w *world) checkOut() {
	w.t.Helper()
	state := w.state()
	published, gateway := w.published().Data[v1alpha1.TrustBundleKey], w.secret(
		v1alpha1.GatewaySecretName,
	).Data[v1alpha1.BootstrapCAKey]
	if published != string(state.bundle()) || published != string(gateway) {
		w.t.Fatalf("in %s the bundles are not those of the state", state.phase)
	}
	for _, role := range []model.Role{model.RoleEdge, model.RoleEgress, model.RoleGateway, model.RoleControl} {
		ca, err := Load(w.t.Context(), w.config, w.m, role, w.clock)
		if err != nil || !ca.CanSign() || !strings.Contains(published, string(ca.CertPEM())) {
			w.t.Fatalf("in %s who signs for %s is not in the bundle: %v", state.phase, role, err)
		}
	}
}

func (w *world) ask() {
	w.t.Helper()
	controllertest.Edit(w.t, w.m, w.published(), func(c *corev1.ConfigMap) {
		c.Annotations = map[string]string{v1alpha1.RotateCAAnnotation: w.clock.Format(time.RFC3339)}
	})
}

// rotate takes a requested rotation through its phases and returns the phases that occurred.
func (w *world) rotate() (phases []v1alpha1.CAPhase) {
	w.t.Helper()
	w.reconcile()
	first := w.state().signing
	w.ask()
	for range 100 {
		w.reconcile()
		w.checkOut()
		state := w.state()
		if len(phases) == 0 || phases[len(phases)-1] != state.phase {
			phases = append(phases, state.phase)
		}
		if state.phase == v1alpha1.CAPhaseSteady && !state.signing.Equal(first.CA) {
			return phases
		}
		w.clock = w.clock.Add(12 * time.Hour)
	}
	w.t.Fatalf("the rotation has no end: %v", phases)
	return nil
}

// bring writes a CA of a user into the source.
func (w *world) bring(cert, key []byte) {
	w.t.Helper()
	controllertest.Edit(w.t, w.m, w.secret(v1alpha1.CASecretName), func(s *corev1.Secret) {
		s.Annotations, s.Data = nil, map[string][]byte{corev1.TLSCertKey: cert, corev1.TLSPrivateKeyKey: key}
	})
}

func (w *world) bringNew(name string) *certs.CA {
	w.t.Helper()
	ca := newIssuer(w.t, name, w.clock, config.DefaultCALifetime).CA
	key, err := ca.KeyPEM()
	if err != nil {
		w.t.Fatal(err)
	}
	w.bring(ca.CertPEM(), key)
	return ca
}
