package move

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/cli/kubeconfig"
	"github.com/fairlead/fairlead/pkg/observed"
)

// maxHostname is how much of a Pod's name the kubelet uses as its host name.
const maxHostname = 63

// workload returns a config for the workload cluster: that of --workload-kubeconfig, or else that of the Secret which
// Cluster API's controllers use.
func (m *move) workload(ctx context.Context) (*rest.Config, error) {
	if path := m.flags.workload; path != "" {
		config, err := clientcmd.BuildConfigFromFlags("", path)
		if err != nil {
			return nil, fmt.Errorf("--workload-kubeconfig: %w", err)
		}
		return config, nil
	}
	var secret corev1.Secret
	key := client.ObjectKey{Namespace: m.cluster.Namespace, Name: m.cluster.Name + "-kubeconfig"}
	if err := m.from.Get(ctx, key, &secret); err != nil {
		return nil, fmt.Errorf("reading kubeconfig Secret of the Cluster: %w", err)
	}
	config, err := inlineConfig(secret.Data["value"])
	if err != nil {
		return nil, fmt.Errorf("reading kubeconfig Secret %s: %w", key.Name, err)
	}
	config.Timeout = 0 // exec has no time limit
	return config, nil
}

// inlineConfig returns a config of a kubeconfig of unknown origin. The writer of a Secret must not run programs on this
// machine, or have its files read and sent to a server. So the kubeconfig may contain only data.
func inlineConfig(data []byte) (*rest.Config, error) {
	errNone := errors.New("its key value is not a kubeconfig")
	file, err := clientcmd.Load(data)
	if err != nil {
		return nil, errNone
	}
	for _, name := range slices.Sorted(maps.Keys(file.AuthInfos)) {
		if field := kubeconfig.OutsideOfUser(file.AuthInfos[name]); field != "" {
			return nil, fmt.Errorf(
				"its user %q has %s, which is of no use to a program that runs elsewhere, and not trusted: give a kubeconfig of "+
					"yours by --workload-kubeconfig",
				name,
				field,
			)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(file.Clusters)) {
		if file.Clusters[name].CertificateAuthority != "" {
			return nil, fmt.Errorf(
				"its cluster %q has certificate-authority, a file of some machine, and not trusted: give a kubeconfig of yours "+
					"by --workload-kubeconfig",
				name,
			)
		}
	}
	config, err := clientcmd.RESTConfigFromKubeConfig(data)
	if err != nil {
		return nil, errNone
	}
	return config, nil
}

// podsOf returns the running Pods that are edges of this Tunnel.
func (m *move) podsOf(ctx context.Context, set kubernetes.Interface) ([]corev1.Pod, error) {
	others, err := m.find(ctx, set, edgePods)
	if err != nil {
		return nil, err
	}
	own, err := m.daemonSetPods(ctx, set)
	if err != nil {
		return nil, err
	}
	connected, missing, err := m.edges(ctx)
	if err != nil {
		return nil, err
	}
	return m.choose(own, others, connected, missing), nil
}

// daemonSetPods returns the Pods of the DaemonSet of this Tunnel's network; none for another Tunnel.
func (m *move) daemonSetPods(ctx context.Context, set kubernetes.Interface) ([]corev1.Pod, error) {
	network, ok := strings.CutSuffix(m.key.Name, v1alpha1.NetworkTunnelSuffix)
	if !ok || m.key == m.cluster {
		return nil, nil
	}
	pods, err := m.find(ctx, set, networkPods)
	return slices.DeleteFunc(pods, func(p corev1.Pod) bool { return p.Labels[networkLabel] != network }), err
}

// find returns the Pods with some labels in the namespaces of edges.
func (m *move) find(ctx context.Context, set kubernetes.Interface, labels string) (pods []corev1.Pod, err error) {
	for _, namespace := range m.flags.edges {
		found, err := set.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: labels})
		if err != nil {
			return nil, fmt.Errorf("listing Pods of the workload cluster: %w", err)
		}
		pods = append(pods, found.Items...)
	}
	return pods, nil
}

// choose returns the running Pods whose edges are missing at the target. own are those of the network's DaemonSet, of
// which the network is known. The label of the others is no proof: where control planes are hosted, edges of other
// Clusters run beside them, and on a machine of a network a static Pod of the Cluster. These must not get the token, so
// each of them needs an edge on its host that is not one of the DaemonSet, also while a Pod of that starts or ends.
func (m *move) choose(own, others []corev1.Pod, connected, missing []observed.Edge) []corev1.Pod {
	alive, beside := running(own), running(others)
	return append(
		m.matching(alive, alive, connected, missing),
		m.matching(beside, append(slices.Clone(own), beside...), connected, missing)...,
	)
}

func running(pods []corev1.Pod) []corev1.Pod {
	return slices.DeleteFunc(slices.Clone(pods), func(p corev1.Pod) bool {
		return p.Status.Phase != corev1.PodRunning || !p.DeletionTimestamp.IsZero()
	})
}

// matching returns the Pods on whose hosts edges are missing, unless more Pods of all than edges have the host name.
func (m *move) matching(pods, all []corev1.Pod, connected, missing []observed.Edge) []corev1.Pod {
	return slices.DeleteFunc(slices.Clone(pods), func(p corev1.Pod) bool {
		host := hostOf(&p)
		switch same := onHost(connected, host); {
		case onHost(missing, host) == 0:
			if same == 0 {
				m.report(
					"Pod %s/%s: left alone, no edge of the Cluster that is connected has the host name %s", p.Namespace, p.Name, host,
				)
			}
			return true
		case podsOn(all, host) > same:
			m.report(
				"Pod %s/%s: left alone, more Pods than edges of the Cluster have the host name %s", p.Namespace, p.Name, host,
			)
			return true
		}
		return false
	})
}

// hostOf returns the host name that the edge in a Pod reports.
func hostOf(pod *corev1.Pod) string {
	switch {
	case pod.Spec.HostNetwork:
		return pod.Spec.NodeName
	case pod.Spec.Hostname != "":
		return pod.Spec.Hostname
	case len(pod.Name) > maxHostname:
		return strings.TrimRight(pod.Name[:maxHostname], "-.")
	}
	return pod.Name
}

func onHost(edges []observed.Edge, host string) (n int) {
	for i := range edges {
		if host != "" && strings.EqualFold(edges[i].Host, host) {
			n++
		}
	}
	return n
}

func podsOn(pods []corev1.Pod, host string) (n int) {
	for i := range pods {
		if strings.EqualFold(hostOf(&pods[i]), host) {
			n++
		}
	}
	return n
}
