package test

import (
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/cli/management"
	"github.com/fairlead/fairlead/pkg/diagnose/check"
	"github.com/fairlead/fairlead/pkg/diagnose/traffic"
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

// TestAClusterThatCouldNotBeTestedIsNoSuccess: its status is unknown, and JUnit has a failure with the reason. The
// result of one test is enough for another status.
func TestAClusterThatCouldNotBeTestedIsNoSuccess(t *testing.T) {
	hidden := check.Result{
		ID: check.HopAuthentication, Status: check.Unknown, Detail: "the kubeconfig cannot be read", Cure: "read it",
	}
	invalid := check.Result{ID: traffic.TestRequest, Status: check.Unknown, Detail: "no name", Cure: "name it"}
	tested := check.Result{ID: testSNI, Status: check.OK}
	broken := check.Result{ID: check.HopPort, Status: check.Broken, Detail: "closed"}
	for name, tc := range map[string]struct {
		status      check.Status
		hop         check.Result
		tests       []check.Result
		want        check.Status
		failures    int
		cause, cure string
	}{
		"no kubeconfig":                {check.OK, hidden, nil, check.Unknown, 1, hidden.Detail, hidden.Cure},
		"no kubeconfig, and a warning": {check.Warning, hidden, nil, check.Unknown, 1, hidden.Detail, hidden.Cure},
		"a kubeconfig that cannot be used": {
			check.OK, tested, []check.Result{invalid}, check.Unknown, 1, invalid.Detail, invalid.Cure,
		},
		"a test has a result": {check.Warning, tested, []check.Result{invalid, tested}, check.Warning, 0, "", ""},
		"a hop is broken":     {check.Broken, broken, nil, check.Broken, 1, "", ""},
	} {
		r := &clusterReport{Report: check.Report{Status: tc.status, Hops: []check.Result{tc.hop}}, Tests: tc.tests}
		r.conclude()
		var s suite
		s.add("prod/c1", r.results())
		if r.Status != tc.want || s.Failures != tc.failures {
			t.Errorf("%s: the status is %s, and JUnit has %d failures", name, r.Status, s.Failures)
			continue
		}
		if last := s.Cases[len(s.Cases)-1].Failure; tc.cause != "" && (last == nil ||
			!strings.Contains(last.Text, tc.cause) || !strings.Contains(last.Text, tc.cure)) {
			t.Errorf("%s: the failure is %+v", name, last)
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
