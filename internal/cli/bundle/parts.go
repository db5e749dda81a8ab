package bundle

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/internal/cli/management"
	"github.com/fairlead/fairlead/internal/redact"
	"github.com/fairlead/fairlead/internal/version"
)

const (
	// maxNodes bounds the number of Envoys whose configuration is gathered.
	maxNodes = 30
	// maxLog bounds one log before it is redacted. The last lines are kept.
	maxLog = maxPart
)

func (b *bundle) versions(context.Context) error {
	v := map[string]any{"fairlead": version.Get(), "commit": version.Commit(), "envoy": version.Envoy}
	asker, err := discovery.NewDiscoveryClientForConfigAndClient(b.m.Config, b.m.HTTP)
	if err == nil {
		v["kubernetes"], err = asker.ServerVersion()
	}
	if err != nil {
		b.addMissing("version of the management cluster", err)
	}
	return b.addData("versions.yaml", "versions of this program and of the management cluster", v)
}

func (b *bundle) objects(ctx context.Context) error {
	for _, k := range kinds() {
		namespace, folder := b.flags.Namespace, "objects/"
		if k.own {
			namespace, folder = b.flags.Installation, "installation/"
		}
		name := folder + strings.ToLower(k.Kind) + "s.yaml"
		all, err := b.list(ctx, k, namespace)
		if err != nil {
			b.addMissing(name, err)
			continue
		}
		if len(all) == 0 {
			continue
		}
		what := fmt.Sprintf("%d of %s", len(all), k.Kind)
		if k.metadata {
			what += ", their names, labels and owners alone"
		}
		if err := b.addData(name, what, all); err != nil {
			return err
		}
	}
	return nil
}

// list reads objects page by page.
func (b *bundle) list(ctx context.Context, k kind, namespace string) (all []any, err error) {
	options := []client.ListOption{client.InNamespace(namespace), client.Limit(500)}
	next := ""
	for {
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(k.GroupVersionKind)
		var objects client.ObjectList = list
		if k.metadata {
			objects = management.MetadataList(k.GroupVersionKind)
		}
		if err := b.m.List(ctx, objects, append(options, client.Continue(next))...); err != nil {
			return nil, err
		}
		items, err := itemsOf(objects)
		if err != nil {
			return nil, err
		}
		for i := range items {
			if k.keep == nil || k.keep(&items[i]) {
				items[i].SetKind(k.Kind)
				all = append(all, items[i].Object)
			}
		}
		if next = objects.GetContinue(); next == "" {
			return all, nil
		}
	}
}

// commands adds the output of other commands.
func (b *bundle) commands(ctx context.Context) error {
	scope := []string{"-A"}
	if b.flags.Namespace != "" {
		scope = []string{"-n", b.flags.Namespace}
	}
	type said struct {
		name, what string
		args       []string
	}
	all := []said{
		{"status.txt", "output of `fairlead status`", append([]string{"status", "-o", "wide"}, scope...)},
		{"status.json", "the same for machines", append([]string{"status", "-o", "json"}, scope...)},
		{"config-sync.txt", "output of `fairlead config sync`", []string{"config", "sync", "-o", "wide"}},
		{"config-sync.json", "the same for machines", []string{"config", "sync", "-o", "json"}},
	}
	if !b.flags.noChecks {
		all = append(
			all,
			said{"check.json", "result of `fairlead check --all`", append([]string{"check", "--all", "-o", "json"}, scope...)},
		)
	} else {
		b.addMissing("check.json", "--no-checks")
	}
	for _, s := range all {
		b.progress.Update("gathering: fairlead %s …", strings.Join(s.args, " "))
		text, err := b.ask(ctx, s.args...)
		if err != nil {
			b.addMissing(s.name, err)
			continue
		}
		if err := b.addPrinted(s.name, s.what, text); err != nil {
			return err
		}
	}
	return nil
}

// addPrinted adds the output of a command. JSON and YAML are redacted as data.
func (b *bundle) addPrinted(name, what, text string) error {
	var data any
	if !strings.HasSuffix(name, ".json") || json.Unmarshal([]byte(text), &data) != nil {
		return b.addText(name, what, text)
	}
	out, err := json.MarshalIndent(redact.Value(data), "", "  ")
	if err != nil {
		return fmt.Errorf("writing %s: %w", name, err)
	}
	return b.add(name, what, append(out, '\n'))
}

// dumps adds the configuration that was sent to the Envoys, and the state of their relays, gateways first.
func (b *bundle) dumps(ctx context.Context) error {
	servers, err := b.flags.Connect(ctx, b.m)
	if err != nil {
		b.addMissing("config/ and relay/", err)
		return nil
	}
	defer servers.Close()
	nodes, err := servers.Nodes(ctx, "")
	if err != nil {
		b.addMissing("config/ and relay/", err)
	}
	names, err := b.m.NodesOf(ctx, nodes, b.flags.Namespace)
	if err != nil {
		b.addMissing("config/ and relay/ of edges", err)
	}
	if len(names) > maxNodes {
		b.addMissing("config/ and relay/", fmt.Sprintf("%d of %d nodes are left out", len(names)-maxNodes, len(names)))
		names = names[:maxNodes]
	}
	for _, name := range names {
		file := "config/" + name + ".json"
		text, err := b.ask(ctx, "config", "dump", name, "-o", "json")
		if err != nil {
			b.addMissing(file, err)
			continue
		}
		if err := b.addPrinted(file, "what was sent to its Envoy", text); err != nil {
			return err
		}
	}
	for _, name := range names {
		file := "relay/" + name + ".txt"
		b.progress.Update("gathering: relay of %s …", name)
		text, err := servers.Relay(ctx, name)
		if err != nil {
			b.addMissing(file, err)
			continue
		}
		if err := b.addText(file, "how xds-servers, its Envoy and its disk differ, from its agent", text); err != nil {
			return err
		}
	}
	return nil
}

// pods adds the logs and metrics of Fairlead's own Pods.
func (b *bundle) pods(ctx context.Context) error {
	set, err := kubernetes.NewForConfigAndClient(b.m.Config, b.m.HTTP)
	if err != nil {
		return fmt.Errorf("making client: %w", err)
	}
	var pods corev1.PodList
	if err := b.m.List(ctx, &pods, client.InNamespace(b.flags.Installation)); err != nil {
		b.addMissing("logs/ and metrics/", err)
		return nil
	}
	if len(pods.Items) == 0 {
		b.addMissing("logs/ and metrics/", "no Pod found in namespace "+b.flags.Installation)
	}
	for i := range pods.Items {
		if err := b.pod(ctx, set, &pods.Items[i]); err != nil {
			return err
		}
	}
	return nil
}

func (b *bundle) pod(ctx context.Context, set kubernetes.Interface, pod *corev1.Pod) error {
	b.progress.Update("gathering: Pod %s …", pod.Name)
	for _, c := range pod.Spec.Containers {
		for _, port := range c.Ports {
			if port.Name != "metrics" {
				continue
			}
			file := fmt.Sprintf("metrics/%s.%s.txt", pod.Name, c.Name)
			text, err := set.CoreV1().RESTClient().Get().Namespace(pod.Namespace).Resource("pods").
				Name(fmt.Sprintf("%s:%d", pod.Name, port.ContainerPort)).SubResource("proxy").Suffix("metrics").DoRaw(ctx)
			if err != nil {
				b.addMissing(file, err)
			} else if err := b.addText(file, "its metrics", string(text)); err != nil {
				return err
			}
		}
	}
	if b.flags.noLogs {
		b.addMissing("logs/"+pod.Name, "--no-logs")
		return nil
	}
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		if err := errors.Join(b.log(ctx, set, pod, c.Name, false), b.log(ctx, set, pod, c.Name, true)); err != nil {
			return err
		}
	}
	return nil
}

// log adds the end of a log. The log of a previous container is added only if there is one.
func (b *bundle) log(
	ctx context.Context, set kubernetes.Interface, pod *corev1.Pod, container string, previous bool,
) error {
	if previous &&
		!slices.ContainsFunc(
			pod.Status.ContainerStatuses,
			func(s corev1.ContainerStatus) bool { return s.Name == container && s.RestartCount > 0 },
		) {
		return nil
	}
	file, what := fmt.Sprintf("logs/%s.%s.log", pod.Name, container), "its log"
	if previous {
		file, what = fmt.Sprintf("logs/%s.%s.previous.log", pod.Name, container), "its log before it was started again"
	}
	lines := b.flags.logLines
	stream, err := set.CoreV1().
		Pods(pod.Namespace).
		GetLogs(pod.Name, &corev1.PodLogOptions{
			Container: container, Previous: previous, Timestamps: true,
			TailLines: &lines,
		}).
		Stream(ctx)
	if err != nil {
		b.addMissing(file, err)
		return nil
	}
	defer stream.Close()
	text := &end{most: maxLog}
	if _, err := io.Copy(text, stream); err != nil {
		b.addMissing(file, fmt.Errorf("its end: %w", err))
	}
	kept, cut := text.lines()
	if cut {
		b.addMissing(file, fmt.Errorf("its beginning: it has more than %d MiB", maxLog>>20))
	}
	return b.addText(file, what, string(kept))
}

// end keeps the end of what is written.
type end struct {
	most int // bytes that are kept
	data []byte
	cut  bool // the beginning is lost
}

// Write implements io.Writer.
func (e *end) Write(part []byte) (int, error) {
	e.data = append(e.data, part...)
	if len(e.data) >= 2*e.most {
		e.shorten()
	}
	return len(part), nil
}

func (e *end) shorten() {
	if over := len(e.data) - e.most; over > 0 {
		e.data, e.cut = append(e.data[:0], e.data[over:]...), true
	}
}

// lines returns the last whole lines, and whether others were lost: half of a secret may not be recognised.
func (e *end) lines() (text []byte, cut bool) {
	e.shorten()
	if !e.cut {
		return e.data, false
	}
	_, text, _ = bytes.Cut(e.data, []byte("\n"))
	return text, true
}
