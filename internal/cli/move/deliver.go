package move

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/streaming/pkg/httpstream"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/cli/join"
)

const (
	// edgePods selects the Pods of all our manifests, except those of DaemonSets of networks, which networkPods selects.
	// The label networkLabel of these has the name of the network.
	edgePods     = "app.kubernetes.io/name=fairlead-edge"
	networkPods  = "app.kubernetes.io/name=fairlead-network"
	networkLabel = "app.kubernetes.io/instance"
	// joinTime bounds one join. It is longer than the time after which the edge itself gives up.
	joinTime = 75 * time.Second
	// maxSaid bounds how much of an edge's output is printed.
	maxOutput = 1000
	// defaultStateDir is the default state folder of edge-agent.
	defaultStateDir = "/var/lib/fairlead/edge"
)

// deliver passes the target's bootstrap file to every edge that it can reach, and prints what to run for the others.
func (m *move) deliver(ctx context.Context, secret *corev1.Secret) error {
	if err := m.deliverToPods(ctx); err != nil {
		m.report("edges cannot be reached through the kubeconfig of the Cluster: %v", err)
	}
	missing, err := m.missing(ctx)
	if err != nil || len(missing) == 0 {
		return err
	}
	m.report("at each of these edges of %s run the command below, as root: %s", m.key.Name, names(missing))
	m.report("edge-agent join <<'EOF'\n%sEOF", secret.Data[v1alpha1.BootstrapFileKey])
	return nil
}

// deliverToPods passes it to the edges that run in Pods of the workload cluster and are missing in the target.
func (m *move) deliverToPods(ctx context.Context) error {
	config, err := m.workload(ctx)
	if err != nil {
		return err
	}
	set, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("creating client of the workload cluster: %w", err)
	}
	pods, err := m.podsOf(ctx, set)
	if err != nil {
		return err
	}
	for i := range pods {
		pod := &pods[i]
		// Read again for each edge: the controller replaces a token when half of its uses are used up.
		secret, err := join.WaitBootstrap(ctx, m.to, m.target)
		if err != nil {
			return fmt.Errorf("in the target: %w", err)
		}
		said, err := runJoin(ctx, config, set, pod, secret.Data[v1alpha1.BootstrapFileKey])
		if err != nil {
			m.report("Pod %s/%s: %v", pod.Namespace, pod.Name, err)
			continue
		}
		m.report("Pod %s/%s: %s", pod.Namespace, pod.Name, said)
	}
	return nil
}

// runJoin runs edge-agent join in a Pod, and returns its output.
func runJoin(
	ctx context.Context, config *rest.Config, set kubernetes.Interface, pod *corev1.Pod, file []byte,
) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, joinTime)
	defer cancel()
	container := agentContainer(pod)
	request := set.CoreV1().
		RESTClient().
		Post().
		Resource("pods").
		Namespace(pod.Namespace).
		Name(pod.Name).
		SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{
			Container: container.Name, Stdin: true, Stdout: true, Stderr: true,
			Command: []string{program(container), "join", "--state-dir=" + stateDirOf(container)},
		}, scheme.ParameterCodec)
	socket, err := remotecommand.NewWebSocketExecutor(config, "GET", request.URL().String())
	if err != nil {
		return "", fmt.Errorf("preparing exec: %w", err)
	}
	spdy, err := remotecommand.NewSPDYExecutor(config, "POST", request.URL())
	if err != nil {
		return "", fmt.Errorf("preparing exec: %w", err)
	}
	executor, err := remotecommand.NewFallbackExecutor(socket, spdy, func(err error) bool {
		return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
	})
	if err != nil {
		return "", fmt.Errorf("preparing exec: %w", err)
	}
	var stdout, stderr bounded
	err = executor.StreamWithContext(
		ctx, remotecommand.StreamOptions{Stdin: bytes.NewReader(file), Stdout: &stdout, Stderr: &stderr},
	)
	if err != nil {
		return "", fmt.Errorf("running edge-agent join: %w: %s", err, cmp.Or(stderr.String(), "it printed nothing"))
	}
	return cmp.Or(stdout.String(), "done"), nil
}

// bounded keeps the beginning of what is written to it, as one line.
type bounded struct{ text bytes.Buffer }

// Write implements io.Writer. It accepts everything, and discards what exceeds the bound.
func (b *bounded) Write(p []byte) (int, error) {
	b.text.Write(p[:min(len(p), maxOutput-b.text.Len())])
	return len(p), nil
}

// String returns the printable text. No control characters of a machine reach the user's terminal.
func (b *bounded) String() string {
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, b.text.String()))
}

// agentContainer returns the container that runs edge-agent run.
func agentContainer(pod *corev1.Pod) corev1.Container {
	for _, c := range pod.Spec.Containers {
		if slices.Contains(append(slices.Clone(c.Command), c.Args...), "run") {
			return c
		}
	}
	return pod.Spec.Containers[0]
}

// program returns the program of a container, which is edge-agent unless its command names another.
func program(c corev1.Container) string {
	if len(c.Command) > 0 {
		return c.Command[0]
	}
	return "edge-agent"
}

// stateDirOf returns the state folder with which the agent was started.
func stateDirOf(c corev1.Container) string {
	all := append(slices.Clone(c.Command), c.Args...)
	for i, arg := range all {
		if dir, ok := strings.CutPrefix(arg, "--state-dir="); ok {
			return dir
		}
		if arg == "--state-dir" && i+1 < len(all) {
			return all[i+1]
		}
	}
	return defaultStateDir
}
