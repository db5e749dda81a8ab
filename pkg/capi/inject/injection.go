package inject

import (
	"fmt"
	"reflect"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/deploy/edge"
)

// The two files of an edge. kubelet reads its manifests from the directory of the first one.
const (
	ManifestPath  = "/etc/kubernetes/manifests/fairlead-edge.yaml"
	BootstrapPath = "/etc/fairlead/bootstrap.yaml"
)

// prepareCommand creates the directory of the edge and sets the owner of its file, because the edge does not run as
// root. cloud-init can only write files for users that have names, and cannot create directories.
const prepareCommand = "install -d -m 0755 -o 65532 -g 65532 /var/lib/fairlead && chown 65532:65532 " + BootstrapPath

// Paths of an injection in a KubeadmConfigSpec.
var (
	filesPath    = []string{"files"}
	commandsPath = []string{"preKubeadmCommands"}
	sansPath     = []string{"clusterConfiguration", "apiServer", "certSANs"}
)

// values are the texts that differ between control planes. Each is the text itself, or an expression of a template
// language.
type values struct{ hostname, secret, image, port string }

// manifest returns the static Pod of the edge.
func (v values) manifest() string {
	_, text, _ := strings.Cut(edge.StaticPod, "apiVersion:") // without the comment at its beginning
	return strings.NewReplacer("image: fairlead-edge\n", "image: "+v.image+"\n", "=127.0.0.1:6443", "=127.0.0.1:"+v.port).
		Replace("apiVersion:" + text)
}

// files returns the files of a machine, in the form of decoded JSON. The configuration is widely readable and does not
// contain the credential: the bootstrap provider reads it from its Secret, and waits until the Secret exists.
func (v values) files() []any {
	secret := map[string]any{"name": v.secret, "key": v1alpha1.BootstrapFileKey}
	return []any{
		map[string]any{
			"path":        BootstrapPath,
			"owner":       "root:root",
			"permissions": "0600",
			"contentFrom": map[string]any{"secret": secret},
		},
		map[string]any{"path": ManifestPath, "owner": "root:root", "permissions": "0644", "content": v.manifest()},
	}
}

// into adds everything to a KubeadmConfigSpec.
func (v values) into(config map[string]any) error {
	for _, file := range v.files() {
		if err := put(config, filesPath, file, samePath); err != nil {
			return err
		}
	}
	if err := put(config, commandsPath, prepareCommand, reflect.DeepEqual); err != nil {
		return err
	}
	return put(config, sansPath, v.hostname, reflect.DeepEqual)
}

// samePath reports whether two files have the same path on the machine.
func samePath(a, b any) bool {
	one, _ := a.(map[string]any)
	other, _ := b.(map[string]any)
	return one != nil && other != nil && one["path"] == other["path"]
}

// put replaces all items of a list that are the same as item, or appends item if there is none.
func put(config map[string]any, path []string, item any, same func(a, b any) bool) error {
	list, err := nestedList(config, path)
	if err != nil {
		return err
	}
	found := false
	for i := range list {
		if same(list[i], item) {
			list[i], found = item, true
		}
	}
	if !found {
		list = append(list, item)
	}
	if err := unstructured.SetNestedSlice(config, list, path...); err != nil {
		return fmt.Errorf("adding to %s of kubeadmConfigSpec: %w", join(path), err)
	}
	return nil
}

// nestedList returns a copy of a list, or nil if it does not exist or is null.
func nestedList(config map[string]any, path []string) ([]any, error) {
	value, found, err := unstructured.NestedFieldNoCopy(config, path...)
	if err != nil || !found || value == nil {
		return nil, wrapPath(path, err)
	}
	list, _, err := unstructured.NestedSlice(config, path...)
	return list, wrapPath(path, err)
}

// nestedNumber returns an integer in the form of any JSON decoder.
func nestedNumber(config map[string]any, path ...string) (n int64, found bool, err error) {
	value, found, err := unstructured.NestedFieldNoCopy(config, path...)
	if err != nil || !found {
		return 0, false, wrapPath(path, err)
	}
	switch number := value.(type) {
	case int64:
		return number, true, nil
	case float64:
		return int64(number), true, nil
	}
	return 0, false, nil
}

func wrapPath(path []string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s of kubeadmConfigSpec: %w", join(path), err)
}

func join(path []string) string { return strings.Join(path, ".") }
