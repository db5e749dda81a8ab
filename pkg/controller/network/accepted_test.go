package network

import (
	"testing"

	"github.com/fairlead/fairlead/api/v1alpha1"
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
