package test

import (
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/cli/management"
	"github.com/fairlead/fairlead/pkg/diagnose/check"
)

// TestTheTimeLimitIncludesTheWatches: the hops are checked twice, and each check has a watch.
func TestTheTimeLimitIncludesTheWatches(t *testing.T) {
	f := connectivityFlags{timeout: time.Minute, idle: 2 * time.Minute, watchFor: 4 * time.Minute}
	if got := f.limit(); got != 11*time.Minute {
		t.Errorf("got %s", got)
	}
}

func TestAClusterWithoutAResultIsUntested(t *testing.T) {
	for name, tc := range map[string]struct {
		tests []check.Status
		want  bool
	}{
		"no test":                 {nil, true},
		"a kubeconfig not usable": {[]check.Status{check.Unknown}, true},
		"one way works":           {[]check.Status{check.Unknown, check.OK}, false},
		"one way does not":        {[]check.Status{check.Broken}, false},
	} {
		r := &clusterReport{}
		for _, status := range tc.tests {
			r.Tests = append(r.Tests, check.Result{Status: status})
		}
		if got := r.untested(); got != tc.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

// TestABundleHasTheNamespaceOfTheTest: without a namespace it would have the objects of all tenants.
func TestABundleHasTheNamespaceOfTheTest(t *testing.T) {
	for everywhere, want := range map[bool]string{false: "prod", true: ""} {
		f := &clusterFlags{everywhere: everywhere}
		if _, err := f.clusters(t.Context(), &management.Client{Namespace: "prod"}, []string{"c1"}); err != nil {
			t.Fatal(err)
		}
		if f.Namespace != want {
			t.Errorf("everywhere=%t: the namespace is %q, want %q", everywhere, f.Namespace, want)
		}
	}
}
