package controller

import (
	"errors"
	"fmt"
	"log/slog"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/pkg/model"
)

// NewScheme returns a scheme with every type that the controller reads or writes.
func NewScheme() (*runtime.Scheme, error) { return newScheme() }

// Setup adds all controllers to a manager whose cache was made with CacheOptions. It starts nothing.
func Setup(mgr ctrl.Manager, config Config, log *slog.Logger) error {
	if err := config.Validate(); err != nil {
		return err
	}
	figures := newFigures(mgr, config)
	if config.Metrics != nil {
		if err := config.Metrics.Register(figures); err != nil {
			return fmt.Errorf("registering figures: %w", err)
		}
	}
	p := deps{
		config: config, client: counting{mgr.GetClient(), figures}, live: mgr.GetAPIReader(),
		recorder: mgr.GetEventRecorder("fairlead.dev/controller"), log: log, now: config.clock(),
	}
	ended := newEndedTunnels(p.client, p.live, config.Namespace, p.now)
	var writer *kubeconfigs
	tunnels := newTunnels(p, ended, newRestorer(p), func(key client.ObjectKey) { writer.wake(key) })
	writer = newKubeconfigs(p, tunnels, mgr.GetConfig().Host)
	err := errors.Join(
		addIndexes(mgr),
		wrap("setting up tunnels", tunnels.setup(mgr)),
		wrap("setting up kubeconfigs", writer.setup(mgr)),
		wrap("setting up live status", setupLive(p, mgr, ended, figures)),
		wrap("setting up webhook", setupWebhook(p, mgr)),
		wrap("setting up copies", setupCopies(p, mgr)),
		wrap("setting up the comparison of informers", setupInformers(p, mgr)),
	)
	if config.NoTunnels || err != nil {
		return err
	}
	return errors.Join(
		wrap("setting up signer", newSigner(p).setup(mgr)),
		wrap("setting up installation", makeInstallation(p, ended).setup(mgr)),
	)
}

// setupLive adds the reconcilers of what edges, gateways and machines report, and the view of the xds-servers that they read.
func setupLive(p deps, mgr ctrl.Manager, ended *endedTunnels, figures *figures) error {
	changed := workqueue.NewTyped[string]()
	setup := func(view liveView) error {
		live := newLiveStatus(p, view, ended)
		figures.follow(live.waiting)
		return live.setup(mgr, changed)
	}
	switch {
	case p.config.NoTunnels:
		return setup(nil)
	case p.config.XDSServer == (model.Endpoint{}):
		p.log.Warn("no address of xds-servers is configured: the state of tunnels stays unknown")
		return setup(nil)
	}
	view := newView(p.config, p.client, p.live, p.log, changed)
	if err := mgr.Add(leading{view.Run}); err != nil {
		return fmt.Errorf("adding view of xds-servers: %w", err)
	}
	return errors.Join(setup(view), setupBoots(p, mgr, view))
}
