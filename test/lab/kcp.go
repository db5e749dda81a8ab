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

// Cluster returns a Cluster that the test or Cluster API creates.
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

// Gone returns nil if the Cluster does not exist.
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

// Inside returns a client of the workload cluster in the workload network, which dials the endpoint.
func (c *Cluster) Inside(ctx context.Context) (client.Client, error) {
	kubeconfig, err := c.Kubeconfig(ctx)
	if err != nil {
		return nil, err
	}
	raw, err := clientcmd.Load(kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("reading the kubeconfig of %s: %w", c, err)
	}
	endpoint, err := c.lab.Cloud.Endpoint(ctx, c.NamespacedName)
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

// Clusterctl runs clusterctl as an administrator of the management cluster. For a second management cluster see
// SecondKubeconfig.
func (l *Lab) Clusterctl(ctx context.Context, args ...string) (string, error) {
	file, err := l.ManagementKubeconfig()
	if err != nil {
		return "", err
	}
	home := l.File("clusterctl")
	if err := os.MkdirAll(home, 0o700); err != nil {
		return "", fmt.Errorf("making a home for clusterctl: %w", err)
	}
	cmd := l.Network.Management.Command(ctx, l.Parts.RealPath("clusterctl"), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+file, "HOME="+home, "XDG_CONFIG_HOME="+home,
		"CLUSTERCTL_DISABLE_VERSIONCHECK=true")
	out, err := cmd.CombinedOutput()
	return string(out), err
}
