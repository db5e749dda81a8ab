package ca

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/controller/config"
	"github.com/fairlead/fairlead/pkg/controller/controllertest"
	"github.com/fairlead/fairlead/pkg/model"
)

func TestARotationGoesThroughAllPhases(t *testing.T) {
	w := newWorld(t, controllertest.APIServer(t))
	phases := w.rotate()
	want := []v1alpha1.CAPhase{
		v1alpha1.CAPhaseIntroduce, v1alpha1.CAPhaseMove, v1alpha1.CAPhaseRetire, v1alpha1.CAPhaseSteady,
	}
	if fmt.Sprint(phases) != fmt.Sprint(want) {
		t.Errorf("phases %v, want %v", phases, want)
	}
	if writes := w.fail.count; writes > 20 {
		t.Errorf("%d writes", writes)
	}
	source := w.secret(v1alpha1.CASecretName)
	if !bytes.Equal(source.Data[corev1.TLSCertKey], w.state().signing.CertPEM()) {
		t.Error("the source does not hold what signs")
	}
	before := w.fail.count
	w.reconcile()
	if w.fail.count != before {
		t.Error("something is written although nothing has changed")
	}
}

// TestARotationSurvivesACrashAtEachWrite fails each write of an installation and of a whole rotation once before the
// write, and once after it so that the answer is lost.
func TestARotationSurvivesACrashAtEachWrite(t *testing.T) {
	m := controllertest.APIServer(t)
	plain := newWorld(t, m)
	plain.rotate()
	writes := plain.fail.count
	for number := 1; number <= writes; number++ {
		for _, after := range []bool{false, true} {
			t.Run(fmt.Sprintf("write %d of %d, done: %v", number, writes, after), func(t *testing.T) {
				w := newWorld(t, m)
				w.fail.number, w.fail.after = number, after
				phases := w.rotate()
				if len(phases) != 4 || w.fail.count < number {
					t.Errorf("phases %v after %d writes", phases, w.fail.count)
				}
				if state := w.state(); len(state.all()) != 1 {
					t.Errorf("%d CAs are left", len(state.all()))
				}
			})
		}
	}
	t.Logf("crashes=%d writes=%d", 2*writes, writes)
}

func TestEachPhaseHasItsSigningCA(t *testing.T) {
	w := newWorld(t, controllertest.APIServer(t))
	w.reconcile()
	old := w.state().signing.Serial()
	w.ask()
	w.reconcile()
	next := w.state().next.Serial()
	check := func(phase v1alpha1.CAPhase, edge, control string) {
		t.Helper()
		if got := w.state().phase; got != phase {
			t.Fatalf("phase %s, want %s", got, phase)
		}
		for role, want := range map[model.Role]string{
			model.RoleEdge: edge, model.RoleGateway: edge, model.RoleController: edge, model.RoleControl: control,
		} {
			ca, err := Load(t.Context(), w.config, w.m, role, w.clock)
			if err != nil || ca.Serial() != want {
				t.Errorf("in %s another CA signs for %s: %v", phase, role, err)
			}
		}
		for _, info := range w.rotation().CAs {
			if info.Serial == edge && !strings.Contains(strings.Join(info.Signs, " "), "edge egress gateway") {
				t.Errorf("in %s the ConfigMap has %+v", phase, info)
			}
		}
	}
	check(v1alpha1.CAPhaseIntroduce, old, old)
	if _, asked := w.published().Annotations[v1alpha1.RotateCAAnnotation]; asked {
		t.Error("the request is still there")
	}
	w.clock = w.clock.Add(w.config.Timing().Introduce())
	w.reconcile()
	check(v1alpha1.CAPhaseMove, next, old)
	w.ask() // joins the running rotation
	w.clock = w.clock.Add(w.config.Timing().Move())
	w.reconcile()
	check(v1alpha1.CAPhaseRetire, next, next)
	if w.state().previous.CanSign() {
		t.Error("the key of the old CA is kept although it signs nothing")
	}
	w.clock = w.clock.Add(w.config.Timing().Retire())
	w.reconcile()
	check(v1alpha1.CAPhaseSteady, next, next)
}

func TestAnExpiringCADoesNotSign(t *testing.T) {
	at := time.Now()
	timing := config.Timing{Leaf: time.Hour, Life: config.DefaultCALifetime}
	state := caState{
		phase: v1alpha1.CAPhaseMove, signing: newIssuer(t, "new", at, config.DefaultCALifetime),
		previous: newIssuer(t, "old", at, 3*time.Hour),
	}
	if got := state.signer(model.RoleControl, timing, at); got != state.previous {
		t.Error("the new CA signs for the xds-servers before its time")
	}
	if got := state.signer(model.RoleControl, timing, at.Add(2*time.Hour)); got != state.signing {
		t.Error("a certificate of the xds-servers would end with the old CA")
	}
}

func TestACAIsRotatedBeforeItEnds(t *testing.T) {
	w := newWorld(t, controllertest.APIServer(t))
	w.config.LeafLifetime, w.config.CAOverlap, w.config.CALifetime = 4*time.Second, 0, time.Minute
	if err := w.config.Validate(); err != nil {
		t.Fatal(err)
	}
	w.restart()
	serials := map[string]bool{}
	for range 200 { // more than three lives
		w.reconcile()
		w.checkOut()
		state := w.state()
		serials[state.signing.Serial()] = true
		if left := state.signing.NotAfter().Sub(w.clock); left < w.config.LeafLifetime {
			t.Fatalf("in %s the CA that signs ends in %s", state.phase, left)
		}
		w.clock = w.clock.Add(time.Second)
	}
	if len(serials) < 4 {
		t.Errorf("%d CAs in 200 s", len(serials))
	}
}
