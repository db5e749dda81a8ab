// Package management connects commands to a management cluster and its xds-servers. Its input is flags, its output is
// clients. It does not know how the clients are used.
package management

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
)

// Flags select the management cluster, like kubectl's flags of the same names.
type Flags struct {
	Kubeconfig, Context, Namespace string
}

// AddTo adds --kubeconfig and --context.
func (f *Flags) AddTo(set *pflag.FlagSet) {
	set.StringVar(
		&f.Kubeconfig, "kubeconfig", "", "kubeconfig of the management cluster (default: $KUBECONFIG, or ~/.kube/config)",
	)
	set.StringVar(&f.Context, "context", "", "context of the kubeconfig")
}

// Loader returns a loader of the kubeconfig that the flags name.
func (f *Flags) Loader() clientcmd.ClientConfig {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = f.Kubeconfig
	overrides := &clientcmd.ConfigOverrides{CurrentContext: f.Context}
	overrides.Context.Namespace = f.Namespace
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides)
}

// Client is a client of a management cluster.
type Client struct {
	client.WithWatch
	Config    *rest.Config
	HTTP      *http.Client
	scheme    *runtime.Scheme
	Namespace string // the selected namespace
}

// Open returns a client of the management cluster. It sends no request yet.
func (f *Flags) Open() (*Client, error) {
	loader := f.Loader()
	config, err := loader.ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("reading kubeconfig of the management cluster: %w", err)
	}
	config.UserAgent = "fairlead"
	config.QPS = -1 // the apiserver limits clients itself, and tells them
	namespace, _, err := loader.Namespace()
	if err != nil {
		return nil, fmt.Errorf("reading kubeconfig of the management cluster: %w", err)
	}
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), clusterv1.AddToScheme(scheme), v1alpha1.AddToScheme(
		scheme)); err != nil {
		return nil, fmt.Errorf("building scheme: %w", err)
	}
	transport, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("creating client of the management cluster: %w", err)
	}
	c, err := client.NewWithWatch(config, client.Options{Scheme: scheme, HTTPClient: transport})
	if err != nil {
		return nil, fmt.Errorf("creating client of the management cluster: %w", err)
	}
	return &Client{c, config, transport, scheme, namespace}, nil
}

// Client is Open for commands that need only a client and the selected namespace.
func (f *Flags) Client() (client.WithWatch, string, error) {
	m, err := f.Open()
	if err != nil {
		return nil, "", err
	}
	return m, m.Namespace, nil
}

// MetadataList returns a list for which the apiserver sends only metadata: what is not sent cannot leak.
func MetadataList(of schema.GroupVersionKind) *metav1.PartialObjectMetadataList {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(of)
	return list
}

// ExplainMissing explains the error of a management cluster that does not have our kind.
func ExplainMissing(err error) error {
	if meta.IsNoMatchError(err) {
		return fmt.Errorf(
			"this management cluster lacks the resource Cluster or Tunnel: check that Fairlead is installed there, and check "+
				"--context: %w",
			err,
		)
	}
	return err
}

// PollInterval is the time between two polls of a command that waits.
const PollInterval = 500 * time.Millisecond
