package kubeconfigs

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead/fairlead/pkg/capi/inject"
	"github.com/fairlead/fairlead/test/lab/infra"
)

const (
	// edgePod is the name of the edges' static Pods without the suffix of their machine.
	edgePod = "fairlead-edge-"
	// servingCertificate is the path of the apiserver's certificate on its machine.
	servingCertificate = "/etc/kubernetes/pki/apiserver.crt"
)

// upgradesInPlace proves that kubeadm's own upgrade of a machine does not affect its edge. Users do this; Cluster API
// does not.
func (m *member) upgradesInPlace(t *testing.T) {
	version, err := m.lab.Parts.MachineVersion(t.Context())
	must(t, err)
	next, err := m.lab.Parts.NextVersion(t.Context())
	must(t, err)
	machine := m.controlPlaneMachine(t)
	var before string
	within(t, time.Minute, "", func(ctx context.Context) (err error) {
		before, err = m.edgeOn(ctx, machine)
		return err
	})
	certificate, err := os.ReadFile(machine.File(servingCertificate))
	must(t, err)
	that(
		t,
		"kubeadm upgrade apply upgrades a machine in place and keeps the names in its serving certificate",
		func(t *testing.T) {
			begin := time.Now()
			m.kubeadmUpgrade(t, machine, next)
			measured("upgraded_in_place_s", time.Since(begin).Seconds())
			within(t, time.Minute, "", m.versionIs(next)) // over TLS for the tunnel hostname
			renewed, err := os.ReadFile(machine.File(servingCertificate))
			must(t, err)
			if bytes.Equal(renewed, certificate) {
				t.Error("kubeadm has not renewed the serving certificate")
			}
		},
	)
	that(t, "the edge of an upgraded machine keeps its files, its containers and its tunnel", func(t *testing.T) {
		within(t, time.Minute, "", func(ctx context.Context) error {
			after, err := m.edgeOn(ctx, machine)
			if err == nil && after != before {
				err = fmt.Errorf("the edge was\n%s\nand is\n%s", before, after)
			}
			return err
		})
	})
	that(t, "KCP finds etcd and apiserver healthy after an upgrade in place, and replaces no machine", func(t *testing.T) {
		within(t, time.Minute, "", m.hasMachines(1))
		within(t, time.Minute, "", m.upToDate(version, 1))
		within(t, time.Minute, "", m.RemoteConnectionProbe)
	})
}

// controlPlaneMachine returns the only machine of the control plane.
func (m *member) controlPlaneMachine(t *testing.T) *infra.Machine {
	t.Helper()
	machines, err := m.machines(t.Context())
	must(t, err)
	for _, running := range m.lab.Cloud.Machines(m.NamespacedName) {
		if len(machines) == 1 && running.Name == machines[0].Name {
			return running
		}
	}
	t.Fatalf("the control plane has the machines %v: want one, that runs", names(machines))
	return nil
}

// kubeadmUpgrade runs the newer kubeadm on a machine. kubeadm checks that a Job can run if there is a schedulable Node.
// Machines here run no Jobs, so all Nodes are cordoned meanwhile. There is also no container runtime to report its
// version or to pull images.
func (m *member) kubeadmUpgrade(t *testing.T, machine *infra.Machine, version string) {
	t.Helper()
	m.kubectlNodes(t, "cordon")
	ctx, cancel := context.WithTimeout(t.Context(), changed)
	defer cancel()
	cmd, err := machine.Command(ctx, "kubeadm-next", "upgrade", "apply", version, "--yes",
		"--ignore-preflight-errors=ContainerRuntimeVersion,ImagePull,SystemVerification")
	must(t, err)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("kubeadm upgrade apply: %v\n%s", err, out)
	}
	m.kubectlNodes(t, "uncordon")
}

// kubectlNodes runs a command of kubectl on all Nodes.
func (m *member) kubectlNodes(t *testing.T, verb string) {
	t.Helper()
	kubeconfig, err := m.Kubeconfig(t.Context())
	must(t, err)
	if out, err := m.lab.Kubectl(t.Context(), kubeconfig, verb, "--selector="+corev1.LabelHostname); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// edgeOn describes the edge on a machine: its files, its Pod and its enrolment. It returns an error if the edge is not
// ready.
func (m *member) edgeOn(ctx context.Context, machine *infra.Machine) (string, error) {
	var text strings.Builder
	for _, path := range []string{inject.ManifestPath, inject.BootstrapPath} {
		data, err := os.ReadFile(machine.File(path))
		if err != nil {
			return "", err
		}
		info, err := os.Stat(machine.File(path))
		if err != nil {
			return "", err
		}
		owner := info.Sys().(*syscall.Stat_t).Uid
		fmt.Fprintf(
			&text, "%s %d bytes, sum %x, mode %s, owner %d, changed %s\n", path, len(data), sha256.Sum256(data), info.Mode(),
			owner, info.ModTime(),
		)
	}
	clients, err := m.Clients(ctx)
	if err != nil {
		return "", err
	}
	pod, err := clients.CoreV1().Pods(metav1.NamespaceSystem).Get(ctx, edgePod+machine.Name, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	fmt.Fprintf(&text, "Pod %s\n", pod.UID)
	for _, c := range pod.Status.ContainerStatuses {
		if !c.Ready {
			return "", fmt.Errorf("container %s of the edge on %s is not ready", c.Name, machine.Name)
		}
		fmt.Fprintf(&text, "container %s: %s, %d restarts\n", c.Name, c.ContainerID, c.RestartCount)
	}
	tunnel, err := m.Tunnel(ctx)
	if err != nil {
		return "", err
	}
	for _, edge := range tunnel.Status.Edges {
		if edge.Host == machine.Name && len(edge.Gateways) > 0 {
			fmt.Fprintf(&text, "edge %s since %s, tunnels %v\n", edge.NodeID, edge.EnrolledAt, edge.Gateways)
		}
	}
	return text.String(), nil
}
