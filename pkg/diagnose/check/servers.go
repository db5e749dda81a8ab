package check

import (
	"context"
	"fmt"
	"net/url"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/diagnose/collect"
	"github.com/fairlead/fairlead/pkg/kubeconfig"
)

// checkServers checks the programs without which an existing path is not maintained: controller, webhook and
// xds-servers.
func checkServers(ctx context.Context, v *visit) finding {
	if v.cluster == nil {
		return skipped("the Cluster was not read")
	}
	if e := v.networks.egress; v.observed == nil && e != nil {
		v.observed, v.notObserved = e.observed, e.notObserved
	}
	var well, dark []string
	if down := v.controllerDown(ctx); down != "" {
		return broken(
			down,
			"the controller does not run, is frozen, or cannot reach the apiserver of the management cluster: tunnels "+
				"continue to work, but nothing is signed, renewed or repaired",
			v.startController(),
		)
	}
	if l := v.leads(ctx); l.Known {
		well = append(well, "a controller leads")
	} else {
		dark = append(dark, "it is not known whether a controller leads (the "+
			"Lease "+collect.LeaseName+" in namespace "+v.installation()+" cannot be read)")
	}
	if f := v.xdsServers(); f != nil {
		return *f
	}
	switch {
	case v.observed != nil && v.notObserved == "":
		well = append(well, fmt.Sprintf("%d xds-servers answer", len(v.observed.Servers)))
	case v.tunnel != nil && v.tunnelled():
		dark = append(dark, "xds-servers cannot be queried from here")
	}
	f, said := v.webhook(ctx)
	if f != nil {
		return *f
	}
	if said != "" {
		well = append(well, said)
	}
	if len(well) == 0 {
		return unknown(
			strings.Join(dark, "; "), "run fairlead check as a user that may read Leases in namespace "+v.installation(),
		)
	}
	return ok("%s", strings.Join(append(well, dark...), "; "))
}

// xdsServers names the xds-servers that do not answer; nil: all do, or none could be queried.
func (v *visit) xdsServers() *finding {
	if v.observed == nil || v.Servers == nil {
		return nil
	}
	cure := "kubectl -n " + v.installation() + " get pods -l app.kubernetes.io/name=xds-server, and read their logs"
	var silent []string
	for _, err := range v.observed.Silent() {
		silent = append(silent, text(err))
	}
	answering := len(v.observed.Servers) - len(silent)
	var f finding
	switch {
	case v.notObserved != "" && answering == 0:
		f = broken(
			v.notObserved, "no xds-server runs: tunnels continue to work, but no change reaches an Envoy and no edge can enrol",
			cure,
		)
	case len(silent) > 0:
		f = warning(
			strings.Join(silent, "; "),
			"that xds-server does not run, is frozen, or cannot be reached from here: the others take over", cure,
		)
	default:
		return nil
	}
	return &f
}

// webhook checks, by a dry run that changes nothing, whether the webhook rewrites a kubeconfig that is written. said is
// the detail to report if there is no fault.
func (v *visit) webhook(ctx context.Context) (f *finding, said string) {
	if v.Asks == nil || v.secret == nil || v.tunnel == nil || v.paused() || v.broken[HopKubeconfig] ||
		v.tunnel.Status.Kubeconfig.Mode == "" {
		return nil, ""
	}
	var configuration admissionregistrationv1.MutatingWebhookConfiguration
	err := v.Objects.Get(ctx, client.ObjectKey{Name: v1alpha1.WebhookConfigurationName}, &configuration)
	if apierrors.IsNotFound(err) {
		w := warning(
			"MutatingWebhookConfiguration "+v1alpha1.WebhookConfigurationName+" not found",
			"the webhook is not installed: after each write by the provider, the kubeconfig bypasses the tunnel until the "+
				"controller corrects it",
			"apply your installation again",
		)
		return &w, ""
	}
	trial := v.secret.DeepCopy()
	config, entry, err := kubeconfig.Load(trial, v.key.Name)
	if err != nil {
		return nil, ""
	}
	const elsewhere = "https://fairlead-check.invalid:6443"
	entry.Server, entry.TLSServerName, entry.ProxyURL = elsewhere, "", ""
	data, err := clientcmd.Write(*config)
	if err != nil {
		return nil, ""
	}
	trial.Data[kubeconfig.Key] = data
	if err := v.Asks.Update(ctx, trial, client.DryRunAll); err != nil {
		return nil, "" // without permission to write Secrets this is unknown
	}
	endpoint, err := kubeconfig.Read(trial, v.key.Name)
	if err == nil && endpoint.Server != elsewhere {
		return nil, "the webhook answers"
	}
	w := warning(
		"a dry run of a write to the kubeconfig was not pointed to the tunnel",
		"the webhook does not answer: the apiserver does not reach the controller's webhook port, or its certificate is "+
			"not the one in the MutatingWebhookConfiguration",
		"check that the Service fairlead-webhook in namespace "+v.installation()+" has a ready controller, and read the "+
			"log of the controller; until then the controller corrects each write a moment later",
	)
	return &w, ""
}

func hostOf(server string) string {
	u, err := url.Parse(server)
	if err != nil {
		return ""
	}
	return strings.ToLower(strings.TrimSuffix(u.Hostname(), "."))
}
