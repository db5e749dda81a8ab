package traffic

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"

	"github.com/fairlead/fairlead/internal/portforward"
	"github.com/fairlead/fairlead/pkg/diagnose/check"
)

// Pod is a Pod of a workload cluster, with a port for a port-forward.
type Pod struct {
	Namespace, Name string
	Port            int // 0: none
}

// ParsePod parses namespace/pod, or namespace/pod:port if a port is required.
func ParsePod(text string, withPort bool) (p Pod, err error) {
	form := "NAMESPACE/POD"
	if withPort {
		form += ":PORT"
		rest, port, _ := strings.Cut(text, ":")
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil || n == 0 {
			return Pod{}, fmt.Errorf("%q is not %s", text, form)
		}
		text, p.Port = rest, int(n)
	}
	var ok bool
	if p.Namespace, p.Name, ok = strings.Cut(text, "/"); !ok || p.Namespace == "" || p.Name == "" ||
		strings.ContainsAny(p.Name, "/:") {
		return Pod{}, fmt.Errorf("%q is not %s", text, form)
	}
	return p, nil
}

// String returns namespace/name.
func (p Pod) String() string { return p.Namespace + "/" + p.Name }

// seePod is the cure for a stream that the apiserver cannot open to a Pod.
const seePod = "check that the Pod runs, and that the user of the kubeconfig may use it; the apiserver reaches Nodes " +
	"by a way of its own, which fairlead check tests for RemoteNetworks (hop nodes)"

// word is what the command in the Pod prints.
const word = "fairlead"

// TestExec runs `echo` in the first container of a Pod. The clients of client-go for streams dial by themselves, so the
// test does not use Dial.
func (t *Target) TestExec(ctx context.Context, p Pod) check.Result {
	title := "command in Pod " + p.String()
	return check.Measure(ctx, TestExec, title, 6*requestTime, func(ctx context.Context) check.Outcome {
		var out bytes.Buffer
		err := t.exec(ctx, p, &out)
		switch {
		case err == nil && strings.TrimSpace(out.String()) == word:
			return passed("a command ran, and its output arrived")
		case err == nil:
			err = fmt.Errorf("the output is %d bytes of something else", out.Len())
		case strings.Contains(err.Error(), "executable file not found"): // the stream has carried this error
			return passed("the stream opened; the image of the Pod has no echo")
		}
		return failed("a command in Pod "+p.String()+" fails", err, "the stream is not opened, or is cut", seePod)
	})
}

func (t *Target) exec(ctx context.Context, p Pod, out io.Writer) error {
	clients, err := kubernetes.NewForConfig(t.config)
	if err != nil {
		return fmt.Errorf("creating client of the workload cluster: %w", err)
	}
	request := clients.CoreV1().RESTClient().Post().Resource("pods").Namespace(p.Namespace).Name(p.Name)
	request = request.SubResource("exec").VersionedParams(
		&corev1.PodExecOptions{Command: []string{"echo", word}, Stdout: true}, scheme.ParameterCodec,
	)
	executor, err := remotecommand.NewWebSocketExecutor(t.config, http.MethodGet, request.URL().String())
	if err != nil {
		return err
	}
	return executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: out})
}

// TestPortForward opens a connection to a port of a Pod.
func (t *Target) TestPortForward(ctx context.Context, p Pod) check.Result {
	title := fmt.Sprintf("port %d of Pod %s", p.Port, p)
	return check.Measure(ctx, TestPortForward, title, 6*requestTime, func(ctx context.Context) check.Outcome {
		cause := "the stream is not opened, or nothing listens on the port"
		pod, err := portforward.One(rest.CopyConfig(t.config), p.Namespace, p.Name, p.Port)
		if err != nil {
			return failed("no client", err, cause, seePod)
		}
		conn, err := pod.Dial(ctx)
		if err != nil {
			return failed("a port-forward is not opened", err, cause, seePod)
		}
		defer func() { _ = conn.Close() }()
		if err := silent(ctx, conn); err != nil {
			return failed("a port-forward is closed", err, cause, seePod)
		}
		return passed("a port-forward opened")
	})
}

// silent waits for a moment, in which the kubelet reports that nothing listens on a port. A server that closes the
// connection by itself, or that speaks first, has answered.
func silent(ctx context.Context, conn io.ReadCloser) error {
	ctx, cancel := context.WithTimeout(ctx, requestTime/5)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	n, err := conn.Read(make([]byte, 1))
	if !stop() || n > 0 || errors.Is(err, io.EOF) {
		return nil
	}
	return err
}
