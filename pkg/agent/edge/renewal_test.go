package edge

import (
	"fmt"
	"testing"
	"time"
)

// TestUnusedTunnelsWaitForAPartOfALeaf: the shortest-lived leaf decides, and a wait that is short enough stays.
func TestUnusedTunnelsWaitForAPartOfALeaf(t *testing.T) {
	r := &Renewal{}
	if form := r.Form("tunnel_edge-a_gateway-0"); form != "" {
		t.Errorf("without a leaf the form is %q", form)
	}
	for i, step := range []struct {
		life, want time.Duration
		changed    bool
	}{
		{20 * time.Hour, 4 * time.Hour, true},
		{20 * time.Hour, 4 * time.Hour, false},
		{17 * time.Hour, 4 * time.Hour, false}, // its CA ends
		{40 * time.Hour, 4 * time.Hour, false},
		{15 * time.Hour, 3 * time.Hour, true},
		{10 * time.Second, 2 * time.Second, true},
		{2 * time.Second, leastWait, true},
		{time.Second, leastWait, false},
	} {
		if changed := r.Follow(step.life); changed != step.changed || time.Duration(r.wait.Load()) != step.want {
			t.Errorf("step %d: the wait is %s, changed %t, want %s", i, time.Duration(r.wait.Load()), changed, step.want)
		}
	}
}

// TestWaitsDiffer: listeners have different waits, always the same, and only those of reverse tunnels have one.
func TestWaitsDiffer(t *testing.T) {
	r := &Renewal{}
	r.Follow(20 * time.Hour)
	forms := map[string]bool{}
	const listeners = 100
	for i := range listeners {
		name := fmt.Sprintf("tunnel_edge-%d_lane-1_gateway-0", i)
		form := r.Form(name)
		wait, err := time.ParseDuration(form)
		if err != nil || wait < 3*time.Hour || wait > 4*time.Hour || form != r.Form(name) {
			t.Errorf("%s has %q", name, form)
		}
		forms[form] = true
	}
	if len(forms) < listeners*9/10 {
		t.Errorf("%d listeners have %d different waits", listeners, len(forms))
	}
	for _, name := range []string{"gateway-0_edge-a", "egress_edge-a", "local_edge-a_10.0.0.1:6443", "apiserver_edge-a"} {
		if form := r.Form(name); form != "" {
			t.Errorf("%s has %q", name, form)
		}
	}
}
