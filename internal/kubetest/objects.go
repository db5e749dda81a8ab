package kubetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/eventually"
)

// Patience is how long a test waits, on a busy machine, for something that should happen soon.
const Patience = 30 * time.Second

// NewClient returns a client without a cache. Its scheme has the kinds of Kubernetes, Cluster API and Fairlead.
func NewClient(config *rest.Config) (client.WithWatch, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), clusterv1.AddToScheme(scheme), v1alpha1.AddToScheme(
		scheme)); err != nil {
		return nil, fmt.Errorf("building scheme: %w", err)
	}
	return client.NewWithWatch(config, client.Options{Scheme: scheme})
}

// Impersonate returns a copy of an administrator's config that has only the permissions of a ServiceAccount, given as
// its user name.
func Impersonate(config *rest.Config, user string) *rest.Config {
	config = rest.CopyConfig(config)
	config.Impersonate = rest.ImpersonationConfig{
		UserName: user,
		Groups:   []string{"system:serviceaccounts", "system:authenticated"},
	}
	return config
}

// Decode parses the objects of a YAML file. It skips empty documents.
func Decode(data []byte) ([]*unstructured.Unstructured, error) {
	var all []*unstructured.Unstructured
	for decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(data), 4096); ; {
		o := &unstructured.Unstructured{}
		if err := decoder.Decode(&o.Object); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, fmt.Errorf("reading objects: %w", err)
		}
		if len(o.Object) > 0 {
			all = append(all, o)
		}
	}
}

// Deploy creates the objects of files in deploy/kubernetes. Tests run with what users install, so a missing permission
// fails them.
func Deploy(ctx context.Context, admin client.Client, files ...string) error {
	folder, err := inRepository("deploy/kubernetes")
	if err != nil {
		return err
	}
	for _, file := range files {
		data, err := os.ReadFile(filepath.Join(folder, file))
		if err != nil {
			return err
		}
		objects, err := Decode(data)
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		for _, o := range objects {
			if err := admin.Create(ctx, o); err != nil {
				return fmt.Errorf("creating %s %s of %s: %w", o.GetKind(), o.GetName(), file, err)
			}
		}
	}
	return nil
}

// NewNamespace creates a namespace for one test and returns its name. It is never deleted, because there is no
// namespace controller.
func NewNamespace(t testing.TB, admin client.Client) string {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}
	if err := admin.Create(t.Context(), ns); err != nil {
		t.Fatal(err)
	}
	return ns.Name
}

// Cluster returns a Cluster that opts in and has the endpoint 192.0.2.10:6443. It does not create it.
func Cluster(namespace, name string) *clusterv1.Cluster {
	return &clusterv1.Cluster{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace,
			Name:      name,
			Labels:    map[string]string{v1alpha1.TunnelLabel: v1alpha1.TunnelEnabled},
		},
		Spec: clusterv1.ClusterSpec{ControlPlaneEndpoint: clusterv1.APIEndpoint{Host: "192.0.2.10", Port: 6443}},
	}
}

// Machine returns a Machine of a Cluster. It does not create it.
func Machine(namespace, cluster, name string) *clusterv1.Machine {
	return &clusterv1.Machine{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace,
			Name:      name,
			Labels:    map[string]string{clusterv1.ClusterNameLabel: cluster},
		},
		Spec: clusterv1.MachineSpec{
			ClusterName: cluster, Bootstrap: clusterv1.Bootstrap{DataSecretName: ptr.To(name)},
			InfrastructureRef: clusterv1.ContractVersionedObjectReference{
				APIGroup: "infrastructure.cluster.x-k8s.io",
				Kind:     "TestMachine",
				Name:     name,
			},
		},
	}
}

// Eventually repeats a check until it returns nil. It fails the test if that takes longer than Patience.
func Eventually(t testing.TB, what string, check func() error) {
	t.Helper()
	eventually.True(t, Patience, what, check)
}
