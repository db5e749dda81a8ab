package kubeconfigs

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/lab/netns"
	"github.com/fairlead/fairlead/test/lab/proc"
)

// TestClusterAPISwitchesToTheTunnelWithoutARestart proves how Cluster API starts to use the tunnel of a workload
// cluster that it reached directly before.
func TestClusterAPISwitchesToTheTunnelWithoutARestart(t *testing.T) {
	if testing.Short() {
		t.Skip("takes two minutes")
	}
	proof.Need(t)
	t.Parallel()
	l, err := lab.New(t.Context(), lab.Options{TunnelDomain: string(domain)})
	proof.Start(t, l, err)
	must(t, l.Network.ConnectDirectly(t.Context()))
	cluster, err := l.CreateCluster(
		t.Context(), lab.ClusterSpec{Name: "oslo", Namespace: namespace, APIServer: l.Connect, Labels: map[string]string{}},
	)
	must(t, err)
	must(t, cluster.SetProvisioned(t.Context()))
	m := &member{Cluster: cluster, lab: l, mode: v1alpha1.KubeconfigModeConnect}
	direct := l.Connect.Endpoint
	tunnel := netip.AddrPortFrom(netns.InsideAddress(0), netns.ConnectPort)

	that(t, "Cluster API reaches the workload cluster directly before it opts in", func(t *testing.T) {
		within(t, time.Minute, "", m.RemoteConnectionProbe)
		must(t, connectedTo(l.CAPI[0], direct, tunnel)(t.Context()))
	})
	must(t, m.optIn(t.Context()))
	bootstrap, err := m.Bootstrap(t.Context())
	must(t, err)
	_, err = l.StartEdge("edge-oslo", bootstrap)
	must(t, err)
	that(t, "the kubeconfig uses the tunnel at once after opting in", func(t *testing.T) {
		within(t, time.Minute, "opted_in_s", m.leadsThrough)
		within(t, time.Minute, "", m.tunnelHasStatus(v1alpha1.ConditionTunnelReady, metav1.ConditionTrue))
	})
	that(t, "Cluster API stays on a working previous endpoint, and the Tunnel reports it", func(t *testing.T) {
		within(t, time.Minute, "", m.notSwitched)
		must(t, connectedTo(l.CAPI[0], direct, tunnel)(t.Context()))
	})
	that(t, "Cluster API switches to the tunnel without a restart when the previous endpoint fails", func(t *testing.T) {
		pid := l.CAPI[0].PID()
		must(t, l.Network.CutDirect(t.Context()))
		within(t, 3*time.Minute, "switched_s", connectedTo(l.CAPI[0], tunnel, direct))
		within(t, time.Minute, "", m.RemoteConnectionProbe)
		if l.CAPI[0].PID() != pid {
			t.Error("the core manager was started again")
		}
	})
	that(t, "the Tunnel reports that the switch is complete", func(t *testing.T) {
		within(t, 3*time.Minute, "", m.tunnelHasStatus(v1alpha1.ConditionKubeconfigSwitched, metav1.ConditionTrue))
	})
}

// connectedTo returns nil if a process has a connection to one address and none to another.
func connectedTo(p *proc.Process, wanted, other netip.AddrPort) func(context.Context) error {
	return func(context.Context) error {
		remotes, err := p.Remotes()
		if err != nil {
			return err
		}
		if !slices.Contains(remotes, wanted) || slices.Contains(remotes, other) {
			return fmt.Errorf("%s is connected to %v: want %s and not %s", p.Name, remotes, wanted, other)
		}
		return nil
	}
}

// notSwitched returns nil once the Tunnel reports that managers may still use the previous server, and for how long.
func (m *member) notSwitched(ctx context.Context) error {
	tunnel, err := m.Tunnel(ctx)
	if err != nil {
		return err
	}
	for _, condition := range tunnel.Status.Conditions {
		if condition.Type == v1alpha1.ConditionKubeconfigSwitched {
			if condition.Status == metav1.ConditionTrue || condition.Message == "" {
				return fmt.Errorf(
					"condition %s is %s: %s: %q", condition.Type, condition.Status, condition.Reason, condition.Message,
				)
			}
			return nil
		}
	}
	return fmt.Errorf("there is no condition %s yet", v1alpha1.ConditionKubeconfigSwitched)
}
