package e2e

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/promise"
)

// traffic proves that the requests of clients work through the tunnel, in both modes.
func (w *world) traffic(t *testing.T) {
	must(t, w.StartKubelet(t.Context()))
	for _, m := range w.members() {
		promise.That(t, "kubectl get namespaces reaches the workload apiserver of "+m.Name, func(t *testing.T) {
			out, err := w.Kubectl(t.Context(), m.kubeconfig, "get", "namespaces")
			if err != nil || !strings.Contains(out, metav1.NamespaceSystem) {
				t.Errorf("%v: %s", err, out)
			}
			must(t, m.works(t.Context()))
		})
	}
	for _, m := range []*member{w.berlin, w.tokyo} {
		promise.That(t, "a watch of "+m.Name+" delivers an event at once", func(t *testing.T) { w.watch(t, m) })
		promise.That(t, "kubectl exec in "+m.Name+" echoes over WebSocket", func(t *testing.T) { w.exec(t, m, "true") })
		promise.That(t, "kubectl exec in "+m.Name+" echoes over SPDY", func(t *testing.T) { w.exec(t, m, "false") })
	}
}

// watchFor opens a watch on ConfigMaps through the tunnel. The returned function causes an event in the workload
// cluster itself and waits for it in the watch.
func watchFor(ctx context.Context, m *member) (func(context.Context) (time.Duration, error), error) {
	clients, err := m.Clients(ctx)
	if err != nil {
		return nil, err
	}
	events, err := clients.CoreV1().ConfigMaps(metav1.NamespaceDefault).Watch(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) (time.Duration, error) {
		made := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, GenerateName: "event-"}}
		start := time.Now()
		if err := m.APIServer.Client.Create(ctx, made); err != nil {
			return 0, err
		}
		return time.Since(start), waitForEvent(ctx, events, made.Name)
	}, nil
}

func waitForEvent(ctx context.Context, events watch.Interface, name string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	for {
		select {
		case event, open := <-events.ResultChan():
			if !open {
				return errors.New("the watch ended")
			}
			if config, ok := event.Object.(*corev1.ConfigMap); ok && event.Type == watch.Added && config.Name == name {
				return nil
			}
		case <-ctx.Done():
			return fmt.Errorf("waiting for the event of %s: %w", name, ctx.Err())
		}
	}
}

func (w *world) watch(t *testing.T, m *member) {
	next, err := watchFor(t.Context(), m)
	must(t, err)
	for range 3 {
		delay, err := next(t.Context())
		must(t, err)
		promise.Measured("watch_ms", float64(delay.Microseconds())/1000)
	}
}

// exec sends a megabyte to cat in a Pod and compares the output. kubectl's own variable selects the protocol, and
// kubectl's log proves which one was used: WebSocket begins with GET, SPDY with POST.
func (w *world) exec(t *testing.T, m *member, webSockets string) {
	sent := make([]byte, 1<<20)
	_, _ = rand.Read(sent) // never fails
	cmd, err := w.KubectlCommand(t.Context(), m.kubeconfig, "exec", "--v=7", "--stdin", lab.Pod, "--", "cat")
	must(t, err)
	var said bytes.Buffer
	cmd.Env = append(cmd.Env, "KUBECTL_REMOTE_COMMAND_WEBSOCKETS="+webSockets)
	cmd.Stdin, cmd.Stderr = bytes.NewReader(sent), &said
	received, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, said.Bytes())
	}
	if !bytes.Equal(received, sent) {
		t.Errorf("%d bytes came back, not the %d that were sent", len(received), len(sent))
	}
	method := map[string]string{"true": `verb="GET"`, "false": `verb="POST"`}[webSockets]
	if !hasLine(said.String(), "/exec?", method) {
		t.Errorf("no line of kubectl's output has %s for exec:\n%s", method, said.String())
	}
}

// hasLine reports whether one line contains all parts.
func hasLine(text string, parts ...string) bool {
	for line := range strings.Lines(text) {
		all := true
		for _, part := range parts {
			all = all && strings.Contains(line, part)
		}
		if all {
			return true
		}
	}
	return false
}
