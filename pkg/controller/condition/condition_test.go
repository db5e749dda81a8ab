package condition

import (
	"strings"
	"testing"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead/fairlead/api/v1alpha1"
)

func TestWhichFirstValuesGetAnEvent(t *testing.T) {
	tests := map[string]struct {
		c    metav1.Condition
		want bool
	}{
		"accepted": {metav1.Condition{Type: v1alpha1.ConditionAccepted, Status: "True"}, false},
		"not accepted": {
			metav1.Condition{Type: v1alpha1.ConditionAccepted, Status: "False", Reason: v1alpha1.ReasonInvalidExtraName}, true,
		},
		"a mode": {metav1.Condition{Type: v1alpha1.ConditionKubeconfigMode, Status: "True"}, false},
		"no kubeconfig yet": {
			metav1.Condition{
				Type: v1alpha1.ConditionKubeconfigReady, Status: "False", Reason: v1alpha1.ReasonWaitingForSecret,
			}, false,
		},
		"a broken kubeconfig": {
			metav1.Condition{
				Type: v1alpha1.ConditionKubeconfigReady, Status: "False", Reason: v1alpha1.ReasonInvalidKubeconfig,
			}, true,
		},
		"a kubeconfig": {metav1.Condition{Type: v1alpha1.ConditionKubeconfigReady, Status: "True"}, true},
		"no edge":      {metav1.Condition{Type: v1alpha1.ConditionTunnelReady, Status: "False"}, false},
		"an edge":      {metav1.Condition{Type: v1alpha1.ConditionTunnelReady, Status: "True"}, true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			status := &v1alpha1.TunnelStatus{}
			if got := len(Set(status, 1, tc.c)) == 1; got != tc.want {
				t.Errorf("an event: %t, want %t", got, tc.want)
			}
			changed := tc.c
			changed.Reason = "Another"
			if len(Set(status, 1, changed)) != 1 {
				t.Error("no event for the change after it")
			}
		})
	}
}

func TestAMessageStaysShort(t *testing.T) {
	long := Shorten(strings.Repeat("ä", 40000))
	if len(long) > MaxMessage || !utf8.ValidString(long) {
		t.Errorf("%d bytes, valid: %v", len(long), utf8.ValidString(long))
	}
}
