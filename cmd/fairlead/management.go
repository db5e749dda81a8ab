package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
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

// client returns a client of the management cluster, and the namespace that is meant.
func (f *managementFlags) client() (client.WithWatch, string, error) {
	loader := f.loader()
	config, err := loader.ClientConfig()
	if err != nil {
		return nil, "", fmt.Errorf("reading kubeconfig of the management cluster: %w", err)
	}
	config.UserAgent = "fairlead"
	namespace, _, err := loader.Namespace()
	if err != nil {
		return nil, "", fmt.Errorf("reading kubeconfig of the management cluster: %w", err)
	}
	scheme := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(scheme), clusterv1.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return nil, "", fmt.Errorf("building scheme: %w", err)
	}
	c, err := client.NewWithWatch(config, client.Options{Scheme: scheme})
	if err != nil {
		return nil, "", fmt.Errorf("making client of the management cluster: %w", err)
	}
	return c, namespace, nil
}

// group is a command that only has others.
func group(use, short string, of ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{Use: use, Short: short}
	cmd.AddCommand(of...)
	return cmd
}
