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

// podsOf returns the running Pods that are edges of this Cluster. A label is no proof: where control planes are hosted,
// edges of other Clusters run beside them, and must not get the token.
func (m *move) podsOf(ctx context.Context, set kubernetes.Interface) ([]corev1.Pod, error) {
	var pods []corev1.Pod
	for _, namespace := range m.flags.edges {
		found, err := set.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: edgePods})
		if err != nil {
			return nil, fmt.Errorf("listing Pods of the workload cluster: %w", err)
		}
		pods = append(pods, slices.DeleteFunc(found.Items, func(p corev1.Pod) bool {
			return p.Status.Phase != corev1.PodRunning || !p.DeletionTimestamp.IsZero()
		})...)
	}
	connected, missing, err := m.edges(ctx)
	if err != nil {
		return nil, err
	}
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
		case podsOn(pods, host) > same:
			m.report(
				"Pod %s/%s: left alone, more Pods than edges of the Cluster have the host name %s", p.Namespace, p.Name, host,
			)
			return true
		}
		return false
	}), nil
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
