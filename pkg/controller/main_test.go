package controller

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"testing"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	metrics "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/fairlead/fairlead/internal/freeport"
	"github.com/fairlead/fairlead/internal/kubetest"
	"github.com/fairlead/fairlead/internal/traces"
	"github.com/fairlead/fairlead/pkg/controller/controllertest"
)

// management is a real kube-apiserver with the real manager, which has exactly the permissions of deploy/kubernetes.
type management struct {
	client.WithWatch // of an administrator, without cache
	xdsServer        client.Client
	xdsServerConfig  *rest.Config
}

var (
	server = kubetest.Server{CRDs: true, Prepare: startManager, End: endManagers}
	// shared is used by all tests of the package. startManager creates it.
	shared       *management
	managerEnded = make(chan error, 1)
	// The manager of a replica that does not lead ends at the same time, if a test has started one.
	managersEnd context.Context
)

func TestMain(m *testing.M) { os.Exit(kubetest.RunAll(m, &server, &alone)) }

func startManager(ctx context.Context, config *rest.Config) error {
	config.QPS = -1
	admin, err := kubetest.NewClient(config)
	if err != nil {
		return err
	}
	if err := kubetest.Deploy(
		ctx, admin, "namespace.yaml", "controller.yaml", "xds-server.yaml", "policy.yaml",
	); err != nil {
		return err
	}
	xdsServerConfig := kubetest.Impersonate(config, controllertest.XDSServerUser)
	xdsServer, err := kubetest.NewClient(xdsServerConfig)
	if err != nil {
		return err
	}
	shared = &management{admin, xdsServer, xdsServerConfig}
	log := slog.New(slog.DiscardHandler)
	if testing.Verbose() {
		log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	ctrl.SetLogger(logr.FromSlogHandler(log.Handler()))
	scheme, err := NewScheme()
	if err != nil {
		return err
	}
	own := kubetest.Impersonate(config, controllertest.ControllerUser)
	own.Wrap(traces.Transport)
	mgr, err := ctrl.NewManager(own, ctrl.Options{
		Scheme: scheme, Cache: CacheOptions(controllertest.Config()), Metrics: metrics.Options{BindAddress: "0"},
		LeaderElection: true, LeaderElectionID: "fairlead-controller",
		LeaderElectionNamespace: controllertest.Config().Namespace,
	})
	if err != nil {
		return err
	}
	if leadersWebhook, err = freeport.ChooseAddress(); err != nil {
		return err
	}
	if replicasWebhook, err = freeport.ChooseAddress(); err != nil {
		return err
	}
	webhooks, err := webhookConfiguration(replicasWebhook, "yes")
	if err == nil {
		err = admin.Create(ctx, webhooks)
	}
	if err != nil {
		return err
	}
	installed := controllertest.Config()
	installed.WebhookListen = leadersWebhook
	if err := Setup(mgr, installed, log); err != nil {
		return err
	}
	managersEnd = ctx
	go func() { managerEnded <- mgr.Start(ctx) }()
	return nil
}

func endManagers() error {
	replica.Do(func() { close(replicaEnded) })
	err := <-managerEnded
	<-replicaEnded
	return errors.Join(err, replicaErr)
}

// apiserver returns the shared management cluster, or skips the test.
func apiserver(t *testing.T) *management {
	t.Helper()
	server.Config(t)
	return shared
}
