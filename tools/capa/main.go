// Command capa-reconcile reconciles one AWSManagedControlPlane with the code of Cluster API's AWS provider, and exits.
// It calls the code that the provider's controller calls at each reconciliation; cloud.go simulates the answers of AWS.
// A test can therefore make the provider write its kubeconfig Secret on a real apiserver without an AWS account.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/cluster-api-provider-aws/v2/api/v1beta2"
	ekscontrolplane "sigs.k8s.io/cluster-api-provider-aws/v2/controlplane/eks/api/v1beta2"
	"sigs.k8s.io/cluster-api-provider-aws/v2/pkg/cloud/scope"
	"sigs.k8s.io/cluster-api-provider-aws/v2/pkg/cloud/services/awsnode"
	"sigs.k8s.io/cluster-api-provider-aws/v2/pkg/cloud/services/eks"
	"sigs.k8s.io/cluster-api-provider-aws/v2/pkg/cloud/services/iamauth"
	"sigs.k8s.io/cluster-api-provider-aws/v2/pkg/cloud/services/kubeproxy"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "capa-reconcile:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("capa-reconcile", flag.ContinueOnError)
	config := flags.String("kubeconfig", "", "of the management cluster")
	namespace := flags.String("namespace", "default", "of the Cluster")
	name := flags.String("name", "", "of the Cluster, and of its AWSManagedControlPlane")
	endpoint := flags.String("endpoint", "", "where AWS says that the apiserver is: https://host")
	ca := flags.String("ca", "", "file with the CA's certificate that AWS shows for it, in PEM")
	inside := flags.Bool("inside", false, "also reconcile what the provider writes in the workload cluster")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *config == "" || *name == "" || *endpoint == "" || *ca == "" {
		return errors.New("-kubeconfig, -name, -endpoint and -ca are needed")
	}
	pem, err := os.ReadFile(*ca)
	if err != nil {
		return fmt.Errorf("reading -ca: %w", err)
	}
	c, err := connect(*config)
	if err != nil {
		return err
	}
	return reconcile(
		ctx, c, client.ObjectKey{Namespace: *namespace, Name: *name}, cloud{endpoint: *endpoint, ca: pem}, *inside,
	)
}

func connect(path string) (client.Client, error) {
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		return nil, fmt.Errorf("reading -kubeconfig: %w", err)
	}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		corev1.AddToScheme, clusterv1.AddToScheme, v1beta2.AddToScheme,
		ekscontrolplane.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			return nil, err
		}
	}
	c, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("connecting to the management cluster: %w", err)
	}
	return c, nil
}

// reconcile is the part of the provider's controller after its checks of network and identity.
func reconcile(ctx context.Context, c client.Client, key client.ObjectKey, aws cloud, inside bool) error {
	var cluster clusterv1.Cluster
	if err := c.Get(ctx, key, &cluster); err != nil {
		return fmt.Errorf("getting the Cluster: %w", err)
	}
	var controlPlane ekscontrolplane.AWSManagedControlPlane
	if err := c.Get(ctx, key, &controlPlane); err != nil {
		return fmt.Errorf("getting the AWSManagedControlPlane: %w", err)
	}
	s, err := scope.NewManagedControlPlaneScope(scope.ManagedControlPlaneScopeParams{
		Client: c, Cluster: &cluster, ControlPlane: &controlPlane, ControllerName: "awsmanagedcontrolplane",
	})
	if err != nil {
		return fmt.Errorf("making the provider's scope: %w", err)
	}
	service := eks.NewService(s)
	service.EKSClient, service.EC2Client = clusters{cloud: aws}, groups{}
	service.IAMService.IAMClient, service.STSClient = roles{}, tokens{}
	if err := service.ReconcileControlPlane(ctx); err != nil {
		return fmt.Errorf("reconciling: %w", err)
	}
	if inside {
		if err := reconcileInside(ctx, s); err != nil {
			return fmt.Errorf("reconciling the workload cluster: %w", err)
		}
	}
	if err := s.Close(); err != nil {
		return fmt.Errorf("writing the status: %w", err)
	}
	return nil
}

// reconcileInside is what the provider's controller does next: it checks the network plugin, and writes the roles and
// users of AWS that may use the cluster to the ConfigMap aws-auth there. It connects by the kubeconfig Secret.
func reconcileInside(ctx context.Context, s *scope.ManagedControlPlaneScope) error {
	if err := awsnode.NewService(s).ReconcileCNI(ctx); err != nil {
		return fmt.Errorf("the network plugin: %w", err)
	}
	if err := kubeproxy.NewService(s).ReconcileKubeProxy(ctx); err != nil {
		return fmt.Errorf("kube-proxy: %w", err)
	}
	authenticator := iamauth.NewService(s, iamauth.BackendTypeConfigMap, s.Client)
	authenticator.IAMClient = roles{}
	if err := authenticator.ReconcileIAMAuthenticator(ctx); err != nil {
		return fmt.Errorf("aws-iam-authenticator: %w", err)
	}
	return nil
}
