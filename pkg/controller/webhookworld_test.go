package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	runtimeconfig "sigs.k8s.io/controller-runtime/pkg/config"
	metrics "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/yaml"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/kubetest"
	"github.com/fairlead/fairlead/pkg/controller/controllertest"
)

// webhookLabel marks the namespaces of tests for whose Secrets the webhook is called. All other tests run without it.
const webhookLabel = "test.fairlead.dev/webhook"

// The addresses of the leading manager's webhook, which is never called, and of that of another replica. startManager
// chooses them.
var leadersWebhook, replicasWebhook string

// webhookConfiguration is that of deploy/kubernetes, called at an address, for namespaces whose label has this value.
func webhookConfiguration(address, label string) (*admissionv1.MutatingWebhookConfiguration, error) {
	data, err := os.ReadFile("../../deploy/kubernetes/webhook.yaml")
	if err != nil {
		return nil, err
	}
	objects, err := kubetest.Decode(data)
	if err != nil {
		return nil, err
	}
	for _, o := range objects {
		if o.GetKind() != "MutatingWebhookConfiguration" {
			continue
		}
		out := &admissionv1.MutatingWebhookConfiguration{}
		text, err := o.MarshalJSON()
		if err == nil {
			err = yaml.UnmarshalStrict(text, out)
		}
		for i := range out.Webhooks {
			webhook := &out.Webhooks[i]
			webhook.ClientConfig = admissionv1.WebhookClientConfig{
				URL: ptr.To("https://" + address + *webhook.ClientConfig.Service.Path),
			}
			webhook.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{webhookLabel: label}}
		}
		return out, err
	}
	return nil, errors.New("no MutatingWebhookConfiguration")
}

// runReplica runs a replica that does not lead: it waits for the lease that the other manager has.
func runReplica(ctx context.Context, config *rest.Config) error {
	scheme, err := NewScheme()
	if err != nil {
		return err
	}
	installed := controllertest.Config()
	installed.WebhookListen = replicasWebhook
	mgr, err := ctrl.NewManager(kubetest.Impersonate(config, controllertest.ControllerUser), ctrl.Options{
		Scheme: scheme, Cache: CacheOptions(installed), Metrics: metrics.Options{BindAddress: "0"},
		LeaderElection: true, LeaderElectionID: "fairlead-controller", LeaderElectionNamespace: installed.Namespace,
		Controller: runtimeconfig.Controller{SkipNameValidation: ptr.To(true)},
	})
	if err != nil {
		return err
	}
	if err := Setup(mgr, installed, slog.New(slog.DiscardHandler)); err != nil {
		return err
	}
	return mgr.Start(ctx)
}

var (
	replica sync.Once
	// replicaEnded is closed when the replica has ended with replicaErr. Every test sees it, not only the first one.
	replicaEnded = make(chan struct{})
	replicaErr   error
)

// startReplica makes a replica that does not lead serve the webhook until the last test of the package has ended.
func startReplica(t *testing.T, m *management) {
	t.Helper()
	config := server.Config(t)
	replica.Do(func() {
		go func() {
			defer close(replicaEnded)
			replicaErr = runReplica(managersEnd, config)
		}()
	})
	cluster := webhookCluster(t, m, "served")
	controllertest.Eventually(t, func() error {
		select {
		case <-replicaEnded:
			t.Fatalf("the replica: %v", replicaErr)
		default:
		}
		probe := controllertest.KubeconfigSecret(t, cluster.Namespace, cluster.Name, controllertest.OriginalServer)
		if err := m.Update(t.Context(), probe, client.DryRunAll); err != nil {
			return err
		}
		if got := controllertest.EntryOf(t, probe).Server; got == controllertest.OriginalServer {
			return errors.New("the webhook does not answer yet")
		}
		return nil
	})
}

// webhookCluster creates a Cluster with a kubeconfig in its own namespace, for which the webhook is called, and waits
// until the endpoint is recorded and in the kubeconfig.
func webhookCluster(t *testing.T, m *management, name string) *clusterv1.Cluster {
	t.Helper()
	return labelledCluster(t, m, "yes", name)
}

func labelledCluster(t *testing.T, m *management, label, name string) *clusterv1.Cluster {
	t.Helper()
	cluster := kubetest.Cluster(labelledNamespace(t, m, label), name)
	secret := controllertest.KubeconfigSecret(t, cluster.Namespace, name, controllertest.OriginalServer)
	controllertest.Create(t, m, cluster, secret)
	waitReady(t, m, cluster)
	controllertest.Eventually(t, func() error {
		tunnel := controllertest.TunnelNamed(cluster)
		if err := m.Get(t.Context(), client.ObjectKeyFromObject(cluster), tunnel); err != nil {
			return err
		}
		if tunnel.Status.Kubeconfig.Mode == "" {
			return fmt.Errorf("nothing is on record for Tunnel %s", tunnel.Name)
		}
		if _, ok := controllertest.Read(t, m, secret).Annotations[v1alpha1.WrittenServerAnnotation]; !ok {
			return errors.New("the kubeconfig is not written yet")
		}
		return nil
	})
	return cluster
}

func labelledNamespace(t *testing.T, m *management, label string) string {
	t.Helper()
	ns := &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "test-", Labels: map[string]string{webhookLabel: label}},
	}
	controllertest.Create(t, m, ns)
	return ns.Name
}
