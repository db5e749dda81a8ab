package kubeconfigs

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/fairlead/fairlead/api/v1alpha1"
)

// created proves that Cluster API creates a workload cluster through the tunnel that the cluster's own first machine
// opens.
func (m *member) created(t *testing.T) {
	must(t, m.create(t.Context()))
	that(t, "CABPK creates no bootstrap data before the edges' bootstrap Secret exists", m.waitsForSecret)
	begin := time.Now()
	must(t, m.optIn(t.Context()))
	that(t, "KCP initialises the control plane through the reverse tunnel of its first machine", func(t *testing.T) {
		within(t, initialised, "", m.hasStatus("Initialized", metav1.ConditionTrue))
		measured("initialized_"+string(m.mode)+"_s", time.Since(begin).Seconds())
	})
	if t.Failed() {
		return
	}
	that(t, "KCP reports the control plane as available", func(t *testing.T) {
		within(t, initialised, "", m.hasStatus("Available", metav1.ConditionTrue))
		measured("available_"+string(m.mode)+"_s", time.Since(begin).Seconds())
	})
	that(
		t, "the connection probe of Cluster API's core manager succeeds",
		func(t *testing.T) { within(t, time.Minute, "", m.RemoteConnectionProbe) },
	)
	that(t, "KCP's calls to etcd pass through the reverse tunnel", func(t *testing.T) {
		within(t, time.Minute, "", m.hasStatus("EtcdClusterHealthy", metav1.ConditionTrue))
		within(t, time.Minute, "", m.hasMachines(1))
	})
	that(t, "mode auto selects mode "+string(m.mode)+" from the observed serving certificate", func(t *testing.T) {
		within(t, time.Minute, "decided_s", m.decided)
	})
	that(t, "Cluster API's kubeconfig uses only the tunnel in the selected mode", m.leadsThere)
	that(t, "the machine reports its boot", m.controlPlaneReports)
	that(t, "the management network can dial neither the machine nor the control-plane endpoint", m.outOfReach)
}

// waitsForSecret waits for the reason that CABPK reports.
func (m *member) waitsForSecret(t *testing.T) {
	within(t, time.Minute, "", func(ctx context.Context) error {
		machines, err := m.machines(ctx)
		if err != nil {
			return err
		}
		if len(machines) != 1 {
			return fmt.Errorf("%d machines, want one", len(machines))
		}
		config, err := m.Object(
			ctx, "bootstrap.cluster.x-k8s.io/v1beta2", "KubeadmConfig", machines[0].Spec.Bootstrap.ConfigRef.Name,
		)
		if err != nil {
			return err
		}
		err = hasCondition(config, "DataSecretAvailable", metav1.ConditionFalse)
		if text := fmt.Sprint(config.Object["status"]); err == nil &&
			!strings.Contains(text, m.Name+v1alpha1.BootstrapSecretSuffix) {
			err = fmt.Errorf("CABPK doesn't wait for the Secret: %s", text)
		}
		return err
	})
	if running := m.lab.Cloud.Machines(m.NamespacedName); len(running) > 0 {
		t.Errorf("%d machines run already", len(running))
	}
}

// optIn adds Fairlead's label to the Cluster.
func (m *member) optIn(ctx context.Context) error {
	return m.Patch(
		ctx,
		map[string]any{"metadata": map[string]any{"labels": map[string]any{v1alpha1.TunnelLabel: v1alpha1.TunnelEnabled}}},
	)
}

// decided returns nil once the Tunnel has this member's mode.
func (m *member) decided(ctx context.Context) error {
	tunnel, err := m.Tunnel(ctx)
	if err != nil {
		return err
	}
	if mode := tunnel.Status.Kubeconfig.Mode; mode != m.mode {
		return fmt.Errorf("mode is %q, not %q: %v", mode, m.mode, tunnel.Status.Conditions)
	}
	return isCondition(tunnel.Status.Conditions, v1alpha1.ConditionKubeconfigMode, metav1.ConditionTrue)
}

// entry returns the part of a kubeconfig that leads to the workload cluster.
func entry(kubeconfig []byte, name string) (*clientcmdapi.Cluster, error) {
	config, err := clientcmd.Load(kubeconfig)
	if err != nil {
		return nil, err
	}
	if config.Clusters[name] == nil {
		return nil, fmt.Errorf("the kubeconfig has no entry %q", name)
	}
	return config.Clusters[name], nil
}

// usesTunnel returns nil if a kubeconfig leads through the tunnel in this member's mode.
func (m *member) usesTunnel(kubeconfig []byte) error {
	e, err := entry(kubeconfig, m.Name)
	if err != nil {
		return err
	}
	if byProxy := e.ProxyURL != ""; byProxy != (m.mode == v1alpha1.KubeconfigModeConnect) || e.TLSServerName == "" {
		return fmt.Errorf("server %q, tls-server-name %q, proxy-url %q", e.Server, e.TLSServerName, e.ProxyURL)
	}
	return nil
}

func (m *member) leadsThere(t *testing.T) {
	within(t, time.Minute, "", m.leadsThrough)
	kubeconfig, err := m.Kubeconfig(t.Context())
	must(t, err)
	out, err := m.lab.Kubectl(t.Context(), kubeconfig, "get", "nodes", "--output=name")
	must(t, err)
	machines, err := m.machines(t.Context())
	must(t, err)
	for i := range machines {
		if want := "node/" + machines[i].Status.NodeRef.Name + "\n"; out != want {
			t.Errorf("kubectl lists %q, want %q", out, want)
		}
	}
}

func (m *member) outOfReach(t *testing.T) {
	cluster, err := m.Get(t.Context())
	must(t, err)
	endpoint := cluster.Spec.ControlPlaneEndpoint
	addresses := []string{net.JoinHostPort(endpoint.Host, strconv.Itoa(int(endpoint.Port)))}
	for _, machine := range m.lab.Cloud.Machines(m.NamespacedName) {
		addresses = append(addresses, net.JoinHostPort(machine.Address.String(), "6443"))
	}
	if len(addresses) < 2 {
		t.Fatal("no machine runs")
	}
	for _, address := range addresses {
		must(t, dial(t.Context(), m.lab.Network.Workload, address))
		if dial(t.Context(), m.lab.Network.Management, address) == nil {
			t.Errorf("the management network dials %s", address)
		}
	}
}
