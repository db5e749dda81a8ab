package cli

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
)

// managementFlags say which management cluster is meant, as kubectl's flags of the same names do.
type managementFlags struct {
	kubeconfig, context, namespace string
}

func (f *managementFlags) addTo(set *pflag.FlagSet) {
	set.StringVar(&f.kubeconfig, "kubeconfig", "", "kubeconfig of the management cluster; by default what KUBECONFIG names, else ~/.kube/config")
	set.StringVar(&f.context, "context", "", "context of the kubeconfig")
}

func (f *managementFlags) loader() clientcmd.ClientConfig {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = f.kubeconfig
	overrides := &clientcmd.ConfigOverrides{CurrentContext: f.context}
	overrides.Context.Namespace = f.namespace
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides)
}

// management is a client of a management cluster.
type management struct {
	client.WithWatch
	config    *rest.Config
	http      *http.Client
	scheme    *runtime.Scheme
	namespace string // that is meant
}

// open makes a client of the management cluster. Nothing is asked yet.
func (f *managementFlags) open() (*management, error) {
	loader := f.loader()
	config, err := loader.ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("reading kubeconfig of the management cluster: %w", err)
	}
	config.UserAgent = "fairlead"
	config.QPS = -1 // the apiserver itself shares out what it has, and says so
	namespace, _, err := loader.Namespace()
	if err != nil {
		return nil, fmt.Errorf("reading kubeconfig of the management cluster: %w", err)
	}
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), clusterv1.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return nil, fmt.Errorf("building scheme: %w", err)
	}
	transport, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("making client of the management cluster: %w", err)
	}
	c, err := client.NewWithWatch(config, client.Options{Scheme: scheme, HTTPClient: transport})
	if err != nil {
		return nil, fmt.Errorf("making client of the management cluster: %w", err)
	}
	return &management{c, config, transport, scheme, namespace}, nil
}

// client is open for commands that need no more than a client and the namespace that is meant.
func (f *managementFlags) client() (client.WithWatch, string, error) {
	m, err := f.open()
	if err != nil {
		return nil, "", err
	}
	return m, m.namespace, nil
}
