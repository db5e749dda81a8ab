package network

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/decision"
	"github.com/fairlead/fairlead/pkg/model"
)

// TestTheReasonIsOfThePartThatNeedsADecision: values and names of users have no influence on it.
func TestTheReasonIsOfThePartThatNeedsADecision(t *testing.T) {
	for _, tc := range []struct {
		kinds []model.FieldErrorKind
		want  string
	}{
		{[]model.FieldErrorKind{model.Invalid}, v1alpha1.ReasonInvalidNetwork},
		{[]model.FieldErrorKind{model.Invalid, model.NeverDial}, v1alpha1.ReasonNeverDialled},
		{[]model.FieldErrorKind{model.NeverDial, model.Overlap}, v1alpha1.ReasonNetworkOverlap},
		{[]model.FieldErrorKind{model.Overlap, model.HasGateway}, v1alpha1.ReasonNetworkHasGateway},
		{[]model.FieldErrorKind{model.HasGateway, model.Taken, model.Invalid}, v1alpha1.ReasonAmbiguousNetwork},
	} {
		var refused []*model.FieldError
		for _, kind := range tc.kinds {
			refused = append(refused, &model.FieldError{Field: "spec.dnsSuffixes[0]", Value: "gateway.never dial", Kind: kind})
		}
		if got := refusedReason(refused); got != tc.want {
			t.Errorf("kinds %v: the reason is %s, want %s", tc.kinds, got, tc.want)
		}
	}
}

// TestTheReasonOfANetworkThatIsNotServed is that of its fatal problem.
func TestTheReasonOfANetworkThatIsNotServed(t *testing.T) {
	for kind, want := range map[model.FieldErrorKind]string{
		model.Invalid: v1alpha1.ReasonInvalidName, model.Taken: v1alpha1.ReasonNameTaken,
		model.TooMany: v1alpha1.ReasonTooManyNetworks,
	} {
		c := accepted(decision.Resolution{Fatal: &model.FieldError{Field: "spec.id", Problem: "x", Kind: kind}}, "")
		if c.Reason != want || c.Status != metav1.ConditionFalse || v1alpha1.ServedInPart(c.Reason) {
			t.Errorf("kind %d: %+v, want %s", kind, c, want)
		}
	}
}
