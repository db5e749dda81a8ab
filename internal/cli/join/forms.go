package join

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/fairlead/fairlead/api/v1alpha1"
	manifests "github.com/fairlead/fairlead/deploy/edge"
)

// forms maps each form of an edge to a function that returns its command.
var forms = map[string]func(secret *corev1.Secret, image string) (string, error){
	"command":    plainCommand,
	"systemd":    systemdCommand,
	"static-pod": staticPodCommand,
	"deployment": deploymentCommand,
}

// The quotes around the marks keep the shell from expanding the text in between, and no file of ours contains a mark.
// The outer mark makes one command of all steps, so that it can be pasted as a whole and ends at the first step that
// fails.
const (
	systemdScript = `sh -eu <<'FAIRLEAD'
for program in edge-agent envoy; do
  test -x /usr/local/bin/$program || { echo "/usr/local/bin/$program not found: install it first" >&2; exit 1; }
done
%s
id fairlead >/dev/null 2>&1 || useradd --system --home-dir /var/lib/fairlead --shell /usr/sbin/nologin fairlead
install -d -m 0755 /etc/fairlead
umask 077
%s
chown fairlead /etc/fairlead/bootstrap.yaml
umask 022
%s
%s
%s
systemctl daemon-reload
systemctl enable edge-agent
systemctl reload-or-restart edge-agent
FAIRLEAD
`
	staticPodScript = `sh -eu <<'FAIRLEAD'
%s
install -d -m 0755 -o 65532 -g 65532 /var/lib/fairlead
test ! -e /var/lib/fairlead/edge || chown -R 65532:65532 /var/lib/fairlead/edge
install -d -m 0755 /etc/fairlead
umask 077
%s
chown 65532:65532 /etc/fairlead/bootstrap.yaml
umask 022
%s
mv /etc/fairlead/fairlead-edge.yaml /etc/kubernetes/manifests/fairlead-edge.yaml
FAIRLEAD
`
	deploymentScript = `kubectl apply -f - <<'FAIRLEAD'
%s---
%s---
%sFAIRLEAD
`
)

// NetworkForms maps each form of an edge of a RemoteNetwork to a function that returns its command. listen is the
// address at which machines of the network reach their apiserver; empty: none. nodes are the labels of the machines of
// the network, for a DaemonSet; nil: all machines of the Cluster.
var NetworkForms = map[string]func(
	secret *corev1.Secret, image, listen string, nodes map[string]string,
) (string, error){
	"command": func(secret *corev1.Secret, _, listen string, _ map[string]string) (string, error) {
		text, err := plainCommand(secret, "")
		if listen != "" {
			text = strings.TrimRight(text, "\n") + " --apiserver-listen=" + listen + "\n"
		}
		return text, err
	},
	"systemd": func(secret *corev1.Secret, _, listen string, _ map[string]string) (string, error) {
		if listen == "" {
			return systemdOf(secret, ""), nil
		}
		return systemdOf(secret, "--apiserver-listen="+listen), nil
	},
	"static-pod": func(secret *corev1.Secret, image, listen string, _ map[string]string) (string, error) {
		manifest, err := withImage(manifests.Endpoint(manifests.StaticPod, listen), image)
		return staticPodOf(secret, manifest), err
	},
	"daemonset": daemonSetCommand,
}

// plainCommand returns the command that the controller has stored in the Secret.
func plainCommand(secret *corev1.Secret, _ string) (string, error) {
	text := string(secret.Data[v1alpha1.BootstrapCommandKey])
	if text == "" {
		return "", fmt.Errorf(
			"the Secret %s has no key %s: check the version of the controller", secret.Name, v1alpha1.BootstrapCommandKey,
		)
	}
	return text, nil
}

func systemdCommand(secret *corev1.Secret, _ string) (string, error) {
	return systemdOf(secret, ""), nil
}

// systemdOf returns the command with flags of edge-agent. They have a file of their own, beside that of the user. An
// agent that runs is replaced, and its Envoy and the tunnels continue.
func systemdOf(secret *corev1.Secret, flags string) string {
	return fmt.Sprintf(
		systemdScript, ownTunnel(secret), bootstrapDocument(secret), document("/etc/fairlead/join.env", "JOIN_FLAGS="+flags),
		document("/etc/systemd/system/edge-agent.service", manifests.AgentUnit),
		document("/etc/systemd/system/edge-envoy.service", manifests.EnvoyUnit),
	)
}

// ownTunnel returns a step that fails on a machine with the bootstrap file of another tunnel: its edge would leave that
// tunnel when its certificate is renewed, hours later.
func ownTunnel(secret *corev1.Secret) string {
	id := ""
	for line := range strings.Lines(string(secret.Data[v1alpha1.BootstrapFileKey])) {
		if strings.HasPrefix(line, "id:") {
			id = strings.TrimSpace(line)
		}
	}
	return fmt.Sprintf(`file=/etc/fairlead/bootstrap.yaml
if grep -qs '^id:' $file && ! grep -qsxF '%s' $file; then
  echo "$file belongs to another tunnel: join both with edge-agent join, or remove it to leave that tunnel" >&2
  exit 1
fi`, id)
}

// staticPodCommand writes the manifest beside the folder that the kubelet watches and then moves it, because the
// kubelet must not read half of it.
func staticPodCommand(secret *corev1.Secret, image string) (string, error) {
	manifest, err := withImage(manifests.StaticPod, image)
	return staticPodOf(secret, manifest), err
}

func staticPodOf(secret *corev1.Secret, manifest string) string {
	return fmt.Sprintf(
		staticPodScript, ownTunnel(secret), bootstrapDocument(secret), document("/etc/fairlead/fairlead-edge.yaml", manifest),
	)
}

// daemonSets is the namespace of daemonset.yaml.
const daemonSets = "fairlead-network"

// daemonSetCommand returns the command that applies edges of a network, in a namespace that permits host networks. The
// networks of a Cluster share the namespace.
func daemonSetCommand(secret *corev1.Secret, image, listen string, nodes map[string]string) (string, error) {
	network := strings.TrimSuffix(secret.Name, v1alpha1.NetworkTunnelSuffix+v1alpha1.BootstrapSecretSuffix)
	set := manifests.DaemonSetOf(manifests.Endpoint(manifests.DaemonSet, listen), network, nodes)
	manifest, err := withImage(set, image)
	if err != nil {
		return "", err
	}
	namespace, credential, err := namespaced(
		secret, daemonSets, network, map[string]string{"pod-security.kubernetes.io/enforce": "privileged"},
	)
	return fmt.Sprintf(deploymentScript, namespace, credential, manifest), err
}

// namespaced returns the Namespace of edges, and in it the Secret <name>-bootstrap with the bootstrap file.
func namespaced(
	secret *corev1.Secret, at, name string, labels map[string]string,
) (namespace, credential []byte, err error) {
	namespace, err = yaml.Marshal(&corev1.Namespace{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"},
		ObjectMeta: metav1.ObjectMeta{Name: at, Labels: labels},
	})
	if err != nil {
		return nil, nil, fmt.Errorf("writing Namespace: %w", err)
	}
	credential, err = yaml.Marshal(&corev1.Secret{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: metav1.ObjectMeta{Namespace: at, Name: name + "-bootstrap"},
		Data:       map[string][]byte{v1alpha1.BootstrapFileKey: secret.Data[v1alpha1.BootstrapFileKey]},
	})
	if err != nil {
		return nil, nil, fmt.Errorf("writing Secret: %w", err)
	}
	return namespace, credential, nil
}

// deploymentName is the name of all objects of deployment.yaml, and of their namespace.
const deploymentName = "fairlead-edge"

func deploymentCommand(secret *corev1.Secret, image string) (string, error) {
	namespace, credential, err := namespaced(secret, deploymentName, deploymentName, nil)
	if err != nil {
		return "", err
	}
	var file struct {
		ID string `json:"id"`
	}
	if err := yaml.Unmarshal(secret.Data[v1alpha1.BootstrapFileKey], &file); err != nil || file.ID == "" {
		return "", fmt.Errorf("the bootstrap file in the Secret %s has no id", secret.Name)
	}
	if err := checkImage(image); err != nil {
		return "", err
	}
	return fmt.Sprintf(deploymentScript, namespace, credential, manifests.DeploymentOf(file.ID, image)), nil
}

func bootstrapDocument(secret *corev1.Secret) string {
	return document("/etc/fairlead/bootstrap.yaml", string(secret.Data[v1alpha1.BootstrapFileKey]))
}

// document returns a shell command that writes a file.
func document(path, text string) string {
	if !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	return "cat >" + path + " <<'EOF'\n" + text + "EOF"
}

// manifestImage is the line of the manifests that names the image.
const manifestImage = "image: fairlead-edge"

// withImage sets the image in a manifest.
func withImage(manifest, image string) (string, error) {
	return strings.ReplaceAll(manifest, manifestImage, "image: "+image), checkImage(image)
}

// checkImage returns an error for an image that would not fit into a line of YAML.
func checkImage(image string) error {
	if image == "" ||
		strings.ContainsFunc(image, func(r rune) bool { return r <= ' ' || r > '~' || r == '#' || r == '\'' || r == '"' }) {
		return fmt.Errorf("--image: %q is not an image reference", image)
	}
	return nil
}
