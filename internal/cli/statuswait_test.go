package cli

import (
	"strings"
	"testing"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/kubetest"
)

// TestStatusWaits checks that --wait returns when the condition is met, and that it names what is missing at the
// timeout.
func TestStatusWaits(t *testing.T) {
	p := newPerson(t)
	up := v1alpha1.EdgeGatewayStatus{Name: "gateway-0", Tunnels: 2}
	key := serve(t, p, edgeStatus("a", up))
	waitCondition(t, p, key, v1alpha1.ConditionEnrolled, v1alpha1.ReasonEnrolled)
	waitCondition(t, p, key, v1alpha1.ConditionAPIServerReachable, v1alpha1.ReasonUnknown)
	wait := func(args ...string) (code int, stdout, stderr string) {
		t.Helper()
		var out, errs strings.Builder
		code = run(t.Context(), append([]string{
			"status", "--kubeconfig=" + p.kubeconfig, "--context=good", "--live=false", "-n", key.Namespace,
		}, args...), &out, &errs)
		return code, out.String(), errs.String()
	}
	if code, stdout, stderr := wait("--wait=enrolled", "c1"); code != 0 || !strings.Contains(stdout, "State:") {
		t.Errorf("exit code %d, %q, printed\n%s", code, stderr, stdout)
	}
	code, stdout, stderr := wait("--wait", "--timeout=1s")
	want := "the condition Ready is not met after 1s; missing:\n  " + key.String() + ": Ready is "
	if code != 1 || !strings.Contains(stderr, want) || !strings.Contains(stdout, "HOSTNAME") {
		t.Errorf("at the timeout: exit code %d, %q, printed\n%s", code, stderr, stdout)
	}
	if code, _, stderr := wait("--wait", "--timeout=1s", "c1", "absent"); code != 1 ||
		!strings.Contains(stderr, key.Namespace+"/absent: no Cluster with a Tunnel or with the label") {
		t.Errorf("of an absent Cluster: exit code %d, %q", code, stderr)
	}
	key.Namespace = kubetest.NewNamespace(t, p)
	if code, _, stderr := wait("--wait", "--timeout=1s"); code != 1 ||
		!strings.Contains(stderr, "no Cluster has a tunnel") {
		t.Errorf("of an empty namespace: exit code %d, %q", code, stderr)
	}
	for _, args := range [][]string{{"--wait=Perfect"}, {"--wait", "--timeout=0s"}, {"--wait", "-w"}, {"c1", "c2"}} {
		if code, _, stderr := wait(args...); code != 2 || stderr == "" {
			t.Errorf("%v: exit code %d, %q", args, code, stderr)
		}
	}
}
