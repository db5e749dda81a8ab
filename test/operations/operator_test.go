package operations

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/lab/netns"
)

// install follows the document on installing, with a kustomization like the reader's, taken from there.
func (o *operations) install(ctx context.Context, l *lab.Lab) error {
	kubeconfig, err := l.ManagementKubeconfig()
	if err != nil {
		return err
	}
	if err := o.prepare(l, kubeconfig); err != nil {
		return err
	}
	out, err := o.script(ctx, l, "kubectl apply -k .")
	if err != nil {
		return fmt.Errorf("installing: %w: %s", err, out)
	}
	return nil
}

// wrapper adds the addresses of the xds-servers to commands. Outside of this test they are found by forwarding ports of
// their Pods, which need a kubelet.
const wrapper = `#!/bin/sh
case "$1" in
check|config) exec %[1]s "$@" --xds-server=%[2]s ;;
*) exec %[1]s "$@" ;;
esac
`

// prepare makes the operator's working folder, and finds the programs.
func (o *operations) prepare(l *lab.Lab, kubeconfig string) error {
	servers := lab.InspectAddress(0) + "," + lab.InspectAddress(1)
	if err := os.WriteFile(filepath.Join(o.path, "fairlead"), fmt.Appendf(nil, wrapper, newest().program("fairlead"),
		servers), 0o755); err != nil {
		return err
	}
	for _, program := range []string{"kubectl", "clusterctl"} {
		if err := os.Symlink(filepath.Join(l.Root(), "bin", program), filepath.Join(o.path, program)); err != nil {
			return err
		}
	}
	if err := os.Symlink(kubeconfig, filepath.Join(o.path, "kubeconfig")); err != nil {
		return err
	}
	return o.kustomize(o.version, map[string]string{})
}

// kustomize writes the kustomization of the document on installing, for a version of the repository, with its tag
// unless an image has another. The lab's webhook has no Service, and its gateways listen on another port.
func (o *operations) kustomize(v version, tags map[string]string) error {
	text, err := os.ReadFile("../../docs/install.md")
	if err != nil {
		return err
	}
	found := slices.DeleteFunc(blocks(string(text), "yaml"), func(block string) bool {
		return !strings.Contains(block, "kind: Kustomization\n")
	})
	if len(found) == 0 {
		return fmt.Errorf("docs/install.md has no kustomization")
	}
	var kustomization map[string]any
	if err := yaml.Unmarshal([]byte(found[0]), &kustomization); err != nil {
		return err
	}
	images, _ := kustomization["images"].([]any)
	for _, image := range images {
		fields, _ := image.(map[string]any)
		name, _ := fields["name"].(string)
		fields["newTag"] = cmp.Or(tags[name], v.tag)
	}
	patches, _ := kustomization["patches"].([]any)
	kustomization["patches"] = append(patches, map[string]any{
		"target": map[string]any{"kind": "MutatingWebhookConfiguration"},
		"patch":  `[{"op": "replace", "path": "/webhooks/0/clientConfig", "value": {"url": "https://127.0.0.1:9447/kubeconfigs"}}]`,
	}, map[string]any{
		"target": map[string]any{"kind": "StatefulSet"},
		"patch": fmt.Sprintf(
			`[{"op": "replace", "path": "/spec/template/spec/containers/0/ports/0/containerPort", "value": %d}]`,
			netns.PublicPort,
		),
	})
	data, err := yaml.Marshal(kustomization)
	if err != nil {
		return err
	}
	link := filepath.Join(o.folder, "fairlead")
	_ = os.Remove(link)
	if err := os.Symlink(v.repository, link); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(o.folder, "kustomization.yaml"), data, 0o644)
}

// commands prevents concurrent writes of the same kubeconfig.
var commands sync.Mutex

// script runs commands as an operator does, in the management network.
func (o *operations) script(ctx context.Context, l *lab.Lab, text string) (string, error) {
	commands.Lock()
	_, err := l.ManagementKubeconfig() // the management cluster may have been replaced
	commands.Unlock()
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, backIn)
	defer cancel()
	cmd := l.Network.Management.Command(ctx, "bash", "-euo", "pipefail", "-c", text)
	cmd.Dir = o.folder
	cmd.Env = []string{
		"PATH=" + o.path + ":" + os.Getenv(
			"PATH",
		), "HOME=" + o.path, "XDG_CONFIG_HOME=" + o.path, "KUBECONFIG=" + filepath.Join(o.path, "kubeconfig"),
		"KUBECACHEDIR=" + filepath.Join(o.path, "cache"), "CLUSTERCTL_DISABLE_VERSIONCHECK=true",
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("running %q: %w", text, err)
	}
	return string(out), err
}

// run runs commands that have to succeed, and returns their output.
func (o *operations) run(t *testing.T, text string) string {
	t.Helper()
	out, err := o.script(t.Context(), o.Lab, text)
	if err != nil {
		t.Fatalf("%v\n%s\nthe kubelet's last trouble: %v", err, out, o.kubelet.err())
	}
	return out
}
