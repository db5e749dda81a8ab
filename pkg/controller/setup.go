// Package controller joins the reconcilers that write everything Fairlead writes in a management cluster. Its input is
// a manager and a Config; its output is registered reconcilers: Tunnels and their names (tunnel), endpoints of
// kubeconfigs (kubeconfigs, webhook, copies), the CAs and their signatures (ca, signer), and live state (status, boot).
// It serves no Envoy and has no connection to an edge.
//
// Every reconciliation is level-based: it reads the current objects, decides once, and writes only what differs. Data
// that changes together is one write. If names, ids, tokens or counts are involved, the write has the resourceVersion
// of the object that the decision was based on, and a conflict repeats the decision. If nothing is counted and other
// writers exist, it is a server-side apply with one field owner per concern: the conditions of Clusters and Machines,
// the results of copies, and the CA bundles of the webhook.
package controller

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/pkg/controller/boot"
	"github.com/fairlead/fairlead/pkg/controller/ca"
	"github.com/fairlead/fairlead/pkg/controller/config"
	"github.com/fairlead/fairlead/pkg/controller/copies"
	"github.com/fairlead/fairlead/pkg/controller/issuers"
	"github.com/fairlead/fairlead/pkg/controller/kubeconfigs"
	"github.com/fairlead/fairlead/pkg/controller/metrics"
	"github.com/fairlead/fairlead/pkg/controller/network"
	"github.com/fairlead/fairlead/pkg/controller/objects"
	"github.com/fairlead/fairlead/pkg/controller/publicservice"
	"github.com/fairlead/fairlead/pkg/controller/reconciler"
	"github.com/fairlead/fairlead/pkg/controller/records"
	"github.com/fairlead/fairlead/pkg/controller/signer"
	"github.com/fairlead/fairlead/pkg/controller/status"
	"github.com/fairlead/fairlead/pkg/controller/tunnel"
	"github.com/fairlead/fairlead/pkg/controller/webhook"
	"github.com/fairlead/fairlead/pkg/model"
)

// Config holds the settings of the controller.
type Config = config.Config

// TunnelDNS selects how the controller decides whether clients can resolve tunnel hostnames.
type TunnelDNS = config.TunnelDNS

// The values of TunnelDNS.
const (
	TunnelDNSAuto = config.TunnelDNSAuto
	TunnelDNSYes  = config.TunnelDNSYes
	TunnelDNSNo   = config.TunnelDNSNo
)

// Alive returns an error that names each reconciliation that does not end and each stuck informer, for a liveness
// probe.
func Alive(request *http.Request) error { return reconciler.Alive(request) }

// NewScheme returns a scheme with every type that the controller reads or writes.
func NewScheme() (*runtime.Scheme, error) { return objects.NewScheme() }

// Setup adds all controllers to a manager whose cache was created with CacheOptions. It starts nothing.
func Setup(mgr ctrl.Manager, config config.Config, log *slog.Logger) error {
	if err := config.Validate(); err != nil {
		return err
	}
	figures := metrics.New(mgr, config)
	if config.Metrics != nil {
		if err := config.Metrics.Register(figures); err != nil {
			return fmt.Errorf("registering metrics: %w", err)
		}
	}
	p := reconciler.Deps{
		Config: config, Client: metrics.CountingClient{Client: mgr.GetClient(), Figures: figures}, Live: mgr.GetAPIReader(),
		Recorder: mgr.GetEventRecorder("fairlead.dev/controller"), Log: log, Now: config.Clock(),
	}
	ended := records.NewEndedTunnels(p.Client, p.Live, config.Namespace, p.Now)
	var writer *kubeconfigs.Reconciler
	var networks *network.Reconciler
	tunnels := tunnel.New(p, ended, kubeconfigs.NewRestorer(p), func(key client.ObjectKey) {
		writer.Notify(key)
		networks.Notify(key)
	})
	networks = network.New(p, tunnels)
	writer = kubeconfigs.New(p, tunnels, mgr.GetConfig().Host)
	err := errors.Join(
		reconciler.AddIndexes(mgr), objects.Wrap("setting up tunnels", tunnels.Setup(mgr)),
		objects.Wrap("setting up kubeconfigs", writer.Setup(mgr)),
		objects.Wrap("setting up networks", networks.Setup(mgr)),
		objects.Wrap("setting up live status", setupLive(p, mgr, ended, figures, func(live *status.Reconciler) {
			tunnels.Complete(writer.Initial, live.Initial)
		})),
		objects.Wrap("setting up webhook", webhook.Setup(p, mgr)), objects.Wrap("setting up copies", copies.Setup(p, mgr)),
		objects.Wrap("setting up the comparison of informers", setupInformers(p, mgr)),
	)
	if config.NoTunnels || err != nil {
		return err
	}
	return errors.Join(
		objects.Wrap("setting up public Service", setupPublicService(p, mgr)),
		objects.Wrap("setting up signer", signer.New(p).Setup(mgr)),
		objects.Wrap("setting up issuers", issuers.New(p).Setup(mgr)),
		objects.Wrap("setting up installation", ca.New(p, ended).Setup(mgr)),
	)
}

// setupPublicService adds the keeper of the Service for edges, if the installation sets its form.
func setupPublicService(p reconciler.Deps, mgr ctrl.Manager) error {
	if p.Config.PublicService == "" {
		return nil
	}
	keeper, err := publicservice.New(p)
	if err != nil {
		return err
	}
	return keeper.Setup(mgr)
}

// setupLive adds the reconcilers of what edges, gateways and machines report, and the view of the xds-servers that they
// read. It calls then with the reconciler of live state.
func setupLive(
	p reconciler.Deps, mgr ctrl.Manager, ended *records.EndedTunnels, figures *metrics.Collector,
	then func(*status.Reconciler),
) error {
	changed := workqueue.NewTyped[string]()
	setup := func(view status.View, age func() time.Duration) error {
		live := status.New(p, view, ended)
		live.Observe(status.Figures{Written: figures.StatusWritten, Cut: figures.EdgeCut})
		figures.Follow(live.Waiting, age)
		then(live)
		return live.Setup(mgr, changed)
	}
	switch {
	case p.Config.NoTunnels:
		return setup(nil, nil)
	case p.Config.XDSServer == (model.Endpoint{}):
		p.Log.Warn("no address of xds-servers is configured: state of tunnels stays unknown")
		return setup(nil, nil)
	}
	view := status.NewView(p.Config, p.Client, p.Live, p.Log, changed)
	if err := mgr.Add(reconciler.Leading{Run: view.Run}); err != nil {
		return fmt.Errorf("adding view of xds-servers: %w", err)
	}
	return errors.Join(setup(view, view.Age), boot.Setup(p, mgr, view), setupRollout(p, mgr, view))
}
