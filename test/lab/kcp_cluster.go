package lab

import (
	"context"
	"fmt"
	"os"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// fieldOwner is who applies manifests, as kubectl would.
const fieldOwner = client.FieldOwner("user")

// Apply applies manifests as kubectl apply --server-side does.
func (a *APIServer) Apply(ctx context.Context, manifests []byte) error {
	objects, err := parseObjects(manifests)
	if err != nil {
		return err
	}
	for _, object := range objects {
		if err := a.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(object), fieldOwner, client.ForceOwnership); err != nil {
			return fmt.Errorf("applying %s %s: %w", object.GetKind(), object.GetName(), err)
		}
	}
	return nil
}

// Cluster is a Cluster that somebody else has made, or will make.
func (l *Lab) Cluster(key types.NamespacedName) *Cluster {
	return &Cluster{NamespacedName: key, lab: l}
}

// Object reads an object of the Cluster's namespace.
func (c *Cluster) Object(ctx context.Context, apiVersion, kind, name string) (*unstructured.Unstructured, error) {
	object := &unstructured.Unstructured{}
	object.SetAPIVersion(apiVersion)
	object.SetKind(kind)
	return object, c.lab.Management.Client.Get(ctx, types.NamespacedName{Namespace: c.Namespace, Name: name}, object)
}

// Gone is the condition that the Cluster does not exist any more.
func (c *Cluster) Gone(ctx context.Context) error {
	_, err := c.Get(ctx)
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err == nil:
		return fmt.Errorf("the Cluster %s is still there", c)
	}
	return err
}

// Inside is a client of the workload cluster that stands in the workload network itself, and dials the endpoint.
func (c *Cluster) Inside(ctx context.Context) (client.Client, error) {
	kubeconfig, err := c.Kubeconfig(ctx)
	if err != nil {
		return nil, err
	}
	raw, err := clientcmd.Load(kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("reading the kubeconfig of %s: %w", c, err)
	}
	endpoint, err := c.lab.Cloud.endpoint(ctx, c.NamespacedName)
	if err != nil {
		return nil, err
	}
	for _, entry := range raw.Clusters {
		entry.Server, entry.ProxyURL, entry.TLSServerName = "https://"+endpoint.String(), "", ""
	}
	config, err := clientcmd.NewDefaultClientConfig(*raw, nil).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("reading the kubeconfig of %s: %w", c, err)
	}
	config.Dial, config.QPS = c.lab.Network.Workload.DialContext, -1
	return client.New(rest.CopyConfig(config), client.Options{})
}

// Clusterctl runs clusterctl as an administrator of the management cluster would; see SecondKubeconfig for that of a second one.
func (l *Lab) Clusterctl(ctx context.Context, args ...string) (string, error) {
	file, err := l.ManagementKubeconfig()
	if err != nil {
		return "", err
	}
	home := l.file("clusterctl")
	if err := os.MkdirAll(home, 0o700); err != nil {
		return "", fmt.Errorf("making a home for clusterctl: %w", err)
	}
	cmd := l.Network.Management.Command(ctx, l.parts.real("clusterctl"), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+file, "HOME="+home, "XDG_CONFIG_HOME="+home, "CLUSTERCTL_DISABLE_VERSIONCHECK=true")
	out, err := cmd.CombinedOutput()
	return string(out), err
}
