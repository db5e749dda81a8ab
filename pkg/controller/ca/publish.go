package ca

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/controller/condition"
	"github.com/fairlead/fairlead/pkg/controller/config"
	"github.com/fairlead/fairlead/pkg/controller/objects"
	"github.com/fairlead/fairlead/pkg/enrol"
	"github.com/fairlead/fairlead/pkg/model"
)

// readState reads the state from the apiserver at each use, so that the keys are stored nowhere else. The Secret is nil
// if it does not exist.
func (r *Reconciler) readState(ctx context.Context) (caState, *corev1.Secret, error) {
	return readCAState(ctx, r.Live, r.Config.Namespace)
}

func readCAState(ctx context.Context, live client.Reader, namespace string) (caState, *corev1.Secret, error) {
	secret, err := objects.Get(
		ctx, live, client.ObjectKey{Namespace: namespace, Name: v1alpha1.CAStateSecretName}, &corev1.Secret{},
	)
	if err != nil || secret == nil {
		return caState{}, nil, objects.Wrap("reading state of the CA", err)
	}
	state, err := parseStateSecret(secret)
	return state, secret, err
}

// Load returns the CA that signs for a role now.
func Load(ctx context.Context, c config.Config, live client.Reader, role model.Role, now time.Time) (*Issuer, error) {
	state, secret, err := readCAState(ctx, live, c.Namespace)
	if err != nil {
		return nil, err
	}
	if secret == nil {
		return nil, errNoCA
	}
	return state.signer(role, c.Timing(), now), nil
}

func (r *Reconciler) writeState(ctx context.Context, have *corev1.Secret, state caState) error {
	state, err := state.crossSigned(r.Config.Timing(), r.Now())
	if err != nil {
		r.Log.Warn("previous CA cannot vouch for the CA in use: bootstrap files that have only the previous one must be "+
			"replaced", "serial", state.signing.Serial(), "error", err)
	}
	if state.phase == v1alpha1.CAPhaseRetire {
		// It never signs again, and a key that is not stored cannot be stolen.
		state.previous = &Issuer{CA: state.previous.WithoutKey(), made: state.previous.made}
	}
	data, err := state.data()
	if err != nil {
		return err
	}
	want := &corev1.Secret{ObjectMeta: r.meta(v1alpha1.CAStateSecretName)}
	if have != nil {
		want = have.DeepCopy()
	}
	want.Data = data
	changed, err := r.write(ctx, "state of the CA", want, have, have == nil)
	if changed {
		r.Log.Info(
			"CA in use", "phase", string(state.phase), "serial", state.signing.Serial(), "not_after", state.signing.NotAfter(),
		)
	}
	return err
}

// publish writes the public part of a state: first where new gateways read it, then where all others do.
func (r *Reconciler) publish(
	ctx context.Context, have *corev1.ConfigMap, state caState, problem string,
) (changed bool, err error) {
	bundle := state.bundle()
	token, changed, err := r.ensureGatewayToken(ctx, bundle)
	if changed || err != nil {
		return changed, err
	}
	rotation, err := json.Marshal(state.public(r.Config.Timing(), r.Now(), problem))
	if err != nil {
		return false, fmt.Errorf("writing rotation of the CA: %w", err)
	}
	want := &corev1.ConfigMap{ObjectMeta: r.meta(v1alpha1.InstallationConfigMapName)}
	if have != nil {
		want = have.DeepCopy()
	}
	want.Data = maps.Clone(want.Data)
	if want.Data == nil {
		want.Data = map[string]string{}
	}
	want.Data[v1alpha1.TrustBundleKey], want.Data[v1alpha1.GatewayTokenHashKey] = string(bundle), enrol.HashToken(token)
	want.Data[v1alpha1.CARotationKey] = string(rotation)
	// the requested rotation has begun, or is impossible
	delete(want.Annotations, v1alpha1.RotateCAAnnotation)
	return r.write(ctx, "ConfigMap of the installation", want, have, have == nil)
}

// public returns the part of a state that all components may read.
func (s caState) public(t config.Timing, now time.Time, problem string) v1alpha1.CARotation {
	end, all := s.deadlines(t)
	out := v1alpha1.CARotation{
		Phase: s.phase, Since: objects.TimeOrNil(s.since), Until: objects.TimeOrNil(end), Ends: objects.TimeOrNil(all),
		Problem: problem,
	}
	if s.phase == v1alpha1.CAPhaseSteady && s.signing.made {
		out.Next = objects.TimeOrNil(s.rotateAt(t))
	}
	for _, ca := range s.all() {
		info := v1alpha1.CAInfo{
			Subject: ca.Subject(), Serial: ca.Serial(), NotAfter: metav1.NewTime(ca.NotAfter()), Brought: !ca.made,
		}
		if cross := ca.cross; cross != nil && !t.NoCrossSign && now.Before(cross.NotAfter()) {
			info.CrossSignedBy, info.CrossSignedUntil = cross.by, objects.TimeOrNil(cross.NotAfter())
		}
		for _, role := range []model.Role{model.RoleEdge, model.RoleEgress, model.RoleGateway, model.RoleControl} {
			if s.signer(role, t, now).Equal(ca.CA) {
				info.Signs = append(info.Signs, string(role))
			}
		}
		out.CAs = append(out.CAs, info)
	}
	return out
}

// problemOf returns what a person must do about the CA; empty: nothing.
func problemOf(c config.Config, source caSource, state caState, facts caFacts) string {
	secret, newest := "Secret "+c.Namespace+"/"+v1alpha1.CASecretName, state.expected()
	waits := source.issuer != nil && !source.issuer.Equal(newest.CA)
	switch left := newest.NotAfter().Sub(facts.now); {
	case source.problem != "":
		return source.problem + "; until then the CA in use stays"
	case source.secret == nil && !newest.made:
		return secret + " is deleted; its CA stays in use, but is not rotated: restore it, or let its issuer do so"
	case facts.requested && state.phase == v1alpha1.CAPhaseSteady && !state.signing.made:
		return "a rotation was requested, but the CA was not made by the controller: put another one into " + secret +
			", or let its issuer renew it, and the rotation begins by itself"
	case !newest.made && !waits && left < c.Timing().Total():
		return fmt.Sprintf("the CA in %s expires at %s, and a rotation takes %s: put in another one, or let its issuer "+
			"renew it earlier",
			secret, newest.NotAfter().UTC().Format(time.RFC3339), c.Timing().Total())
	}
	return ""
}

// reportProblem logs a problem once and records an event on an object, which may be nil.
func (r *Reconciler) reportProblem(about client.Object, problem string) {
	if problem == r.problem {
		return
	}
	r.problem = problem
	if problem == "" {
		return
	}
	r.Log.Error("CA needs attention", "problem", problem)
	switch o := about.(type) {
	case *corev1.Secret:
		r.Recorder.Eventf(
			o, nil, corev1.EventTypeWarning, v1alpha1.EventCAProblem, "Reconcile", "%s", condition.Shorten(problem),
		)
	case *corev1.ConfigMap:
		if o != nil {
			r.Recorder.Eventf(
				o, nil, corev1.EventTypeWarning, v1alpha1.EventCAProblem, "Reconcile", "%s", condition.Shorten(problem),
			)
		}
	}
}
